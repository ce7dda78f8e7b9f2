"""Bring your own loop: the ledger on a plain consumer that the user polls."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Message

from tidegate.core.arguments import ClientConfig, argument
from tidegate.core.assignment import Assignment, Claiming, Reading
from tidegate.core.commands import (
    ClaimPartitions,
    Command,
    DropBuffers,
    PausePartitions,
    ReclaimPartitions,
    ReleaseClaims,
    ResumePartitions,
    SeekTo,
)
from tidegate.core.errors import (
    AlreadyDone,
    BrokerUnavailable,
    ConfigurationError,
    Fenced,
    LedgerBusy,
    LedgerError,
    LedgerUnavailable,
    ListenerStopped,
    NotCommitted,
    PositionMissing,
)
from tidegate.core.names import check_topic
from tidegate.core.protocols import SessionTimeout
from tidegate.core.records import Record, TopicPartition
from tidegate.core.recovery import Lose, OutOfRange, Recreated, Stop, out_of_range
from tidegate.core.spans import Claim, Move, Span
from tidegate.core.start import Start, StartStrategy, Strategy
from tidegate.kafka.broker import KafkaBroker, Membership
from tidegate.kafka.claimer import Claimer
from tidegate.kafka.config import address_of, check_own_consumer, milliseconds
from tidegate.kafka.lookout import Lookout
from tidegate.kafka.source import Source, Told
from tidegate.ledger import Ledger
from tidegate.observe.log import LoggingObserver
from tidegate.observe.observer import (
    Claimed,
    Committed,
    FencedOff,
    Observer,
    Observers,
    ObserversArgument,
    Paused,
    Rebalanced,
    Skipped,
)
from tidegate.observe.outages import Outages

__all__ = ["OwnLoop"]

_AWAY = (LedgerUnavailable, LedgerBusy, NotCommitted, BrokerUnavailable)
_LOOK = 1.0  # seconds between two looks at the rows and the topics, of an idle loop
_VERIFIED = 0.25  # seconds for which such a look is enough to hand records out
_CLOSE = 15.0


class OwnLoop:
    """Keeps the positions of a consumer in a ledger; the consumer is polled by whoever made it.

    Making one subscribes the consumer: partitions are claimed when they are assigned, read from where the ledger
    says, and released when they are revoked. Every message goes through :meth:`accept`, and every write through
    :meth:`transaction`, on the thread that polls.

    ``kafka`` is the very mapping that the consumer was made with. A consumer does not tell its settings, and does not
    know which incarnation of a topic it reads: both are found out with the mapping. It needs ``group.id``,
    ``enable.auto.commit=False`` and ``auto.offset.reset="error"``. ``start``, ``out_of_range`` and ``recreated`` are
    a listener's. ``session_timeout``: after how many seconds a partition is taken back from an owner that came late;
    the consumer's own, unless told otherwise. ``observers`` hear what a listener's do; without any, it is logged.
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
        told = argument("observers", ObserversArgument | None, observers)
        self._tell = Observers([LoggingObserver()] if told is None else told)
        self._outages = Outages(self.group, self._tell)
        self._assignment = Assignment(wait, random.Random())  # noqa: S311 - jitter
        self._cluster_id: str | None = None
        self._look_at = self._verify_at = 0.0
        # A topic that is recreated is not read on before the client has waited for so long; it does not tell of it.
        self._grace = min(_VERIFIED, milliseconds(kafka, "fetch.error.backoff.ms", 500) / 2000)
        self._has_looked = False  # whether the last look was answered: nothing is handed out unless it was
        self._handed: dict[TopicPartition, list[int]] = {}  # offsets, accepted and not committed
        self._seeks: dict[TopicPartition, int] = {}  # to be carried out: nothing of these is used until then
        self._unproved: set[TopicPartition] = set()  # sought, and the next record may still be from before
        self._ends: dict[TopicPartition, int] = {}  # of logs, if the consumer tells of them
        self._refused: set[TopicPartition] = set()  # the log has nothing at their position
        self._in_block = False
        self._unreleased: dict[TopicPartition, Claim] = {}
        self._error: Exception | None = None
        rebalance = Told(self._on_assigned, self._on_revoked, self._on_lost)
        is_incremental = membership.protocol.is_incremental
        self._source = Source(consumer, rebalance, incremental=is_incremental, address=address_of(kafka))
        self._source.subscribe(_topics(topics))

    # What the user calls

    def accept(self, message: Message | None) -> Record | None:
        """The record of a message, if it may be used: its partition is claimed, the group is not paused, and it is not
        from before a seek.

        To be called with whatever ``poll()`` returned, ``None`` included, and with every message that ``consume()``
        returned, in order. This is also where the rows are looked at, about every second, and where claims and seeks
        are made up for. A database or a broker that is away is waited for: nothing is handed out meanwhile. Raises what
        cannot be cured by waiting, as a listener would stop with it.
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
        """A transaction in which these records are stepped over; what the block writes commits with that, or not at
        all.

        The records of a partition are all those that :meth:`accept` returned since the last transaction, or the first
        of them, in order. A :class:`LedgerError` means: go on polling. What was not committed is read again, what turns
        out to be committed is not, and what cannot be cured is raised by the next :meth:`accept`. Any other exception
        of the block rolls back, and the records are read again.
        """
        if self._in_block:
            raise ConfigurationError(f"group {self.group!r}: a transaction is open; give one all records")
        claims, spans = self._work(records)
        began, self._in_block = time.monotonic(), True
        try:
            with self._ledger.transaction(claims, spans) as tx:
                yield tx
        except AlreadyDone:
            self._committed(spans, began, already_done=True)
            raise
        except Fenced as fenced:
            self._tell(FencedOff(self.group, fenced.owners, str(fenced)))
            self._obey(self._assignment.fenced(fenced.owners))
            self._obey(self._assignment.discarded(claims.keys() - fenced.owners.keys()))
            raise
        except _AWAY as error:
            self._outages.begin("ledger", str(error))
            self._obey(self._assignment.fenced(claims))  # whether it was committed shows in the rows
            raise
        except LedgerError as error:
            self._error = error
            raise
        except BaseException:
            self._obey(self._assignment.discarded(claims))
            raise
        else:
            self._committed(spans, began)
        finally:
            self._in_block = False
            self._settle()
            unreleased, self._unreleased = self._unreleased, {}
            self._release(unreleased)

    def close(self) -> None:
        """Release what is claimed and leave the group."""
        closing = threading.Thread(target=self._source.close, daemon=True)  # it can hang on an unstable broker
        closing.start()
        closing.join(_CLOSE)
        self._obey(self._assignment.revoked(self._assignment.partitions))

    # Records

    def _sorted(self, message: Message) -> Record | None:
        """The record of a message, if it has one; what else it says is taken note of."""
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
        if fetched.out_of_range or fetched.troubles:  # a recreated topic may be behind it
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
        """The claims and the spans of a transaction in which records are stepped over."""
        offsets: dict[TopicPartition, list[int]] = {}
        for record in records:
            offsets.setdefault(record.source, []).append(record.offset)
        claims: dict[TopicPartition, Claim] = {}
        spans: list[Span] = []
        for tp, given in offsets.items():
            state, handed = self._assignment.state(tp), self._handed.get(tp, [])
            if not isinstance(state, Reading) or not set(given) <= set(handed):
                raise Fenced(
                    f"group {self.group!r}: {tp}@{given[0]} is not to be used any more: its partition was given up, or "
                    "is read again from its position. Drop the record and go on polling",
                    {tp: None},
                )
            if handed[: len(given)] != given:
                raise ConfigurationError(
                    f"group {self.group!r}: the records of {tp} begin at offset {given[0]}, but {handed[0]} was "
                    "accepted before and is not committed. Give a transaction every accepted record, in order, those "
                    "included for which nothing is written"
                )
            claims[tp] = state.claim
            spans.append(Span(tp, state.position, given[-1] + 1, len(given)))
        return claims, spans

    def _committed(self, spans: list[Span], began: float, *, already_done: bool = False) -> None:
        self._assignment.committed(spans)
        for span in spans:
            if span.partition in self._handed:
                del self._handed[span.partition][: span.records]
        self._outages.end("ledger")
        took = time.monotonic() - began
        self._tell(Committed(self.group, tuple(spans), took, 1, 0, already_done))

    def _raise_what_failed(self) -> None:
        if self._error is not None:
            raise self._error

    # About every second

    def _look(self) -> None:
        """See what operators, other owners and retention have done, and make up for claims that failed."""
        began, before, self._has_looked = time.monotonic(), self._has_looked, False
        if self._assignment.partitions:
            with self._waiting():
                self._look_around(is_first=not before)
        self._look_at, self._verify_at = time.monotonic() + _LOOK, began + self._grace

    def _look_around(self, *, is_first: bool) -> None:
        if "broker" in self._outages:  # an idle topic would not tell that it is back
            if not self._admin.answers():
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
        self._obey(self._assignment.claim_anew(seen.recreated))  # which says what is wrong, or begins again, by policy
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
                return  # the topic is gone; it is looked for again
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
        """The markers of transactions at the end of a log, so that the position reaches it."""
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
        self._outages.end("ledger")
        claimed = tuple(claims)
        self._tell(Claimed(self.group, claimed, tuple(claims[tp].position for tp in claimed)))
        return self._assignment.claimed(claims)

    def _compare_clusters(self, topics: set[str]) -> None:
        """Before anything is stored: the settings are those of the consumer, or of another one by mistake."""
        read = self._source.cluster_id()
        if read is None:
            raise BrokerUnavailable(f"group {self.group!r}: the consumer's cluster did not say which one it is")
        for identity in self._admin.identities(topics).values():
            if identity.cluster_id != read:
                raise ConfigurationError(
                    f"group {self.group!r}: the consumer reads cluster {read}, but kafka= leads to cluster "
                    f"{identity.cluster_id}. Pass the mapping that the consumer was made with"
                )
        self._cluster_id = read

    def _reclaim(self, command: ReclaimPartitions) -> None:
        try:
            claims, owners = self._ledger.reclaim(command.claims, take=command.take)
        except PositionMissing:  # a row was deleted: it begins at its start, as on the first day
            self._obey(self._assignment.claim_anew(command.claims))
        else:
            self._outages.end("ledger")
            self._obey(self._assignment.reclaimed(claims, owners, time.monotonic()))

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """What is away is waited for, and what was asked of it is asked again; all else is raised by :meth:`accept`."""
        try:
            yield
        except Fenced as fenced:
            self._tell(FencedOff(self.group, fenced.owners, str(fenced)))
        except _AWAY as error:
            self._outages.begin("broker" if isinstance(error, BrokerUnavailable) else "ledger", str(error))
        except Exception as error:
            self._error = error

    # Commands of the assignment; claims are left to the next look

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
        """A stretch of reading begins."""
        self._handed[partition] = []
        self._ends.pop(partition, None)
        self._unproved.add(partition)

    def _settle(self) -> None:
        """Carry seeks out; one is refused for a moment right after an assignment."""
        for tp, offset in list(self._seeks.items()):
            if self._source.seek(tp, offset):
                del self._seeks[tp]
                self._unproved.add(tp)
                if self._has_looked and not self._assignment.paused:
                    self._source.resume([tp])

    def _release(self, claims: Mapping[TopicPartition, Claim]) -> None:
        if self._in_block:  # which may hold the locks of these rows
            self._unreleased.update(claims)
            return
        try:
            self._ledger.release(claims)
        except LedgerError as error:  # their next owner does without
            self._outages.begin("ledger", str(error))

    # Rebalances: what is raised here would be swallowed, and the client would begin where it likes

    def _on_assigned(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        began = time.monotonic()
        starts: dict[TopicPartition, int] = {}
        self._has_looked, self._look_at, self._verify_at = False, 0.0, 0.0
        self._assignment.assigned(partitions)
        new = [tp for tp in partitions if isinstance(self._assignment.state(tp), Claiming)]
        # The consumer cannot be asked for its cluster in here, so the first claim of all is left to the next look.
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


def _topics(said: str | Sequence[str]) -> list[str]:
    topics = argument("topics", tuple[str, ...], said)
    if not topics:
        raise ConfigurationError("topics is empty; name one or several, or a pattern that begins with ^")
    return [topic if topic.startswith("^") else check_topic(topic) for topic in topics]
