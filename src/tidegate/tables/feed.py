"""Feeds, which hold records part by part for readers, and sources, which say where a column's values come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple, TypeAlias

from tidegate.core.arguments import Accepts
from tidegate.core.records import Record, Records
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError

__all__ = ["Clash", "Feed", "Known", "Mapped", "Source", "Unread", "fold", "is_spelled_otherwise", "sources_of"]


_PARTS = ("value", "key", "headers", "topic", "partition", "offset", "timestamp")
_NESTED = ("value", "key", "headers")


def _mapped(given: Any) -> dict[str, Any] | None:
    if not isinstance(given, Mapping) or not given:
        return None
    for column, path in given.items():
        is_path = is_text(path) or (isinstance(path, Sequence) and path and all(map(is_text, path)))
        if not (is_text(column) and column.strip()) or not is_path:
            raise ConfigurationError(f"column {column!r}: a source is text, such as 'value.id', or a list of names")
    sources_of(given)
    return dict(given)


Mapped: TypeAlias = Annotated[
    Mapping[str, str | Sequence[str]],
    Accepts("a mapping from columns to their sources, such as {'id': 'value.id'}", _mapped),
]
"""Maps columns to paths: ``"value.address.city"``, ``"key"``, ``"offset"``; a list of names if one contains a dot."""


class Source(NamedTuple):
    """One part of a record and the path within it; an empty path means the whole part."""

    part: str
    path: tuple[str, ...] = ()

    @property
    def is_field(self) -> bool:
        """Whether it is a field of the value, which the format must read."""
        return self.part == "value" and bool(self.path)

    def __str__(self) -> str:
        return ".".join((self.part, *self.path))


def sources_of(mapped: Mapped) -> dict[str, Source]:
    """Parse the paths that a user gives for columns; raise if one is invalid."""
    return {column: _parsed(column, path) for column, path in mapped.items()}


def _parsed(column: str, written: str | Sequence[str]) -> Source:
    part, *path = written.split(".") if isinstance(written, str) else written
    if part not in _PARTS:
        raise ConfigurationError(
            f"column {column!r} cannot come from {'.'.join((part, *path))!r}: a source begins with one of "
            f"{', '.join(_PARTS)}, as in 'value.{part}'"
        )
    if path and part not in _NESTED:
        raise ConfigurationError(f"column {column!r}: {part} has nothing inside of it")
    if part == "headers" and len(path) > 1:
        raise ConfigurationError(
            f"column {column!r}: the value of a header is taken as a whole, as 'headers.{path[0]}'"
        )
    if not all(path):
        raise ConfigurationError(f"column {column!r}: the path {'.'.join((part, *path))!r} has an empty name in it")
    return Source(part, tuple(path))


_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_ESCAPED = '"\\/'  # JSON has two ways to write these


class Clash(Exception):
    """Several fields of a record differ only in case, and none matches the column's name exactly."""

    def __init__(self, name: str) -> None:
        super().__init__(f"several fields are {name!r} but for case, and none is so exactly")


class Known:
    """The names of the fields that columns come from, at one level of a record."""

    def __init__(self, paths: Iterable[tuple[str, ...]], *, ignore_case: bool) -> None:
        below: dict[str, list[tuple[str, ...]]] = {}
        for name, *rest in paths:
            below.setdefault(name, []).append(tuple(rest))
        self.inside: dict[str, Known | None] = {
            name: None if () in rest else Known(rest, ignore_case=ignore_case) for name, rest in below.items()
        }
        """The known fields within each field, by name; ``None`` if the field is read as a whole."""
        count = Counter(map(fold, self.inside))
        self._by_fold = {fold(name): name for name in self.inside if ignore_case and count[fold(name)] == 1}

    def has_exactly(self, name: Any, fields: Mapping[Any, Any]) -> bool:
        """Whether the record also has the known field from which this name differs only in case."""
        return is_text(name) and self._by_fold.get(fold(name)) in fields

    def matched(self, fields: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the fields under their known names, ignoring case if so configured; an exact match takes precedence.

        Raises :class:`Clash` if several fields match the same name.
        """
        if fields.keys() <= self.inside.keys():
            return dict(fields)
        found: dict[Any, Any] = {}
        for name, value in fields.items():
            meant = name
            if name not in self.inside and is_text(name):
                meant = self._by_fold.get(fold(name), name)
                meant = name if meant in fields else meant
            if meant in found:
                raise Clash(meant)
            found[meant] = value
        return found


def fold(name: str) -> str:
    """Return a name with the letters A to Z in lower case, and all others unchanged."""
    return name.translate(_LOWER)


def is_spelled_otherwise(data: bytes, names: Iterable[str]) -> bool:
    """Whether JSON may have fields that differ from these names only in case. Fast; only ``False`` is certain."""
    if b"\\u" in data:
        return True
    lower = data.lower()
    for name in names:
        if any(character in _ESCAPED or character < " " for character in name):
            return True
        count = lower.count(f'"{fold(name)}"'.encode())
        if count and count != data.count(f'"{name}"'.encode()):
            return True
    return False


class Unread(bytes):
    """Stands in a feed for a key or value that could not be read; ``why`` is the reason."""

    why: str

    def __new__(cls, why: str) -> Unread:
        """Make an empty value with a reason."""
        made = super().__new__(cls)
        made.why = why
        return made


@dataclass(frozen=True, slots=True)
class Feed:
    """Records to read, as one sequence per part, all in the order of the records; ``timestamp`` is in milliseconds.

    Only ``value`` is required, and the parts that columns come from.
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
        """Make a feed of records."""
        found = Records.of(records)
        return cls(**{name: found.part(name) for name in Record._fields})

    def part(self, name: str) -> Sequence[Any]:
        """Return one part of all records; nulls if the feed does not have it."""
        found: Sequence[Any] | None = getattr(self, name)
        return [None] * len(self.value) if found is None else found

    def records(self) -> Iterator[Record]:
        """Yield the feed as records."""
        parts = [self.part(name) for name in Record._fields]
        for topic, partition, offset, key, value, headers, timestamp in zip(*parts, strict=True):
            source = topic or "", -1 if partition is None else partition, -1 if offset is None else offset
            yield Record(*source, key, value, tuple(headers or ()), timestamp)

    def at(self, places: Sequence[int]) -> Feed:
        """Return a feed of the records at these places."""
        parts = ((each.name, getattr(self, each.name)) for each in fields(self))
        return Feed(**{name: part and [part[place] for place in places] for name, part in parts})

    def __len__(self) -> int:
        return len(self.value)
