"""Arrow batches of others, such as a DataFrame's, as rows of a table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import ConfigurationError
from tidegate.tables.assembling import assemble
from tidegate.tables.column import Column
from tidegate.tables.layout import Layout
from tidegate.tables.rows import Rows
from tidegate.tables.types import TypeName
from tidegate.tables.values import Converted, array_of, array_of_json

__all__ = ["check_schema", "fit"]


def fit(layout: Layout, batch: Any) -> Rows:
    """The rows of a ``pyarrow.RecordBatch`` that fit, and the misfits. Columns that the table does not have are left
    out; a type that can never fit is refused, by :func:`check_schema`.
    """
    check_schema(layout, batch.schema)
    converted = {
        name: _converted(batch.column(name), column)
        for name, column in layout.by_name.items()
        if name in batch.schema.names
    }
    return assemble(layout, converted, range(batch.num_rows))


def check_schema(layout: Layout, schema: Any) -> None:
    """Refuse a schema that the table cannot take, with the reason: before the first row."""
    for name, column in layout.by_name.items():
        if name not in schema.names:
            if layout.must_not_be_null(column):
                raise ConfigurationError(f"table {layout.table} needs a column {name!r}, which the rows do not have")
            continue
        found = schema.field(name).type
        if not _can_fit(found, column):
            raise ConfigurationError(
                f"table {layout.table}: column {name!r} is {column.type}, the rows have {found}; convert them first"
            )


def _can_fit(found: Any, column: Column) -> bool:
    return pa.types.is_null(found) or any(check(found) for check in _FIT[column.type.name])


def _converted(array: Any, column: Column) -> Converted:
    if column.type.name is TypeName.JSON:
        texts = _is_text(array.type)
        return array_of_json(array.to_pylist(), column) if texts else array_of(array.to_pylist(), column)
    if column.type.name is TypeName.TIMESTAMP:
        return _moments(array, column)
    if not column.is_uuid and not column.is_unbounded:
        try:
            return Converted(array if array.type == column.arrow else array.cast(column.arrow), {})
        except pa.ArrowException:
            pass  # the way below tells which of them, and why
    return array_of(array.to_pylist(), column)


def _moments(array: Any, column: Column) -> Converted:
    """Timestamps of any unit: finer ones are cut off, and those that Python has no word for do not fit."""
    if pa.types.is_null(array.type):
        return Converted(array.cast(column.arrow), {})
    if array.type.unit == "ns":  # which end in the year 2262
        return Converted(array.cast(column.arrow, safe=False), {})
    units = _UNITS[array.type.unit]
    ticks = array.cast(pa.int64())
    outside = pc.or_(pc.less(ticks, _FIRST * units), pc.greater_equal(ticks, _LAST * units))
    places = pc.indices_nonzero(outside).to_pylist()
    if places:
        array = pc.if_else(outside, pa.scalar(None, array.type), array)
    problems = dict.fromkeys(places, "a timestamp outside of the years 1 to 9999")
    return Converted(array.cast(column.arrow), problems)


_UNITS = {"s": 1, "ms": 1000, "us": 10**6}
_FIRST = int(datetime(1, 1, 1, tzinfo=UTC).timestamp())
_LAST = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) + 1


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_nested(kind: Any) -> bool:
    return bool(pa.types.is_nested(kind))


_FIT: dict[TypeName, tuple[Any, ...]] = {
    TypeName.BOOLEAN: (pa.types.is_boolean,),
    TypeName.INTEGER: (pa.types.is_integer,),
    TypeName.DOUBLE: (pa.types.is_floating, pa.types.is_integer),
    TypeName.DECIMAL: (pa.types.is_decimal, pa.types.is_integer),
    TypeName.TEXT: (_is_text,),
    TypeName.BYTES: (_is_bytes,),
    TypeName.DATE: (pa.types.is_date,),
    TypeName.TIMESTAMP: (pa.types.is_timestamp,),
    TypeName.JSON: (_is_text, _is_nested),
}
