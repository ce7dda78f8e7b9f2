"""Micro-batches: which way each of them is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.core.delivery import CommitMode
from tidegate.core.errors import ConfigurationError
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Span
from tidegate.spark.committing import Batch, Commits, Done
from tidegate.spark.destination import Destination
from tidegate.spark.failures import job
from tidegate.spark.plans import refuse_exchange, refuse_generators, refuse_partial
from tidegate.spark.reading import raw_records
from tidegate.spark.rows import Expressions, Plain
from tidegate.spark.shaping import expressions_of, parsing_of, rowwise_of, view_of
from tidegate.spark.spec import PipelineSpec
from tidegate.spark.transforming import Transforming
from tidegate.tables.fitting import check_schema
from tidegate.tables.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["MicroBatches"]

_COLLECTED = 4  # the part of max_bytes that the driver takes into its own memory, where others can do the work


class MicroBatches:
    """Runs micro-batches of one pipeline: small ones, and all into SQLite, on the driver; the others on executors."""

    def __init__(
        self,
        spec: PipelineSpec,
        spark: SparkSession,
        options: Mapping[str, str],
        commits: Commits,
        destination: Destination,
    ) -> None:
        self._spec = spec
        self._spark = spark
        self._options = options
        self._commits = commits
        self._destination = destination
        self._altering = False
        self._made_for: Layout | None = None
        self._rowwise: Plain | Expressions | None = None
        self._transforming: Transforming | None = None
        if spec.commit is CommitMode.PARTITION and destination.is_local:
            raise ConfigurationError(
                f"pipeline of group {spec.group!r}: commit='partition' lets executors write, and SQLite's file belongs "
                "to the driver's machine; leave commit out, or use PostgreSQL or MariaDB"
            )

    def check(self) -> None:
        """Have Spark look at the rows that are to be made, and refuse what the table cannot take: before any is."""
        self._shape()
        made = self._transforming or self._rowwise
        layout = self._destination.layout
        if isinstance(made, Plain) or made is None:
            return
        nothing = [Span(TopicPartition(topic, 0), 0, 0) for topic in self._spec.topics]
        with job(f"pipeline of group {self._spec.group!r}"):
            raw = raw_records(self._spark, nothing, self._options)
            rows = made.rows(raw)
            schema = to_arrow(rows.schema)
            if isinstance(made, Expressions):
                refuse_generators(rows, self._spec.about)
                refuse_exchange(made.frame(raw), self._spec.about)
            self._refuse_partial(rows)
        if layout is None:
            return
        strange = [name for name in schema.names if name not in layout.by_name]
        if strange and not self._spec.into.evolve:
            raise ConfigurationError(
                f"pipeline of group {self._spec.group!r}: table {self._spec.into} has no column {strange[0]!r} that "
                f"can be written to; it has {', '.join(map(repr, layout.by_name))}"
            )
        check_schema(layout, schema)

    def run(
        self, number: int, spans: Sequence[Span], claims: Mapping[TopicPartition, Claim], *, weight: float = 0.0
    ) -> Done:
        """Run one, and say what became of it. ``weight``: how many bytes it is expected to have."""
        if self._altering:
            self._destination.look()
        self._shape()
        batch = Batch(number, tuple(spans), claims, raw_records(self._spark, spans, self._options))
        done = self._run(batch, weight)
        self._altering = done.outdated
        return done

    def _run(self, batch: Batch, weight: float) -> Done:
        """A table that is yet to be created or altered is so by the driver, which alone may."""
        alone = self._destination.is_local or self._altering or self._destination.layout is None
        light = weight <= self._spec.max_bytes / _COLLECTED
        small = alone or (light and batch.length <= self._spec.collect)
        if self._transforming is not None:
            with self._transforming.of(batch.raw) as transformed:
                self._refuse_partial(transformed.rows)
                return self._commits.transformed(batch, transformed, collect=small)
        assert self._rowwise is not None  # noqa: S101 - one of them is
        return (self._commits.by_driver if small else self._commits.by_partition)(batch, self._rowwise)

    def _refuse_partial(self, rows: DataFrame) -> None:
        if not self._spec.per_batch:
            refuse_partial(rows, self._spec.about, self._spec.into)

    def _shape(self) -> None:
        """Decide how rows are made, anew if the table is another one."""
        layout = self._destination.layout
        if layout is self._made_for and (self._rowwise or self._transforming):
            return
        self._made_for = layout
        if self._spec.mode is CommitMode.PARTITION:
            self._rowwise = rowwise_of(self._spec, layout)
            return
        if self._spec.transform is not None:
            parsing = parsing_of(self._spec, layout)
            self._transforming = Transforming(parsing, view_of(parsing), self._spec.transform)
        else:
            made = expressions_of(self._spec, layout)
            self._transforming = Transforming(made.parsing, made.view, made.apply)


def to_arrow(schema: StructType) -> Any:
    """Spark's types as Arrow's."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - an extra

    return to_arrow_schema(schema)
