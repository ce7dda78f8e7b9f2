"""Spark's part in row-wise micro-batches: the jobs that read their records, and the errors of jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidegate.core.records import TopicPartition
from tidegate.core.work import Span
from tidegate.errors import ConfigurationError, TidegateError
from tidegate.spark.executor import RESULT, TaskResult
from tidegate.spark.plans import refuse_exchange
from tidegate.spark.records import RAW, Sizes, raw_records
from tidegate.spark.rows import RowWise
from tidegate.spark.versions import installed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Collected", "JobFailed", "RecordJobs", "SpanTask", "SparkJobs", "job"]


class Collected(NamedTuple):
    """The records of some spans, collected on the driver: Arrow batches, and the numbers and sizes of the records."""

    batches: list[Any]
    counts: Mapping[TopicPartition, int]
    sizes: dict[TopicPartition, float]


class SpanTask(Protocol):
    """What a task does with the records of one span: commits them, to one table or to those of a route."""

    @property
    def rowwise(self) -> RowWise:
        """How its rows are made."""

    def __call__(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Run it and yield its result."""


class RecordJobs(Protocol):
    """Interface for jobs over the records of spans: :class:`SparkJobs`, or its replacement in the simulation."""

    def commit(self, task: SpanTask, spans: Sequence[Span]) -> list[TaskResult]:
        """Run the task for each span, and return the results. A task that saw no record has none."""

    def collect(self, rowwise: RowWise, spans: Sequence[Span]) -> Collected:
        """Return the records of the spans."""


class SparkJobs(RecordJobs):
    """Runs jobs on Spark, over the records that its Kafka connector reads. ``about`` begins error messages."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], about: str) -> None:
        self._spark = spark
        self._options = options
        self._about = about

    def raw(self, spans: Sequence[Span]) -> DataFrame:
        """Return the raw records of the spans."""
        return raw_records(self._spark, spans, self._options)

    def commit(self, task: SpanTask, spans: Sequence[Span]) -> list[TaskResult]:
        """Run the task for each span, and return the results. A task that saw no record has none."""
        frame = task.rowwise.frame(self.raw(spans)).mapInArrow(task, RESULT)
        self._refuse_exchange(frame, task.rowwise)
        return [TaskResult.of(row) for row in frame.collect()]

    def collect(self, rowwise: RowWise, spans: Sequence[Span]) -> Collected:
        """Return the records of the spans."""
        frame = rowwise.frame(self.raw(spans))
        self._refuse_exchange(frame, rowwise)
        table = installed().arrow_table(frame)
        batches = table.combine_chunks().to_batches()
        return Collected(batches, _counted(table), _sizes(batches, rowwise))

    def _refuse_exchange(self, frame: DataFrame, rowwise: RowWise) -> None:
        """Raise if Spark moves records between tasks. Checked for every micro-batch: its joins depend on other data."""
        if rowwise.counts:
            refuse_exchange(frame, self._about)


def _counted(table: Any) -> dict[TopicPartition, int]:
    """Count the records of each partition in a table of raw records."""
    if not table.num_rows:
        return {}
    names = [RAW["topic"], RAW["partition"]]
    found = table.select(names).group_by(names).aggregate([([], "count_all")]).to_pylist()
    return {TopicPartition(row[names[0]], row[names[1]]): row["count_all"] for row in found}


def _sizes(batches: Iterable[Any], rowwise: RowWise) -> dict[TopicPartition, float]:
    """Estimate the record size of each partition from the batches of a collected micro-batch."""
    found: dict[TopicPartition, Sizes] = {}
    for batch in batches:
        sizes = rowwise.sizes(batch)
        sources = zip(*(batch.column(RAW[part]).to_pylist() for part in ("topic", "partition")), strict=True)
        places: dict[TopicPartition, list[int]] = {}
        for place, source in enumerate(sources):
            places.setdefault(TopicPartition(*source), []).append(place)
        for source, taken in places.items():
            found.setdefault(source, Sizes()).add(sizes.take(taken))
    return {source: sizes.expected for source, sizes in found.items()}


_PYTHON = re.compile(r"^(?P<kind>[\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Fenced)\b.*)$", re.MULTILINE)
_CAUSE = re.compile(r"Caused by: (?:[\w$.]+\.)?(?P<what>\w+(?:Exception|Error)?: .+)")
_LONG = 400


class JobFailed(TidegateError):
    """A Spark job failed for a reason that is not known to be permanent, so it may be retried."""


@contextmanager
def job(what: str) -> Iterator[None]:
    """Translate the exceptions of Spark.

    A query that can never work raises :class:`ConfigurationError`; what may work the next time, :class:`JobFailed`.
    """
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # noqa: PLC0415 - an extra
    from pyspark.errors import AnalysisException, ParseException, PySparkException  # noqa: PLC0415

    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise ConfigurationError(f"{what}: Spark does not understand it: {_short(str(error))}") from error
    except Py4JJavaError as error:
        raise JobFailed(f"{what}: {_cause(str(error.java_exception.toString()), str(error))}") from error
    except PySparkException as error:
        raise JobFailed(f"{what}: {_cause(str(error), str(error))}") from error
    except (Py4JNetworkError, Py4JError, ConnectionError, EOFError) as error:
        raise JobFailed(f"{what}: the connection to Spark broke: {_short(str(error))}") from error


def _cause(first: str, trace: str) -> str:
    """Return the innermost cause: the last Python exception of the trace or, without one, the last of Java."""
    python = _PYTHON.findall(trace.partition("Traceback (most recent call last)")[2])
    if python:
        return _short(python[-1])
    causes = _CAUSE.findall(trace)
    return _short(causes[-1] if causes else first)


def _short(text: str) -> str:
    line = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return line if len(line) <= _LONG else line[: _LONG - 1] + "…"
