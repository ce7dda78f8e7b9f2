"""The seam between formats and readers: the bytes of records in, the values of columns out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tidegate.tables.column import Column
from tidegate.tables.feed import Feed
from tidegate.tables.misfit import Misfit
from tidegate.tables.types import ColumnType
from tidegate.tables.values import Converted

__all__ = ["FieldReader", "Fields", "Format", "NewFields", "Wanted", "Watch"]


class Wanted(NamedTuple):
    """A column, and the way to its field within the value."""

    column: Column
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """What was found: by column name its values, for each row the place of its record, and who cannot be read."""

    converted: Mapping[str, Converted]
    places: Sequence[int]
    misfits: Sequence[Misfit] = field(default=())


class Watch(NamedTuple):
    """What is known of the fields that no column stands for: those in ``waiting`` have been null so far, those in
    ``never`` are left out for good.
    """

    waiting: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()


class NewFields(Exception):
    """A value has a field that no column stands for."""


class FieldReader(Protocol):
    """A format that knows which columns are wanted."""

    def read(self, feed: Feed) -> Fields:
        """Read all records; one without a value is a row of nulls. Raises :class:`NewFields` if asked to watch."""


class Format(Protocol):
    """How the values of records are written."""

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: Watch | None = None) -> FieldReader:
        """Read these columns. ``watch``: report fields that are neither wanted nor known to make no column."""

    def infer(self, feed: Feed, paths: Sequence[tuple[str, ...]] | None) -> dict[tuple[str, ...], ColumnType | None]:
        """The types that the fields at these paths seem to have, or all fields of the values; none for nulls."""
