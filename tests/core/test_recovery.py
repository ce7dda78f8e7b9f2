"""What to do when a position, a topic or a handler fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.policies import (
    Again,
    Backoff,
    DeadLetter,
    Fail,
    LogOffsets,
    Lose,
    OutOfRange,
    Park,
    Recreated,
    Retry,
    Skip,
    StepOver,
    Stop,
    decide,
    out_of_range,
)
from tidegate.core.records import TopicPartition
from tidegate.core.work import Span
from tidegate.errors import ConfigurationError, LedgerUnavailable

TP = TopicPartition("orders", 0)
LOG = LogOffsets(10, 20)
BAD = ValueError("bad total")


def test_what_retention_took_is_lost_with_its_exact_range_if_the_policy_says_so() -> None:
    decision = out_of_range(OutOfRange.SKIP, "billing", TP, 4, LOG)
    assert isinstance(decision, Lose)
    assert decision.span == Span(TP, 4, 10)
    assert "4 to 9" in decision.note


def test_what_retention_took_stops_with_an_error_that_names_it_otherwise() -> None:
    decision = out_of_range(OutOfRange.STOP, "billing", TP, 4, LOG)
    assert isinstance(decision, Stop)
    for said in ("billing", "orders[0]", "4 to 9", "10", "skip"):
        assert said in decision.reason


@pytest.mark.parametrize("policy", OutOfRange)
def test_a_position_behind_the_end_of_the_log_stops_whatever_the_policy(policy: OutOfRange) -> None:
    decision = out_of_range(policy, "billing", TP, 21, LOG)
    assert isinstance(decision, Stop)
    assert "21" in decision.reason
    assert "ends at 20" in decision.reason


@given(position=st.integers(10, 20), policy=st.sampled_from(OutOfRange))
def test_a_position_in_the_log_or_at_its_end_is_in_range(position: int, policy: OutOfRange) -> None:
    assert out_of_range(policy, "billing", TP, position, LOG) is None


def test_a_recreated_topic_restarts_only_if_told_so() -> None:
    assert Recreated.RESTART.restart
    assert not Recreated.STOP.restart


def test_backoff_grows_up_to_its_bound() -> None:
    backoff = Backoff(first=1, factor=2, most=5)
    assert [backoff.after(attempt) for attempt in (1, 2, 3, 4, 9999)] == [1, 2, 4, 5, 5]


@pytest.mark.parametrize(("policy", "decision"), [(Skip(), StepOver), (DeadLetter(), Park), (Fail(), Stop)])
def test_a_policy_without_retries_decides_at_once(policy: Skip | DeadLetter | Fail, decision: type) -> None:
    assert isinstance(decide(policy, 1, BAD), decision)


def test_a_dead_letter_carries_the_error_and_the_number_of_attempts() -> None:
    assert decide(Retry(1, then=DeadLetter()), 2, BAD) == Park("ValueError: bad total", 2)


def test_a_chain_is_gone_through_in_its_order() -> None:
    quick, slow = Backoff(0, 1, 0), Backoff(60, 1, 60)
    policy = Retry(2, quick, then=Retry(1, slow, then=Skip()))
    decisions = [decide(policy, attempt, BAD) for attempt in (1, 2, 3, 4)]
    assert decisions == [Again(0), Again(0), Again(60), StepOver("skipped after ValueError: bad total")]


@pytest.mark.parametrize("then", [Skip(), DeadLetter(), Fail()])
def test_an_error_of_the_database_is_retried_and_stops_but_never_steps_over_a_record(
    then: Skip | DeadLetter | Fail,
) -> None:
    away = LedgerUnavailable("the database is away")
    policy = Retry(1, then=then)
    assert isinstance(decide(policy, 1, away), Again)
    assert isinstance(decide(policy, 2, away), Stop)


@given(times=st.lists(st.integers(1, 5), max_size=4), attempt=st.integers(1, 30))
def test_as_many_retries_are_made_as_the_chain_has(times: list[int], attempt: int) -> None:
    policy: Retry | Skip = Skip()
    for each in times:
        policy = Retry(each, then=policy)
    assert isinstance(decide(policy, attempt, BAD), Again) == (attempt <= sum(times))


def test_policies_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="times: expected"):
        Retry(0)
    with pytest.raises(ConfigurationError, match="most: expected"):
        Backoff(first=9, most=1)
    with pytest.raises(ConfigurationError, match="factor: expected"):
        Backoff(factor=0.5)
