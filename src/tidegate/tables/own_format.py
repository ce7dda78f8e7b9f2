"""A user's own format: a function that turns records into rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tidegate.core.arguments import argument
from tidegate.core.records import Record
from tidegate.tables.feed import Feed
from tidegate.tables.format import FieldMatch, FieldReader, Fields, MappedRows, Wanted, field_in, lacking_in
from tidegate.tables.inference import infer_python
from tidegate.tables.rows import Misfit
from tidegate.tables.types import ColumnType

__all__ = ["OwnFormat", "RowFunction"]

Row: TypeAlias = Mapping[str, Any]
RowFunction: TypeAlias = Callable[[Record], "Row | Iterable[Row] | None"]
"""Returns a record's row, several rows, or none; raises if the record is invalid."""


class OwnFormat:
    """A format in which a function makes the rows; if it raises, the record is a misfit.

    The function gets tombstones only if the table sets no ``tombstones`` and its mode is not upsert.
    """

    def __init__(self, function: RowFunction) -> None:
        self.function: RowFunction = argument("function", Callable[[Record], Any], function)

    def without_tombstones(self) -> OwnFormat:
        """Return a format that does not call the function for tombstones: each becomes a row without fields.

        It is for tables that handle tombstones themselves.
        """
        function = self.function
        return OwnFormat(lambda record: {} if record.value is None else function(record))

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: FieldMatch | None = None) -> FieldReader:
        """Return a reader that calls the function for each record."""
        return _OwnFields(self.function, wanted, watch)

    def infer(self, feed: Feed, paths: Sequence[tuple[str, ...]] | None) -> dict[tuple[str, ...], ColumnType | None]:
        """Infer the types of fields from the rows that the function makes; calls it for each record."""
        rows, _, _ = _rows(self.function, feed)
        wanted = [(name,) for name in dict.fromkeys(name for row in rows for name in row)] if paths is None else paths
        return {path: infer_python(lacking_in([field_in(row, path) for row in rows])[0]) for path in wanted}


class _OwnFields:
    def __init__(self, function: RowFunction, wanted: Sequence[Wanted], watch: FieldMatch | None) -> None:
        self._function = function
        self._rows = MappedRows(wanted, watch)

    def read(self, feed: Feed) -> Fields:
        return self._rows.fields(*_rows(self._function, feed))


def _rows(function: RowFunction, feed: Feed) -> tuple[list[Row], list[int], list[Misfit]]:
    rows: list[Row] = []
    places: list[int] = []
    misfits: list[Misfit] = []
    for place, record in enumerate(feed.records()):
        try:
            made = function(record)
            new = [made] if isinstance(made, Mapping) else list(made or ())
            if not all(isinstance(row, Mapping) for row in new):
                raise TypeError("rows are mappings from names to values")
        except Exception as error:  # report its type only: its text may contain the value
            misfits.append(Misfit(place, None, f"the function that makes rows failed with {type(error).__name__}"))
            continue
        rows += new
        places += [place] * len(new)
    return rows, places, misfits
