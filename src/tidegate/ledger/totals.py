"""Adding positions up, for stores that do not do so themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from tidegate.core.positions import GroupState, Position
from tidegate.core.totals import Totals

__all__ = ["totals_of"]


def totals_of(groups: Iterable[GroupState]) -> list[Totals]:
    """The totals of groups, in order."""
    totals = []
    for state in groups:
        topics: defaultdict[str, list[Position]] = defaultdict(list)
        for tp, row in state.positions.items():
            topics[tp.topic].append(row)
        totals += [_total(state, topic, rows) for topic, rows in topics.items()]
        if not topics:
            totals.append(Totals(state.group, state.paused, None))
    return sorted(totals, key=lambda total: (total.group, total.topic or ""))


def _total(state: GroupState, topic: str, rows: list[Position]) -> Totals:
    times: list[datetime] = [row.updated_at for row in rows if row.updated_at is not None]
    return Totals(
        state.group,
        state.paused,
        topic,
        len(rows),
        sum(row.owner is not None for row in rows),
        sum(row.next_offset for row in rows),
        max(times, default=None),
    )
