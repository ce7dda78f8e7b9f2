"""Where reading begins."""

from __future__ import annotations

import pytest

from tidegate.core.errors import ConfigurationError, PositionMissing
from tidegate.core.records import TopicPartition
from tidegate.core.start import Earliest, Latest, LogOffsets, Start, StartStrategy, Timestamp

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOGS = {A: LogOffsets(10, 90, 40), B: LogOffsets(0, 7, None)}


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        (Earliest(), {A: 10, B: 0}),
        (Latest(), {A: 90, B: 7}),
        (Timestamp(1_700_000_000_000), {A: 40, B: 7}),
    ],
)
def test_each_strategy_gives_its_offsets(start: Start, offsets: dict[TopicPartition, int]) -> None:
    assert StartStrategy(start).offsets([B, A], LOGS) == offsets


def test_partitions_added_while_the_group_runs_are_read_from_their_beginning() -> None:
    assert StartStrategy(Latest()).offsets([A, B], LOGS, added=[A]) == {A: 10, B: 7}


def test_a_timestamp_never_starts_in_front_of_the_log() -> None:
    assert StartStrategy(Timestamp(0)).offsets([A], {A: LogOffsets(10, 90, 3)}) == {A: 10}


def test_a_log_that_is_not_known_is_an_error_that_names_the_partition() -> None:
    with pytest.raises(PositionMissing, match=r"orders\[1\]"):
        StartStrategy().offsets([A, B], {A: LOGS[A]})


def test_a_start_is_earliest_and_not_forced_unless_told_otherwise() -> None:
    assert StartStrategy() == StartStrategy(Earliest(), deployment=None)


def test_a_deployment_needs_a_name_and_a_timestamp_is_not_negative() -> None:
    with pytest.raises(ConfigurationError, match="deployment"):
        StartStrategy(deployment="")
    with pytest.raises(ConfigurationError, match="at: expected a time"):
        Timestamp(-1)
