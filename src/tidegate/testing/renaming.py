"""Names that a listener knows, and those that they have on a broker that is shared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from tidegate.core.records import TopicPartition

__all__ = ["Renaming"]

V = TypeVar("V")


class Renaming:
    """A prefix: before every name that goes to the broker, and off every name that comes from it."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def there(self, name: str) -> str:
        """A topic or a group as the broker knows it."""
        return self._prefix + name

    def here(self, name: str) -> str:
        """A topic as the listener knows it."""
        return name.removeprefix(self._prefix)

    def subscription(self, wanted: str) -> str:
        """What to subscribe to: a topic, or a pattern, which begins with ``^``."""
        if not wanted.startswith("^"):
            return self.there(wanted)
        return f"^{re.escape(self._prefix)}({wanted.removeprefix('^')})"

    def partition_there(self, partition: TopicPartition) -> TopicPartition:
        """A partition as the broker knows it."""
        return TopicPartition(self.there(partition.topic), partition.partition)

    def partition_here(self, partition: TopicPartition) -> TopicPartition:
        """A partition as the listener knows it."""
        return TopicPartition(self.here(partition.topic), partition.partition)

    def all_there(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions as the broker knows them."""
        return [self.partition_there(tp) for tp in partitions]

    def all_here(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions as the listener knows them."""
        return [self.partition_here(tp) for tp in partitions]

    def keys_there(self, values: Mapping[TopicPartition, V]) -> dict[TopicPartition, V]:
        """The same values, by partitions as the broker knows them."""
        return {self.partition_there(tp): value for tp, value in values.items()}

    def keys_here(self, values: Mapping[TopicPartition, V]) -> dict[TopicPartition, V]:
        """The same values, by partitions as the listener knows them."""
        return {self.partition_here(tp): value for tp, value in values.items()}
