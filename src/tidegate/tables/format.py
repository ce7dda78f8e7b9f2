"""The interface between formats and readers: a format turns the bytes of records into the values of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from msgspec import UNSET

from tidegate.tables.column import Column
from tidegate.tables.feed import Feed
from tidegate.tables.rows import Misfit
from tidegate.tables.types import ColumnType
from tidegate.tables.values import Converted

__all__ = ["FieldMatch", "FieldReader", "Fields", "Format", "NewFields", "Unmatched", "Wanted", "lacking_in"]


class Wanted(NamedTuple):
    """A column to read, and the path of its field within the value."""

    column: Column
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """The result of reading: values by column name, the place of each row's record, and the unreadable records.

    ``lacking`` has the same meaning as in :class:`Rows`.
    """

    converted: Mapping[str, Converted]
    places: Sequence[int]
    misfits: Sequence[Misfit] = field(default=())
    lacking: Mapping[str, Any] = field(default_factory=dict)


class Unmatched(Enum):
    """How a field without a column is handled."""

    IGNORED = "ignored"
    """The field is ignored."""
    REFUSED = "refused"
    """The record is a misfit."""
    NEW = "new"
    """:class:`NewFields` is raised, unless the field is null."""
    UNFIT = "unfit"
    """The record is a misfit, unless the field is null."""


@dataclass(frozen=True, slots=True)
class FieldMatch:
    """How fields are matched with columns.

    ``unmatched`` applies to fields without a column, except those in ``left_out``, which are always ignored. Fields in
    ``waiting`` have been null so far. ``whys`` holds, by name, the reason why a field makes its record a misfit;
    ``why`` is the reason for all other fields.
    """

    ignore_case: bool = True
    unmatched: Unmatched = Unmatched.IGNORED
    left_out: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    whys: Mapping[str, str] = field(default_factory=dict)
    why: str = "no column comes from it"

    @property
    def spares_nulls(self) -> bool:
        """Whether an unmatched field is ignored if it is null."""
        return self.unmatched in (Unmatched.NEW, Unmatched.UNFIT)

    def misfits(self, unmatched: Mapping[int, str]) -> list[Misfit]:
        """Return misfits for records with an unmatched field, given by place; or raise :class:`NewFields`."""
        if unmatched and self.unmatched is Unmatched.NEW:
            raise NewFields
        return [
            Misfit(place, None, f"field {name!r}: {self.whys.get(name, self.why)}") for place, name in unmatched.items()
        ]


class NewFields(Exception):
    """A value has a field without a column."""


class FieldReader(Protocol):
    """Reads the wanted columns of records in one format."""

    def read(self, feed: Feed) -> Fields:
        """Read all records; a record without a value becomes a row of nulls.

        Raises :class:`NewFields` if the field match asks for it.
        """


class Format(Protocol):
    """How the values of records are encoded."""

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: FieldMatch | None = None) -> FieldReader:
        """Return a reader of these columns; ``watch`` sets how fields are matched, by default ``FieldMatch()``."""

    def infer(self, feed: Feed, paths: Sequence[tuple[str, ...]] | None) -> dict[tuple[str, ...], ColumnType | None]:
        """Infer the types of the fields at these paths, or of all fields; ``None`` for a field that is always null."""


def lacking_in(values: list[Any]) -> tuple[list[Any], Any | None]:
    """Replace ``UNSET`` values by nulls; also return an Arrow mask of them, or ``None`` if there are none."""
    count = values.count(UNSET)
    if not count:
        return values, None
    if count == len(values):
        return [None] * count, pa.repeat(pa.scalar(True), count)
    return (
        [None if value is UNSET else value for value in values],
        pa.array([value is UNSET for value in values], pa.bool_()),
    )
