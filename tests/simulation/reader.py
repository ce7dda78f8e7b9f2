"""The consumer inside a member: where it fetches, and what is on its way to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidegate.core.records import Record, TopicPartition

from .log import Log

FETCH = 4
"""Records of one partition that a fetch returns at most."""


class Fetched(NamedTuple):
    """What a fetch returned: the generation at which it was sent, records, and where each partition continues."""

    since: int
    records: list[Record]
    reached: list[tuple[TopicPartition, int]]


class Reader:
    """One fetch at a time: it is answered at the next poll, whatever has happened by then."""

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self.topic_ids: dict[TopicPartition, int] = {}
        self.stopped: set[TopicPartition] = set()
        self.under_way: Fetched | None = None

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self.positions.pop(tp, None)
            self.stopped.discard(tp)

    def take(self) -> Fetched | None:
        """What the last fetch returned."""
        fetched, self.under_way = self.under_way, None
        return fetched

    def send(
        self, generation: int, logs: Mapping[TopicPartition, Log], topic_id: int
    ) -> tuple[TopicPartition, int] | None:
        """Fetch, and give a position that the log refuses, if there is one. Fetches name the topic by its id."""
        records: list[Record] = []
        reached: list[tuple[TopicPartition, int]] = []
        refused = None
        for tp, at in self.positions.items():
            log = logs[tp]
            if at == log.end or tp in self.stopped or self.topic_ids[tp] != topic_id:
                continue
            if at < log.start:
                refused = tp, at
                continue
            found, offset = log.fetch(at, FETCH)
            records += found
            reached.append((tp, offset))
            self.positions[tp] = offset
        if reached:
            self.under_way = Fetched(generation, records, reached)
        return refused
