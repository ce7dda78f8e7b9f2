"""A user's own format: a function from records to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tidegate.core.arguments import argument
from tidegate.core.records import Record
from tidegate.tables.feed import Feed
from tidegate.tables.format import FieldReader, Fields, NewFields, Wanted, Watch
from tidegate.tables.inference import infer_python
from tidegate.tables.misfit import Misfit
from tidegate.tables.types import ColumnType
from tidegate.tables.values import array_of

__all__ = ["OwnFormat", "RowFunction"]

Row: TypeAlias = Mapping[str, Any]
RowFunction: TypeAlias = Callable[[Record], "Row | Iterable[Row] | None"]
"""Makes of a record its row, or several, or none; raises if it cannot."""


class OwnFormat:
    """Rows made by a function; an error that it raises makes its record a misfit. Tombstones of a table that deletes
    are not given to it.
    """

    def __init__(self, function: RowFunction) -> None:
        self.function: RowFunction = argument("function", Callable[[Record], Any], function)

    def without_tombstones(self) -> OwnFormat:
        """The same for a table that deletes: a tombstone is a row of nulls, which is not asked for."""
        function = self.function
        return OwnFormat(lambda record: {} if record.value is None else function(record))

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: Watch | None = None) -> FieldReader:
        """See :meth:`Format.reader`."""
        return _OwnFields(self.function, wanted, watch)

    def infer(self, feed: Feed, paths: Sequence[tuple[str, ...]] | None) -> dict[tuple[str, ...], ColumnType | None]:
        """See :meth:`Format.infer`."""
        rows, _, _ = _rows(self.function, feed)
        wanted = [(name,) for name in dict.fromkeys(name for row in rows for name in row)] if paths is None else paths
        return {path: infer_python(_at(row, path) for row in rows) for path in wanted}


class _OwnFields:
    def __init__(self, function: RowFunction, wanted: Sequence[Wanted], watch: Watch | None) -> None:
        self._function = function
        self._wanted = wanted
        self._known = None if watch is None else watch.never | {path[0] for _, path in wanted}

    def read(self, feed: Feed) -> Fields:
        rows, places, misfits = _rows(self._function, feed)
        if self._known is not None and any(row[name] is not None for row in rows for name in row.keys() - self._known):
            raise NewFields
        converted = {column.name: array_of([_at(row, path) for row in rows], column) for column, path in self._wanted}
        return Fields(converted, places, misfits)


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
        except Exception as error:  # its text may quote the value
            misfits.append(Misfit(place, None, f"the function that makes rows failed with {type(error).__name__}"))
            continue
        rows += new
        places += [place] * len(new)
    return rows, places, misfits


def _at(row: Row, path: tuple[str, ...]) -> Any:
    found: Any = row
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
