"""Logs of partitions: with gaps, growing at their end, cut off at their start by retention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

from tidegate.core.records import Record, TopicPartition

TOPIC = "orders"
LENGTH = 48
VARIANTS = 4


class Reel:
    """Everything that is ever written to one partition of one incarnation of the topic.

    Reels are shared by all schedules. ``below[n]`` is the number of records in front of offset n; the other offsets are
    gaps, as markers, aborted transactions and compaction leave them.
    """

    __slots__ = ("below", "records")

    def __init__(self, partition: TopicPartition, incarnation: int, variant: int) -> None:
        rng = Random(variant * 10_007 + incarnation * 101 + partition.partition)
        value = f"incarnation {incarnation}".encode()
        self.records: list[Record] = []
        self.below = [0]
        for offset in range(LENGTH):
            if rng.random() < 0.7:
                self.records.append(Record(*partition, offset, None, value))
            self.below.append(len(self.records))

    def between(self, start: int, end: int) -> Sequence[Record]:
        """The records of ``[start, end)``."""
        return self.records[self.below[start] : self.below[end]]


@cache
def reel(partition: TopicPartition, incarnation: int, variant: int) -> Reel:
    """The reel of that name."""
    return Reel(partition, incarnation, variant)


class Log:
    """The part of a reel that is in the log now: ``[start, end)``."""

    __slots__ = ("end", "reel", "start")

    def __init__(self, reel: Reel, end: int) -> None:
        self.reel = reel
        self.start = 0
        self.end = end

    def append(self, offsets: int) -> None:
        """Write that many offsets more."""
        self.end = min(self.end + offsets, LENGTH)

    def fetch(self, position: int, count: int) -> tuple[Sequence[Record], int]:
        """Up to ``count`` records from ``position`` on, and where reading continues: behind trailing gaps."""
        first = self.reel.below[position]
        last = self.reel.below[self.end]
        if last <= first + count:
            return self.reel.records[first:last], self.end
        records = self.reel.records[first : first + count]
        return records, records[-1].offset + 1
