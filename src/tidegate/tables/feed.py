"""A feed: records as columns, the way readers take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tidegate.core.records import Record

__all__ = ["Feed"]


@dataclass(frozen=True, slots=True)
class Feed:
    """Records to read, part by part, each in the order of the records; ``timestamp`` in milliseconds.

    Only ``value`` has to be there, and of the others those that columns are taken from.
    """

    value: Sequence[bytes | None]
    key: Sequence[bytes | None] | None = None
    topic: Sequence[str] | None = None
    partition: Sequence[int] | None = None
    offset: Sequence[int] | None = None
    timestamp: Sequence[int | None] | None = None
    headers: Sequence[Sequence[tuple[str, bytes | None]] | None] | None = None

    @classmethod
    def of(cls, records: Sequence[Record]) -> Feed:
        """The records of a listener's batch."""
        if not records:
            return cls(*([] for _ in fields(cls)))
        return cls(**dict(zip(Record._fields, zip(*records, strict=True), strict=True)))

    def part(self, name: str) -> Sequence[Any]:
        """One part of all records; nothing but nulls if the feed does not have it."""
        found: Sequence[Any] | None = getattr(self, name)
        return [None] * len(self.value) if found is None else found

    def records(self) -> Iterator[Record]:
        """The same as records."""
        parts = [self.part(name) for name in Record._fields]
        for topic, partition, offset, key, value, headers, timestamp in zip(*parts, strict=True):
            source = topic or "", -1 if partition is None else partition, -1 if offset is None else offset
            yield Record(*source, key, value, tuple(headers or ()), timestamp)

    def at(self, places: Sequence[int]) -> Feed:
        """Those of the records that are at these places."""
        parts = ((each.name, getattr(self, each.name)) for each in fields(self))
        return Feed(**{name: part and [part[place] for place in places] for name, part in parts})

    def __len__(self) -> int:
        return len(self.value)
