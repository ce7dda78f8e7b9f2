"""Claiming for a listener or a pipeline: by its settings, with what Kafka says of the topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.core.positions import Identity
from tidegate.core.records import TopicPartition
from tidegate.core.recovery import Recreated
from tidegate.core.spans import Claim
from tidegate.core.start import StartStrategy, Timestamp
from tidegate.kafka.broker import Cluster
from tidegate.kafka.positions import KafkaPositions
from tidegate.ledger import Ledger, Subscription

__all__ = ["Claimer"]


class Claimer:
    """Claims partitions of one group.

    A group that ``subscribes`` shares out whole topics; otherwise it reads partitions that are named, each by itself.
    """

    def __init__(
        self,
        group: str,
        ledger: Ledger[Any] | KafkaPositions,
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
        """Claim them in one transaction; those without a position begin by the start strategy."""
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
