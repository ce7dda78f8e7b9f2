"""Merging: what the records of a batch do to one key, as one change to its row."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.tables.column import Column
from tidegate.tables.layout import Layout
from tidegate.tables.misfit import DoesNotFit
from tidegate.tables.rows import Rows
from tidegate.tables.types import TypeName

__all__ = ["Merged", "merge"]

_EXACT = Context(prec=200_000)


class Merged(NamedTuple):
    """First the rows of the keys in ``deleted`` go, then ``batch`` is written; each key is in it once."""

    deleted: Any
    batch: Any


def merge(layout: Layout, rows: Rows) -> Iterator[Merged]:
    """One change for each key: a tombstone ends what came before it; of the others the last counts, or their sum.

    If the database takes different keys for the same one, which only it can tell, then it is given rows and tombstones
    in their order.
    """
    if rows.tombstones is not None and any(layout.by_name[name].folds for name in layout.table.key):
        kinds = rows.tombstones.to_pylist()
        starts = [row for row in range(len(kinds)) if row == 0 or kinds[row] != kinds[row - 1]]
        for start, end in zip(starts, [*starts[1:], len(kinds)], strict=True):
            yield _merged(layout, rows.batch.slice(start, end - start), rows.tombstones.slice(start, end - start))
    else:
        yield _merged(layout, rows.batch, rows.tombstones)


def _merged(layout: Layout, batch: Any, tombstones: Any) -> Merged:
    keys = _keys(batch, layout.table.key)
    deleted = None
    if tombstones is not None:
        gone = {key: row for row, (key, dead) in enumerate(zip(keys, tombstones.to_pylist(), strict=True)) if dead}
        deleted = _taken(batch.select(list(layout.table.key)), _in_order(layout, gone))
        alive = [row for row, key in enumerate(keys) if row > gone.get(key, -1)]
        batch, keys = _taken(batch, alive), [keys[row] for row in alive]
    last = {key: row for row, key in enumerate(keys)}
    ordered = _in_order(layout, last)
    merged = _taken(batch, ordered)
    if layout.added and len(last) < len(keys):
        number = {keys[row]: place for place, row in enumerate(ordered)}
        groups = [number[key] for key in keys]
        for at, name in enumerate(batch.schema.names):
            if name in layout.added:
                summed = _summed(batch.column(at), groups, len(ordered), layout.by_name[name])
                merged = merged.set_column(at, name, summed)
    return Merged(deleted, merged)


def _in_order(layout: Layout, rows: dict[Any, int]) -> list[int]:
    """Rows by their keys: transactions that meet in several rows then wait for each other, and do not deadlock. Where
    different keys may be the same one to the database, the last of them has to stay the last.
    """
    if any(layout.by_name[name].folds for name in layout.table.key):
        return sorted(rows.values())
    return [rows[key] for key in sorted(rows)]


def _keys(batch: Any, names: Sequence[str]) -> list[Hashable]:
    columns = [_hashable(batch.column(name)) for name in names]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _hashable(array: Any) -> list[Hashable]:
    """Values to tell keys apart by; times as numbers, which takes a hundredth of the time."""
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    values: list[Hashable] = array.to_pylist()
    return values


def _taken(batch: Any, rows: list[int]) -> Any:
    return batch.take(pa.array(rows, pa.int64()))


def _summed(array: Any, groups: list[int], count: int, column: Column) -> Any:
    """The sums of the groups; a null adds nothing. Exact, so whole numbers and decimals do not wrap or round."""
    if column.is_unbounded:
        return _summed_texts(array.to_pylist(), groups, count)
    if column.type.name is TypeName.INTEGER:
        array = array.cast(pa.decimal256(40, 0))
    elif column.type.name is TypeName.DECIMAL:
        array = array.cast(pa.decimal256(76, column.type.scale))
    table = pa.table({"group": pa.array(groups, pa.int64()), "value": array})
    sums = table.group_by("group", use_threads=False).aggregate([("value", "sum")]).sort_by("group")
    found = sums.column("value_sum").combine_chunks()
    try:
        return _narrowed(found, column)
    except pa.ArrowException:
        raise DoesNotFit(f"column {column.name!r}: the sum of a key's records does not fit {column.type}") from None


def _narrowed(sums: Any, column: Column) -> Any:
    if column.type.name is TypeName.INTEGER:
        outside = pc.or_(pc.less(sums, Decimal(column.low)), pc.greater(sums, Decimal(column.high)))
        if pc.any(outside).as_py():
            raise pa.ArrowInvalid("out of range")
    return sums.cast(column.arrow)


def _summed_texts(values: Sequence[str | None], groups: Sequence[int], count: int) -> Any:
    sums: list[Decimal | None] = [None] * count
    for value, group in zip(values, groups, strict=True):
        if value is not None:
            sums[group] = _EXACT.add(sums[group] or Decimal(), Decimal(value))
    return pa.array([None if each is None else f"{each:f}" for each in sums], pa.string())
