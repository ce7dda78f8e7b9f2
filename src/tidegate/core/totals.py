"""Totals: what the ledger has of one topic of one group, added up."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

__all__ = ["Totals"]


class Totals(NamedTuple):
    """The positions of one group in one topic, as one.

    ``topic`` is ``None`` for a group that has no positions. ``owned`` counts the partitions that have an owner,
    ``next_offsets`` is the sum of the positions, and ``updated_at`` is when one of them last changed.
    """

    group: str
    paused: bool
    topic: str | None
    partitions: int = 0
    owned: int = 0
    next_offsets: int = 0
    updated_at: datetime | None = None
