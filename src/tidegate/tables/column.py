"""Columns of target tables: their types, and the conditions that a value must meet to fit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any

import pyarrow as pa

from tidegate.tables.types import ColumnType, TypeName

__all__ = ["INFINITE_DAYS", "INFINITE_TICKS", "Column", "Form"]

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_MOST_DIGITS = 76

INFINITE_TICKS, INFINITE_DAYS = 2**62 // 10**6 * 10**6, 2**30
"""Stand for ``infinity`` in Arrow timestamps and dates, negated for ``-infinity``; beyond all other values."""


class Form(Enum):
    """The syntax of text for a database type without a counterpart in :class:`TypeName`."""

    ANY = "any"
    """Any text; only the database can tell whether it is valid."""
    UUID = "uuid"
    BITS = "bits"
    """Zeros and ones."""
    ARRAY = "array"
    """A PostgreSQL array: ``{1,2}``, or a JSON array."""
    MAP = "map"
    """PostgreSQL's hstore: ``a=>1``, or a JSON object."""
    SET = "set"
    """MySQL's SET: labels with commas between them, or a JSON array of them."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type, and all that decides whether a value fits.

    ``has_default``: the database fills the column in if a row leaves it out. ``generated``: only the database may fill
    it in.
    """

    name: str
    type: ColumnType
    sql_type: str
    nullable: bool = True
    has_default: bool = False
    generated: bool = False
    fills_null: bool = False
    """Whether the database may replace NULL by a value, even if the column is NOT NULL."""
    low: int = _LOWEST
    """Integer: the least value."""
    high: int = _HIGHEST
    """Integer: the greatest value."""
    length: int | None = None
    """Text: the most characters."""
    size: int | None = None
    """Text or bytes: the most bytes."""
    digits: int | None = None
    """Decimal that the database would round, or JSON that it makes a number: the significant digits that it keeps."""
    first: date = date.min
    """Date or timestamp: the earliest value; for a timestamp, a date means the start of that day."""
    last: date = date.max
    """Date or timestamp: the latest value; for a timestamp, a date means the end of that day."""
    fraction: int = 6
    """Timestamp: the decimal places of its seconds; further ones are cut off."""
    has_zone: bool = True
    """Timestamp: whether the type has a time zone; if not, the time is stored in UTC."""
    largest: float | None = None
    """Double: the greatest finite number, if the column has single precision."""
    places: int | None = None
    """Double that the database would round: the digits after the point that it keeps."""
    takes_nan: bool = True
    takes_infinity: bool = True
    takes_nul: bool = True
    """Text or JSON: whether it may contain the character NUL."""
    encoding: str | None = None
    """Text: the Python codec that must be able to encode it; or ``utf8mb3``, for characters up to U+FFFF."""
    choices: tuple[str, ...] | None = None
    """Text: the only valid values, in the order of their definition; texts that match the pattern, if there is one, are
    accepted as spellings of them."""
    form: Form = Form.ANY
    """Text: the required syntax."""
    pattern: str | None = None
    """Text: the regular expression for texts that the database stores unchanged."""
    element: Column | None = None
    """Array: its elements, described as a column."""
    has_infinity: bool = False
    """Date or timestamp: whether ``infinity`` and ``-infinity`` are values."""
    refusal: str = ""
    """Why nothing can be written to it; empty if it can be written."""
    reserved: str = ""
    """Why only the database may give it a value; empty if records may."""
    spelled: str = ""
    """The type as the database spells it, with its length, if the column may be altered to a wider type."""
    rounds: bool = True
    """Double in single precision: whether it may round numbers; if not, a number that it would round does not fit."""
    exact: bool = False
    """Whether a value must have the column's own type, without any conversion."""
    folds: bool = False
    """Key: whether the database considers values equal that differ in Python."""
    compared: str = ""
    """Key that folds: the SQL after a parameter that makes it compare as the key's index does. In PostgreSQL it is a
    cast such as ``::citext`` or ``::text COLLATE "und-x-icu"``, never with a length; in SQLite ``COLLATE "NOCASE"``. In
    MySQL and MariaDB it is just the name of the collation."""
    is_settled: bool = True
    """Whether a value that passes the checks before writing always fits; otherwise only the database can tell."""

    @property
    def is_uuid(self) -> bool:
        """Whether it holds UUIDs."""
        return self.form is Form.UUID

    @property
    def is_unbounded(self) -> bool:
        """Whether it is a decimal with more digits than Arrow supports: its values are then handled as text."""
        return self.type.name is TypeName.DECIMAL and (self.type.precision or _MOST_DIGITS + 1) > _MOST_DIGITS

    @property
    def arrow(self) -> Any:
        """The Arrow type of its values."""
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
