"""Handlers that take their time."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.system.stage import Stage, numbered, wait_until

from tidegate.core.batching import BatchBounds
from tidegate.core.protocols import Protocol
from tidegate.core.records import Record, TopicPartition
from tidegate.observe.observer import Rebalanced


def test_a_handler_slower_than_the_poll_interval_is_not_thrown_out(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, ["slow"])
    calls: list[int] = []

    def slowly(records: list[Record], tx: Any) -> None:
        calls.append(len(records))
        stage.write(records, tx)
        if len(calls) == 1:
            time.sleep(5)

    kafka = {"max.poll.interval.ms": 4000}
    running = stage.start(topic, handle=slowly, kafka=kafka, session_timeout=4.0)
    wait_until(lambda: stage.payloads() == ["slow"])
    stage.send(topic, ["next"])
    wait_until(lambda: stage.payloads() == ["slow", "next"])

    assert [event.kind for event in running.told(Rebalanced)] == ["assigned"]
    assert calls == [1, 1]
    running.stop()
    stage.verify()


def test_records_that_arrive_while_the_handler_runs_make_the_next_batch(stage: Stage) -> None:
    topic = stage.topic()
    entered, go_on = threading.Event(), threading.Event()
    sizes: list[int] = []

    def handle(records: list[Record], tx: Any) -> None:
        sizes.append(len(records))
        stage.write(records, tx)
        entered.set()
        assert go_on.wait(30)

    running = stage.start(topic, handle=handle)
    stage.send(topic, ["first"])
    assert entered.wait(30)
    stage.send(topic, numbered(20))
    wait_until(lambda: running.member._intake.bytes > 0)
    go_on.set()

    wait_until(lambda: len(stage.rows()) == 21)
    running.stop()
    assert sizes[0] == 1
    assert stage.offsets() == list(range(21))


@pytest.mark.parametrize("protocol", [Protocol.RANGE, Protocol.COOPERATIVE])
def test_the_buffers_stay_within_their_bytes_and_everything_arrives(stage: Stage, protocol: Protocol) -> None:
    topic = stage.topic(2)
    for partition in range(2):
        stage.send(topic, [f"{number:05d}" * 2000 for number in range(100)], partition=partition)  # 10 kB each
    bound = 200_000
    held: list[int] = []

    def slowly(records: list[Record], tx: Any) -> None:
        time.sleep(0.01)
        stage.write(records, tx)
        held.append(running.member._intake.bytes)

    running = stage.start(topic, handle=slowly, buffer_bytes=bound, batch=BatchBounds(count=10), protocol=protocol)
    wait_until(lambda: len(stage.rows()) == 200)
    running.stop()

    assert stage.offsets(partition=0) == stage.offsets(partition=1) == list(range(100))
    assert max(held) <= 2 * bound + 20_000
    assert stage.position(TopicPartition(topic, 1)).next_offset == 100
    stage.verify()
