"""Ordering: which records of a pool's listener wait for each other."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias, assert_never

from tidegate.core.records import Record, TopicPartition

__all__ = ["Lane", "Ordering", "lane"]

Lane: TypeAlias = tuple[TopicPartition, bytes | int | None]
"""Records of one lane are handled one after the other: those of a key, a record by its offset, or a partition's."""


class Ordering(StrEnum):
    """In order within a partition, or only among records of one key; those without a key then wait for nobody."""

    PARTITION = "partition"
    KEY = "key"


def lane(ordering: Ordering, record: Record) -> Lane:
    """The lane of a record."""
    match ordering:
        case Ordering.PARTITION:
            return record.source, None
        case Ordering.KEY:
            return record.source, record.offset if record.key is None else record.key
        case other:
            assert_never(other)
