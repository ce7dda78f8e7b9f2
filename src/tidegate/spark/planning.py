"""Planning: which span of each partition the next micro-batch covers. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.core.records import TopicPartition
from tidegate.core.spans import Span

__all__ = ["plan"]


def plan(positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int) -> list[Span]:
    """Spans from the positions towards the ends, together at most about ``most`` offsets long.

    What there is to read is shared out in proportion to lag, so that no partition is left behind: each that has any
    gets at least one offset, even if that makes a few more than ``most``.
    """
    behind = {tp: end - positions[tp] for tp, end in sorted(ends.items()) if tp in positions and end > positions[tp]}
    total = sum(behind.values())
    if total > most:
        behind = {tp: max(1, lag * most // total) for tp, lag in behind.items()}
    return [Span(tp, positions[tp], positions[tp] + length) for tp, length in behind.items()]
