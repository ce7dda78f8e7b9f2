"""The interface between formats and readers: a format turns the bytes of records into the values of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa
from msgspec import UNSET

from tidegate.tables.column import Column
from tidegate.tables.feed import Clash, Feed, Known
from tidegate.tables.rows import Misfit, Truncate
from tidegate.tables.types import ColumnType
from tidegate.tables.values import Converted, array_of, joined

__all__ = [
    "FieldMatch",
    "FieldReader",
    "Fields",
    "Format",
    "MappedRows",
    "NewFields",
    "NewOrigin",
    "Unmatched",
    "Wanted",
    "field_in",
    "lacking_in",
    "mask_of",
    "read_in_parts",
]


class Wanted(NamedTuple):
    """A column to read, and the path of its field within the value."""

    column: Column
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """The result of reading: values by column name, the place of each row's record, and the unreadable records.

    ``lacking``, ``existing`` and ``truncates`` have the same meaning as in :class:`Rows`. ``deletes`` is a mask of the
    rows that are deletions, ``passed`` are the places of records without any effect.
    """

    converted: Mapping[str, Converted]
    places: Sequence[int]
    misfits: Sequence[Misfit] = field(default=())
    lacking: Mapping[str, Any] = field(default_factory=dict)
    deletes: Any = None
    existing: Any = None
    passed: Sequence[int] = ()
    truncates: Sequence[Truncate] = ()


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


class NewOrigin(NewFields):
    """An event shows whose log its position is in, and the table of the guard does not know it yet.

    ``name`` is the column of that table: the server, or the position of the first snapshot, which names no server.
    """

    def __init__(self, name: Literal["server", "snapshot"], value: int) -> None:
        super().__init__(name, value)
        self.name = name
        self.value = value


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


class MappedRows:
    """Makes the wanted columns from records that are decoded to mappings of Python values."""

    def __init__(self, wanted: Sequence[Wanted], watch: FieldMatch | None) -> None:
        self._wanted = wanted
        self._watch = watch or FieldMatch()
        paths = [path for _, path in wanted if path]
        self._known = Known(paths, ignore_case=self._watch.ignore_case)

    def fields(self, made: Sequence[Any], places: Sequence[int], misfits: Sequence[Misfit]) -> Fields:
        """Return the columns of the rows, whose records are at ``places``; may raise :class:`NewFields`.

        A row may be something else than a mapping, for a column that takes it as a whole: null, if it is ``None``.
        """
        misfits = list(misfits)
        rows: list[Any] = []
        unmatched: dict[int, str] = {}
        for row, place in zip(made, places, strict=True):
            rows.append(self._matched(row, place, misfits, unmatched) if isinstance(row, Mapping) else row)
        misfits += self._watch.misfits(unmatched)
        converted, lacking = {}, {}
        for column, path in self._wanted:
            values, mask = lacking_in([field_in({} if path and row is None else row, path) for row in rows])
            converted[column.name] = array_of(values, column)
            if mask is not None:
                lacking[column.name] = mask
        return Fields(converted, places, misfits, lacking)

    def _matched(
        self, row: Mapping[str, Any], place: int, misfits: list[Misfit], unmatched: dict[int, str]
    ) -> Mapping[str, Any]:
        """Return the row under known names; note its fields without a column if they matter."""
        try:
            found = self._known.matched(row)
        except Clash as clash:
            misfits.append(Misfit(place, None, str(clash)))
            return {}
        if self._watch.unmatched is not Unmatched.IGNORED:
            strange = found.keys() - self._known.inside.keys() - self._watch.left_out
            for name in (name for name in found if name in strange) if strange else ():
                is_left_out = found[name] is None or self._known.has_exactly(name, found)
                if not (is_left_out and self._watch.spares_nulls):
                    unmatched.setdefault(place, name)
        return found


def field_in(row: Any, path: tuple[str, ...]) -> Any:
    """Return the field at a path: ``UNSET`` if it is missing, ``None`` if it or a field on the way is null."""
    found = row
    for name in path:
        if found is None:
            return None
        found = found.get(name, UNSET) if isinstance(found, Mapping) else UNSET
    return found


_MOST_BYTES = 1 << 28  # read at once: positions in Arrow's arrays have 32 bits


def read_in_parts(
    read: Callable[[Sequence[bytes | None]], Fields], values: Sequence[bytes | None], at_once: int
) -> Fields:
    """Read at most so many records at once, one row each, so that what is made of them fits into the processor's cache.

    ``read`` counts places from the first record that it is given.
    """
    parts = [(start, read(values[start:end])) for start, end in _cuts(values, at_once)]
    if len(parts) == 1:
        return parts[0][1]
    misfits = [each._replace(place=start + each.place) for start, fields in parts for each in fields.misfits]
    names = parts[0][1].converted
    converted = {name: joined([(start, fields.converted[name]) for start, fields in parts]) for name in names}
    lacking = {
        name: pa.concat_arrays([mask_of(name, fields) for _, fields in parts])
        for name in names
        if any(name in fields.lacking for _, fields in parts)
    }
    return Fields(converted, range(len(values)), misfits, lacking)


def _cuts(values: Sequence[bytes | None], at_once: int) -> Iterator[tuple[int, int]]:
    waiting = [(start, min(start + at_once, len(values))) for start in range(0, len(values), at_once)] or [(0, 0)]
    waiting.reverse()
    while waiting:
        start, end = waiting.pop()
        if end - start > 1 and sum(map(len, filter(None, values[start:end]))) > _MOST_BYTES:
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]
        else:
            yield start, end


def mask_of(name: str, fields: Fields) -> Any:
    """Return a mask of the rows that lack a column."""
    mask = fields.lacking.get(name)
    return pa.repeat(pa.scalar(False), len(fields.places)) if mask is None else mask
