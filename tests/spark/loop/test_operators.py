"""What operators do to a pipeline while it runs."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import DataFrame
from tests.app.member.stage import GROUP, numbered
from tests.spark.loop.stage import PipelineStage, wait_until

from tidegate.core.records import TopicPartition
from tidegate.observe.events import Claimed, FencedOff, Paused


@pytest.mark.parametrize("way", ["partition", "staged"])
def test_a_rewind_takes_effect_in_the_next_micro_batch(stage: PipelineStage, way: str) -> None:
    topic = stage.topic(2)
    stage.send(topic, numbered(30))
    stage.send(topic, numbered(30), partition=1)
    running = stage.pipe(topic, way=way)
    wait_until(lambda: len(stage.rows()) == 60, "all rows")

    stage.ledger.edit(GROUP, {TopicPartition(topic, 0): 10})

    wait_until(lambda: len(stage.rows()) == 80, "the rows behind the new position")
    running.stop()
    assert sorted(stage.offsets(topic, 0)) == sorted([*range(30), *range(10, 30)])
    assert sorted(stage.offsets(topic, 1)) == list(range(30))
    assert [event.partitions for event in running.told(Claimed)][1:] == [(TopicPartition(topic, 0),)]
    stage.verify()


def test_the_micro_batch_in_flight_is_fenced_by_a_rewind(stage: PipelineStage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(20))
    in_flight, edited = threading.Event(), threading.Event()

    def held(records: DataFrame) -> DataFrame:
        if stage.ledger.read(GROUP).positions:  # not when the expressions are looked at, before anything is claimed
            in_flight.set()
            edited.wait(60)
        return records.selectExpr("topic", "partition", "offset", "value AS payload")

    running = stage.pipe(topic, way="driver", transform=held)
    assert in_flight.wait(60)
    stage.ledger.edit(GROUP, {tp: 15})
    edited.set()

    wait_until(stage.rows, "rows")
    running.stop()
    assert stage.offsets() == list(range(15, 20))
    (fence,) = running.told(FencedOff)
    assert fence.owners == {tp: None}
    stage.verify()


def test_a_pause_and_a_resume_reach_it(stage: PipelineStage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))
    running = stage.pipe(topic)
    wait_until(lambda: len(stage.rows()) == 5, "all rows")

    stage.ledger.pause(GROUP)
    running.wait_for(Paused, lambda event: event.paused)
    stage.send(topic, numbered(5, first=5))
    stage.ledger.resume(GROUP)
    wait_until(lambda: len(stage.rows()) == 10, "the rows after the pause")
    running.stop()
    assert stage.offsets() == list(range(10))


def test_a_paused_group_is_left_alone_by_a_run_that_is_to_catch_up(stage: PipelineStage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))
    stage.ledger.pause(GROUP)

    report = stage.pipe_through(topic)

    assert (report.stopped, report.records, report.lag) == ("paused", 0, 5)
    assert stage.rows() == []
