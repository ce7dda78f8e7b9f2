"""Column types: the small, fixed set of types that fields are read as, independent of the database."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from tidegate.core.arguments import Accepts, Amount, Count, convert_arguments, did_you_mean
from tidegate.core.columns import EpochUnit, TypeName, written_type
from tidegate.core.schemas import CONNECT_AVRO, SCHEMA_FORMATS
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError

if TYPE_CHECKING:
    from tidegate.tables.connect_avro import ConnectAvroFormat
    from tidegate.tables.format import Format
    from tidegate.tables.own_format import RowFunction

__all__ = [
    "FORMATS",
    "ColumnType",
    "Declared",
    "EpochUnit",
    "FormatArgument",
    "FormatChoice",
    "KeyFormatArgument",
    "TypeName",
]


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column: ``integer`` has 64 bits, ``timestamp`` is a point in time, ``json`` is any nested value.

    A ``decimal`` without precision and scale holds any number of digits. ``unit`` says that numbers stand for a
    ``timestamp``, and what they count. A new column is NOT NULL if ``required``, and gets the ``default``.
    """

    name: TypeName
    precision: Count | None = None
    scale: Amount | None = None
    unit: EpochUnit | None = None
    required: bool = False
    default: Any = None

    def __post_init__(self) -> None:
        convert_arguments(self)
        if (self.precision is None) != (self.scale is None):
            raise ConfigurationError("precision and scale go together: digits in all, and those after the point")
        if self.unit is not None and self.name is not TypeName.TIMESTAMP:
            raise ConfigurationError(f"unit: only a timestamp has one, and {self.name.value} is none")
        if self.precision is None or self.scale is None:
            return
        if self.name is not TypeName.DECIMAL:
            raise ConfigurationError(f"precision: only a decimal has one, and {self.name.value} is none")
        if self.scale > self.precision:
            raise ConfigurationError(f"scale: expected at most {self.precision}, the precision, not {self.scale}")

    @classmethod
    def of(cls, declared: Declared) -> ColumnType:
        """Return the type for a user's declaration: ``"decimal(12,2)"``, ``int``, or a ``ColumnType``."""
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
        """Return a decimal type with at most ``precision`` digits, ``scale`` of them after the point."""
        return cls(TypeName.DECIMAL, precision, scale)

    @property
    def is_numeric(self) -> bool:
        """Whether its values can be added."""
        return self.name in (TypeName.INTEGER, TypeName.DOUBLE, TypeName.DECIMAL)

    @property
    def bare(self) -> ColumnType:
        """The same type without NOT NULL and default."""
        return replace(self, required=False, default=None)

    def __str__(self) -> str:
        if self.unit is not None:
            return f"{self.name.value}({self.unit.value})"
        return self.name.value if self.precision is None else f"{self.name.value}({self.precision},{self.scale})"


Declared: TypeAlias = str | type | ColumnType
"""The ways in which a user may declare a column's type."""

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
    "known are boolean, integer, double, decimal, decimal(p,s), text, bytes, date, timestamp, timestamp(s), "
    "timestamp(ms), timestamp(us), json, each perhaps with 'not null' and 'default …', and the Python types bool, int, "
    "float, Decimal, str, bytes, date, datetime, dict, list"
)


FormatChoice: TypeAlias = "str | Format | ConnectAvroFormat | RowFunction"
"""The name of a format, a format, or a function that returns a record's rows."""

FORMATS = ("json", "connect-json", "debezium", *CONNECT_AVRO, *SCHEMA_FORMATS)
"""The formats that a name stands for."""


def _format(given: Any) -> Any:
    if is_text(given):
        return given if given in FORMATS else None
    is_format = (hasattr(given, "reader") and hasattr(given, "infer")) or hasattr(given, "translated")
    return given if (is_format or callable(given)) and not isinstance(given, type) else None


def reads_changes(form: Any) -> bool:
    """Whether a format, or the name of one, reads change events."""
    return form in ("debezium", "debezium-avro") or hasattr(getattr(form, "plain", form), "keyed_reader")


_SCHEMAS = ", ".join(map(repr, SCHEMA_FORMATS))

FormatArgument: TypeAlias = Annotated[
    Any,
    Accepts(
        f"'json', {_SCHEMAS}, 'connect-json', 'connect-avro', 'debezium', 'debezium-avro', SchemaFormat(…), "
        "CsvFormat([…]) or a function of a Record",
        _format,
        FORMATS,
    ),
]
"""A :data:`FormatChoice` as an argument."""


def _key_format(given: Any) -> Any:
    if is_text(given):
        return given if given == "json" or given in SCHEMA_FORMATS else None
    return _format(given) if hasattr(given, "bare_reader") else None


KeyFormatArgument: TypeAlias = Annotated[
    Any, Accepts(f"'json', {_SCHEMAS} or SchemaFormat(…)", _key_format, ("json", *SCHEMA_FORMATS))
]
"""The format of keys as an argument."""
