"""Inference: the types that the fields of the first records seem to have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.tables.types import ColumnType, TypeName

__all__ = ["field_at", "infer_arrow", "infer_json", "infer_python", "is_plain", "json_fields"]

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RANGE = range(-(2**63), 2**63)


def infer_json(
    values: Iterable[bytes | None], paths: Sequence[tuple[str, ...]] | None
) -> dict[tuple[str, ...], ColumnType | None]:
    """Numbers are 64-bit integers or decimals, texts are text, what is nested or mixed is JSON; nulls have none."""
    seen: dict[tuple[str, ...], set[TypeName]] = {}
    for value in values:
        fields = json_fields(value)
        if fields is not None:
            for path in [(name,) for name in fields if is_plain(name)] if paths is None else paths:
                raw = field_at(value, path) if len(path) > 1 else fields.get(path[0])
                kind = None if raw is None else _kind(bytes(raw))
                seen.setdefault(path, set()).update(() if kind is None else (kind,))
    return {path: _widest(kinds) for path, kinds in seen.items()}


def infer_python(values: Iterable[Any]) -> ColumnType | None:
    """The type of Python values: the same rules."""
    kinds = {_python_kind(value) for value in values if value is not None}
    return _widest(kinds)


def infer_arrow(schema: Any) -> dict[str, ColumnType]:
    """The types of the columns of a ``pyarrow.Schema``; those without a value are left out."""
    found = {field.name: _arrow_type(field.type) for field in schema}
    return {name: kind for name, kind in found.items() if kind is not None}


def json_fields(value: bytes | None) -> Mapping[str, msgspec.Raw] | None:
    """The fields of an object, unread; ``None`` if it is none."""
    try:
        return None if value is None else _OBJECT.decode(value)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def field_at(value: bytes | None, path: Sequence[str]) -> bytes | None:
    """The field at the end of a path, unread; ``None`` if there is none."""
    for name in path:
        raw = (json_fields(value) or {}).get(name)
        value = None if raw is None else bytes(raw)
    return value


def is_plain(name: str) -> bool:
    """Whether a field's name has no quote, backslash or control character in it. Others make no new columns."""
    return not any(character in '"\\' or character < " " for character in name)


def _kind(raw: bytes) -> TypeName | None:
    match raw[:1]:
        case b'"':
            return TypeName.TEXT
        case b"t" | b"f":
            return TypeName.BOOLEAN
        case b"n":
            return None
        case b"{" | b"[":
            return TypeName.JSON
    whole = not any(sign in raw for sign in b".eE") and len(raw) <= 20 and int(raw) in _RANGE
    return TypeName.INTEGER if whole else TypeName.DECIMAL


def _python_kind(value: Any) -> TypeName:
    if isinstance(value, int) and not isinstance(value, bool):
        return TypeName.INTEGER if value in _RANGE else TypeName.DECIMAL
    for kind, name in _PYTHON:
        if isinstance(value, kind):
            return name
    return TypeName.JSON


def _arrow_type(kind: Any) -> ColumnType | None:
    if pa.types.is_null(kind):
        return None
    if pa.types.is_decimal(kind):
        return ColumnType.decimal(kind.precision, kind.scale)
    for check, name in _ARROW:
        if check(kind):
            return ColumnType(name)
    return ColumnType(TypeName.JSON if pa.types.is_nested(kind) else TypeName.TEXT)


def _widest(kinds: set[TypeName]) -> ColumnType | None:
    if not kinds:
        return None
    if len(kinds) == 1:
        return ColumnType(next(iter(kinds)))
    if kinds == {TypeName.INTEGER, TypeName.DECIMAL}:
        return ColumnType(TypeName.DECIMAL)
    if kinds == {TypeName.INTEGER, TypeName.DOUBLE}:
        return ColumnType(TypeName.DOUBLE)
    return ColumnType(TypeName.JSON)


_PYTHON: list[tuple[type, TypeName]] = [
    (bool, TypeName.BOOLEAN),
    (float, TypeName.DOUBLE),
    (Decimal, TypeName.DECIMAL),
    (str, TypeName.TEXT),
    (bytes, TypeName.BYTES),
    (datetime, TypeName.TIMESTAMP),
    (date, TypeName.DATE),
]
_ARROW: list[tuple[Any, TypeName]] = [
    (pa.types.is_boolean, TypeName.BOOLEAN),
    (pa.types.is_integer, TypeName.INTEGER),
    (pa.types.is_floating, TypeName.DOUBLE),
    (pa.types.is_binary, TypeName.BYTES),
    (pa.types.is_large_binary, TypeName.BYTES),
    (pa.types.is_date, TypeName.DATE),
    (pa.types.is_timestamp, TypeName.TIMESTAMP),
]
