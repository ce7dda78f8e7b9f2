"""The lookout: what became of the rows, and of the topics that they speak of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tidegate.core.positions import GroupState
from tidegate.core.records import TopicPartition
from tidegate.kafka.broker import Cluster
from tidegate.kafka.positions import KafkaPositions

__all__ = ["Lookout", "Seen"]

_IDENTIFY = 3.0  # seconds between two looks whether the topics are still the same: they may be recreated under us


class Seen(NamedTuple):
    """The group as the ledger has it, and the partitions whose topics are other ones by now."""

    group: GroupState
    recreated: list[TopicPartition]


class Lookout:
    """Looks at the rows of one group every time, and at the topics' identities now and then."""

    def __init__(self, group: str, ledger: Any, admin: Cluster) -> None:
        self._group = group
        self._ledger = ledger
        self._admin = admin
        self._identify_at = 0.0

    def look(self, partitions: list[TopicPartition], *, identify: bool = False) -> Seen:
        """What there is to see; ``identify``: of the topics too, however lately they were looked at."""
        group: GroupState = self._ledger.read(self._group, partitions)
        now = time.monotonic()
        if now < self._identify_at and not identify:
            return Seen(group, [])
        self._identify_at = now + _IDENTIFY
        known = self._admin.identities({tp.topic for tp in partitions})
        rows = group.positions.items()
        return Seen(group, [tp for tp, row in rows if tp.topic in known and row.identity.conflict(known[tp.topic])])

    def is_done(self, covers: Callable[[str], bool]) -> bool:
        """Whether the group is at the end of the topics that it covers, whoever of its members read them."""
        if isinstance(self._ledger, KafkaPositions):  # which knows of nobody else
            return True
        positions = self._ledger.read(self._group).positions
        rows = {tp: row for tp, row in positions.items() if covers(tp.topic)}
        ends = self._admin.logs(rows)
        return bool(rows) and all(rows[tp].next_offset >= log.latest for tp, log in ends.items())
