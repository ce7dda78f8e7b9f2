"""CSV: one line for each record."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from tidegate.core.arguments import Kind, argument
from tidegate.core.columns import Delimiter
from tidegate.core.errors import ConfigurationError
from tidegate.core.texts import is_text
from tidegate.tables.feed import Feed
from tidegate.tables.format import FieldReader, Fields, Wanted, Watch
from tidegate.tables.misfit import Misfit
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.values import array_of_texts

__all__ = ["CsvFormat"]


def _fields(given: Any) -> tuple[str, ...] | None:
    if isinstance(given, (str, type)) or not isinstance(given, Iterable):
        return None
    names = tuple(given)
    is_named = bool(names) and all(is_text(name) and name.strip() for name in names)
    return names if is_named and len(set(names)) == len(names) else None


_Fields = Annotated[Sequence[str], Kind("a list with the name of each field of a line, each once", _fields)]


class CsvFormat:
    """Each value is one line of CSV with these fields, in this order. An empty field is a null."""

    def __init__(self, fields: Sequence[str], *, delimiter: str = ",") -> None:
        self.fields: tuple[str, ...] = argument("fields", _Fields, fields)
        self.delimiter: str = argument("delimiter", Delimiter, delimiter)

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: Watch | None = None) -> FieldReader:
        """See :meth:`Format.reader`. There are no new fields: a line with more of them is a misfit."""
        for column, path in wanted:
            self.check(column.name, path)
        return _CsvFields(self, wanted)

    def check(self, column: str, path: Sequence[str]) -> None:
        """Refuse a column that does not come from one of the fields."""
        if len(path) != 1 or path[0] not in self.fields:
            raise ConfigurationError(
                f"column {column!r} cannot come from '{'.'.join(('value', *path))}': the CSV's fields are "
                f"{', '.join(self.fields)}"
            )

    def infer(self, feed: Feed, paths: Sequence[tuple[str, ...]] | None) -> dict[tuple[str, ...], ColumnType | None]:
        """See :meth:`Format.infer`: CSV does not tell numbers from text, so all of it is text."""
        return {path: ColumnType(TypeName.TEXT) for path in paths or [(name,) for name in self.fields]}


class _CsvFields:
    def __init__(self, form: CsvFormat, wanted: Sequence[Wanted]) -> None:
        self._form = form
        self._wanted = [(form.fields.index(path[0]), column) for column, path in wanted]

    def read(self, feed: Feed) -> Fields:
        blank = [""] * len(self._form.fields)
        lines: list[list[str]] = []
        misfits = []
        for place, value in enumerate(feed.value):
            line, why = (blank, None) if value is None else self._line(value)
            lines.append(line or blank)
            if why is not None:
                misfits.append(Misfit(place, None, why))
        converted = {
            column.name: array_of_texts([line[at] or None for line in lines], column) for at, column in self._wanted
        }
        return Fields(converted, range(len(lines)), misfits)

    def _line(self, value: bytes) -> tuple[list[str] | None, str | None]:
        """Line by line: a quote that is never closed must not reach into the next record."""
        try:
            lines = list(csv.reader([str(value, "utf-8")], delimiter=self._form.delimiter, strict=True))
        except UnicodeDecodeError:
            return None, "CSV that is not UTF-8"
        except csv.Error:
            return None, "not one line of CSV"
        if len(lines) != 1:
            return None, "an empty value" if not lines else "not one line of CSV"
        if len(lines[0]) != len(self._form.fields):
            return None, f"a line with {len(lines[0])} fields instead of {len(self._form.fields)}"
        return lines[0], None
