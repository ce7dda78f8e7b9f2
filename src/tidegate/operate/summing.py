"""Summing: the lag of whole groups, by the sums of their positions and of the ends of their logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.core.records import TopicPartition
from tidegate.core.totals import Totals
from tidegate.ledger.base import Ledger

__all__ = ["Ends"]

_MOST_READ = 20


class Ends:
    """Where the logs of topics end, added up, so that a group's lag is a subtraction.

    That needs a position for every partition of the topic. Groups that lack some are read one by one, a bounded number
    of them: the lag of the others is not known.
    """

    def __init__(self, ends: Mapping[TopicPartition, int]) -> None:
        self._ends = ends
        self._sums: defaultdict[str, int] = defaultdict(int)
        self._counts: defaultdict[str, int] = defaultdict(int)
        for tp, end in ends.items():
            self._sums[tp.topic] += end
            self._counts[tp.topic] += 1
        self._left = _MOST_READ

    def of(self, ledger: Ledger[Any], totals: Sequence[Totals]) -> int | None:
        """The sum of the ends of the partitions that a group has positions in; ``None`` if that is not known."""
        known = [self._counts.get(total.topic or "", 0) - total.partitions for total in totals]
        if not any(known):
            return sum(self._sums[total.topic or ""] for total in totals)
        if min(known) < 0 or self._left == 0:  # a partition that is gone or has no leader, or enough were read
            return None
        self._left -= 1
        stored = ledger.read(totals[0].group).positions
        if not stored.keys() <= self._ends.keys():
            return None
        return sum(self._ends[tp] for tp in stored)
