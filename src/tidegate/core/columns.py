"""How arguments and settings describe columns and fields: types, paths, CSV delimiters, and texts for null."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from typing import Annotated, Any, NamedTuple, TypeAlias

from tidegate.core.arguments import Accepts, convert_arguments, kind_of, refuse_unknown
from tidegate.core.text import is_text

__all__ = [
    "BASE64",
    "COMMA",
    "EMPTY",
    "PLACEHOLDER",
    "AddedColumns",
    "DecimalText",
    "Delimiter",
    "EpochUnit",
    "Evolution",
    "Evolve",
    "FieldPath",
    "NullableColumns",
    "Nulls",
    "Tombstones",
    "TypeName",
    "TypeWord",
    "UnknownFields",
    "Unrouted",
    "WiderColumns",
    "WrittenType",
    "written_type",
]

_DECLARED = re.compile(
    r"\s*(?P<name>[a-z]+)"
    r"(?:\(\s*(?:(?P<precision>\d{1,9})\s*,\s*(?P<scale>\d{1,9})|(?P<unit>s|ms|us))\s*\))?"
    r"(?P<required>\s+not\s+null)?"
    r"(?:\s+default\s+(?:'(?P<quoted>(?:[^']|'')*)'|(?P<bare>[-+.\w]+)))?"
    r"(?P<required_last>\s+not\s+null)?\s*",
    re.IGNORECASE,
)


class TypeName(Enum):
    """The type of a column."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    DOUBLE = "double"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "date"
    TIMESTAMP = "timestamp"
    JSON = "json"


