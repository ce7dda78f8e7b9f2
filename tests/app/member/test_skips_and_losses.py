"""Records that are not read: skipped by the lag guard, or taken away by retention."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.app.member.stage import GROUP, Stage, numbered, wait_until

from tidegate.core.batches import BatchBounds
from tidegate.core.journal import Kind
from tidegate.core.policies import GroupProtocol, LagGuard, OutOfRange
from tidegate.core.records import Record, TopicPartition
from tidegate.core.work import Span
from tidegate.errors import ListenerStopped
from tidegate.observe.events import Skipped


def test_the_lag_guard_skips_to_before_the_end_and_journals_the_exact_range(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(1000))

    def slowly(records: list[Record], tx: Any) -> None:
        time.sleep(0.05)
        stage.write(records, tx)

    guard = LagGuard(limit=500, keep=10, every=0.5)
    running = stage.catch_up(topic, lag_guard=guard, batch=BatchBounds(count=5), handle=slowly)

    (skip,) = stage.journal(tp, Kind.SKIP)
    assert skip.end == 990
    assert stage.offsets() == [*range(skip.start), *range(990, 1000)]
    assert "more than 500 records behind" in (skip.note or "")
    assert [(event.span, event.kind) for event in running.told(Skipped)] == [(Span(tp, skip.start, 990), "skip")]
    assert stage.position(tp).next_offset == 1000
    stage.verify()


def test_without_a_lag_guard_nothing_is_skipped(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(1000))

    running = stage.catch_up(topic)

    assert stage.offsets() == list(range(1000))
    assert running.told(Skipped) == []


def behind_retention(stage: Stage) -> TopicPartition:
    """A partition whose position is 10, and whose log begins at 25 and ends at 30."""
    topic = stage.topic()
    stage.send(topic, numbered(10))
    stage.catch_up(topic)
    stage.send(topic, numbered(20, first=10))
    stage.delete_records(TopicPartition(topic, 0), before=25)
    return TopicPartition(topic, 0)


def test_a_listener_that_retention_has_passed_stops_and_says_what_was_lost(stage: Stage) -> None:
    tp = behind_retention(stage)

    running = stage.start(tp.topic, out_of_range=OutOfRange.STOP)

    with pytest.raises(ListenerStopped) as stopped:
        running.ended()
    for part in (GROUP, str(tp), "offsets 10 to 24 are gone", "move the position to 25"):
        assert part in str(stopped.value)
    assert stage.position(tp).next_offset == 10
    assert stage.position(tp).owner is None
    assert stage.offsets() == list(range(10))


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_by_policy_the_loss_is_journalled_and_consumption_goes_on(stage: Stage, protocol: GroupProtocol) -> None:
    tp = behind_retention(stage)

    running = stage.catch_up(tp.topic, out_of_range=OutOfRange.SKIP, protocol=protocol)

    assert stage.offsets() == [*range(10), *range(25, 30)]
    (loss,) = stage.journal(tp, Kind.LOSS)
    assert (loss.start, loss.end) == (10, 25)
    assert [(event.span, event.kind) for event in running.told(Skipped)] == [(Span(tp, 10, 25), "loss")]
    assert stage.position(tp).next_offset == 30
    stage.verify()


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_a_loss_in_one_partition_does_not_disturb_the_others(stage: Stage, protocol: GroupProtocol) -> None:
    topic = stage.topic(3)
    gone = TopicPartition(topic, 1)
    for partition in range(3):
        stage.send(topic, numbered(300), partition=partition)
    stage.delete_records(gone, before=200)
    stage.ledger.edit(GROUP, {gone: 100})

    batch = BatchBounds(count=20)
    stage.catch_up(topic, out_of_range=OutOfRange.SKIP, protocol=protocol, batch=batch, buffer_bytes=100)

    assert stage.offsets(partition=0) == stage.offsets(partition=2) == list(range(300))
    assert stage.offsets(partition=1) == list(range(200, 300))
    stage.verify()


def test_everything_may_be_lost(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    stage.ledger.edit(GROUP, {tp: 3})
    stage.delete_records(tp, before=10)

    running = stage.start(topic, out_of_range=OutOfRange.SKIP)
    running.wait_for(Skipped)
    stage.send(topic, ["new"])

    wait_until(lambda: stage.offsets() == [10])
    running.stop()
    (loss,) = stage.journal(tp, Kind.LOSS)
    assert (loss.start, loss.end) == (3, 10)


@pytest.mark.parametrize("policy", list(OutOfRange))
def test_a_position_behind_the_end_of_the_log_stops_under_every_policy(stage: Stage, policy: OutOfRange) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    stage.ledger.edit(GROUP, {tp: 50})

    running = stage.start(topic, out_of_range=policy)

    with pytest.raises(ListenerStopped, match="position is 50, but the log ends at 10"):
        running.ended()
    assert stage.position(tp).next_offset == 50
