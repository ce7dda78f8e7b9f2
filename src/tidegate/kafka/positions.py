"""Positions kept in Kafka's own group offsets: at least once or at most once, never exactly once."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, assert_never

from tidegate.core.delivery import CommitStrategy
from tidegate.core.positions import GroupState, Position
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Move, Span, Work
from tidegate.kafka.broker import RecordSource
from tidegate.ledger import Outcome, Reclaimed, Result, StartAt, Transaction

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
        self._commit_at = 0.0
        self._lock = threading.Lock()

    def attach(self, source: RecordSource) -> None:
        """The consumer whose group the offsets belong to."""
        self._source = source

    def claim(
        self, group: str, partitions: Iterable[TopicPartition], start_at: StartAt = 0, **_: Any
    ) -> dict[TopicPartition, Claim]:
        """Look up where the group is; where it is nowhere yet, it begins at its start."""
        wanted = sorted(partitions)
        found = self._committed(wanted)
        missing = [tp for tp in wanted if tp not in found]
        if missing:
            starts: Mapping[TopicPartition, int]
            if isinstance(start_at, int):
                starts = dict.fromkeys(missing, start_at)
            else:
                starts = start_at(missing) if callable(start_at) else start_at
            found.update({tp: starts[tp] for tp in missing})
        with self._lock:
            self._reached.update(found)
        return {tp: Claim(group, tp, found[tp], 0, _OWNER) for tp in wanted}

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

    def _committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._consumer.committed(partitions)

    def _commit(self, ends: dict[TopicPartition, int]) -> None:
        match self._strategy:
            case CommitStrategy.SYNCHRONOUS:
                self._consumer.commit(ends)
            case CommitStrategy.ASYNCHRONOUS:
                self._consumer.commit(ends, asynchronous=True)
            case CommitStrategy.PER_PARTITION:
                for tp, end in ends.items():
                    self._consumer.commit({tp: end})
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
            self._consumer.commit(due)
