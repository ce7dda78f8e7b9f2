"""The broker of a test: what listeners need of one, and what a test needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tidegate.core.records import Record, TopicPartition
from tidegate.kafka.broker import Broker

__all__ = ["KitBroker"]


class KitBroker(Broker, Protocol):
    """A broker whose topics belong to one test."""

    @property
    def can_aim(self) -> bool:
        """Whether partitions can be taken away at an exact step."""

    def create(self, topic: str, partitions: int) -> None:
        """A new topic; or more partitions for one that there is."""

    def names(self) -> list[str]:
        """The topics that there are."""

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0 if there is none."""

    def append(self, record: Record) -> Record:
        """Store a record; returns it with its offset."""

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Where the logs of these topics end."""

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that a group keeps in Kafka."""

    def bounce(self, group: str, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """Take partitions away from whoever has them, with or without asking, and give them to whoever is to have
        them."""

    def expect_move(self, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """The next member that joins is to get these, with or without asking those who have them."""

    def close(self) -> None:
        """Remove what the test left."""
