"""Where reading begins."""

from __future__ import annotations

import pytest
from tests.app.member.stage import GROUP, Stage, numbered, wait_until

from tidegate.core.journal import Kind
from tidegate.core.policies import Earliest, Latest, StartStrategy, Timestamp
from tidegate.core.records import TopicPartition

NOON = 1_700_000_000_000


def test_earliest_begins_at_the_first_record_that_the_log_still_has(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(10))
    stage.delete_records(TopicPartition(topic, 0), before=4)

    stage.catch_up(topic, start=StartStrategy(Earliest()))

    assert stage.offsets() == [4, 5, 6, 7, 8, 9]


def test_latest_begins_behind_the_last_record(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))

    stage.catch_up(topic, start=StartStrategy(Latest()))
    assert stage.rows() == []
    assert stage.position(tp).next_offset == 10

    stage.send(topic, ["new"])
    stage.catch_up(topic, start=StartStrategy(Latest()))
    assert stage.payloads() == ["new"]


@pytest.mark.parametrize(("at", "seen"), [(NOON + 500, [5, 6, 7, 8, 9]), (NOON + 10_000, []), (0, list(range(10)))])
def test_a_timestamp_begins_at_the_first_record_not_before_it(stage: Stage, at: int, seen: list[int]) -> None:
    topic = stage.topic(retention_ms=-1)
    for number in range(10):
        stage.send(topic, [str(number)], timestamp=NOON + number * 100)

    stage.catch_up(topic, start=StartStrategy(Timestamp(at)))

    assert stage.offsets() == seen
    assert stage.position(TopicPartition(topic, 0)).next_offset == 10


def test_a_stored_position_wins_over_the_start(stage: Stage) -> None:
    topic = stage.topic(2)
    stage.send(topic, numbered(10))
    stage.ledger.edit(GROUP, {TopicPartition(topic, 0): 7})

    stage.catch_up(topic, start=StartStrategy(Earliest()))
    assert stage.offsets() == [7, 8, 9]

    stage.send(topic, numbered(2, first=10))
    stage.catch_up(topic, start=StartStrategy(Latest()))
    assert stage.offsets() == [7, 8, 9, 10, 11]


def test_a_deployment_forces_its_start_once_and_another_one_forces_it_again(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(4))
    stage.catch_up(topic)

    for deployment, times in [("replay", 2), ("replay", 2), ("second replay", 3), ("second replay", 3)]:
        stage.catch_up(topic, start=StartStrategy(Earliest(), deployment))
        assert stage.payloads() == numbered(4) * times, deployment

    assert [entry.note for entry in stage.journal(tp, Kind.EDIT)] == [
        "forced by deployment 'replay'",
        "forced by deployment 'second replay'",
    ]
    stage.verify()


def test_a_rebalance_does_not_force_a_deployments_start_again(stage: Stage) -> None:
    topic = stage.topic(2)
    for partition in range(2):
        stage.send(topic, numbered(4), partition=partition)
    strategy = StartStrategy(Earliest(), "replay")
    first = stage.start(topic, start=strategy)
    wait_until(lambda: len(stage.rows()) == 8)

    second = stage.start(topic, start=strategy)
    wait_until(lambda: len({row.owner for row in stage.ledger.read(GROUP).positions.values() if row.owner}) == 2)
    first.stop()
    wait_until(lambda: len(second.member._assignment.partitions) == 2)
    second.stop()

    assert len(stage.rows()) == 8
