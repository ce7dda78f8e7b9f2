"""Where a pipeline begins, by each start strategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.app.member.history import Topic
from tests.app.member.readers import WithLedger
from tests.app.member.scenarios import SCENARIOS, STARTS, Scenario, difference

from tidegate import Table
from tidegate.core.policies import Start
from tidegate.sandbox import Kafka
from tidegate.spark import Pipeline


class PipelineReader(WithLedger):
    def __init__(self, spark: SparkSession, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._spark = spark

    @property
    def has_crashed(self) -> bool:
        return "refused" in str(self.error)

    def life(self, *, crashes: bool) -> tuple[Callable[[], None], list[Callable[[], object]]]:
        pipeline = Pipeline(
            self.topic.name,
            Table("seen"),
            group=self.group,
            kafka=self.kafka,
            ledger=self.ledger,
            start=self.strategy,
            format="text",
            columns={"value": "concat(value, raise_error('refused'))" if crashes else "value"},
            spark=self._spark,
        )
        return pipeline.stop, [lambda: pipeline.run(every=0.05)]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("start", STARTS)
def test_exactly_the_records_that_the_strategy_promises_are_read(
    kafka: Kafka, spark: SparkSession, tmp_path: Path, start: Start, scenario: Scenario
) -> None:
    topic = Topic(kafka.bootstrap)
    reader = PipelineReader(spark, kafka.bootstrap, topic, start, 1, tmp_path)
    assert difference(scenario, reader, topic, start) is None
