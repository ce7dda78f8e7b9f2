"""Reading spans of records as a DataFrame, measuring them, and parsing their values into typed columns."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.records import FailedRecord, Record
from tidegate.core.work import Span
from tidegate.spark.workers import ready_worker
from tidegate.tables.column import Column
from tidegate.tables.feed import Feed, Source
from tidegate.tables.format import Format
from tidegate.tables.layout import Layout
from tidegate.tables.reader import Reader
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType, TypeName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "ERROR",
    "NO_ROW",
    "OF_TABLE",
    "RAW",
    "RAW_TYPES",
    "READ",
    "SIZE",
    "SIZE_OF_RECORD",
    "Parsing",
    "Portable",
    "Sizes",
    "feed_of",
    "for_spark",
    "headers_of",
    "letters_of",
    "letters_read",
    "letters_written",
    "raw_records",
    "sizes_of",
]


class Portable:
    """A dataclass whose cached properties are not pickled with it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, item.name) for item in fields(self))  # type: ignore[arg-type]


Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

RAW = {part: f"tidegate_{part}" for part in ("topic", "partition", "offset", "timestamp", "key", "value", "headers")}
"""Column names of the parts of a record inside Spark. They have no dots, since ``mapInArrow`` does not quote names."""

RAW_TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.string(),
}
"""Arrow types of these columns."""

_ERROR = "error"

# Headers travel as text because Spark's Java side counts through Arrow lists again for every record that comes in.
_WRITTEN = {
    "timestamp": "unix_millis(timestamp)",
    "headers": "to_json(transform(headers, h -> named_struct('k', h.key, 'v', base64(h.value))))",
}
_SELECTED = [f"{_WRITTEN.get(part, part)} AS `{name}`" for part, name in RAW.items()]


def raw_records(spark: SparkSession, spans: Sequence[Span], options: Mapping[str, str]) -> DataFrame:
    """Return a DataFrame of the records of the spans. Each span is read by one task, in the order of offsets."""
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for span in spans:
        topic, number = span.partition
        partitions.setdefault(topic, []).append(number)
        starts.setdefault(topic, {})[str(number)] = span.start
        ends.setdefault(topic, {})[str(number)] = span.end
    return (
        spark.read.format("kafka")
        .options(**options)
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", "true")
        .load()
        .selectExpr(*_SELECTED)
    )


def feed_of(batch: Any, parts: Iterable[str] = tuple(RAW)) -> Feed:
    """Return the records of an Arrow batch as readers take them. Name only the ``parts`` needed: each costs time."""
    found: dict[str, Any] = {part: _part(batch.column(RAW[part]), part) for part in parts}
    return Feed(**found)


def letters_of(batch: Any, errors: Mapping[int, str]) -> list[FailedRecord]:
    """Return dead letters for the records at these places, each with its error."""
    if not errors:
        return []
    records = list(feed_of(batch.take(list(errors))).records())
    return [FailedRecord(record, error) for record, error in zip(records, errors.values(), strict=True)]


def letters_written(letters: Sequence[FailedRecord]) -> Any:
    """Return dead letters as an Arrow batch with the columns of raw records."""
    parts = zip(*(letter.record._replace(headers=_text_of(letter.record.headers)) for letter in letters), strict=True)
    arrays = {RAW[part]: pa.array(values, RAW_TYPES[part]) for part, values in zip(Record._fields, parts, strict=True)}
    return pa.record_batch({**arrays, _ERROR: pa.array([letter.error for letter in letters], pa.string())})


def letters_read(batch: Any) -> list[FailedRecord]:
    """Return the dead letters that :func:`letters_written` wrote."""
    return letters_of(batch, dict(enumerate(batch.column(_ERROR).to_pylist())))


def headers_of(text: str | None) -> Headers:
    """Decode the headers of a record from the text that they travel as."""
    if text is None:
        return ()
    return tuple((each["k"], None if "v" not in each else b64decode(each["v"])) for each in json.loads(text))


def _text_of(headers: Headers) -> Any:
    """Encode headers as :func:`headers_of` decodes them."""
    if not headers:
        return None
    return json.dumps([{"k": k} if v is None else {"k": k, "v": b64encode(v).decode()} for k, v in headers])


def _part(array: Any, part: str) -> list[Any] | None:
    if part != "headers":
        found: list[Any] = array.to_pylist()
        return found
    return None if array.null_count == len(array) else [headers_of(text) for text in array.to_pylist()]


