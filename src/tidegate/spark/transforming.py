"""Transforms: any DataFrame of the micro-batch's records, whose rows come from all of its partitions together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import ConfigurationError
from tidegate.core.letters import Letter
from tidegate.core.records import Record, TopicPartition
from tidegate.spark.parsing import ERROR, Parsing
from tidegate.spark.reading import RAW, headers_of
from tidegate.spark.sizes import SIZE, SIZE_OF_RECORD
from tidegate.spark.spec import Transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Transformed", "Transforming"]


@dataclass(frozen=True)
class Transformed:
    """The rows of a micro-batch as a DataFrame, its letters, and how many records each partition had, of which size."""

    rows: DataFrame
    letters: list[Letter]
    counts: dict[TopicPartition, int]
    sizes: dict[TopicPartition, float]


@dataclass(frozen=True)
class Transforming:
    """Parses the records of a micro-batch once, parks what does not parse, and gives the rest to the transform."""

    parsing: Parsing
    view: tuple[str, ...]
    transform: Transform

    @contextmanager
    def of(self, raw: DataFrame) -> Iterator[Transformed]:
        """The records are kept by Spark meanwhile: they are needed twice, and the transform may need only some."""
        always = ("topic", "partition", "offset")
        parts = [
            f"`{name}`" if part in always else f"CASE WHEN `{ERROR}` IS NOT NULL THEN `{name}` END AS `{name}`"
            for part, name in RAW.items()
        ]
        seen = self.parsing.frame(raw).selectExpr(*parts, f"`{ERROR}`", SIZE_OF_RECORD, *self.view).persist()
        try:
            counts, sizes, letters = _survey(seen)
            records = seen.where(f"`{ERROR}` IS NULL").drop(*RAW.values(), ERROR, SIZE)
            yield Transformed(self._applied(records), letters, counts, sizes)
        finally:
            seen.unpersist()

    def rows(self, raw: DataFrame) -> DataFrame:
        """The rows that the transform makes, as Spark sees them."""
        return self._applied(self.parsing.frame(raw).selectExpr(*self.view))

    def _applied(self, records: DataFrame) -> DataFrame:
        if isinstance(self.transform, str):
            records.createOrReplaceTempView("records")
            return records.sparkSession.sql(self.transform)
        made = self.transform(records)
        if not hasattr(made, "mapInArrow"):
            raise ConfigurationError(f"the transform returned {type(made).__name__}, and not a DataFrame")
        return made


def _survey(
    seen: DataFrame,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, float], list[Letter]]:
    """Count the records of each partition, weigh them, and collect those that do not parse, in one job."""
    from pyspark.sql.functions import expr  # noqa: PLC0415 - an extra

    topic, number = RAW["topic"], RAW["partition"]
    parts = ", ".join(f"`{RAW[part]}`" for part in ("offset", "key", "value", "headers", "timestamp"))
    bad = f"collect_list(CASE WHEN `{ERROR}` IS NOT NULL THEN struct({parts}, `{ERROR}`) END)"
    counts: dict[TopicPartition, int] = {}
    sizes: dict[TopicPartition, float] = {}
    letters: list[Letter] = []
    mean = f"avg(`{SIZE}`)"
    for row in seen.groupBy(topic, number).agg(expr("count(*)"), expr(mean), expr(bad)).collect():
        source = TopicPartition(row[0], row[1])
        counts[source], sizes[source] = row[2], row[3]
        for offset, key, value, headers, timestamp, error in sorted(row[4], key=itemgetter(0)):
            record = Record(*source, offset, _bytes(key), _bytes(value), headers_of(headers), timestamp)
            letters.append(Letter(record, error))
    return counts, sizes, letters


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