class EpochUnit(Enum):
    """The unit of a timestamp that is a number: the time since the start of 1970 in UTC."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"


PLACEHOLDER = "__debezium_unavailable_value"
"""What Debezium writes, by default, for a value that it did not get."""


class DecimalText(StrEnum):
    """What text stands for in a decimal of a change event without a schema."""

    BASE64 = "base64"
    """The unscaled number in base64; the column has the scale."""
    DIGITS = "digits"
    """The number itself."""


BASE64 = DecimalText.BASE64


class Tombstones(StrEnum):
    """What to do with a record without a value."""

    DELETE = "delete"
    """Delete the row of its key."""
    REFUSE = "refuse"
    """Treat it as a misfit, a record that does not fit the table."""
    IGNORE = "ignore"
    """Ignore it."""


class UnknownFields(StrEnum):
    """What to do with a record whose fields include some that have no column."""

    IGNORE = "ignore"
    """Leave these fields out."""
    REFUSE = "refuse"
    """Treat the record as a misfit."""


class AddedColumns(StrEnum):
    """What to do with a field that has no column."""

    ADD = "add"
    """Add a column for it."""
    IGNORE = "ignore"
    """Leave the field out."""
    REFUSE = "refuse"
    """Treat the record as a misfit."""


class WiderColumns(StrEnum):
    """What to do with a value that the type of its column is too narrow for."""

    WIDEN = "widen"
    """Alter the column to a wider type, if no row loses anything by it."""
    REFUSE = "refuse"
    """Treat the record as a misfit."""


class NullableColumns(StrEnum):
    """What to do with a record that is null or has no field where the column is NOT NULL."""

    DROP = "drop"
    """Drop NOT NULL, unless the column is in the key."""
    REFUSE = "refuse"
    """Treat the record as a misfit."""


@dataclass(frozen=True)
class Evolution:
    """How a table follows its records: what is done for each kind of change. By default, only columns are added."""

    add: AddedColumns | str = AddedColumns.ADD
    widen: WiderColumns | str = WiderColumns.REFUSE
    nullable: NullableColumns | str = NullableColumns.REFUSE

    def __post_init__(self) -> None:
        convert_arguments(self)

    @property
    def adds(self) -> bool:
        """Whether a field without a column becomes one."""
        return self.add is AddedColumns.ADD

    @property
    def widens(self) -> bool:
        """Whether columns are altered to wider types."""
        return self.widen is WiderColumns.WIDEN

    @property
    def drops(self) -> bool:
        """Whether NOT NULL is dropped."""
        return self.nullable is NullableColumns.DROP

    @property
    def alters(self) -> bool:
        """Whether it ever alters the table."""
        return self.adds or self.alters_columns

    @property
    def alters_columns(self) -> bool:
        """Whether it alters columns that are there."""
        return self.widens or self.drops

    def shown(self) -> dict[str, str]:
        """Return the policies as text, as a file has them."""
        return {each.name: str(getattr(self, each.name)) for each in fields(self)}


def _evolve(given: Any) -> bool | Evolution | None:
    if isinstance(given, Evolution):
        return given
    if isinstance(given, Mapping):
        refuse_unknown("it", given, [each.name for each in fields(Evolution)])
        return Evolution(**given)
    found: bool | None = kind_of(bool).convert(given)
    return found


Evolve: TypeAlias = Annotated[
    bool | Evolution, Accepts("true or false, or a policy for each kind of change: add, widen, nullable", _evolve)
]
"""Whether a table follows its records: ``True`` adds columns, an :class:`Evolution` has a policy for each change."""


class Unrouted(StrEnum):
    """What to do with a record that goes into no table."""

    REFUSE = "refuse"
    """Treat it as a misfit."""
    IGNORE = "ignore"
    """Ignore it."""


_NAMES = {name.value: name for name in TypeName}
# Defaults of these types need quotes: a database would read a bare word as an expression.
_QUOTED = (TypeName.TEXT, TypeName.BYTES, TypeName.JSON)


class WrittenType(NamedTuple):
    """A parsed column type. Only a decimal has ``precision`` and ``scale``, only a timestamp has a ``unit``."""

    name: TypeName
    precision: int | None = None
    scale: int | None = None
    unit: EpochUnit | None = None
    required: bool = False
    default: str | None = None


def written_type(declared: object) -> WrittenType | None:
    """Parse a type such as ``decimal(12,2) not null default 0``; return ``None`` if it is invalid."""
    match = _DECLARED.fullmatch(declared) if is_text(declared) else None
    name = _NAMES.get(match["name"].lower()) if match else None
    if match is None or name is None or (match["required"] and match["required_last"]):
        return None
    has_digits, has_unit = match["precision"] is not None, match["unit"] is not None
    if (has_digits and name is not TypeName.DECIMAL) or (has_unit and name is not TypeName.TIMESTAMP):
        return None
    quoted, bare = match["quoted"], match["bare"]
    if bare is not None and (name in _QUOTED or bare.lower() == "null"):
        return None
    return WrittenType(
        name,
        int(match["precision"]) if has_digits else None,
        int(match["scale"]) if has_digits else None,
        EpochUnit(match["unit"].lower()) if has_unit else None,
        bool(match["required"] or match["required_last"]),
        bare if quoted is None else quoted.replace("''", "'"),
    )


def _type_word(given: Any) -> str | None:
    return None if written_type(given) is None else str(given)


def _path(given: Any) -> str | None:
    return given if is_text(given) and all(part.strip() for part in given.split(".")) else None


def _delimiter(given: Any) -> str | None:
    return given if is_text(given) and len(given) == 1 and given not in '"\r\n' else None


TypeWord: TypeAlias = Annotated[
    str,
    Accepts(
        f"a type of column: {', '.join(_NAMES)}, decimal(12,2) or timestamp(ms), and after it perhaps 'not null' and "
        "'default 5'",
        _type_word,
        tuple(_NAMES),
    ),
]
"""The type of a column as text."""

FieldPath: TypeAlias = Annotated[str, Accepts("the name of a field, or a path such as 'address.city'", _path)]
"""The name of a field of the record's value, or the path to a nested one."""

COMMA = ","
"""The usual delimiter of CSV."""

Delimiter: TypeAlias = Annotated[str, Accepts("one character, and neither a quote nor an end of line", _delimiter)]
"""The character between the fields of a CSV line."""


def _nulls(given: Any) -> tuple[str, ...] | None:
    if isinstance(given, str):
        return (given,)
    is_list = isinstance(given, (list, tuple, set, frozenset))
    return tuple(given) if is_list and all(is_text(each) for each in given) else None


EMPTY = ("",)
"""The text that usually means null in CSV: the empty field."""

Nulls: TypeAlias = Annotated[tuple[str, ...], Accepts("a text, or a list of the texts that stand for null", _nulls)]
"""The texts that mean null in CSV."""
