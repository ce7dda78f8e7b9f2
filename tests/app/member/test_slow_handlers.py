"""Handlers that take their time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.app.member.stage import GROUP, PATIENCE, Stage, numbered, wait_until
from tests.kafka.loops import Loop

from tidegate import Limits, Outgoing
from tidegate.core.batches import BatchBounds
from tidegate.core.policies import Delivery, GroupProtocol
from tidegate.core.records import Record, TopicPartition
from tidegate.errors import HeldTooLong, LedgerUnavailable
from tidegate.observe.events import Committed, Rebalanced, StoreLost
from tidegate.sandbox import Kafka, Postgres


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


@pytest.mark.parametrize("protocol", [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE])
def test_the_buffers_stay_within_their_bytes_and_everything_arrives(stage: Stage, protocol: GroupProtocol) -> None:
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


def test_without_a_ledger_a_stop_commits_what_is_handled(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(50))
    seen: list[int] = []
    go_on = threading.Event()

    def see(record: Record) -> None:
        seen.append(record.offset)
        if len(seen) == 3:
            go_on.set()
        time.sleep(0.1 if len(seen) < 6 else 0)

    settings: dict[str, Any] = {"ledger": None, "delivery": Delivery.AT_LEAST_ONCE}
    running = stage.listen(see, topic, **settings)
    assert go_on.wait(PATIENCE)
    running.stop()
    assert len(seen) < 50
    stage.listen(see, topic, until_caught_up=True, **settings).ended()
    assert seen == list(range(50))


def test_from_topic_to_topic_a_stop_commits_what_is_handled(stage: Stage) -> None:
    topic, target = stage.topic(), stage.topic()
    stage.send(topic, numbered(50))
    seen: list[int] = []
    go_on = threading.Event()

    def copy(record: Record) -> Outgoing:
        seen.append(record.offset)
        if len(seen) == 3:
            go_on.set()
        time.sleep(0.1 if len(seen) < 6 else 0)
        return Outgoing(target, record.value)

    running = stage.listen(copy, topic, ledger=None)
    assert go_on.wait(PATIENCE)
    running.stop()
    done = len(seen)
    assert done < 50
    sent = sum(span.records for event in running.told(Committed) for span in event.spans)
    assert sent == done
    stage.listen(copy, topic, ledger=None, until_caught_up=True).ended()
    assert seen == list(range(50))


def test_a_pool_commits_what_is_computed_in_front_of_a_slow_record(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(20))
    seen: list[int] = []
    go_on = threading.Event()

    def compute(record: Record) -> Any:
        seen.append(record.offset)
        if record.offset == 7:
            assert go_on.wait(PATIENCE)
        return lambda tx: stage.write([record], tx)

    running = stage.listen(compute, topic, workers=2)
    wait_until(lambda: stage.offsets() == list(range(7)), "what is in front of it")
    go_on.set()
    wait_until(lambda: stage.offsets() == list(range(20)), "all of it")
    running.stop()
    assert seen == list(range(20))
    stage.verify()


def test_a_pool_that_is_stopped_commits_what_is_computed_and_waits_for_nothing(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(20))
    seen: list[int] = []
    held, go_on = threading.Event(), threading.Event()

    def compute(record: Record) -> Any:
        seen.append(record.offset)
        if record.offset == 7 and not go_on.is_set():
            held.set()
            assert go_on.wait(PATIENCE)
        return lambda tx: stage.write([record], tx)

    running = stage.listen(compute, topic, workers=2)
    assert held.wait(PATIENCE)
    running.stop()
    assert stage.offsets() == list(range(7))
    go_on.set()
    stage.listen(compute, topic, workers=2, until_caught_up=True).ended()
    assert stage.offsets() == list(range(20))
    assert seen == [*range(8), *range(7, 20)]
    stage.verify()


def test_a_loop_of_ones_own_goes_on_after_a_block_that_was_idle_for_too_long(
    kafka: Kafka, postgres: Postgres, stages: Callable[..., Stage]
) -> None:
    stage = stages(kafka.bootstrap, postgres.url, Limits(hold=0.5, lock_wait=3))
    topic = stage.topic()
    stage.send(topic, numbered(3))
    slow = [1.0]
    loop = Loop(stage, topic, inside=lambda record: time.sleep(slow.pop() if record.offset == 1 and slow else 0))
    loop.until(lambda: stage.offsets() == [0, 1, 2], "all of it")
    loop.stop()
    (error,) = loop.ledger_errors
    assert isinstance(error, HeldTooLong)
    assert "hold (0.5 s)" in str(error)
    assert loop.handed == [0, 1, 1, 2]
    assert loop.told(StoreLost) == []


@pytest.mark.parametrize("edits", [False, True], ids=["outage", "outage and edit"])
def test_what_was_handled_before_an_outage_is_handled_again_only_if_an_operator_says_so(
    stage: Stage, edits: bool
) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(10))
    seen: list[int] = []
    transact, away = stage.ledger.transact, [LedgerUnavailable("it went away")]

    def once_away(*args: Any, **options: Any) -> Any:
        if not away:
            return transact(*args, **options)
        if edits:
            stage.ledger.edit(GROUP, {TopicPartition(topic, 0): 0})
        raise away.pop()

    stage.ledger.transact = once_away  # type: ignore[method-assign]

    def see(record: Record) -> None:
        seen.append(record.offset)

    running = stage.listen(see, topic, until_caught_up=True)
    running.ended()
    assert seen == [*range(10)] * (2 if edits else 1)
    assert len(running.told(StoreLost)) == 1
    assert stage.position(TopicPartition(topic, 0)).next_offset == 10
    stage.verify()
