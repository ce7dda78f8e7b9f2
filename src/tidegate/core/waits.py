"""Waits for parents: how long records that a foreign key refuses are tried again, since their parents may come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidegate.core.policies import Backoff
from tidegate.core.records import TopicPartition

__all__ = ["ParentWaits"]

_BACKOFF = Backoff(0.1, 2.0, 2.0)


class ParentWaits:
    """How long each partition has waited for parents, which another partition may bring.

    All records that are there while their partition waits wait with it: each of their parents has had that time.
    """

    def __init__(self, most: float) -> None:
        """``most``: how many seconds a partition waits."""
        self._most = most
        self._waits: dict[TopicPartition, _ParentWait] = {}

    def __bool__(self) -> bool:
        """Whether a partition has waited, and its records are not all settled."""
        return bool(self._waits)

    def __contains__(self, source: TopicPartition) -> bool:
        return source in self._waits

    def is_due(self, source: TopicPartition, offset: int) -> bool:
        """Whether the partition of a record that a foreign key refuses waits now."""
        known = self._waits.get(source)
        return self._most > 0 and not (known is not None and known.has(offset) and known.seconds >= self._most)

    def next(self, source: TopicPartition, offset: int, last: int) -> float | None:
        """Return for how long to wait now, with all records up to ``last``; ``None`` if that has been long enough."""
        known = self._waits.get(source)
        if known is None or not known.has(offset):
            known = _ParentWait(offset, last, 0, 0.0)
        if known.seconds >= self._most:
            return None
        after = min(_BACKOFF.after(known.times + 1), self._most - known.seconds)
        self._waits[source] = known._replace(times=known.times + 1, seconds=known.seconds + after)
        return after

    @property
    def over(self) -> Mapping[TopicPartition, int]:
        """The partitions that have waited long enough, with the last offset that has waited."""
        return {source: wait.last for source, wait in self._waits.items() if wait.seconds >= self._most}

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin anew: all records that have waited are settled."""
        for partition in partitions:
            self._waits.pop(partition, None)

    def settle(self, source: TopicPartition, end: int) -> None:
        """Forget the wait of a partition, if all records that have waited are before ``end``, and so are settled."""
        if source in self._waits and self._waits[source].last < end:
            del self._waits[source]


class _ParentWait(NamedTuple):
    """How often, and how many seconds, a partition has waited, and its first and last offset that were there."""

    first: int
    last: int
    times: int
    seconds: float

    def has(self, offset: int) -> bool:
        return self.first <= offset <= self.last