assert set(RAW) == set(Record._fields)  # noqa: S101 - dead letters need every part of a record


SIZE = "tidegate_size"
"""The column with the size of a record: the bytes of its key and value."""

SIZE_OF_RECORD = " + ".join(f"coalesce(octet_length(`{RAW[part]}`), 0)" for part in ("key", "value")) + f" AS `{SIZE}`"
"""The size of a record as a Spark expression."""

_LATEST = 10  # number of latest records; they show first that records grow


def sizes_of(batch: Any) -> Any:
    """Return the sizes of the raw records of an Arrow batch."""
    lengths = (pc.coalesce(pc.binary_length(batch.column(RAW[part])), 0) for part in ("key", "value"))
    return pc.add(*(length.cast(pa.int64()) for length in lengths))


class Sizes:
    """Statistics of the record sizes of one partition, added in the order of offsets."""

    def __init__(self) -> None:
        self._sum = self._count = 0
        self._latest: list[int] = []

    def add(self, sizes: Any) -> None:
        """Add the sizes of more records."""
        self._sum += pc.sum(sizes).as_py() or 0
        self._count += len(sizes)
        self._latest = [*self._latest, *sizes[-_LATEST:].to_pylist()][-_LATEST:]

    @property
    def expected(self) -> float:
        """The expected size of the next records: the larger of the mean of all and of the latest; 0 without records."""
        if not self._count:
            return 0.0
        return float(max(self._sum / self._count, sum(self._latest) / len(self._latest)))


ERROR = "tidegate_error"
"""The column with the reason why a record does not parse: null if it does, :data:`NO_ROW` if it makes no row."""

NO_ROW = ""
"""Value of :data:`ERROR` for a record that makes no row, such as a CSV header."""

READ = "tidegate_read"
"""The column with the number of records that a task has read: set in its last record, null in the others."""

OF_TABLE = "column."
"""Name prefix of a parsed column that is a column of the table."""

_MOST_DIGITS, _DIGITS_AFTER = 38, 18


def for_spark(column: Column, name: str) -> Column:
    """Return the column with a type that Spark has: it lacks unsigned 64-bit integers and decimals over 38 digits."""
    kind = column.type
    if kind.name is TypeName.INTEGER and column.high >= 1 << 63:
        kind = ColumnType.decimal(20, 0)
    elif kind.name is TypeName.DECIMAL and (kind.precision or _MOST_DIGITS + 1) > _MOST_DIGITS:
        kind = ColumnType.decimal(_MOST_DIGITS, min(kind.scale or _DIGITS_AFTER, _MOST_DIGITS))
    return replace(column, name=name, type=kind)


@dataclass(frozen=True)
class Parsing(Portable):
    """Parses raw records into columns, next to the raw ones. A record that does not parse gets an error instead."""

    columns: tuple[Column, ...]
    sources: Mapping[str, Source]
    format: Format
    table: Table
    """Defines how fields are matched with columns."""
    needs_field: bool
    """Whether a record that has none of the fields is an error."""

    def frame(self, raw: DataFrame) -> DataFrame:
        """Return the raw records with the parsed columns."""
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - executors do not need it

        return raw.mapInArrow(self._parsed, from_arrow_schema(self._schema, prefer_timestamp_ntz=False))

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
        """Parse a batch. ``read`` becomes the :data:`READ` of its last record."""
        reader, schema, size = self._reader, self._schema, batch.num_rows
        rows = reader.read(feed_of(batch, {"value", *(source.part for source in self.sources.values())}))
        errors: list[str | None] = [None] * size
        if len(rows) + len(rows.misfits) < size:  # some make no row: CSV headers, ignored tombstones
            errors = [NO_ROW] * size
            for place in rows.places:
                errors[place] = None
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
        layout = Layout(self.table, self.columns)
        return Reader(layout, self.format, dict(self.sources), needs_field=self.needs_field)

    @cached_property
    def _schema(self) -> Any:
        raw = [pa.field(name, RAW_TYPES[part]) for part, name in RAW.items()]
        made = [pa.field(column.name, column.arrow) for column in self.columns]
        return pa.schema([*raw, *made, pa.field(ERROR, pa.string()), pa.field(READ, pa.int64())])


def _spread(array: Any, places: Any, count: int) -> Any:
    """Move the rows to the places of their records, and put nulls at the other places."""
    if len(array) == count:
        return array
    slots: list[int | None] = [None] * count
    for row, place in enumerate(places):
        slots[place] = row
    return array.take(pa.array(slots, pa.int64()))
