"""Bring your own loop: keeps the positions of a consumer that the user polls in a ledger."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Message

from tidegate.core.arguments import ClientConfig, argument
from tidegate.core.assignment import (
    Assignment,
    Claiming,
    ClaimPartitions,
    Command,
    DropBuffers,
    PausePartitions,
    Reading,
    ReclaimPartitions,
    ReleaseClaims,
    ResumePartitions,
    SeekTo,
)
from tidegate.core.policies import (
    Lose,
    OutOfRange,
    Recreated,
    SessionTimeout,
    Start,
    StartStrategy,
    Stop,
    Strategy,
    out_of_range,
)
from tidegate.core.records import Record, TopicPartition, check_topic
from tidegate.core.work import Claim, Move, Span
from tidegate.errors import (
    AlreadyDone,
    BrokerUnavailable,
    CommitRefused,
    ConfigurationError,
    Fenced,
    HeldTooLong,
    LedgerBusy,
    LedgerError,
    LedgerUnavailable,
    ListenerStopped,
    NotCommitted,
    PositionMissing,
    WritesRefused,
)
from tidegate.kafka.broker import KafkaBroker, Membership
from tidegate.kafka.claims import Claimer, Lookout
from tidegate.kafka.config import address_of, check_own_consumer, milliseconds
from tidegate.kafka.consumer import GroupConsumer, Told
from tidegate.ledger import Ledger
from tidegate.ledger.transaction import Conflict
from tidegate.ledger.upkeep import Upkeep
from tidegate.observe.events import (
    Claimed,
    Committed,
    Conflicted,
    FencedOff,
    Observer,
    Observers,
    ObserversArgument,
    Outages,
    Paused,
    Rebalanced,
    Skipped,
)
from tidegate.observe.log import LoggingObserver

__all__ = ["OwnLoop"]

_AWAY = (LedgerUnavailable, LedgerBusy, NotCommitted, BrokerUnavailable)
_LOOK = 1.0  # seconds between two looks at the rows and the topics, while no records arrive
_VERIFIED = 0.25  # seconds at most between two looks while records arrive
_CLOSE = 15.0
_FIRST_UPKEEP = (5.0, 20.0)  # seconds until the first upkeep, at random: not while a whole group starts
_LONGEST_PAUSE = 5.0  # seconds between two attempts at a write that the ledger refuses


class OwnLoop:
    """Keeps the positions of a consumer in a ledger, while the user polls the consumer.

    Creating one subscribes the consumer. Partitions are claimed when they are assigned, read from their positions in
    the ledger, and released when they are revoked. The user passes every message to :meth:`accept` and makes every
    write in :meth:`transaction`, both on the polling thread.

    ``kafka`` must be the same mapping that the consumer was created with: it is needed because a consumer reveals
    neither its settings nor the incarnation of a topic that it reads. It must contain ``group.id``,
    ``enable.auto.commit=False`` and ``auto.offset.reset="error"``. ``start``, ``out_of_range`` and ``recreated`` work
    as for a listener. ``session_timeout`` is the number of seconds after which a partition is taken back from an owner
    that claimed it late; the default is the consumer's session timeout. ``observers`` get the same events as a
    listener's; by default, events are logged.
    """

    def __init__(
        self,
        consumer: Consumer,
        ledger: Ledger[Any],
        topics: str | Sequence[str],
        *,
        kafka: Mapping[str, Any],
        start: StartStrategy | Start = StartStrategy(),  # noqa: B008 - a frozen value
        out_of_range: OutOfRange = OutOfRange.STOP,
        recreated: Recreated = Recreated.STOP,
        session_timeout: float | None = None,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        consumer = argument("consumer", Consumer, consumer)
        self._ledger: Ledger[Any] = argument("ledger", Ledger, ledger)
        kafka = argument("kafka", ClientConfig, kafka)
        check_own_consumer(kafka)
        membership = Membership.of(kafka)
        wait = argument("session_timeout", SessionTimeout | None, session_timeout) or membership.session_timeout
        self.group = membership.group
        self._out_of_range = argument("out_of_range", OutOfRange, out_of_range)
        self._admin = KafkaBroker().cluster(kafka)
        self._claimer = Claimer(
            self.group,
            ledger,
            self._admin,
            start=argument("start", Strategy, start),
            recreated=argument("recreated", Recreated, recreated),
        )
        self._lookout = Lookout(self.group, ledger, self._admin)
        self._upkeep = Upkeep(ledger, self.group, random.uniform(*_FIRST_UPKEEP))  # noqa: S311 - jitter
        chosen = argument("observers", ObserversArgument | None, observers)
        self._tell = Observers([LoggingObserver()] if chosen is None else chosen)
        self._outages = Outages(self.group, self._tell)
        self._assignment = Assignment(wait, random.Random())  # noqa: S311 - jitter
        self._cluster_id: str | None = None
        self._look_at = self._verify_at = 0.0
        # After a topic was recreated, the client waits for fetch.error.backoff.ms before it reads on, and reports
        # nothing. A look at least twice in that time finds the new topic before one of its records is handed out.
        self._grace = min(_VERIFIED, milliseconds(kafka, "fetch.error.backoff.ms", 500) / 2000)
        self._refusals = 0  # consecutive times that the ledger refused writes
        self._has_looked = False  # whether the last look succeeded: no record is handed out unless it did
        self._handed: dict[TopicPartition, list[int]] = {}  # offsets, accepted and not committed
        self._seeks: dict[TopicPartition, int] = {}  # pending seeks: records of these partitions are dropped until then
        self._unproved: set[TopicPartition] = set()  # after a seek: the next record may still be from before it
        self._ends: dict[TopicPartition, int] = {}  # log ends reached, if the consumer reports them
        self._refused: set[TopicPartition] = set()  # their position is out of the log's range
        self._in_block = False
        self._unreleased: dict[TopicPartition, Claim] = {}
        self._error: Exception | None = None
        rebalance = Told(self._on_assigned, self._on_revoked, self._on_lost)
        is_incremental = membership.protocol.is_incremental
        self._source = GroupConsumer(consumer, rebalance, incremental=is_incremental, address=address_of(kafka))
        self._source.subscribe(_topics(topics))

    # Public methods

    def accept(self, message: Message | None) -> Record | None:
        """Return the record of a message if it may be used; otherwise ``None``.

        It may be used if its partition is claimed, the group is not paused, and it was not fetched before a seek. Call
        this with every result of ``poll()``, also ``None``, and with every message of ``consume()``, in order. This
        also reads the group's rows, about every second and more often while records arrive, and retries failed claims
        and seeks. While the database or a broker is unavailable, it returns ``None``. It raises errors that waiting
        cannot fix, with which a listener would stop.
        """
        self._raise_what_failed()
        record = self._sorted(message) if message is not None else None
        if not self._in_block and time.monotonic() >= (self._look_at if record is None else self._verify_at):
            self._look()
        is_usable = record is not None and self._may_use(record)
        self._settle()
        self._raise_what_failed()
        if record is None or not is_usable:
            return None
        self._handed[record.source].append(record.offset)
        self._source.passed(record)
        return record

    @contextmanager
    def transaction(self, *records: Record) -> Iterator[Any]:
        """Run a block in a ledger transaction that advances the positions past these records.

        What the block writes commits together with the positions, or not at all. Pass, for each partition, the records
        that :meth:`accept` returned since its last transaction, or the first of them, without gaps and in order.

        After a :class:`LedgerError`, continue polling: records that were not committed are read again, records that
        turn out to be committed are not, and an error that retrying cannot fix is raised by the next :meth:`accept`.
        Any other exception in the block rolls back, and the records are read again. The same happens with
        :class:`CommitRefused`: the database refused to commit what the block wrote.
        """
        if self._in_block:
            raise ConfigurationError(
                f"group {self.group!r}: a transaction is open; pass all records to one transaction"
            )
        claims, spans = self._work(records)
        began, self._in_block = time.monotonic(), True
        try:
            with self._ledger.transaction(claims, spans) as tx:
                yield tx
        except AlreadyDone:
            self._committed(spans, records, began, already_done=True)
            raise
        except Fenced as fenced:
            self._tell(FencedOff(self.group, fenced.owners, str(fenced)))
            self._obey(self._assignment.fenced(fenced.owners))
            self._obey(self._assignment.discarded(claims.keys() - fenced.owners.keys()))
            raise
        except _AWAY as error:
            if isinstance(error.__cause__, Conflict):  # not an outage; nothing was committed
                self._tell(Conflicted(self.group, tuple(spans), 1, str(error)))
                self._obey(self._assignment.discarded(claims))
            else:
                self._away(error)
                self._obey(self._assignment.fenced(claims))  # the rows will show whether it committed
                self._hold_back(error)
            raise
        except CommitRefused:  # the database refused what the block wrote
            self._obey(self._assignment.discarded(claims))
            raise
        except HeldTooLong:  # the next attempt may succeed with fewer records
            self._obey(self._assignment.discarded(claims))
            raise
        except LedgerError as error:
            self._error = error
            raise
        except BaseException:
            self._obey(self._assignment.discarded(claims))
            raise
        else:
            done = [step.span for step in tx.steps]
            self._committed(done, records, began)
            # The block cut these spans short: the rest of their records is read again.
            self._obey(self._assignment.discarded({span.partition for span in spans if span not in done}))
        finally:
            self._in_block = False
            self._settle()
            unreleased, self._unreleased = self._unreleased, {}
            self._release(unreleased)

    def close(self) -> None:
        """Leave the group and release all claims."""
        closing = threading.Thread(target=self._source.close, daemon=True)  # close() can hang if a broker is unstable
        closing.start()
        closing.join(_CLOSE)
        self._obey(self._assignment.revoked(self._assignment.partitions))
        self._upkeep.close()

    # Records

    def _sorted(self, message: Message) -> Record | None:
        """Return the record of a message, if it has one; remember log ends, problems and positions out of range."""
        try:
            fetched = self._source.sort(message)
        except BrokerUnavailable as error:
            self._error = BrokerUnavailable(
                f"group {self.group!r}: {error}. Correct the consumer's settings or its rights, and start again"
            )
            return None
        for trouble in fetched.troubles:
            self._outages.begin(*trouble)
        for tp, end in fetched.ends:
            if tp in self._handed and not (tp in self._seeks or tp in self._unproved):
                self._ends[tp] = end
        if fetched.out_of_range or fetched.troubles:  # a recreated topic may be the cause
            self._refused.update(fetched.out_of_range)
            self._look_at = self._verify_at = 0.0
        return fetched.records[0] if fetched.records else None

    def _may_use(self, record: Record) -> bool:
        tp = record.source
        state = self._assignment.state(tp)
        if not isinstance(state, Reading) or tp in self._seeks:
            return False
        if tp in self._unproved:
            if not self._source.has_delivered(tp):
                return False
            self._unproved.discard(tp)
        handed = self._handed[tp]
        place = handed[-1] + 1 if handed else state.position
        if self._assignment.paused or not self._has_looked:
            self._source.pause([tp])
            self._seeks[tp] = place
            return False
        return record.offset >= place

    def _work(self, records: Sequence[Record]) -> tuple[dict[TopicPartition, Claim], list[Span]]:
        """Return the claims and spans for a transaction over these records; raises if they may not be used."""
        offsets: dict[TopicPartition, list[int]] = {}
        for record in records:
            offsets.setdefault(record.source, []).append(record.offset)
        claims: dict[TopicPartition, Claim] = {}
        spans: list[Span] = []
        for tp, given in offsets.items():
            state, handed = self._assignment.state(tp), self._handed.get(tp, [])
            if not isinstance(state, Reading) or not set(given) <= set(handed):
                raise Fenced(
                    f"group {self.group!r}: {tp}@{given[0]} must not be used any more: its partition was given up, or "
                    "is read again from its position. Drop the record and continue polling",
                    {tp: None},
                )
            if handed[: len(given)] != given:
                raise ConfigurationError(
                    f"group {self.group!r}: the records of {tp} begin at offset {given[0]}, but {handed[0]} was "
                    "accepted before and is not committed. Pass every accepted record to a transaction, in order, "
                    "including those for which nothing is written"
                )
            claims[tp] = state.claim
            spans.append(Span(tp, state.position, given[-1] + 1, len(given)))
        return claims, spans

    def _committed(
        self, spans: list[Span], records: Sequence[Record], began: float, *, already_done: bool = False
    ) -> None:
        self._assignment.committed(spans)
        for span in spans:
            if span.partition in self._handed:
                del self._handed[span.partition][: span.records]
        self._wrote()
        took = time.monotonic() - began
        self._tell(Committed(self.group, tuple(spans), took, 1, 0, already_done, records=(records,)))

    def _raise_what_failed(self) -> None:
        if self._error is not None:
            raise self._error

    # Periodic work

    def _look(self) -> None:
        """Find out what operators, other owners and retention have changed, and retry failed claims."""
        began, before, self._has_looked = time.monotonic(), self._has_looked, False
        refusals = self._refusals
        if self._assignment.partitions:
            with self._waiting():
                self._look_around(is_first=not before)
            self._upkeep.look()
        if self._refusals == refusals:
            self._look_at, self._verify_at = time.monotonic() + _LOOK, began + self._grace

    def _look_around(self, *, is_first: bool) -> None:
        if "broker" in self._outages:  # on an idle topic no record would show that it is back
            if self._admin.unanswered() is not None:
                return
            self._outages.end("broker")
        self._watch(is_first=is_first)
        for tp in sorted(self._refused):
            self._step_over_what_is_gone(tp)
        for tp in sorted(self._ends):
            self._step_over_what_is_no_record(tp)
        for command in self._assignment.tick(time.monotonic()):
            if isinstance(command, ClaimPartitions):
                self._obey(self._claim(command.partitions))
            elif isinstance(command, ReclaimPartitions):
                self._reclaim(command)

    def _watch(self, *, is_first: bool) -> None:
        seen = self._lookout.look(self._assignment.partitions, identify=True)
        self._outages.end("ledger")
        self._obey(self._assignment.claim_anew(seen.recreated))  # the claim raises or starts over, by policy
        before = self._assignment.paused
        self._obey(self._assignment.observed(seen.group))
        if self._assignment.paused != before:
            self._tell(Paused(self.group, self._assignment.paused))
        self._has_looked = True
        if is_first:
            reading = [tp for tp, _ in self._assignment.reading()]
            (self._source.pause if self._assignment.paused else self._source.resume)(reading)

    def _step_over_what_is_gone(self, partition: TopicPartition) -> None:
        state = self._assignment.state(partition)
        if isinstance(state, Reading):
            if (log := self._admin.logs([partition]).get(partition)) is None:
                return  # the topic is gone; the next look tries again
            # Asked afterwards: if the topic is still the same one, the log is its log.
            if recreated := self._lookout.look([partition], identify=True).recreated:
                self._obey(self._assignment.claim_anew(recreated))
                return
            verdict = out_of_range(self._out_of_range, self.group, partition, state.position, log)
            if isinstance(verdict, Stop):
                raise ListenerStopped(verdict.reason)
            if isinstance(verdict, Lose):
                self._step_over(state.claim, verdict.span, Move.LOSS, verdict.note)
                self._tell(Skipped(self.group, verdict.span, Move.LOSS.value, verdict.note))
                self._obey(self._assignment.moved([verdict.span]))
            else:
                self._obey(self._assignment.discarded([partition]))
        self._refused.discard(partition)

    def _step_over_what_is_no_record(self, partition: TopicPartition) -> None:
        """Advance past transaction markers at the end of a log, so that the position reaches the end."""
        state, end, handed = self._assignment.state(partition), self._ends[partition], self._handed.get(partition, [])
        if handed and handed[0] < end:
            return
        if isinstance(state, Reading) and state.position < end and not self._assignment.paused:
            span = Span(partition, state.position, end)
            self._step_over(state.claim, span)
            self._assignment.committed([span])
        self._ends.pop(partition, None)

    def _step_over(self, claim: Claim, span: Span, move: Move = Move.ADVANCE, note: str | None = None) -> None:
        try:
            self._ledger.transact({claim.partition: claim}, [span], move=move, note=note)
        except (Fenced, *_AWAY):
            self._obey(self._assignment.fenced([claim.partition]))
            raise

    def _claim(self, partitions: Sequence[TopicPartition]) -> list[Command]:
        if self._cluster_id is None:
            self._compare_clusters({tp.topic for tp in partitions})
        claims = self._claimer.claim(partitions)
        self._wrote()
        claimed = tuple(claims)
        self._tell(Claimed(self.group, claimed, tuple(claims[tp].position for tp in claimed)))
        return self._assignment.claimed(claims)

    def _compare_clusters(self, topics: set[str]) -> None:
        """Raise if ``kafka`` leads to another cluster than the consumer reads; done before anything is stored."""
        read = self._source.cluster_id()
        if read is None:
            raise BrokerUnavailable(f"group {self.group!r}: the consumer's cluster did not report its id")
        for identity in self._admin.identities(topics).values():
            if identity.cluster_id != read:
                raise ConfigurationError(
                    f"group {self.group!r}: the consumer reads cluster {read}, but kafka= leads to cluster "
                    f"{identity.cluster_id}. Pass the mapping that the consumer was created with"
                )
        self._cluster_id = read

    def _reclaim(self, command: ReclaimPartitions) -> None:
        try:
            claims, owners = self._ledger.reclaim(command.claims, take=command.take)
        except PositionMissing:  # a row was deleted: claim it like a partition without a position
            self._obey(self._assignment.claim_anew(command.claims))
        else:
            self._outages.end("ledger")
            self._obey(self._assignment.reclaimed(claims, owners, time.monotonic()))

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Catch errors: an outage is reported and the work retried later; :meth:`accept` raises any other error."""
        try:
            yield
        except Fenced as fenced:
            self._tell(FencedOff(self.group, fenced.owners, str(fenced)))
        except _AWAY as error:
            self._away(error)
            self._hold_back(error)
        except Exception as error:
            self._error = error

    def _away(self, error: Exception) -> None:
        what = "broker" if isinstance(error, BrokerUnavailable) else "ledger"
        self._outages.begin(what, str(error), of_writes=isinstance(error, WritesRefused))

    def _hold_back(self, error: Exception) -> None:
        """After refused writes, wait before the next attempt, longer each time; no record is handed out until then."""
        if isinstance(error, WritesRefused):
            pause = min(0.25 * 2**self._refusals, _LONGEST_PAUSE)
            self._refusals = min(self._refusals + 1, 16)
            self._has_looked = False
            self._look_at = self._verify_at = time.monotonic() + pause * random.uniform(0.5, 1.0)  # noqa: S311

    def _wrote(self) -> None:
        self._outages.end("ledger", wrote=True)
        self._refusals = 0

    # Commands of the assignment. Claims are made by the next look

    def _obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case SeekTo(partition, offset, _):
                    self._begin(partition)
                    self._seeks[partition] = offset
                case DropBuffers(partitions):
                    for tp in partitions:
                        for noted in (self._handed, self._seeks, self._ends):
                            noted.pop(tp, None)
                case PausePartitions(partitions):
                    self._source.pause(partitions)
                case ResumePartitions(partitions):
                    self._source.resume(partitions)
                case ReleaseClaims(claims):
                    self._release(claims)
                case ClaimPartitions() | ReclaimPartitions():
                    self._look_at = self._verify_at = 0.0

    def _begin(self, partition: TopicPartition) -> None:
        """Reset what is remembered of a partition: it is read from a new position."""
        self._handed[partition] = []
        self._ends.pop(partition, None)
        self._unproved.add(partition)

    def _settle(self) -> None:
        """Carry out pending seeks. The client refuses them for a moment after an assignment; those stay pending."""
        for tp, offset in list(self._seeks.items()):
            if self._source.seek(tp, offset):
                del self._seeks[tp]
                self._unproved.add(tp)
                if self._has_looked and not self._assignment.paused:
                    self._source.resume([tp])

    def _release(self, claims: Mapping[TopicPartition, Claim]) -> None:
        if self._in_block:  # the block's transaction may hold the locks of these rows
            self._unreleased.update(claims)
            return
        try:
            self._ledger.release(claims)
        except LedgerError as error:  # the next owner can claim them without a release
            self._outages.begin("ledger", str(error))

    # Rebalances. The client would swallow an exception raised here and choose the start itself

    def _on_assigned(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        began = time.monotonic()
        starts: dict[TopicPartition, int] = {}
        self._has_looked, self._look_at, self._verify_at = False, 0.0, 0.0
        self._assignment.assigned(partitions)
        new = [tp for tp in partitions if isinstance(self._assignment.state(tp), Claiming)]
        # A callback must not ask the consumer for its cluster id, so the very first claim is left to the next look.
        may_claim = new and self._cluster_id is not None and not self._in_block
        with self._waiting():
            for command in self._claim(new) if may_claim else ():
                if isinstance(command, SeekTo):
                    self._begin(command.partition)
                    starts[command.partition] = command.offset
        if partitions:
            self._outages.end("topic")
        self._tell(Rebalanced(self.group, "assigned", tuple(partitions), time.monotonic() - began))
        return starts

    def _on_revoked(self, partitions: list[TopicPartition]) -> None:
        began = time.monotonic()
        with self._waiting():
            self._obey(self._assignment.revoked(partitions))
        self._tell(Rebalanced(self.group, "revoked", tuple(partitions), time.monotonic() - began))

    def _on_lost(self, partitions: list[TopicPartition]) -> None:
        self._obey(self._assignment.lost(partitions))
        self._tell(Rebalanced(self.group, "lost", tuple(partitions), 0.0))


def _topics(given: str | Sequence[str]) -> list[str]:
    topics = argument("topics", tuple[str, ...], given)
    if not topics:
        raise ConfigurationError("topics is empty; name one or several, or a pattern that begins with ^")
    return [topic if topic.startswith("^") else check_topic(topic) for topic in topics]
