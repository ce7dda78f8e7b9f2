"""What Kafka delivers: partitions and records."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Record", "TopicPartition"]


class TopicPartition(NamedTuple):
    """One partition of one topic. Sorts by topic, byte for byte, and then by number: the order in which rows are
    locked.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class Record(NamedTuple):
    """One record as Kafka delivered it; ``value`` is ``None`` for a tombstone, ``timestamp`` in milliseconds."""

    topic: str
    partition: int
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None

    @property
    def source(self) -> TopicPartition:
        """The partition that the record came from."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Bytes of key and value: what a buffer is bounded by."""
        return len(self.key or b"") + len(self.value or b"")
