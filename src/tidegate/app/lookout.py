"""The lookout: what became of the rows, and of the topics that they speak of."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from tidegate.core.positions import GroupState
from tidegate.core.records import TopicPartition
from tidegate.kafka.broker import Cluster

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

    def look(self, partitions: list[TopicPartition]) -> Seen:
        """What there is to see."""
        group: GroupState = self._ledger.read(self._group, partitions)
        now = time.monotonic()
        if now < self._identify_at:
            return Seen(group, [])
        self._identify_at = now + _IDENTIFY
        known = self._admin.identities({tp.topic for tp in partitions})
        rows = group.positions.items()
        return Seen(group, [tp for tp, row in rows if tp.topic in known and row.identity.conflict(known[tp.topic])])
