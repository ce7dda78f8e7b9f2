"""Reading: the records of some spans as a DataFrame, by the official connector."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from tidegate.core.letters import Letter
from tidegate.core.records import Record
from tidegate.core.spans import Span
from tidegate.tables.feed import Feed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RAW", "RAW_TYPES", "feed_of", "headers_of", "letters_of", "letters_read", "letters_written", "raw_records"]

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

RAW = {part: f"tidegate_{part}" for part in ("topic", "partition", "offset", "timestamp", "key", "value", "headers")}
"""What the parts of a record are called on their way through Spark: without dots, which mapInArrow does not quote."""

RAW_TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.string(),
}
"""The types of these parts there."""

_ERROR = "error"

# Headers go as text: Arrow's lists in Java are counted through again and again, for every record that comes in.
_WRITTEN = {
    "timestamp": "unix_millis(timestamp)",
    "headers": "to_json(transform(headers, h -> named_struct('k', h.key, 'v', base64(h.value))))",
}
_SELECTED = [f"{_WRITTEN.get(part, part)} AS `{name}`" for part, name in RAW.items()]


def raw_records(spark: SparkSession, spans: Sequence[Span], options: Mapping[str, str]) -> DataFrame:
    """The records of the spans: a task for each, in the order of its offsets."""
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
    """The records of an Arrow batch, as readers take them; no more of them than is needed, for it is done for each."""
    found: dict[str, Any] = {part: _part(batch.column(RAW[part]), part) for part in parts}
    return Feed(**found)


def letters_of(batch: Any, errors: Mapping[int, str]) -> list[Letter]:
    """Dead letters of the records at these places, each with its error."""
    if not errors:
        return []
    records = list(feed_of(batch.take(list(errors))).records())
    return [Letter(record, error) for record, error in zip(records, errors.values(), strict=True)]


def letters_written(letters: Sequence[Letter]) -> Any:
    """Letters as an Arrow batch, the way that their records came."""
    parts = zip(*(letter.record._replace(headers=_text_of(letter.record.headers)) for letter in letters), strict=True)
    arrays = {RAW[part]: pa.array(values, RAW_TYPES[part]) for part, values in zip(Record._fields, parts, strict=True)}
    return pa.record_batch({**arrays, _ERROR: pa.array([letter.error for letter in letters], pa.string())})


def letters_read(batch: Any) -> list[Letter]:
    """The letters that :func:`letters_written` wrote."""
    return letters_of(batch, dict(enumerate(batch.column(_ERROR).to_pylist())))


def headers_of(text: str | None) -> Headers:
    """The headers of a record, as they were written on their way here."""
    if text is None:
        return ()
    return tuple((each["k"], None if "v" not in each else b64decode(each["v"])) for each in json.loads(text))


def _text_of(headers: Headers) -> Any:
    """The opposite of :func:`headers_of`."""
    if not headers:
        return None
    return json.dumps([{"k": k} if v is None else {"k": k, "v": b64encode(v).decode()} for k, v in headers])


def _part(array: Any, part: str) -> list[Any] | None:
    if part != "headers":
        found: list[Any] = array.to_pylist()
        return found
    return None if array.null_count == len(array) else [headers_of(text) for text in array.to_pylist()]


assert set(RAW) == set(Record._fields)  # noqa: S101 - or letters would lack something
