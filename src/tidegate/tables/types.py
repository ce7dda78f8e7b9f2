"""Column types: the small closed set that fields are read as, whatever the database calls its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TypeAlias

from tidegate.core.arguments import Amount, Count, convert_arguments, did_you_mean
from tidegate.core.columns import TypeName, written_type
from tidegate.core.errors import ConfigurationError
from tidegate.core.texts import is_text

__all__ = ["ColumnType", "Declared", "TypeName"]


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column: ``integer`` has 64 bits, ``timestamp`` is a point in time, ``json`` anything nested.

    A ``decimal`` without precision and scale holds any number of digits.
    """

    name: TypeName
    precision: Count | None = None
    scale: Amount | None = None

    def __post_init__(self) -> None:
        convert_arguments(self)
        if (self.precision is None) != (self.scale is None):
            raise ConfigurationError("precision and scale go together: digits in all, and those after the point")
        if self.precision is None or self.scale is None:
            return
        if self.name is not TypeName.DECIMAL:
            raise ConfigurationError(f"precision: only a decimal has one, and {self.name.value} is none")
        if self.scale > self.precision:
            raise ConfigurationError(f"scale: expected at most {self.precision}, the precision, not {self.scale}")

    @classmethod
    def of(cls, declared: Declared) -> ColumnType:
        """The type that a user declared: ``"decimal(12,2)"``, ``int``, a ``ColumnType``."""
        if isinstance(declared, ColumnType):
            return declared
        if isinstance(declared, type):
            if declared in _PYTHON:
                return cls(_PYTHON[declared])
            raise ConfigurationError(f"there is no column type for {declared.__name__}; {_KNOWN}")
        written = written_type(declared)
        if written is None:
            near = did_you_mean(declared, _NAMES) if is_text(declared) else ""
            raise ConfigurationError(f"there is no column type {declared!r}; {_KNOWN}{near}")
        return cls(*written)

    @classmethod
    def decimal(cls, precision: int, scale: int) -> ColumnType:
        """A decimal with at most ``precision`` digits, ``scale`` of them after the point."""
        return cls(TypeName.DECIMAL, precision, scale)

    @property
    def is_numeric(self) -> bool:
        """Whether its values can be added."""
        return self.name in (TypeName.INTEGER, TypeName.DOUBLE, TypeName.DECIMAL)

    def __str__(self) -> str:
        return self.name.value if self.precision is None else f"{self.name.value}({self.precision},{self.scale})"


Declared: TypeAlias = str | type | ColumnType
"""How a user may write a column's type."""

_PYTHON: dict[type, TypeName] = {
    bool: TypeName.BOOLEAN,
    int: TypeName.INTEGER,
    float: TypeName.DOUBLE,
    Decimal: TypeName.DECIMAL,
    str: TypeName.TEXT,
    bytes: TypeName.BYTES,
    date: TypeName.DATE,
    datetime: TypeName.TIMESTAMP,
    dict: TypeName.JSON,
    list: TypeName.JSON,
}
_NAMES = tuple(name.value for name in TypeName)
_KNOWN = (
    "known are boolean, integer, double, decimal, decimal(p,s), text, bytes, date, timestamp, json, and the Python "
    "types bool, int, float, Decimal, str, bytes, date, datetime, dict, list"
)
