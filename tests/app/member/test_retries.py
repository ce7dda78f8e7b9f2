"""Records that are tried again: their partition waits for them, and nobody else does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app.member.stage import GROUP, Running, Stage, numbered, wait_until

from tidegate.app.handler import HandlerFailed
from tidegate.core.batches import BatchBounds
from tidegate.core.policies import Backoff, DeadLetter, Delivery, GroupProtocol, Retry
from tidegate.core.records import Record, TopicPartition
from tidegate.ledger import Limits, Transaction
from tidegate.observe.events import Committed, DeadLettered, Paused, Rebalanced, Retried
from tidegate.sandbox import Kafka

SOON = 30.0  # seconds, of which hardly any are needed: nothing here waits for the end of an hour
HOURS = Retry(9, Backoff(3600, 1, 3600))
BRIEFLY = Backoff(0.2, 1, 0.2)
ONE = BatchBounds(count=1, age=0)


@pytest.fixture(params=["sqlite", "postgres"])
def each_stage(request: pytest.FixtureRequest, kafka: Kafka, stages: Callable[..., Stage], tmp_path: Path) -> Stage:
    """The broker that all tests share, and each database."""
    if request.param == "sqlite":
        return stages(kafka.bootstrap, f"sqlite:///{tmp_path / 'ledger.db'}")
    return stages(kafka.bootstrap, request.getfixturevalue(request.param).url)


class Handler:
    """Writes every record; those that say ``bad`` fail so many times before that."""

    def __init__(self, stage: Stage, failures: float = float("inf")) -> None:
        self._stage = stage
        self.failures = failures
        self.calls: Counter[tuple[int, ...]] = Counter()

    def one(self, record: Record, tx: Transaction) -> None:
        self.many([record], tx)

    def many(self, records: list[Record], tx: Transaction) -> None:
        self.calls[tuple(record.offset for record in records)] += 1
        self._stage.write(records, tx)
        for record in records:
            if record.value == b"bad" and self.calls[record.offset,] <= self.failures:
                raise ValueError("bad")

    def bound(self, to: str) -> Callable[..., None]:
        """The function, as a listener takes it."""

        def one(record: Record, tx: Transaction) -> None:
            self.one(record, tx)

        def many(records: list[Record], tx: Transaction) -> None:
            self.many(records, tx)

        return {"one": one, "many": many}[to]


def waits(running: Running) -> Retried:
    """Wait until the first record waits."""
    return running.wait_for(Retried)


def test_other_partitions_go_on_while_one_waits_and_a_stop_leaves_at_once(each_stage: Stage) -> None:
    stage = each_stage
    topic = stage.topic(2)
    waiting, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    stage.send(topic, ["0", "bad", "2"])
    handler = Handler(stage)
    running = stage.listen(handler.bound("one"), topic, on_error=HOURS)
    assert waits(running) == Retried(GROUP, waiting, 1, 1, 3600, "ValueError")

    for number in range(3):
        stage.send(topic, [str(number)], partition=1)
        wait_until(lambda count=number + 1: len(stage.rows()) == count, "the other partition", SOON)
    assert stage.position(other).next_offset == 3
    began = time.monotonic()
    running.stop()

    assert time.monotonic() - began < SOON
    assert stage.payloads(topic, 0) == []
    assert stage.position(waiting)[1:4:2] == (0, None)
    second = stage.listen(handler.bound("one"), topic, on_error=HOURS)
    assert waits(second).attempts == 1
    stage.verify()


@pytest.mark.parametrize("kind", ["one", "many"])
def test_each_bad_record_is_tried_as_often_as_the_policy_says(each_stage: Stage, kind: str) -> None:
    stage = each_stage
    topic = stage.topic(2)
    values = ["bad" if number in {3, 4, 7} else str(number) for number in range(10)]
    for partition in (0, 1):
        stage.send(topic, values, partition=partition)
    running = stage.listen(
        Handler(stage).bound(kind), topic, on_error=Retry(2, BRIEFLY, then=DeadLetter()), until_caught_up=True
    )
    running.ended()

    bad = [(TopicPartition(topic, partition), offset) for partition in (0, 1) for offset in (3, 4, 7)]
    letters = [each.letter for each in stage.ledger.dead_letters(GROUP)]
    assert sorted((each.record.source, each.record.offset, each.attempts) for each in letters) == [
        (*place, 3) for place in bad
    ]
    told = Counter((event.partition, event.offset, event.attempts) for event in running.told(Retried))
    assert told == Counter((*place, attempts) for place in bad for attempts in (1, 2))
    assert {event.offset for event in running.told(DeadLettered)} == {3, 4, 7}
    for partition in (0, 1):
        assert stage.offsets(topic, partition) == [0, 1, 2, 5, 6, 8, 9]
    stage.verify()


@pytest.mark.parametrize("kind", ["one", "many"])
def test_what_was_read_behind_a_batch_that_waits_follows_it_in_order(stage: Stage, kind: str) -> None:
    topic = stage.topic()
    stage.send(topic, [*numbered(14), "bad", *numbered(285, first=15)])
    handler = Handler(stage, failures=2)
    running = stage.listen(
        handler.bound(kind), topic, on_error=Retry(2, BRIEFLY), until_caught_up=True, batch=BatchBounds(count=10, age=0)
    )
    running.ended()
    assert stage.offsets() == list(range(300))
    assert [event.attempts for event in running.told(Retried)] == [1, 2]
    spans = [span for event in running.told(Committed) for span in event.spans]
    (around,) = [span for span in spans if span.start <= 14 < span.end]
    assert around.records == 10, "the batch is the same after it has waited"
    stage.verify()


def test_a_wait_may_be_longer_than_a_transaction_may_be_idle(
    kafka: Kafka, postgres: Any, stages: Callable[..., Stage]
) -> None:
    stage = stages(kafka.bootstrap, postgres.url, Limits(hold=0.5, lock_wait=1))
    topic = stage.topic()
    stage.send(topic, ["0", "bad", "2"])
    handler = Handler(stage, failures=1)
    running = stage.listen(handler.bound("one"), topic, on_error=Retry(1, Backoff(1.5, 1, 1.5)), until_caught_up=True)
    running.ended()
    assert stage.offsets() == [0, 1, 2]
    assert [event.attempts for event in running.told(Committed)] == [1]


def test_retries_that_are_used_up_stop_the_listener_in_front_of_the_record(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, ["0", "bad"])
    running = stage.listen(Handler(stage).bound("many"), topic, on_error=Retry(2, BRIEFLY))
    with pytest.raises(HandlerFailed, match="failed 3 times with ValueError") as raised:
        running.ended()
    assert (raised.value.offset, raised.value.attempts) == (1, 3)
    assert stage.position(TopicPartition(topic, 0))[1:4:2] == (0, None)
    assert stage.rows() == []


@pytest.mark.parametrize("protocol", [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE])
def test_a_rebalance_is_not_held_up_and_the_next_owner_begins_with_the_first_attempt(
    stage: Stage, protocol: GroupProtocol
) -> None:
    topic = stage.topic(2)
    for partition in (0, 1):
        stage.send(topic, ["bad", "1"], partition=partition)
    first = stage.listen(Handler(stage).bound("one"), topic, on_error=HOURS, protocol=protocol)
    wait_until(lambda: len(first.told(Retried)) == 2, "both partitions to wait")

    second = stage.listen(Handler(stage, failures=0).bound("one"), topic, protocol=protocol)

    wait_until(lambda: len(stage.rows()) == 2, "the partition that has moved", 2 * SOON)
    assert first.wait_for(Rebalanced, lambda event: event.kind == "revoked").seconds < 20
    first.stop()
    wait_until(lambda: len(stage.rows()) == 4, "the other one", 2 * SOON)
    second.stop()
    assert stage.offsets(topic, 0) == stage.offsets(topic, 1) == [0, 1]
    assert {event.attempts for event in first.told(Retried)} == {1}
    stage.verify()


def test_a_rewind_during_a_wait_is_followed_and_so_is_a_skip(each_stage: Stage) -> None:
    stage = each_stage
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, [*numbered(5), "bad", *numbered(4, first=6)])
    running = stage.listen(Handler(stage).bound("one"), topic, on_error=HOURS, batch=ONE)
    waits(running)
    assert stage.offsets() == list(range(5))

    stage.ledger.edit(GROUP, {tp: 2})
    wait_until(lambda: len(running.told(Retried)) == 2, "the same record again", SOON)
    assert stage.offsets() == [*range(5), 2, 3, 4]
    assert [event.attempts for event in running.told(Retried)] == [1, 1]
    stage.ledger.edit(GROUP, {tp: 6})
    wait_until(lambda: stage.position(tp).next_offset == 10, "what is behind it", SOON)
    running.stop()

    assert stage.offsets() == [*range(5), 2, 3, 4, *range(6, 10)]
    stage.verify()


def test_a_pause_outlasts_a_wait(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, ["bad", "1"])
    handler = Handler(stage, failures=1)
    running = stage.listen(handler.bound("one"), topic, on_error=Retry(1, Backoff(2.5, 1, 2.5)))
    waits(running)
    stage.ledger.pause(GROUP)
    running.wait_for(Paused)
    time.sleep(2.5)  # nothing tells that a wait is over during a pause
    assert handler.calls == {(0,): 1}
    stage.ledger.resume(GROUP)
    wait_until(lambda: stage.offsets() == [0, 1], "the rest", SOON)
    running.stop()
    stage.verify()


def test_a_partition_that_waits_takes_no_room_from_the_others(stage: Stage) -> None:
    topic = stage.topic(2)
    stage.send(topic, ["bad", *(f"{number:05d}" * 2000 for number in range(60))])  # 10 kB each
    handler = Handler(stage)
    running = stage.listen(handler.bound("one"), topic, on_error=HOURS, batch=ONE, buffer_bytes=100_000)
    waits(running)
    stage.send(topic, [f"{number:05d}" * 2000 for number in range(60)], partition=1)
    wait_until(lambda: len(stage.rows()) == 60, "the other partition", SOON)
    assert running.member._intake.bytes == 0

    handler.failures = 0
    stage.ledger.edit(GROUP, {TopicPartition(topic, 0): 0})
    wait_until(lambda: len(stage.rows()) == 121, "the one that has waited", SOON)
    running.stop()
    assert stage.offsets(topic, 0) == list(range(61))
    stage.verify()


def test_at_most_once_waits_beside_the_transaction_and_a_stop_ends_the_waits(each_stage: Stage) -> None:
    stage = each_stage
    topic = stage.topic()
    stage.send(topic, ["0", "bad", "2"])
    policy = Retry(2, Backoff(60, 1, 60), then=DeadLetter())
    running = stage.listen(Handler(stage).bound("one"), topic, on_error=policy, delivery=Delivery.AT_MOST_ONCE)
    waits(running)
    assert stage.position(TopicPartition(topic, 0)).next_offset == 3
    stage.ledger.edit("another group", {TopicPartition(topic, 0): 0})  # no lock is held meanwhile
    running.stop()
    assert stage.offsets() == [0, 2]
    assert [(each.letter.record.offset, each.letter.attempts) for each in stage.ledger.dead_letters(GROUP)] == [(1, 3)]


def test_without_a_ledger_what_was_processed_before_the_bad_record_is_not_processed_again(stage: Stage) -> None:
    topic = stage.topic(2)
    for partition in (0, 1):
        stage.send(topic, ["0", "1", "bad", "3"], partition=partition)
    seen: list[tuple[int, int]] = []

    def handle(record: Record) -> None:
        seen.append((record.partition, record.offset))
        if record.value == b"bad" and seen.count(seen[-1]) < 3:
            raise ValueError("bad")

    running = stage.listen(
        handle,
        topic,
        ledger=None,
        delivery=Delivery.AT_LEAST_ONCE,
        on_error=Retry(2, BRIEFLY),
        until_caught_up=True,
    )
    running.ended()
    for partition in (0, 1):
        assert [offset for number, offset in seen if number == partition] == [0, 1, 2, 2, 2, 3]
