"""Where reading begins."""

from __future__ import annotations

import pytest

from tidegate.core.policies import Earliest, Latest, LogOffsets, Start, StartStrategy, Timestamp
from tidegate.core.records import TopicPartition
from tidegate.errors import ConfigurationError

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


def test_a_timestamp_never_starts_in_front_of_the_log() -> None:
    assert StartStrategy(Timestamp(0)).offsets([A], {A: LogOffsets(10, 90, 3)}) == {A: 10}


def test_a_partition_without_a_log_has_no_start() -> None:
    assert StartStrategy().offsets([A, B], {A: LOGS[A]}) == {A: 10}


def test_a_start_is_earliest_and_not_forced_unless_told_otherwise() -> None:
    assert StartStrategy() == StartStrategy(Earliest(), deployment=None)


def test_a_deployment_needs_a_name_and_a_timestamp_is_not_negative() -> None:
    for name in ("", "x" * 256, "é" * 128):
        with pytest.raises(ConfigurationError, match="deployment"):
            StartStrategy(deployment=name)
    assert StartStrategy(deployment="é" * 127).deployment == "é" * 127
    with pytest.raises(ConfigurationError, match="at: expected a time"):
        Timestamp(-1)
