"""Claims the partitions of a listener or a pipeline, and watches the claimed positions and topics for changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from tidegate.core.policies import Recreated, StartStrategy, Timestamp
from tidegate.core.positions import GroupState, Identity
from tidegate.core.records import TopicPartition
from tidegate.core.runtime import Runtime
from tidegate.core.work import Claim
from tidegate.kafka.broker import Cluster
from tidegate.ledger import Subscription
from tidegate.ledger.position_store import PositionStore
from tidegate.ledger.threads import THREADS

__all__ = ["Claimer", "Lookout", "SeenGroup"]


class Claimer:
    """Claims partitions for one group.

    With ``subscribes``, the group's members share whole topics among them; otherwise the group reads named partitions
    only.
    """

    def __init__(
        self,
        group: str,
        ledger: PositionStore[Any],
        admin: Cluster,
        *,
        start: StartStrategy,
        recreated: Recreated,
        subscribes: bool = True,
    ) -> None:
        self._group = group
        self._ledger = ledger
        self._admin = admin
        self._start = start
        self._recreated = recreated
        self._subscription = Subscription(admin.partitions, self._beginnings) if subscribes else None

    def claim(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Claim]:
        """Claim the partitions in one transaction.

        A partition without a stored position begins by the start strategy. With ``subscribes``, one that was added to a
        topic later begins at the beginning of its log.
        """
        wanted = list(partitions)
        topics = {tp.topic for tp in wanted}

        def identities() -> Mapping[str, Identity]:
            return self._admin.identities(topics)

        return self._ledger.claim(
            self._group,
            wanted,
            self._starts,
            identities=identities,
            deployment=self._start.deployment,
            restart=self._recreated.restart,
            subscription=self._subscription,
        )

    def _starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        start = self._start.start
        logs = self._admin.logs(partitions, start.at if isinstance(start, Timestamp) else None)
        return self._start.offsets(partitions, logs)

    def _beginnings(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: log.earliest for tp, log in self._admin.logs(partitions).items()}


_IDENTIFY = 3.0  # seconds between two checks whether a topic was deleted and recreated


class SeenGroup(NamedTuple):
    """The group's rows in the ledger, and the partitions whose topics were recreated since the rows were stored."""

    group: GroupState
    recreated: list[TopicPartition]


class Lookout:
    """Reads a group's rows on every look, and compares the identities of its topics every few seconds."""

    def __init__(self, group: str, ledger: PositionStore[Any], admin: Cluster, runtime: Runtime = THREADS) -> None:
        self._group = group
        self._ledger = ledger
        self._admin = admin
        self._clock = runtime.monotonic
        self._identify_at = 0.0
        self._targets: dict[TopicPartition, int] = {}

    def look(self, partitions: list[TopicPartition], *, identify: bool = False) -> SeenGroup:
        """Read the group's rows; ``identify`` compares the topics' identities even if that was done just now."""
        group = self._ledger.read(self._group, partitions)
        now = self._clock()
        if now < self._identify_at and not identify:
            return SeenGroup(group, [])
        self._identify_at = now + _IDENTIFY
        known = self._admin.identities({tp.topic for tp in partitions})
        rows = group.positions.items()
        return SeenGroup(
            group, [tp for tp, row in rows if tp.topic in known and row.identity.conflict(known[tp.topic])]
        )

    def behind(
        self, names: Collection[str], covers: Callable[[str], bool], own: Collection[TopicPartition]
    ) -> dict[TopicPartition, int] | None:
        """Return the partitions that other members of the group still have to read, and how far behind each of them is.

        ``names`` are the topics. If there are none, the topics are those that ``covers`` accepts and that the group has
        positions in; ``None`` means that it has no partitions yet.

        A partition may be on its way from one member to another, so only its stored position shows that it was read. It
        has to reach the end that its log had when this was first asked: more records may arrive all the time.
        """
        known = () if names else self._ledger.read(self._group).positions
        others = self._admin.partitions({*names, *(tp.topic for tp in known if covers(tp.topic))}).difference(own)
        if not others:
            return {} if own else None
        for tp, log in self._admin.logs(others).items():
            self._targets[tp] = min(self._targets.get(tp, log.latest), log.latest)  # a topic may be recreated
        stored = self._ledger.stored(self._group, others)
        missing = {tp: self._targets[tp] - stored.get(tp, -1) for tp in sorted(others) if tp in self._targets}
        return {tp: count for tp, count in missing.items() if count > 0}
