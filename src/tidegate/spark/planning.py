"""Planning: which span of each partition the next micro-batch covers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from tidegate.core.records import TopicPartition
from tidegate.core.spans import Span

__all__ = ["UNKNOWN", "expected_bytes", "plan"]

UNKNOWN = 1024.0
"""Bytes that a record is expected to have as long as none has been seen."""


def plan(
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    most: int,
    *,
    most_bytes: float = inf,
    sizes: Mapping[TopicPartition, float] | None = None,
) -> list[Span]:
    """Spans from the positions towards the ends, together at most about ``most`` offsets and ``most_bytes`` long.

    What there is to read is shared out in proportion to lag, so that no partition is left behind: each that has any
    gets at least one offset, even if that makes a few more than ``most``. ``sizes`` are those that records of
    partitions are expected to have.
    """
    behind = {tp: end - positions[tp] for tp, end in sorted(ends.items()) if tp in positions and end > positions[tp]}
    total = sum(behind.values())
    if total > most:
        behind = {tp: max(1, lag * most // total) for tp, lag in behind.items()}
    weight = expected_bytes(behind, sizes or {})
    if weight > most_bytes:
        behind = {tp: max(1, int(length * most_bytes / weight)) for tp, length in behind.items()}
    return [Span(tp, positions[tp], positions[tp] + length) for tp, length in behind.items()]


def expected_bytes(lengths: Mapping[TopicPartition, int], sizes: Mapping[TopicPartition, float]) -> float:
    """How many bytes so many records of each partition are; one that has shown none yet is taken for the largest."""
    unknown = max(sizes.values(), default=UNKNOWN)
    return sum(length * sizes.get(tp, unknown) for tp, length in lengths.items())
