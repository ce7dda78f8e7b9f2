"""A consumer of a group: its assignment, its positions, commits, and the records it fetches."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tidegate.core.positions import KeptOffset
from tidegate.core.records import Record, Records, TopicPartition
from tidegate.errors import BrokerUnavailable
from tidegate.kafka.cluster import kept_offsets, no_topic
from tidegate.kafka.config import ClientLog, opened
from tidegate.kafka.records import as_records

__all__ = ["ConsumerTurns", "Fetched", "GroupConsumer", "PendingCommit", "RebalanceListener", "Told", "no_collection"]


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable the garbage collector while many objects are created that all stay alive.

    It would scan them repeatedly and free nothing, which takes as long as creating them. The collector is off for the
    whole process, so use this for short moments only.
    """
    if not gc.isenabled():  # other code disabled it: leave it to that code to enable it again
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_LOOK = 0.005  # seconds between two checks whether another thread has made the call
T = TypeVar("T")


class ConsumerTurns:
    """Lets other threads call the consumer between two polls.

    While the polling thread is in a callback and waits for another thread, it makes that thread's calls itself.
    Otherwise the two would deadlock: the callback waits for the thread, and the thread waits for the consumer.
    """

    def __init__(self) -> None:
        self._inside = threading.Lock()
        self._holder: int | None = None
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Keep other threads out while this thread polls or closes the consumer."""
        with self._inside:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None

    @property
    def is_mine(self) -> bool:
        """Whether this thread is the one that polls, which means it is in a callback."""
        return self._holder == threading.get_ident()

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work``, which uses the consumer, from any thread or callback; waits for the turn."""
        if self.is_mine:
            return work()
        done: Future[T] = Future()
        self._calls.append((done, work))
        while not done.done():
            if self._inside.acquire(timeout=_LOOK):
                try:
                    self.serve()
                finally:
                    self._inside.release()
        return done.result()

    def serve(self) -> None:
        """Make the calls that other threads wait for. Only the thread that holds the turn may call this."""
        while self._calls:
            try:
                done, work = self._calls.popleft()
            except IndexError:
                return
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)


class PendingCommit:
    """A commit that is sent asynchronously and then waited for.

    A synchronous commit would block polling, and during a rebalance the answer only arrives if the consumer is polled.
    A poll delivers the answer.
    """

    def __init__(self, offsets: Sequence[KafkaPartition]) -> None:
        self._offsets = list(offsets)
        self._done: Future[None] = Future()

    def send(self, commit: Callable[..., Any]) -> None:
        """Send the commit without waiting for the answer."""
        commit(offsets=self._offsets, asynchronous=True)

    def answered(self, error: Any, partitions: Sequence[KafkaPartition]) -> None:
        """Take the client's answer to a commit; it belongs to this one if it has all of its offsets."""
        reported = {(tp.topic, tp.partition, tp.offset): tp.error for tp in partitions}
        if all((tp.topic, tp.partition, tp.offset) in reported for tp in self._offsets):
            self._settle(error or next(filter(None, reported.values()), None))

    def make_now(self, commit: Callable[..., Any]) -> None:
        """Commit synchronously, unless already answered.

        For the polling thread inside a callback: an asynchronous answer could not be delivered there.
        """
        if self._done.done():
            return
        try:
            commit(offsets=self._offsets, asynchronous=False)
        except KafkaException as exception:
            self._settle(exception.args[0])
        else:
            self._settle(None)

    def wait(self) -> None:
        """Wait for the answer; raises a :class:`KafkaException` if the commit failed."""
        self._done.result()

    def _settle(self, error: Any) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(KafkaException(error))


_SECONDS = 10.0
_OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_PASSING = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._MAX_POLL_EXCEEDED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REBALANCE_IN_PROGRESS,
}


_ONE_OF_MANY = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
"""One connection failed. Others may work; if none does, the client reports that as a separate error."""

_CHUNK = 1000  # records to convert at once, so few that they fit into the processor's cache
_GROWTH = 8  # how many times as many to take as before: sizes are unknown until some were taken
_USUAL = 1024  # bytes of a record, assumed before any was seen


