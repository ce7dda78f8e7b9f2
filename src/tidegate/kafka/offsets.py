"""Positions kept in Kafka's group offsets instead of a ledger.

From topic to topic the guarantee is exactly once; elsewhere it is at least once or at most once.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, assert_never

from tidegate.core.policies import CommitStrategy
from tidegate.core.positions import GroupState, KeptOffset, Position
from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim, Move, Span, Work
from tidegate.errors import (
    CommitUnknown,
    ConfigurationError,
    Fenced,
    LedgerError,
    NotCommitted,
    PositionMissing,
    ProducerFenced,
    RecordRejected,
    SendAgain,
    TransactionAborted,
)
from tidegate.kafka.broker import RecordSource
from tidegate.kafka.cluster import Admin
from tidegate.kafka.config import admin_config, producer_config, safe_config
from tidegate.kafka.consumer import GroupConsumer
from tidegate.kafka.delivery import Handle, Outgoing
from tidegate.kafka.producer import Producer
from tidegate.ledger import Limits, Outcome, Reclaimed, Result, StartAt, Subscription, Transaction
from tidegate.ledger.position_store import PositionStore
from tidegate.ledger.transaction import NoTransaction

__all__ = ["KafkaPositions", "NotSendable", "Returned", "TopicToTopic"]


_AUTOMATIC_SECONDS = 5.0
_OWNER = "kafka"


class KafkaPositions(PositionStore[Transaction]):
    """Takes the place of a ledger for listeners without a database: the same loop with a weaker guarantee.

    It cannot fence: after a rebalance, the new owner may repeat records that a slow previous owner has handled but not
    yet committed.
    """

    limits = Limits(retention=0)
    """Nothing is locked here, and there is no journal. Listeners commit as often as with a ledger's default limits."""
    silence = 0.0
    """Without Kafka there are no records either: the broker's outage is reported, and no other one."""

    def __init__(self, strategy: CommitStrategy) -> None:
        self._strategy = strategy
        self._source: RecordSource | None = None
        self._reached: dict[TopicPartition, int] = {}
        self._due: dict[TopicPartition, int] = {}
        self._notes: dict[TopicPartition, str] = {}
        self._commit_at = 0.0
        self._lock = threading.Lock()

    def attach(self, source: RecordSource) -> None:
        """Set the consumer through which offsets are read and committed."""
        self._source = source

    def claim(
        self,
        group: str,
        partitions: Iterable[TopicPartition],
        start_at: StartAt = 0,
        *,
        subscription: Subscription | None = None,
        **_: Any,
    ) -> dict[TopicPartition, Claim]:
        """Return the group's committed positions as claims.

        A partition without a position gets its start, which is committed before any record is read. One that was added
        to a subscribed topic later starts at the beginning of its log.
        """
        wanted = sorted(partitions)
        found = self._committed(wanted)
        missing = [tp for tp in wanted if tp not in found]
        counts = {} if subscription is None else self._counted(found, missing, subscription)
        self._notes.update((tp, _note(counts[tp.topic])) for tp in wanted if tp.topic in counts)
        if missing:
            later = [tp for tp in missing if tp.topic in counts and tp.partition >= counts[tp.topic]]
            began = [tp for tp in missing if tp not in later]
            starts = {**_starts(began, start_at), **_starts(later, subscription.beginnings if subscription else 0)}
            self._consumer.commit(self._kept(starts))
            found.update(self._kept(starts))
        with self._lock:
            self._reached.update((tp, kept.offset) for tp, kept in found.items())
        return {tp: Claim(group, tp, found[tp].offset, 0, _OWNER) for tp in wanted}

    def _counted(
        self, found: Mapping[TopicPartition, KeptOffset], missing: Iterable[TopicPartition], subscription: Subscription
    ) -> dict[str, int]:
        """Return how many partitions each topic had when the group first read it.

        The number is in the note of a committed offset of any of its partitions. If there is no such note, it is the
        current number.
        """
        counts = _noted(found)
        unknown = {tp.topic for tp in (*found, *missing)} - counts.keys()
        if unknown:
            there = subscription.partitions(unknown)
            counts |= {topic: sum(tp.topic == topic for tp in there) for topic in unknown}
            counts |= _noted(self._committed(set(there) - found.keys()))
        return counts

    def _kept(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, KeptOffset]:
        return {tp: KeptOffset(offset, self._notes.get(tp, "")) for tp, offset in ends.items()}

    def reclaim(self, claims: Mapping[TopicPartition, Claim], *, take: bool = False) -> Reclaimed:
        """Continue from the last position that this process reached."""
        return Reclaimed({tp: claim._replace(position=self._reached[tp]) for tp, claim in claims.items()}, {})

    def release(self, claims: Mapping[TopicPartition, Claim]) -> set[TopicPartition]:
        """Commit the positions of these claims that are not committed yet."""
        self._flush({tp for tp in claims if tp in self._due})
        return set(claims)

    def confirm(self, claims: Mapping[TopicPartition, Claim], spans: Iterable[Span]) -> bool:
        """Return true: Kafka does not store whether another member has handled the spans."""
        return True

    def transact(
        self,
        claims: Mapping[TopicPartition, Claim],
        spans: Iterable[Span],
        handler: Callable[[Transaction], object] | None = None,
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
        conflicts: int | None = None,
    ) -> Result:
        """Commit the ends of the spans. There is no transaction, so a handler cannot run in here."""
        if handler is not None:
            raise ConfigurationError("positions in Kafka have no transaction that a handler could run in")
        moved = tuple(spans)
        ends = {span.partition: span.end for span in moved}
        self._commit(ends)
        self._reached.update(ends)
        return Result(Outcome.COMMITTED, 1, 0, moved)

    @contextmanager
    def detached(self, claims: Mapping[TopicPartition, Claim], spans: Iterable[Span]) -> Iterator[Transaction]:
        """Run a handler outside any transaction; nothing that it does can be rolled back."""
        yield NoTransaction(Work.of(claims, spans))

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """Return the positions that this process knows; those of other members are missing.

        Members call this about once a second. So what is due is also committed when no more records arrive.
        """
        self._flush_in_time()
        rows = {
            tp: Position(tp, offset, 0, _OWNER, None, 0)
            for tp, offset in self._reached.items()
            if partitions is None or tp in partitions
        }
        return GroupState(group, False, rows)

    def stored(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return what the members have committed. What is due here is committed first: others may wait for it."""
        self._flush(set(self._due))
        return {tp: kept.offset for tp, kept in self._committed(partitions).items()}

    def passing(self, error: BaseException, what: str) -> LedgerError | None:
        """Return ``None``: there is no database whose outage could be the reason."""
        return None

    def begin_pruning(self, group: str, every: timedelta) -> bool:
        """Return false: there is no journal."""
        return False

    def prune(self, older_than: timedelta | float | str, group: str | None = None) -> int:
        """Return 0: there is no journal."""
        return 0

    def close(self) -> None:
        """Do nothing: there is no connection to close."""

    @property
    def _consumer(self) -> RecordSource:
        if self._source is None:
            raise RuntimeError("no consumer is attached")
        return self._source

    def _committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        return self._consumer.committed(partitions)

    def _commit(self, ends: dict[TopicPartition, int]) -> None:
        match self._strategy:
            case CommitStrategy.SYNCHRONOUS:
                self._consumer.commit(self._kept(ends))
            case CommitStrategy.ASYNCHRONOUS:
                self._consumer.commit(self._kept(ends), asynchronous=True)
            case CommitStrategy.PER_PARTITION:
                for tp, kept in self._kept(ends).items():
                    self._consumer.commit({tp: kept})
            case CommitStrategy.AUTOMATIC:
                self._due.update(ends)
                self._flush_in_time()
            case other:
                assert_never(other)

    def _flush_in_time(self) -> None:
        if self._due and time.monotonic() >= self._commit_at:
            self._flush(set(self._due))
            self._commit_at = time.monotonic() + _AUTOMATIC_SECONDS

    def _flush(self, partitions: set[TopicPartition]) -> None:
        due = {tp: end for tp, end in self._due.items() if tp in partitions}
        if due:
            self._consumer.commit(self._kept(due))
            for tp in due:
                del self._due[tp]


def _starts(partitions: list[TopicPartition], start_at: StartAt) -> dict[TopicPartition, int]:
    if not partitions or isinstance(start_at, int):
        return dict.fromkeys(partitions, start_at) if isinstance(start_at, int) else {}
    starts = start_at(partitions) if callable(start_at) else start_at
    for tp in partitions:
        if tp not in starts:
            raise PositionMissing(f"the log offsets of {tp} are not known, so its start is not; does it exist?")
    return {tp: starts[tp] for tp in partitions}


def _note(count: int) -> str:
    return f"tidegate partitions={count}"


def _noted(kept: Mapping[TopicPartition, KeptOffset]) -> dict[str, int]:
    """Return the partition counts that the notes of committed offsets contain, by topic."""
    notes = ((tp.topic, re.fullmatch(r"tidegate partitions=(\d+)", each.note)) for tp, each in kept.items())
    return {topic: int(note[1]) for topic, note in notes if note}


_SECONDS = 10.0
"""Default timeout of a transaction. It is short because a process that died leaves one open, and the next owner waits
for it to time out."""

_NOT_A_MEMBER = {
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "FENCED_INSTANCE_ID",
    "STALE_MEMBER_EPOCH",
    "FENCED_MEMBER_EPOCH",
    "REBALANCE_IN_PROGRESS",
}


class NotSendable(ConfigurationError):
    """A handler returned something other than records to send. The fault is the handler's, not the record's."""


class Returned(Transaction):
    """Collects the records that a handler returns. They are sent at the end, so that a savepoint can drop some."""

    def __init__(self, work: Work) -> None:
        super().__init__(work, advances=True)
        self.records: list[Outgoing] = []

    def returned(self, value: object) -> None:
        """Add what the handler returned: one :class:`Outgoing`, or a list or tuple of them."""
        records = [value] if isinstance(value, Outgoing) else value
        # Lists and tuples only: empty bytes are a sequence too, and would pass as "no records".
        others = (
            [each for each in records if not isinstance(each, Outgoing)] if isinstance(records, list | tuple) else ()
        )
        if not isinstance(records, list | tuple) or others:
            within = f" with {type(others[0]).__name__} in it" if others else ""
            raise NotSendable(
                f"a handler from topic to topic returns Outgoing(topic, value, …), a list of those or None, and not "
                f"{type(value).__name__}{within}"
            )
        self.records += records

    def _savepoint(self) -> AbstractContextManager[None]:
        return self._undone_if_it_fails()

    @contextmanager
    def _undone_if_it_fails(self) -> Iterator[None]:
        before = len(self.records)
        try:
            yield
        except BaseException:
            del self.records[before:]
            raise


class TopicToTopic(KafkaPositions):
    """Takes the place of a ledger. The records that a handler returns and the positions are one Kafka transaction.

    The consumer group fences: a commit carries the group generation under which the partition is held, and the broker
    refuses the commit once another member has the partition. While an unfinished transaction may still move a
    position, the broker does not return that position.
    """

    def __init__(self, kafka: Mapping[str, Any], group: str) -> None:
        super().__init__(CommitStrategy.SYNCHRONOUS)
        prefix = kafka.get("transactional.id", f"tidegate-{group}")
        self._settings = {
            "transaction.timeout.ms": int(_SECONDS * 1000),
            **safe_config(producer_config(kafka)),
            # Unique for each consumer: two with the same id would fence each other forever.
            "transactional.id": f"{prefix}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        }
        # After this time the broker has aborted the transaction: waiting longer for an unreachable broker is useless.
        self._timeout = int(self._settings["transaction.timeout.ms"]) / 1000
        self._group = group
        self._kafka = dict(kafka)
        self._producer: Producer | None = None
        self._claims = count(1)
        self._held: dict[TopicPartition, int] = {}

    def claim(
        self, group: str, partitions: Iterable[TopicPartition], start_at: StartAt = 0, **options: Any
    ) -> dict[TopicPartition, Claim]:
        """Claim as :meth:`KafkaPositions.claim` does, under a new epoch: work under an older claim is fenced."""
        wanted = list(partitions)
        for tp in wanted:
            self._held.pop(tp, None)
        number = next(self._claims)
        claims = super().claim(group, wanted, start_at, **options)
        self._held.update(dict.fromkeys(claims, number))
        return {tp: claim._replace(epoch=number) for tp, claim in claims.items()}

    def reclaim(self, claims: Mapping[TopicPartition, Claim], *, take: bool = False) -> Reclaimed:
        """Continue from the group's committed positions, after this process's open transaction has been settled."""
        self._open()
        self._reached.update((tp, kept.offset) for tp, kept in self._committed(claims).items())
        return Reclaimed({tp: claim._replace(position=self._reached[tp]) for tp, claim in claims.items()}, {})

    def transact(
        self,
        claims: Mapping[TopicPartition, Claim],
        spans: Iterable[Span],
        handler: Callable[[Transaction], object] | None = None,
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
        conflicts: int | None = None,
    ) -> Result:
        """Run the handler; send the records it returned and move the positions in one Kafka transaction.

        ``conflicts`` is ignored: it exists to match :meth:`Ledger.transact`, and Kafka has no conflicts to retry.
        """
        work = Work.of(claims, spans, move=move, note=note)
        returned = Returned(work)
        if handler is not None:
            handler(returned)
        spans = tuple(step.span for step in returned.steps)
        ends = {span.partition: span.end for span in spans}
        metadata = self._metadata(claims, work)
        producer = self._open()
        handles: list[Handle] = []
        try:
            with producer.transaction(self._timeout) as transaction:
                handles += [_sent(producer, record) for record in returned.records]
                transaction.send_offsets(self._kept(ends), metadata)
        except TransactionAborted as error:
            if error.code in _NOT_A_MEMBER:
                raise _fenced(work) from error
            for handle in handles:
                if isinstance(handle.error, RecordRejected):  # a retry would be rejected too
                    raise handle.error from error
            raise NotCommitted(f"{work}: {error}") from error
        except (CommitUnknown, ProducerFenced, SendAgain) as error:
            self._drop()
            raise NotCommitted(f"{work}: {error}") from error
        self._reached.update(ends)
        return Result(Outcome.COMMITTED, 1, 0, spans)

    def attach(self, source: RecordSource) -> None:
        """Set the consumer whose group the offsets belong to; raises unless it is a real Kafka consumer."""
        if not isinstance(source, GroupConsumer):
            raise ConfigurationError(
                "a listener from topic to topic needs Kafka's own transactions, which the test kit does not have; test "
                "the function by itself, or the app on a broker"
            )
        super().attach(source)
        source.tells_generations = True
        self._of_group = source

    def close(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _metadata(self, claims: Mapping[TopicPartition, Claim], work: Work) -> Any:
        """Return the group metadata, with the generation under which the partitions are held; raise if fenced.

        The metadata is read before the checks. This is safe: a lost partition is removed from the consumer's list
        before the consumer can join a new generation, and a partition that came back has a new claim.
        """
        metadata = self._of_group.group_metadata(work.partitions)
        if metadata is None or any(self._held.get(tp) != claims[tp].epoch for tp in work.partitions):
            raise _fenced(work)
        return metadata

    def _committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        """Read the committed positions through a new client.

        The consumer blocks other threads while one polls. An existing client that once lost its connection may not
        find the group's coordinator again.
        """
        return Admin(admin_config(self._kafka)).group_offsets(self._group, partitions)

    def _open(self) -> Producer:
        """Return the producer. A new one first settles what its predecessor with the same id left open."""
        if self._producer is None:
            producer = Producer(self._settings)
            try:
                with producer.transaction(max(_SECONDS, self._timeout)):
                    pass
            except (TransactionAborted, CommitUnknown, ProducerFenced, SendAgain) as error:
                producer.close(0)
                raise NotCommitted(str(error)) from error
            except BaseException:
                producer.close(0)
                raise
            self._producer = producer
        return self._producer

    def _drop(self) -> None:
        if self._producer is not None:
            self._producer.close(0)
            self._producer = None


def _sent(producer: Producer, record: Outgoing) -> Handle:
    return producer.send(
        record.topic,
        record.value,
        key=record.key,
        partition=record.partition,
        headers=record.headers,
        timestamp=record.timestamp,
    )


def _fenced(work: Work) -> Fenced:
    return Fenced(
        f"{work}: another member of the group has the partitions by now; nothing was sent",
        dict.fromkeys(work.partitions, None),
    )
