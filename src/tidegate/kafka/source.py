"""A source of records: one consumer, its assignment, and where it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tidegate.core.errors import BrokerUnavailable
from tidegate.core.records import Record, TopicPartition
from tidegate.kafka.client import open_client
from tidegate.kafka.config import address_of
from tidegate.kafka.garbage import no_collection
from tidegate.kafka.log import ClientLog
from tidegate.kafka.pending_commit import PendingCommit
from tidegate.kafka.records import as_records
from tidegate.kafka.turns import Turns

__all__ = ["Fetched", "Rebalance", "Source"]

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
    KafkaError.NOT_COORDINATOR,
    KafkaError.REBALANCE_IN_PROGRESS,
}


_ONE_OF_MANY = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
"""One connection failed: others may do, and if none does, the client says that too."""

_AT_ONCE = 1000  # records, of which nobody knows yet how large they are
_USUAL = 1024  # bytes of a record


class Rebalance(Protocol):
    """What a source tells while it polls. None of these may raise: the client would go on as if nothing were amiss."""

    def assigned(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Partitions were added. Returns where to read those that are claimed; the others wait until they are."""

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Partitions are about to go to another member: finish, commit and release before returning."""

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Partitions belong to another member already."""


class Trouble(NamedTuple):
    """What is not there at present, ``broker`` or ``topic``, and how that shows."""

    what: str
    reason: str


class Fetched(NamedTuple):
    """What one poll brought: records, the ends of logs that were reached, and positions that the log refused."""

    records: list[Record]
    ends: list[tuple[TopicPartition, int]]
    out_of_range: list[TopicPartition]
    troubles: list[Trouble]


