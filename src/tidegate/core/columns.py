"""Columns and fields as they are written in arguments and settings: names, types, and what stands between fields."""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Any, NamedTuple, TypeAlias

from tidegate.core.arguments import Kind
from tidegate.core.texts import is_text

__all__ = ["Delimiter", "FieldPath", "TypeName", "TypeWord", "WrittenType", "written_type"]

_DECLARED = re.compile(r"([a-z]+)(?:\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\))?")


class TypeName(Enum):
    """What a column holds."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    DOUBLE = "double"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "date"
    TIMESTAMP = "timestamp"
    JSON = "json"


_NAMES = {name.value: name for name in TypeName}


class WrittenType(NamedTuple):
    """A type in words: only a decimal may have digits."""

    name: TypeName
    precision: int | None = None
    scale: int | None = None


def written_type(declared: object) -> WrittenType | None:
    """The type that a word such as ``decimal(12,2)`` stands for; ``None`` if there is none."""
    match = _DECLARED.fullmatch(declared.strip().lower()) if is_text(declared) else None
    name = _NAMES.get(match[1]) if match else None
    if match is None or name is None:
        return None
    if match[2] is None:
        return WrittenType(name)
    return WrittenType(name, int(match[2]), int(match[3])) if name is TypeName.DECIMAL else None


def _type_word(given: Any) -> str | None:
    return None if written_type(given) is None else str(given)


def _path(given: Any) -> str | None:
    return given if is_text(given) and all(part.strip() for part in given.split(".")) else None


def _delimiter(given: Any) -> str | None:
    return given if is_text(given) and len(given) == 1 and given not in '"\r\n' else None


TypeWord: TypeAlias = Annotated[
    str, Kind(f"a type of column: {', '.join(_NAMES)} or decimal(12,2)", _type_word, tuple(_NAMES))
]
"""The type of a column, as a word."""

FieldPath: TypeAlias = Annotated[str, Kind("the name of a field, or a path such as 'address.city'", _path)]
"""A field of the value."""

Delimiter: TypeAlias = Annotated[str, Kind("one character, and neither a quote nor an end of line", _delimiter)]
"""What stands between the fields of a line of CSV."""
