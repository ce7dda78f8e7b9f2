"""Fitting of Arrow arrays to the columns of a table: separates the rows that fit from the misfits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import ConfigurationError
from tidegate.tables.checks import problems_of
from tidegate.tables.column import INFINITE_TICKS, Column, Form
from tidegate.tables.layout import Layout, check_writable
from tidegate.tables.rows import Misfit, Rows, Truncate
from tidegate.tables.statements import truncated
from tidegate.tables.table import Mode
from tidegate.tables.types import TypeName
from tidegate.tables.values import Converted, array_of, array_of_json, array_of_texts

__all__ = ["absent", "assemble", "check_schema", "fit"]


def assemble(
    layout: Layout,
    converted: Mapping[str, Converted],
    places: Sequence[int],
    *,
    misfits: Iterable[Misfit] = (),
    tombstones: Any = None,
    lacking: Mapping[str, Any] | None = None,
    passed: Collection[int] = (),
    existing: Any = None,
    truncates: Sequence[Truncate] = (),
) -> Rows:
    """Check each column, and leave out all rows of a record if one of them does not fit.

    ``places`` holds for each row the place of its record, ``misfits`` are those found before, ``passed`` are the places
    of records to skip. ``tombstones``, ``lacking``, ``existing`` and ``truncates`` have the same meaning as in
    :class:`Rows`.
    """
    lacking = lacking or {}
    dead: list[bool] = [] if tombstones is None else tombstones.to_pylist()
    unfit: dict[int, Misfit] = {}
    arrays = {}
    for name, (array, problems) in converted.items():
        column = layout.by_name[name]
        found = {
            **absent(layout, column, array, lacking.get(name), existing),
            **problems_of(array, column),
            **problems,
        }
        if found and dead and name not in layout.table.key:  # only the key of a tombstone matters
            found = {row: why for row, why in found.items() if not dead[row]}
        for row, why in found.items():
            unfit.setdefault(places[row], Misfit(places[row], name, why))
        arrays[name] = truncated(array, column.fraction) if column.type.name is TypeName.TIMESTAMP else array
    unfit |= {misfit.place: misfit for misfit in reversed(list(misfits))}
    gone = {*unfit, *passed}
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    if not gone:
        return Rows(batch, places, (), tombstones, lacking, existing, tuple(truncates))
    kept = [row for row, place in enumerate(places) if place not in gone]
    taken = pa.array(kept, pa.int64())
    masks = {name: mask.take(taken) for name, mask in lacking.items()}
    return Rows(
        batch.take(taken),
        [places[row] for row in kept],
        tuple(unfit[place] for place in sorted(unfit.keys() - set(passed))),
        None if tombstones is None else tombstones.take(taken),
        {name: mask for name, mask in masks.items() if mask.true_count},
        None if existing is None else existing.take(taken),
        tuple(each for each in truncates if each.place not in gone),
    )


def absent(layout: Layout, column: Column, array: Any, lacking: Any | None, existing: Any) -> dict[int, str]:
    """Return the reasons for rows that need a value in this column and have none.

    If the column cannot be NULL, an explicit null never fits. A missing field does, if the database has a default for
    it, or if mode update or a row that exists leaves the column unchanged.
    """
    if not array.null_count or not layout.refuses_null(column):
        return {}
    nulls = pc.is_null(array) if lacking is None else pc.and_not(pc.is_null(array), lacking)
    why, needed = "null, and the column needs a value", layout.needs_value(column)
    left = "leaves it as it is" if layout.table.kind is Mode.UPDATE else "gets the default"
    found = dict.fromkeys(_rows(nulls), why if needed else f"{why}; a record without the field {left}")
    if lacking is not None and needed:
        missing = lacking if existing is None or column.name in layout.table.key else pc.and_not(lacking, existing)
        found |= dict.fromkeys(_rows(missing), "missing, and the column needs a value")
    return found


def _rows(mask: Any) -> list[int]:
    rows: list[int] = pc.indices_nonzero(mask).to_pylist()
    return rows


def fit(layout: Layout, batch: Any) -> Rows:
    """Convert a ``pyarrow.RecordBatch`` to rows; what does not fit becomes a misfit.

    Columns that the table does not have are ignored. Raises if a type can never fit, as :func:`check_schema` does.
    """
    check_schema(layout, batch.schema)
    converted = {
        name: _converted(batch.column(name), column)
        for name, column in layout.by_name.items()
        if name in batch.schema.names
    }
    return assemble(layout, converted, range(batch.num_rows))


def check_schema(layout: Layout, schema: Any) -> None:
    """Raise if rows of this schema can never fit the table: a needed column is missing, or a type does not fit."""
    for name, column in layout.by_name.items():
        if name not in schema.names:
            if layout.needs_value(column):
                raise ConfigurationError(f"table {layout.table} needs a column {name!r}, which the rows do not have")
            continue
        found = schema.field(name).type
        check_writable(layout, column)
        if not _can_fit(found, column):
            raise ConfigurationError(
                f"table {layout.table}: column {name!r} is {column.type}, the rows have {found}; convert them first"
            )


def _can_fit(found: Any, column: Column) -> bool:
    if pa.types.is_null(found) or any(check(found) for check in _FIT[column.type.name]):
        return True
    if column.type.unit is not None:
        return _is_number(found)
    return not column.exact and any(check(found) for check in _CONVERTED.get(column.type.name, ()))


def _converted(array: Any, column: Column) -> Converted:
    if column.type.name is TypeName.JSON:
        texts = _is_text(array.type)
        return array_of_json(array.to_pylist(), column) if texts else array_of(array.to_pylist(), column)
    if column.type.name is TypeName.TIMESTAMP and not _is_number(array.type):
        return _moments(array, column)
    if column.form in (Form.ARRAY, Form.MAP, Form.SET):
        values = array.to_pylist()
        if _is_text(array.type):
            return array_of_texts(values, column)
        is_map = column.form is Form.MAP and pa.types.is_map(array.type)
        return array_of([value and dict(value) for value in values] if is_map else values, column)
    fits = any(check(array.type) for check in (pa.types.is_null, *_FIT[column.type.name]))
    if fits and not column.is_uuid and not column.is_unbounded:
        try:
            return Converted(array if array.type == column.arrow else array.cast(column.arrow), {})
        except pa.ArrowException:
            pass  # the code below finds out which values do not fit, and why
    return array_of(array.to_pylist(), column)


def _moments(array: Any, column: Column) -> Converted:
    """Convert timestamps of any unit to microseconds, truncated; those outside the years 1 to 9999 do not fit."""
    if pa.types.is_null(array.type):
        return Converted(array.cast(column.arrow), {})
    if array.type.unit == "ns":  # its range ends in the year 2262, so all values fit
        return Converted(array.cast(column.arrow, safe=False), {})
    units = _UNITS[array.type.unit]
    ticks = array.cast(pa.int64())
    outside = pc.or_(pc.less(ticks, _FIRST * units), pc.greater_equal(ticks, _LAST * units))
    if column.has_infinity and units == _UNITS["us"]:
        outside = pc.and_(outside, pc.not_equal(pc.abs(ticks), INFINITE_TICKS))
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


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


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
# Types that are converted value by value; a value that would lose something does not fit.
_CONVERTED: dict[TypeName, tuple[Any, ...]] = {
    TypeName.BOOLEAN: (_is_number,),
    TypeName.INTEGER: (_is_number,),
    TypeName.TEXT: (_is_number, pa.types.is_boolean, _is_nested),
}