class Source:
    """A consumer that reads where it is told, and never decides by itself where to begin."""

    def __init__(self, config: Mapping[str, Any], rebalance: Rebalance, *, incremental: bool) -> None:
        self._address = address_of(config)
        self._troubles: list[KafkaError] = []
        self._met: set[str] = set()  # topics that there were, as an assignment has shown
        self._users_error_cb: Callable[[KafkaError], object] = config.get("error_cb", lambda _: None)
        hooks = {"error_cb": self._on_error, "on_commit": self._on_commit}
        self._consumer = open_client(Consumer, {"logger": ClientLog(), **config, **hooks}, "consumer")
        self._rebalance = rebalance
        self._incremental = incremental
        self._turns = Turns()
        self._pending: PendingCommit | None = None
        self.tells_generations = False
        self._generation: Any = None
        self._places: dict[TopicPartition, int | None] = {}  # where each is read; kept up under eager protocols only
        self._largest = _USUAL
        self._paused: set[TopicPartition] = set()
        self._halted: set[TopicPartition] = set()  # the log refused their position, and the client gave them up

    def subscribe(self, topics: list[str]) -> None:
        """Join the group, for topics or patterns."""
        self._consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read partitions without a group's assignment."""
        self._met.update(tp.topic for tp in partitions)
        starts = self._rebalance.assigned(list(partitions))
        self._places = {tp: starts.get(tp) for tp in partitions}
        self._consumer.assign([_at(tp, offset) for tp, offset in self._places.items()])
        self.pause([tp for tp in partitions if tp not in starts])

    def fetch(self, most: int, timeout: float, room: int | None = None) -> Fetched:
        """Wait for a record up to ``timeout`` seconds, and take what else is there: at most ``most``, and not many
        more than fit into ``room`` bytes."""
        with self._turns.taken():
            return self._fetch(most, timeout, room)

    def _fetch(self, most: int, timeout: float, room: int | None) -> Fetched:
        fetched = Fetched([], [], [], [])
        first = self._consumer.poll(timeout)
        self._look_at_the_group()
        if first is not None:
            with no_collection():
                self._take([first], most, room, fetched)
        self._sort_troubles(fetched)
        if not self._incremental:
            self._places.update((record.source, record.offset + 1) for record in fetched.records)
        return fetched

    def _take(self, taken: list[Message], most: int, room: int | None, fetched: Fetched) -> None:
        """Take what is there, beginning with what was taken already."""
        while taken:
            self._sort(taken, fetched)
            most -= len(taken)
            wanted = most
            if room is not None:  # by the values, which is most of it, and as if all were as large as the largest yet
                sizes = list(map(len, taken))
                room -= sum(sizes)
                self._largest = max(self._largest, *sizes)
                wanted = min(most, _AT_ONCE, room // self._largest)
            # consume() would wait for the whole of its time-out: without one, it takes what is there.
            taken = self._consumer.consume(wanted, 0) if wanted > 0 else []

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        """Go on reading there; whether that was possible: it is not, for a moment, right after an assignment."""
        if partition not in self._places:
            return False
        try:
            if partition in self._halted:
                self._wake(partition, offset)
            else:
                self._consumer.seek(_at(partition, offset))
        except KafkaException:
            return False
        self._places[partition] = offset
        return True

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch nothing from these. Those that are not assigned any more are left out."""
        held = list(partitions)
        self._paused.update(held)
        self._for_each(self._consumer.pause, held)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch from these again."""
        freed = list(partitions)
        self._paused.difference_update(freed)
        self._for_each(self._consumer.resume, freed)

    def mirror(self, positions: Mapping[TopicPartition, int]) -> None:
        """Tell Kafka where the group is, for those who look there. Best effort: it is never read back."""
        try:
            self._consumer.commit(offsets=[_at(tp, offset) for tp, offset in positions.items()], asynchronous=True)
        except KafkaException:
            return

    def commit(self, positions: Mapping[TopicPartition, int], *, asynchronous: bool = False) -> None:
        """Keep positions in Kafka; asked from any thread."""
        offsets = [_at(tp, offset) for tp, offset in positions.items()]
        try:
            if asynchronous or self._turns.is_mine:
                self._turns.call(lambda: self._consumer.commit(offsets=offsets, asynchronous=asynchronous))
            else:
                pending = self._pending = PendingCommit(offsets)
                self._turns.call(lambda: pending.send(self._consumer.commit))
                pending.wait()
        except KafkaException as error:
            raise BrokerUnavailable(f"{self._address} did not take the offsets: {_reason(error)}") from error

    def end(self, partition: TopicPartition) -> int | None:
        """Where the log of a partition ends, as far as the last fetch told."""
        try:
            offsets = self._consumer.get_watermark_offsets(KafkaPartition(*partition), cached=True)
        except KafkaException:
            return None
        return None if offsets is None or offsets[1] < 0 else int(offsets[1])

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The positions that are kept in Kafka, of those partitions that have one."""
        try:
            wanted = [KafkaPartition(*tp) for tp in partitions]
            found = self._turns.call(lambda: self._consumer.committed(wanted, timeout=_SECONDS))
        except KafkaException as error:
            raise BrokerUnavailable(f"{self._address} did not say where the group is: {_reason(error)}") from error
        return {TopicPartition(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    def group_metadata(self, partitions: Iterable[TopicPartition]) -> Any | None:
        """The generation of the group that a Kafka transaction has to name; ``None`` if one of the partitions is not
        assigned any more, or if :attr:`tells_generations` was not set before they were.

        To be asked from any thread: a partition leaves ``_places`` before its loser can join again.
        """
        metadata = self._generation
        return metadata if all(tp in self._places for tp in partitions) else None

    def close(self) -> None:
        """Leave the group."""
        with self._turns.taken():
            self._consumer.close()

    def serve(self) -> None:
        """Do what other threads ask of the consumer: for the polling thread, while it waits for one of them."""
        self._turns.serve()
        if self._pending is not None:
            self._pending.make_now(self._consumer.commit)

    def _look_at_the_group(self) -> None:
        """Keep the generation for those who ask: the client lets no other thread in while one of them polls."""
        if self.tells_generations:
            self._generation = self._consumer.consumer_group_metadata()

    def _on_commit(self, error: KafkaError | None, partitions: list[KafkaPartition]) -> None:
        """How a commit ended; it comes while polling."""
        if self._pending is not None:
            self._pending.answered(error, partitions)

    def _on_error(self, error: KafkaError) -> None:
        """What the client tells of no partition in particular; it comes while polling."""
        self._troubles.append(error)
        self._users_error_cb(error)

    def _sort_troubles(self, fetched: Fetched) -> None:
        troubles, self._troubles = self._troubles, []
        for error in troubles:
            if error.fatal():
                raise BrokerUnavailable(f"the consumer of {self._address} cannot go on: {error.str()}")
            if error.code() not in _ONE_OF_MANY:
                fetched.troubles.append(self._trouble(error))

    def _sort(self, messages: list[Message], fetched: Fetched) -> None:
        good = [message for message in messages if message.error() is None]
        fetched.records.extend(as_records(good))
        if len(good) < len(messages):
            for message in messages:
                if (error := message.error()) is not None:
                    self._sort_out(message, error, fetched)

    def _sort_out(self, message: Message, error: KafkaError, fetched: Fetched) -> None:
        code, topic, number = error.code(), message.topic(), message.partition()
        if code == KafkaError._PARTITION_EOF:
            fetched.ends.append((TopicPartition(topic, number), message.offset()))
        elif code in _OUT_OF_RANGE and topic is not None:
            refused = TopicPartition(topic, number)
            self._halted.add(refused)
            fetched.out_of_range.append(refused)
        elif error.fatal() or not (code in _PASSING or error.retriable()):
            raise BrokerUnavailable(f"the consumer of {self._address} cannot go on: {error.str()}")
        else:
            fetched.troubles.append(self._trouble(error, topic))

    def _trouble(self, error: KafkaError, topic: str | None = None) -> Trouble:
        if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            return Trouble("broker", f"{self._address}: {error.str()}")
        if topic is None:
            return Trouble("topic", error.str())
        if topic in self._met:
            return Trouble("topic", f"topic {topic!r} is not there any more: was it deleted?")
        return Trouble("topic", f"there is no topic {topic!r}: create it, or check its name")

    def _on_assign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        added = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        self._look_at_the_group()
        self._met.update(tp.topic for tp in added)
        starts = self._rebalance.assigned(added)
        # Once, with offsets: an assignment without them, or a seek in here, would let the client begin where it likes.
        places = [_at(tp, starts.get(tp)) for tp in added]
        if self._incremental:
            self._consumer.incremental_assign(places)
        else:
            self._consumer.assign(places)
        self._places.update((tp, starts.get(tp)) for tp in added)
        self.pause([tp for tp in added if tp not in starts])
        self.resume(starts)  # a pause outlives the assignment that it was made in

    def _on_revoke(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._rebalance.revoked([TopicPartition(tp.topic, tp.partition) for tp in partitions])
        self._unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._rebalance.lost([TopicPartition(tp.topic, tp.partition) for tp in partitions])
        self._unassign(partitions)

    def _wake(self, partition: TopicPartition, offset: int) -> None:
        """Read on in a partition that the client has given up: that takes an assignment, a seek is refused."""
        if self._incremental:
            self._consumer.incremental_unassign([_at(partition, offset)])
            self._consumer.incremental_assign([_at(partition, offset)])
        else:
            places = {**self._places, partition: offset}
            self._consumer.assign([_at(tp, place) for tp, place in places.items()])
        self._halted.discard(partition)
        self.pause(self._paused & self._places.keys())  # an assignment forgets what was paused

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
                return  # not assigned any more


def _at(partition: TopicPartition, offset: int | None) -> KafkaPartition:
    return KafkaPartition(partition.topic, partition.partition, OFFSET_END if offset is None else offset)


def _reason(error: BaseException) -> str:
    return str(error.args[0].str()) if isinstance(error, KafkaException) else str(error)
