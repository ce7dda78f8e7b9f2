"""A stage for pipelines: that of listeners, where both write the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from tests.app.member.stage import GROUP, Running, Stage
from tests.app.member.stage import wait_until as wait_for

from tidegate import Table
from tidegate.ledger import Limits
from tidegate.observe.events import Observer
from tidegate.spark import Pipeline, Report

PATIENCE = 150.0  # the first micro-batch of a session may take long

COLUMNS = {"topic": "topic", "partition": "partition", "offset": "offset", "payload": "value"}
TRANSFORM = "SELECT topic, partition, offset, value AS payload FROM records"

# Each way of committing. Whatever there is, is more than 0 records and fewer than a million.
WAYS: dict[str, dict[str, Any]] = {
    "partition": {"columns": COLUMNS, "collect": 0},
    "driver": {"transform": TRANSFORM, "collect": 1_000_000},
    "staged": {"transform": TRANSFORM, "collect": 0},
}


def wait_until(condition: Callable[[], object], what: str) -> None:
    wait_for(condition, what, PATIENCE)


@dataclass
class Run:
    """A pipeline, to be run like a member."""

    pipeline: Pipeline
    how: dict[str, Any]
    report: Report | None = None

    def run(self) -> None:
        self.report = self.pipeline.run(**self.how)

    def stop(self) -> None:
        self.pipeline.stop()


class PipelineStage(Stage):
    """One test's topics, group, ledger and data, with listeners and pipelines that write to it."""

    def __init__(self, bootstrap: str, url: str, spark: SparkSession, limits: Limits | None = None) -> None:
        super().__init__(bootstrap, url, limits)
        self._spark = spark

    def pipe(self, *topics: str, way: str = "partition", available_now: bool = False, **options: Any) -> Running:
        """A pipeline in a thread of its own."""
        how = {"available_now": True} if available_now else {"every": 0.05}
        settings = {**WAYS[way], **options}
        more: Iterable[Observer] = settings.pop("observers", ())

        def make(tell: Any) -> Any:
            pipeline = Pipeline(
                topics,
                Table(f"{self.name}_data"),
                group=GROUP,
                kafka=self.kafka,
                ledger=self.ledger,
                format="text",
                spark=self._spark,
                observers=[tell, *more],
                **settings,
            )
            return Run(pipeline, how)

        self._running.append(Running(make))
        return self._running[-1]

    def pipe_through(self, *topics: str, **options: Any) -> Report:
        """Run a pipeline until there is nothing left to read."""
        running = self.pipe(*topics, available_now=True, **options)
        wait_until(lambda: not running.is_alive, "the end of the run")
        running.ended()
        report: Report = running.member.report  # type: ignore[attr-defined]
        return report
