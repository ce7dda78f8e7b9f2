"""What Kafka knows of a record, as values of columns: key, headers, topic, partition, offset, timestamp."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import ConfigurationError
from tidegate.tables.column import Column
from tidegate.tables.feed import Feed
from tidegate.tables.sources import Source
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.values import Converted, array_of, array_of_bytes

__all__ = ["check_metadata", "read_metadata", "type_of"]

_NUMBERS = {TypeName.INTEGER, TypeName.DECIMAL, TypeName.DOUBLE}
_HOLDS: dict[str, set[TypeName]] = {
    "topic": {TypeName.TEXT},
    "partition": _NUMBERS,
    "offset": _NUMBERS,
    "timestamp": {TypeName.TIMESTAMP, TypeName.INTEGER},
}


def type_of(source: Source) -> ColumnType:
    """The type of a column that is made for a source."""
    if source.part == "headers" and not source.path:
        return ColumnType(TypeName.JSON)
    names = {"partition": TypeName.INTEGER, "offset": TypeName.INTEGER, "timestamp": TypeName.TIMESTAMP}
    return ColumnType(names.get(source.part, TypeName.TEXT))


def check_metadata(column: Column, source: Source) -> None:
    """Refuse a column that cannot hold what the source has in every record."""
    holds = {TypeName.JSON} if source == Source("headers") else _HOLDS.get(source.part)
    if holds is not None and column.type.name not in holds:
        wanted = " or ".join(sorted(name.value for name in holds))
        raise ConfigurationError(f"column {column.name!r} is {column.type}, and {source} needs {wanted}")


def read_metadata(feed: Feed, column: Column, source: Source) -> Converted:
    """The values of a column that is taken from such a source."""
    found = feed.part(source.part)
    match source:
        case Source("key" | "value", ()):
            return array_of_bytes(found, column)
        case Source("headers", (name,)):
            return array_of_bytes([_last(headers, name) for headers in found], column)
        case Source("headers", ()):
            return array_of([headers and [_shown(header) for header in headers] for headers in found], column)
        case Source("timestamp", ()) if column.type.name is TypeName.TIMESTAMP:
            moments = pc.multiply(pa.array(found, pa.int64()), 1000)
            return Converted(moments.cast(column.arrow), {})
    return array_of(found, column)


def _last(headers: Sequence[tuple[str, bytes | None]] | None, wanted: str) -> bytes | None:
    return next((value for name, value in reversed(headers or ()) if name == wanted), None)


def _shown(header: tuple[str, bytes | None]) -> list[Any]:
    """A header as JSON: a pair, for names may come twice. What is not text is an object that says so."""
    name, value = header
    try:
        return [name, value and str(value, "utf-8")]
    except UnicodeDecodeError:
        return [name, {"base64": str(base64.b64encode(value or b""), "ascii")}]
