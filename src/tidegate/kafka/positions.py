"""Positions kept in Kafka's own group offsets: at least once or at most once, never exactly once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, assert_never

from tidegate.core.delivery import CommitStrategy
from tidegate.core.errors import PositionMissing
from tidegate.core.positions import GroupState, KeptOffset, Position
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Move, Span, Work
from tidegate.kafka.broker import RecordSource
from tidegate.ledger import Outcome, Reclaimed, Result, StartAt, Subscription, Transaction

__all__ = ["KafkaPositions"]

_AUTOMATIC_SECONDS = 5.0
_OWNER = "kafka"


class _NoTransaction(Transaction):
    """Where nothing can be undone, and nothing is."""

    undoes = False

    def _savepoint(self) -> AbstractContextManager[None]:
        return nullcontext()


class KafkaPositions:
    """Stands where a ledger stands, for listeners that have none: the same loop, a weaker promise.

    There is nothing to fence with: between a rebalance and the commit of whoever was slow, records may be repeated.
    """

    def __init__(self, strategy: CommitStrategy) -> None:
        self._strategy = strategy
        self._source: RecordSource | None = None
        self._reached: dict[TopicPartition, int] = {}
        self._due: dict[TopicPartition, int] = {}
        self._notes: dict[TopicPartition, str] = {}
        self._commit_at = 0.0
        self._lock = threading.Lock()

    def attach(self, source: RecordSource) -> None:
        """The consumer whose group the offsets belong to."""
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
        """Look up where the group is. Where it is nowhere yet, its start is committed before anything is read."""
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
        """How many partitions each topic had when the group began with it: as a commit of one of its partitions notes,
        or, if none does, as many as it has now."""
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
        """Go on from where this process was."""
        return Reclaimed({tp: claim._replace(position=self._reached[tp]) for tp, claim in claims.items()}, {})

    def release(self, claims: Mapping[TopicPartition, Claim]) -> set[TopicPartition]:
        """Commit what is not committed yet."""
        self._flush({tp for tp in claims if tp in self._due})
        return set(claims)

    def transact(
        self,
        claims: Mapping[TopicPartition, Claim],
        spans: Iterable[Span],
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
    ) -> Result:
        """Commit the offsets; there is no transaction for a handler to be part of."""
        ends = {span.partition: span.end for span in spans}
        self._commit(ends)
        self._reached.update(ends)
        return Result(Outcome.COMMITTED, 1, 0)

    @contextmanager
    def detached(self, claims: Mapping[TopicPartition, Claim], spans: Iterable[Span]) -> Iterator[Transaction]:
        """What the handler does, it does by itself."""
        yield _NoTransaction(Work.of(claims, spans))

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """What this process knows of the group."""
        rows = {
            tp: Position(tp, offset, 0, _OWNER, None, 0)
            for tp, offset in self._reached.items()
            if partitions is None or tp in partitions
        }
        return GroupState(group, False, rows)

    def create(self) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """Nothing was opened."""

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
                if time.monotonic() >= self._commit_at:
                    self._flush(set(self._due))
                    self._commit_at = time.monotonic() + _AUTOMATIC_SECONDS
            case other:
                assert_never(other)

    def _flush(self, partitions: set[TopicPartition]) -> None:
        due = {tp: self._due.pop(tp) for tp in partitions}
        if due:
            self._consumer.commit(self._kept(due))


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
    """How many partitions topics had when the group began with them, of those whose commits say so."""
    notes = ((tp.topic, re.fullmatch(r"tidegate partitions=(\d+)", each.note)) for tp, each in kept.items())
    return {topic: int(note[1]) for topic, note in notes if note}
