"""The CSV format: one line per record."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from tidegate.core.arguments import Accepts, argument
from tidegate.core.columns import COMMA, EMPTY, Delimiter, Nulls
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError
from tidegate.tables.feed import Feed
from tidegate.tables.format import FieldMatch, FieldReader, Fields, Wanted
from tidegate.tables.rows import Misfit
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.values import array_of_texts

__all__ = ["CsvFormat"]


def _fields(given: Any) -> tuple[str, ...] | None:
    if isinstance(given, (str, type, set, frozenset)) or not isinstance(given, Iterable):  # a set has no order
        return None
    names = tuple(given)
    is_named = bool(names) and all(is_text(name) and name.strip() for name in names)
    return names if is_named and len(set(names)) == len(names) else None


_Fields = Annotated[Sequence[str], Accepts("a list with the name of each field of a line, each once", _fields)]


class CsvFormat:
    """A format in which each value is one line of CSV with these fields, in this order.

    ``header`` skips a line with the names of the fields, whether it is a whole value or precedes the line of one.
    ``nulls`` are the texts that stand for null; by default, the empty field.
    """

    def __init__(
        self, fields: Sequence[str], *, delimiter: str = COMMA, header: bool = False, nulls: str | Sequence[str] = EMPTY
    ) -> None:
        self.fields: tuple[str, ...] = argument("fields", _Fields, fields)
        self.delimiter: str = argument("delimiter", Delimiter, delimiter)
        self.header: bool = argument("header", bool, header)
        self.nulls: frozenset[str] = frozenset(argument("nulls", Nulls, nulls))

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: FieldMatch | None = None) -> FieldReader:
        """Return a reader of these columns; raise if one is not a field of the CSV.

        ``watch`` is not used: a line with more fields is a misfit, so there are never new fields.
        """
        for column, path in wanted:
            self.check(column.name, path)
        return _CsvFields(self, wanted)

    def check(self, column: str, path: Sequence[str]) -> None:
        """Raise if a column's path is not one of the fields."""
        if len(path) != 1 or path[0] not in self.fields:
            raise ConfigurationError(
                f"column {column!r} cannot come from '{'.'.join(('value', *path))}': the CSV's fields are "
                f"{', '.join(self.fields)}"
            )

    def infer(self, feed: Feed, paths: Sequence[tuple[str, ...]] | None) -> dict[tuple[str, ...], ColumnType | None]:
        """Return text as the type of all fields, since CSV does not distinguish numbers from text."""
        return {path: ColumnType(TypeName.TEXT) for path in paths or [(name,) for name in self.fields]}


_EMPTY = frozenset({""})
_NOT_A_LINE = "not one line of CSV"


class _CsvFields:
    def __init__(self, form: CsvFormat, wanted: Sequence[Wanted]) -> None:
        self._form = form
        self._wanted = [(form.fields.index(path[0]), column) for column, path in wanted]

    def read(self, feed: Feed) -> Fields:
        blank: list[str | None] = [None] * len(self._form.fields)
        lines: list[Sequence[str | None]] = []
        places = []
        misfits = []
        for place, value in enumerate(feed.value):
            line, why = (blank, None) if value is None else self._line(value)
            if line is not None or why is not None:
                lines.append(line or blank)
                places.append(place)
            if why is not None:
                misfits.append(Misfit(place, None, why))
        converted = {column.name: array_of_texts(self._field(lines, at), column) for at, column in self._wanted}
        return Fields(converted, range(len(lines)) if len(lines) == len(feed) else places, misfits)

    def _field(self, lines: Sequence[Sequence[str | None]], at: int) -> list[str | None]:
        nulls = self._form.nulls
        if nulls == _EMPTY:
            return [line[at] or None for line in lines]
        return [None if line[at] in nulls else line[at] for line in lines]

    def _line(self, value: bytes) -> tuple[Sequence[str | None] | None, str | None]:
        """Return the fields of a value, or the reason why it has none; neither if it is only the header.

        Each value is parsed by itself, so that an unclosed quote does not reach into the next record.
        """
        try:
            text = str(value, "utf-8")
            lines = list(csv.reader([text], delimiter=self._form.delimiter, strict=True))
        except UnicodeDecodeError:
            return None, "CSV that is not UTF-8"
        except csv.Error:
            return self._after_header(text)
        if len(lines) != 1:
            return None, "an empty value" if not lines else _NOT_A_LINE
        if self._form.header and tuple(lines[0]) == self._form.fields:
            return None, None
        if len(lines[0]) != len(self._form.fields):
            return None, f"a line with {len(lines[0])} fields instead of {len(self._form.fields)}"
        return lines[0], None

    def _after_header(self, text: str) -> tuple[Sequence[str | None] | None, str | None]:
        """Parse the line after the header, if the value begins with the header."""
        first, _, rest = text.partition("\n")
        if not self._form.header or not rest or self._line(first.encode()) != (None, None):
            return None, _NOT_A_LINE
        return self._line(rest.encode())