class RebalanceListener(Protocol):
    """Callbacks for rebalances, called while the source polls.

    None of them may raise: the client would swallow the exception and continue.
    """

    def assigned(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Handle added partitions. Returns the offsets of those that are claimed; the others stay paused until then."""

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that will go to another member: finish, commit and release them before returning."""

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Handle lost partitions: another member may have them already."""


class Told(NamedTuple):
    """A :class:`RebalanceListener` made of three functions."""

    assigned: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]]
    revoked: Callable[[list[TopicPartition]], None]
    lost: Callable[[list[TopicPartition]], None]


class ConsumerTrouble(NamedTuple):
    """A passing problem: ``what`` is unavailable (``broker`` or ``topic``), and the reason that was reported."""

    what: str
    reason: str


class Fetched(NamedTuple):
    """The result of one poll: records, log ends reached, partitions whose position is out of range, and problems."""

    records: Sequence[Record]
    ends: list[tuple[TopicPartition, int]]
    out_of_range: list[TopicPartition]
    troubles: list[ConsumerTrouble]


class GroupConsumer:
    """A consumer that reads from the offsets it is given, and never chooses a start by itself."""

    def __init__(
        self, client: Mapping[str, Any] | Consumer, rebalance: RebalanceListener, *, incremental: bool, address: str
    ) -> None:
        """``client`` is the settings of a consumer; or a consumer that the user polls, passing each message to
        :meth:`sort`. ``address`` is the cluster's name in error messages."""
        self._address = address
        self._troubles: list[KafkaError] = []
        self._met: set[str] = set()  # topics that were assigned once, so they did exist
        self._users_error_cb: Callable[[KafkaError], object] = lambda _: None
        self._consumer = client if isinstance(client, Consumer) else self._opened(client)
        self._rebalance = rebalance
        self._incremental = incremental
        self._turns = ConsumerTurns()
        self._pending: PendingCommit | None = None
        self.tells_generations = False
        self._generation: Any = None
        # The next offset of each assigned partition; None: not claimed. fetch() updates it under eager protocols only.
        self._places: dict[TopicPartition, int | None] = {}
        self._largest = _USUAL
        self._paused: set[TopicPartition] = set()
        self._halted: set[TopicPartition] = set()  # out of range: the client stopped fetching them

    def _opened(self, config: Mapping[str, Any]) -> Consumer:
        self._users_error_cb = config.get("error_cb", self._users_error_cb)
        callbacks = {"error_cb": self._on_error, "on_commit": self._on_commit}
        return opened(Consumer, {"logger": ClientLog(), **config, **callbacks}, "consumer")

    def subscribe(self, topics: list[str]) -> None:
        """Join the group for these topics or patterns; an empty list leaves the group."""
        if topics:
            tells = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_lost}
            self._consumer.subscribe(topics, **tells)
        else:
            self._consumer.unsubscribe()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions, without joining the group."""
        self._met.update(tp.topic for tp in partitions)
        starts = self._rebalance.assigned(list(partitions))
        self._places = {tp: starts.get(tp) for tp in partitions}
        self._consumer.assign([_at(tp, offset) for tp, offset in self._places.items()])
        self.pause([tp for tp in partitions if tp not in starts])

    def fetch(self, most: int, timeout: float, room: int | None = None) -> Fetched:
        """Wait up to ``timeout`` seconds for a record, then take the others that have arrived.

        Takes at most ``most`` records, and not many more than fit into ``room`` bytes.
        """
        with self._turns.taken():
            return self._fetch(most, timeout, room)

    def _fetch(self, most: int, timeout: float, room: int | None) -> Fetched:
        fetched = Fetched([], [], [], [])
        first = self._consumer.poll(timeout)
        self._look_at_the_group()
        if first is not None:
            with no_collection():
                fetched = fetched._replace(records=Records.joined(self._taken([first], most, room, fetched)))
        self._sort_troubles(fetched)
        if not self._incremental:
            self._places.update((run.source, run.end) for run in Records.of(fetched.records).runs)
        return fetched

    def _taken(self, taken: list[Message], most: int, room: int | None, fetched: Fetched) -> Iterator[Records]:
        """Take all available messages within the limits, beginning with those already taken."""
        while taken:
            for start in range(0, len(taken), _CHUNK):
                records = self._sort(taken[start : start + _CHUNK], fetched)
                if room is not None and records:
                    room -= sum(records.sizes)
                    self._largest = max(self._largest, *records.sizes)
                yield records
            most -= len(taken)
            # Few calls: after each, this thread waits until another one, such as that of a handler, lets it go on.
            wanted = min(most, max(_CHUNK, _GROWTH * len(taken)))
            if room is not None:  # assumes that each record is as large as the largest so far
                wanted = min(wanted, room // self._largest)
            # consume() always waits for its whole timeout; with 0 it takes what is available.
            taken = self._consumer.consume(wanted, 0) if wanted > 0 else []

    def sort(self, message: Message) -> Fetched:
        """Classify a message that the user polled. If its record is used, call :meth:`passed` with it."""
        fetched = Fetched([], [], [], [])
        return fetched._replace(records=self._sort([message], fetched))

    def passed(self, record: Record) -> None:
        """Note that a record was used: its partition continues at the next offset."""
        self._places[record.source] = record.offset + 1

    def cluster_id(self) -> str | None:
        """Return the id of the consumer's cluster; ``None`` if it does not answer.

        Do not call this in callbacks: the client aborts the process if another callback follows in the same poll.
        """
        try:
            found = self._consumer.cluster_id(timeout=_SECONDS)
        except KafkaException:
            return None
        return None if found is None else str(found)

    def has_delivered(self, partition: TopicPartition) -> bool:
        """Return whether a record of the partition was polled since its last assignment or seek.

        If not, a record of it at hand is from before the seek.
        """
        try:
            (found,) = self._consumer.position([KafkaPartition(*partition)])
        except KafkaException:
            return False
        return bool(found.offset >= 0)

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        """Continue reading at ``offset``; returns whether that was possible.

        Right after an assignment, the client refuses seeks for a moment.
        """
        if partition not in self._places:
            return False
        try:
            if partition in self._halted:
                self._wake(partition, offset)
            else:
                self._consumer.seek(_at(partition, offset))
        except KafkaException as error:
            # The client may have stopped fetching without reporting it: before the pause of a partition that is not
            # claimed took effect, it may have asked for offset 0, which its log does not reach back to.
            if error.args[0].code() == KafkaError._STATE and self._places[partition] is None:
                self._halted.add(partition)
            return False
        self._places[partition] = offset
        return True

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching from these partitions; those that are no longer assigned are ignored."""
        held = list(partitions)
        self._paused.update(held)
        self._for_each(self._consumer.pause, held)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch from these partitions again."""
        freed = list(partitions)
        self._paused.difference_update(freed)
        self._for_each(self._consumer.resume, freed)

    def mirror(self, positions: Mapping[TopicPartition, int]) -> None:
        """Copy positions to Kafka's group offsets, for tools that look there. Best effort: they are never read back."""
        try:
            self._consumer.commit(offsets=[_at(tp, offset) for tp, offset in positions.items()], asynchronous=True)
        except KafkaException:
            return

    def commit(self, positions: Mapping[TopicPartition, KeptOffset], *, asynchronous: bool = False) -> None:
        """Commit positions to Kafka's group offsets, from any thread."""
        offsets = [KafkaPartition(*tp, kept.offset, kept.note) for tp, kept in positions.items()]
        try:
            if asynchronous or self._turns.is_mine:
                self._turns.call(lambda: self._consumer.commit(offsets=offsets, asynchronous=asynchronous))
            else:
                pending = self._pending = PendingCommit(offsets)
                self._turns.call(lambda: pending.send(self._consumer.commit))
                pending.wait()
        except KafkaException as error:
            raise BrokerUnavailable(f"{self._address} did not accept the offsets: {_reason(error)}") from error

    def end(self, partition: TopicPartition) -> int | None:
        """Return the end of a partition's log as of the last fetch; ``None`` if it is not known."""
        try:
            offsets = self._consumer.get_watermark_offsets(KafkaPartition(*partition), cached=True)
        except KafkaException:
            return None
        return None if offsets is None or offsets[1] < 0 else int(offsets[1])

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        """Return the positions that the group has committed to Kafka; partitions without one are left out."""
        try:
            wanted = [KafkaPartition(*tp) for tp in partitions]
            found = self._turns.call(lambda: self._consumer.committed(wanted, timeout=_SECONDS))
        except KafkaException as error:
            raise BrokerUnavailable(f"{self._address} did not say where the group is: {_reason(error)}") from error
        return kept_offsets(found)

    def group_metadata(self, partitions: Iterable[TopicPartition]) -> Any | None:
        """Return the group metadata, with the generation, that a Kafka transaction has to name.

        Returns ``None`` if one of the partitions is no longer assigned, or if :attr:`tells_generations` was not set
        before they were assigned. Any thread may call this: a lost partition leaves ``_places`` before this consumer
        can join a new generation.
        """
        metadata = self._generation
        return metadata if all(tp in self._places for tp in partitions) else None

    def close(self) -> None:
        """Leave the group."""
        with self._turns.taken():
            self._consumer.close()

    def serve(self) -> None:
        """Make the calls that other threads wait for. The polling thread calls this while it waits for one of them."""
        self._turns.serve()
        if self._pending is not None:
            self._pending.make_now(self._consumer.commit)

    def _look_at_the_group(self) -> None:
        """Remember the generation for other threads: the client blocks them while this one polls."""
        if self.tells_generations:
            self._generation = self._consumer.consumer_group_metadata()

    def _on_commit(self, error: KafkaError | None, partitions: list[KafkaPartition]) -> None:
        """Handle the answer to a commit; the client calls this during a poll."""
        if self._pending is not None:
            self._pending.answered(error, partitions)

    def _on_error(self, error: KafkaError) -> None:
        """Handle an error that belongs to no partition; the client calls this during a poll."""
        self._troubles.append(error)
        self._users_error_cb(error)

    def _sort_troubles(self, fetched: Fetched) -> None:
        troubles, self._troubles = self._troubles, []
        for error in troubles:
            if error.fatal():
                raise BrokerUnavailable(f"the consumer of {self._address} cannot go on: {error.str()}")
            if error.code() not in _ONE_OF_MANY:
                fetched.troubles.append(self._trouble(error))

    def _sort(self, messages: list[Message], fetched: Fetched) -> Records:
        """Return the records of messages; what the others are about goes into ``fetched``."""
        if not any(map(Message.error, messages)):
            return as_records(messages)
        for message in messages:
            if (error := message.error()) is not None:
                self._sort_out(message, error, fetched)
        return as_records([message for message in messages if message.error() is None])

    def _sort_out(self, message: Message, error: KafkaError, fetched: Fetched) -> None:
        code, topic, number = error.code(), message.topic(), message.partition()
        if code == KafkaError._PARTITION_EOF:
            fetched.ends.append((TopicPartition(topic, number), message.offset()))
        elif code in _OUT_OF_RANGE and topic is not None:
            refused = TopicPartition(topic, number)
            self._halted.add(refused)
            fetched.out_of_range.append(refused)
        elif error.fatal() or not (code in _PASSING or error.retriable()):
            where = "" if topic is None else f" with {TopicPartition(topic, number)}"
            raise BrokerUnavailable(f"the consumer of {self._address} cannot go on{where}: {error.str()}")
        else:
            fetched.troubles.append(self._trouble(error, topic))

    def _trouble(self, error: KafkaError, topic: str | None = None) -> ConsumerTrouble:
        if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            return ConsumerTrouble("broker", f"{self._address}: {error.str()}")
        if topic is None:
            return ConsumerTrouble("topic", error.str())
        if topic in self._met:
            return ConsumerTrouble("topic", f"topic {topic!r} no longer exists: was it deleted?")
        return ConsumerTrouble("topic", no_topic([topic]))

    def _on_assign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        added = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        self._look_at_the_group()
        self._met.update(tp.topic for tp in added)
        starts = self._rebalance.assigned(added)
        # Assign once, with offsets: without them, or with a seek in here, the client would choose the start itself.
        places = [_at(tp, starts.get(tp)) for tp in added]
        if self._incremental:
            self._consumer.incremental_assign(places)
        else:
            self._consumer.assign(places)
        self._places.update((tp, starts.get(tp)) for tp in added)
        self.pause([tp for tp in added if tp not in starts])
        self.resume(starts)  # a pause can outlive the assignment in which it was made

    def _on_revoke(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._rebalance.revoked([TopicPartition(tp.topic, tp.partition) for tp in partitions])
        self._unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._rebalance.lost([TopicPartition(tp.topic, tp.partition) for tp in partitions])
        self._unassign(partitions)

    def _wake(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition again that the client stopped fetching: it refuses a seek, so assign it anew."""
        if self._incremental:
            self._consumer.incremental_unassign([_at(partition, offset)])
            self._consumer.incremental_assign([_at(partition, offset)])
        else:
            places = {**self._places, partition: offset}
            self._consumer.assign([_at(tp, place) for tp, place in places.items()])
        self._halted.discard(partition)
        self.pause(self._paused & self._places.keys())  # assigning again can undo pauses

    def _unassign(self, partitions: list[KafkaPartition]) -> None:
        for tp in [TopicPartition(tp.topic, tp.partition) for tp in partitions]:
            self._places.pop(tp, None)
            self._paused.discard(tp)
            self._halted.discard(tp)
        if self._incremental:
            self._consumer.incremental_unassign(partitions)
        else:
            self._consumer.unassign()

    @staticmethod
    def _for_each(act: Callable[[list[KafkaPartition]], None], partitions: Iterable[TopicPartition]) -> None:
        wanted = [KafkaPartition(tp.topic, tp.partition) for tp in partitions]
        if wanted:
            try:
                act(wanted)
            except KafkaException:
                return  # no longer assigned


def _at(partition: TopicPartition, offset: int | None) -> KafkaPartition:
    """Return the partition at an offset; one that is not claimed, and stays paused, at 0.

    A logical offset, such as the end of the log, would be looked up at the broker, and the answer to that look-up
    overrides a seek made in the meantime: the records between the two would be skipped.
    """
    return KafkaPartition(partition.topic, partition.partition, 0 if offset is None else offset)


def _reason(error: BaseException) -> str:
    return str(error.args[0].str()) if isinstance(error, KafkaException) else str(error)
