"""Somebody who sits on the row of a position and does not move: a task whose machine has frozen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.app.member.stage import numbered
from tests.spark.loop.stage import PipelineStage, wait_until

from tidegate.ledger import Limits
from tidegate.observe.events import StoreBack, StoreLost
from tidegate.sandbox import Kafka, Postgres


@contextmanager
def held_in_the_middle_of_copy(stage: PipelineStage, url: str) -> Iterator[psycopg.Connection]:
    """What the server sees of a client that was frozen there: no limit of its own ends it."""
    holder = psycopg.connect(url.replace("+psycopg", ""))
    try:
        cursor = holder.cursor()
        cursor.execute(f'UPDATE "{stage.name}_positions" SET seq = seq')
        copying = cursor.copy(f'COPY "{stage.name}_data" (topic, partition, "offset") FROM STDIN')
        copying.__enter__()
        yield holder
    finally:
        holder.close()


@pytest.mark.parametrize("way", ["partition", "driver"])
def test_whoever_keeps_a_position_locked_is_ended_and_the_micro_batch_goes_through(
    way: str, kafka: Kafka, postgres: Postgres, spark: SparkSession
) -> None:
    stage = PipelineStage(kafka.bootstrap, postgres.url, spark, Limits(hold=0.5, lock_wait=1.0))
    try:
        topic = stage.topic()
        stage.send(topic, numbered(5))
        running = stage.pipe(topic, way=way)
        wait_until(lambda: len(stage.rows()) == 5, "all rows")

        with held_in_the_middle_of_copy(stage, postgres.url):
            stage.send(topic, numbered(5, first=5))
            wait_until(lambda: len(stage.rows()) == 10, "the rows that were kept waiting")

        running.stop()
        assert [event.what for event in running.told(StoreLost)] == ["ledger"]
        assert [event.what for event in running.told(StoreBack)] == ["ledger"]
        assert stage.payloads() == numbered(10)
        stage.verify()
    finally:
        stage.close()
