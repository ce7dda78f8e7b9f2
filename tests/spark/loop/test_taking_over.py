"""One group, now with a listener and now with a pipeline; and what happens if there are two at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.app.member.stage import GROUP
from tests.spark.loop.stage import PipelineStage, wait_until

from tidegate.core.records import TopicPartition
from tidegate.errors import PipelineStopped
from tidegate.observe.events import Claimed

PARTITIONS = 2


@contextmanager
def written_to(stage: PipelineStage, topic: str) -> Iterator[dict[int, int]]:
    """Records are written all the while; how many, by partition."""
    written = dict.fromkeys(range(PARTITIONS), 0)
    enough = threading.Event()

    def write() -> None:
        while not enough.wait(0.01):
            for partition in written:
                written[partition] += len(stage.send(topic, [str(written[partition])], partition=partition))

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield written
    finally:
        enough.set()
        writing.join()


def wait_for_more(stage: PipelineStage) -> None:
    count = len(stage.rows())
    wait_until(lambda: len(stage.rows()) > count + 20, "more rows")


@pytest.mark.parametrize("stage", ["postgres", "mysql"], indirect=True)
def test_a_group_goes_from_a_listener_to_a_pipeline_and_back_in_mid_stream(stage: PipelineStage) -> None:
    topic = stage.topic(PARTITIONS)
    with written_to(stage, topic) as written:
        for start in (stage.start, stage.pipe, stage.start):
            running = start(topic)
            running.wait_for(Claimed)
            wait_for_more(stage)
            running.stop()
            assert not any(row.owner for row in stage.ledger.read(GROUP).positions.values())
    stage.pipe_through(topic)

    for partition, count in written.items():
        assert stage.offsets(topic, partition) == list(range(count))
    stage.verify()


def test_a_pipeline_beside_a_listener_stops_and_names_it_and_nothing_comes_twice(stage: PipelineStage) -> None:
    topic = stage.topic(PARTITIONS)
    with written_to(stage, topic) as written:
        listener = stage.start(topic)
        wait_for_more(stage)
        pipeline = stage.pipe(topic)
        with pytest.raises(PipelineStopped, match=f"'{GROUP}' was taken over") as stopped:
            pipeline.ended()
        owners = {row.owner for row in stage.ledger.read(GROUP).positions.values()}
        assert any(owner and owner in str(stopped.value) for owner in owners), (owners, stopped.value)
        wait_for_more(stage)
    wait_until(lambda: len(stage.rows()) == sum(written.values()), "all rows")
    listener.stop()
    for partition, count in written.items():
        assert stage.offsets(topic, partition) == list(range(count))
    stage.verify()


def test_the_first_of_two_pipelines_stops_and_names_the_second(stage: PipelineStage) -> None:
    topic = stage.topic(PARTITIONS)
    with written_to(stage, topic) as written:
        first = stage.pipe(topic)
        wait_for_more(stage)
        second = stage.pipe(topic)
        with pytest.raises(PipelineStopped) as stopped:
            first.ended()
        owner = stage.position(TopicPartition(topic, 0)).owner
        assert owner
        assert owner in str(stopped.value)
        wait_for_more(stage)
    wait_until(lambda: len(stage.rows()) == sum(written.values()), "all rows")
    second.stop()
    for partition, count in written.items():
        assert sorted(stage.offsets(topic, partition)) == list(range(count))
    stage.verify()
