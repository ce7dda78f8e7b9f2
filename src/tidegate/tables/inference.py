"""Inference of column types from the fields of the first records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType

from tidegate.tables.types import ColumnType, TypeName

__all__ = [
    "ENVELOPE",
    "field_at",
    "infer_arrow",
    "infer_json",
    "infer_python",
    "is_envelope",
    "is_plain",
    "json_fields",
]

ENVELOPE = (
    "Kafka Connect's envelope of a schema and a payload; read it with format='connect-json', or change events with "
    "format='debezium'"
)
"""The reason why a record in an envelope of Kafka Connect is a misfit."""

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RANGE = range(-(2**63), 2**63)


def infer_json(
    values: Iterable[bytes | None], paths: Sequence[tuple[str, ...]] | None
) -> dict[tuple[str, ...], ColumnType | None]:
    """Infer the types of the fields at these paths, or of all fields.

    Numbers are 64-bit integers or decimals, strings are text, nested or mixed values are JSON. A field that is always
    null has no type.
    """
    seen: dict[tuple[str, ...], set[TypeName]] = {}
    for value in values:
        fields = json_fields(value)
        if fields is not None:
            for path in [(name,) for name in fields] if paths is None else paths:
                raw = field_at(value, path) if len(path) > 1 else fields.get(path[0])
                kind = _kind(bytes(raw)) if raw else None
                seen.setdefault(path, set()).update(() if kind is None else (kind,))
    return {path: _widest(kinds) for path, kinds in seen.items()}


def infer_python(values: Iterable[Any]) -> ColumnType | None:
    """Infer the type of Python values, by the same rules; ``None`` if all are null."""
    kinds = {_python_kind(value) for value in values if value is not None}
    return _widest(kinds)


def infer_arrow(schema: Any) -> dict[str, ColumnType]:
    """Return the types of the columns of a ``pyarrow.Schema``, leaving out those of Arrow's null type."""
    found = {field.name: _arrow_type(field.type) for field in schema}
    return {name: kind for name, kind in found.items() if kind is not None}


def json_fields(value: bytes | None) -> Mapping[str, msgspec.Raw] | None:
    """Return the fields of a JSON object, undecoded; ``None`` if the value is not an object."""
    try:
        return None if value is None else _OBJECT.decode(value)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def field_at(value: bytes | None, path: Sequence[str]) -> bytes | UnsetType | None:
    """Return the field at a path, undecoded: ``UNSET`` if it is missing, ``None`` if a field on the way is null."""
    for name in path:
        fields = json_fields(value)
        if fields is None:
            return None if value == b"null" else UNSET
        raw = fields.get(name)
        if raw is None:
            return UNSET
        value = bytes(raw)
    return value


def is_envelope(value: bytes | None) -> bool:
    """Whether a value is the envelope of schema and payload that Kafka Connect's JSON converter writes."""
    fields = json_fields(value)
    return fields is not None and fields.keys() == {"schema", "payload"} and bytes(fields["schema"])[:1] in (b"{", b"n")


def is_plain(name: str) -> bool:
    """Whether a field's name has no quote, backslash or control character."""
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
