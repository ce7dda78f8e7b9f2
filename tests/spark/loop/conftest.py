from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pyspark.sql import SparkSession
from tests.spark.loop.stage import PipelineStage

from tidegate.sandbox import Kafka


@pytest.fixture
def stages(kafka: Kafka, spark: SparkSession) -> Iterator[Callable[[str], PipelineStage]]:
    """Makes stages on a database, and clears them away."""
    with ExitStack() as open_stages:

        def make(url: str) -> PipelineStage:
            stage = PipelineStage(kafka.bootstrap, url, spark)
            open_stages.callback(stage.close)
            return stage

        yield make


@pytest.fixture
def stage(request: pytest.FixtureRequest, stages: Callable[[str], PipelineStage]) -> PipelineStage:
    """On PostgreSQL, unless the test names another fixture."""
    return stages(str(request.getfixturevalue(getattr(request, "param", "postgres")).url))
