"""A column of the target table: its type, and what a value must be like to fit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa

from tidegate.tables.types import ColumnType, TypeName

__all__ = ["Column"]

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_MOST_DIGITS = 76


@dataclass(frozen=True, slots=True)
class Column:
    """What is known of a column before anything is written to it.

    ``has_default``: the database fills it in if it is left out. ``generated``: only the database fills it in.
    """

    name: str
    type: ColumnType
    sql_type: str
    nullable: bool = True
    has_default: bool = False
    generated: bool = False
    low: int = _LOWEST
    """Of an integer: the least value."""
    high: int = _HIGHEST
    """Of an integer: the greatest value."""
    length: int | None = None
    """Of a text: how many characters it may have."""
    size: int | None = None
    """Of a text or bytes: how many bytes it may have."""
    digits: int | None = None
    """Of a decimal that the database would round: how many significant digits it keeps."""
    first: date = date.min
    """Of a date or timestamp: the first one, or its day."""
    last: date = date.max
    """Of a date or timestamp: the last one, or its day."""
    fraction: int = 6
    """Of a timestamp: the digits of its seconds' fraction; finer ones are cut off."""
    has_zone: bool = True
    """Of a timestamp: it is stored with its zone; without, it is stored in UTC."""
    largest: float | None = None
    """Of a double: the greatest finite number."""
    takes_nan: bool = True
    takes_infinity: bool = True
    takes_nul: bool = True
    """Of a text: it may contain the character NUL."""
    encoding: str | None = None
    """Of a text: the Python codec that has to be able to encode it."""
    choices: frozenset[str] | None = None
    """Of a text: the only values that there are."""
    is_uuid: bool = False
    folds: bool = False
    """Of a text: the database takes texts for the same that are not, byte for byte."""

    @property
    def fills_null(self) -> bool:
        """Whether a null means "what the database fills in": NULL itself cannot be stored, and there is a default."""
        return self.has_default and not self.nullable

    @property
    def is_unbounded(self) -> bool:
        """Whether it is a decimal with more digits than Arrow's have: its values travel as text."""
        return self.type.name is TypeName.DECIMAL and (self.type.precision or _MOST_DIGITS + 1) > _MOST_DIGITS

    @property
    def arrow(self) -> Any:
        """The Arrow type that its values have on their way to the database."""
        match self.type.name:
            case TypeName.DECIMAL:
                if self.is_unbounded:
                    return pa.string()
                precision = self.type.precision or 0
                make = pa.decimal128 if precision <= 38 else pa.decimal256
                return make(precision, self.type.scale)
            case TypeName.INTEGER:
                return pa.uint64() if self.high > _HIGHEST else pa.int64()
            case name:
                return _ARROW[name]


_ARROW = {
    TypeName.BOOLEAN: pa.bool_(),
    TypeName.DOUBLE: pa.float64(),
    TypeName.TEXT: pa.string(),
    TypeName.BYTES: pa.binary(),
    TypeName.DATE: pa.date32(),
    TypeName.TIMESTAMP: pa.timestamp("us", "UTC"),
    TypeName.JSON: pa.string(),
}
