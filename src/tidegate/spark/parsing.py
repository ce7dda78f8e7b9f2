"""Parsing on executors: values of records into typed columns, by the same readers that sinks use.

There is one parser for every path, so that the same records become dead letters on each of them, and decimals stay
exact. Spark's own from_json reads the first of two documents, and takes wrong types for nulls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.spark.portable import Portable
from tidegate.spark.reading import RAW, RAW_TYPES, feed_of
from tidegate.spark.workers import ready_worker
from tidegate.tables.column import Column
from tidegate.tables.format import Format
from tidegate.tables.layout import Layout
from tidegate.tables.reader import Reader
from tidegate.tables.sources import Source
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType, TypeName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ERROR", "OF_TABLE", "READ", "Parsing", "for_spark"]

ERROR = "tidegate_error"
"""Why a record does not parse; null if it does."""

READ = "tidegate_read"
"""In the last record of a task: how many it has read. Null in the others."""

OF_TABLE = "column."
"""What goes before the name of a parsed column that is one of the table's."""

_MOST_DIGITS, _DIGITS_AFTER = 38, 18


def for_spark(column: Column, name: str) -> Column:
    """A column that Spark has a type for: no unsigned integers, and no decimals of more than 38 digits."""
    kind = column.type
    if kind.name is TypeName.INTEGER and column.high >= 1 << 63:
        kind = ColumnType.decimal(20, 0)
    elif kind.name is TypeName.DECIMAL and (kind.precision or _MOST_DIGITS + 1) > _MOST_DIGITS:
        kind = ColumnType.decimal(_MOST_DIGITS, min(kind.scale or _DIGITS_AFTER, _MOST_DIGITS))
    return replace(column, name=name, type=kind)


@dataclass(frozen=True)
class Parsing(Portable):
    """The columns to make of each record, beside the record as it is; those that do not parse say why instead."""

    columns: tuple[Column, ...]
    sources: Mapping[str, Source]
    format: Format

    def frame(self, raw: DataFrame) -> DataFrame:
        """The raw records, parsed."""
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - executors have no use for it

        return raw.mapInArrow(self._parsed, from_arrow_schema(self._schema))

    def _parsed(self, batches: Iterable[Any]) -> Iterator[Any]:
        ready_worker()
        count = 0
        held = None
        for batch in filter(len, batches):
            if held is not None:
                yield self._of_one(held, None)
            count += batch.num_rows
            held = batch
        if held is not None:
            yield self._of_one(held, count)

    def _of_one(self, batch: Any, read: int | None) -> Any:
        """A batch, parsed; ``read`` goes to its last record."""
        reader, schema, size = self._reader, self._schema, batch.num_rows
        rows = reader.read(feed_of(batch, {"value", *(source.part for source in self.sources.values())}))
        errors: list[str | None] = [None] * size
        for misfit in rows.misfits:
            column = misfit.column and misfit.column.removeprefix(OF_TABLE)
            errors[misfit.place] = str(misfit._replace(column=column))
        arrays = [batch.column(name) for name in RAW.values()]
        arrays += [_spread(array, rows.places, size) for array in rows.batch.columns]
        arrays.append(pa.array(errors, pa.string()))
        arrays.append(pa.concat_arrays([pa.nulls(size - 1, pa.int64()), pa.array([read], pa.int64())]))
        return pa.RecordBatch.from_arrays(
            [each.cast(kind) for each, kind in zip(arrays, schema.types, strict=True)], schema=schema
        )

    @cached_property
    def _reader(self) -> Reader:
        return Reader(Layout(Table("records"), self.columns), self.format, dict(self.sources))

    @cached_property
    def _schema(self) -> Any:
        raw = [pa.field(name, RAW_TYPES[part]) for part, name in RAW.items()]
        made = [pa.field(column.name, column.arrow) for column in self.columns]
        return pa.schema([*raw, *made, pa.field(ERROR, pa.string()), pa.field(READ, pa.int64())])


def _spread(array: Any, places: Any, count: int) -> Any:
    """The rows that fit, at the places of their records; nulls at the others."""
    if len(array) == count:
        return array
    slots: list[int | None] = [None] * count
    for row, place in enumerate(places):
        slots[place] = row
    return array.take(pa.array(slots, pa.int64()))
