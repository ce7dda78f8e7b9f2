"""Spans, and the work that is made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.records import Record, TopicPartition
from tidegate.core.work import Claim, Move, Span, Work
from tidegate.errors import ConfigurationError

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
CLAIMS = {tp: Claim("billing", tp, 0, 1, "me") for tp in (A, B)}


def test_work_is_done_in_lock_order() -> None:
    work = Work.of(CLAIMS, [Span(B, 0, 1), Span(A, 0, 1)])
    assert work.partitions == [A, B]
    assert work.group == "billing"


def test_the_token_names_the_work_and_not_the_attempt_at_it() -> None:
    spans = [Span(A, 0, 5, 3), Span(B, 0, 7, 7)]
    token = Work.of(CLAIMS, spans).token
    assert Work.of(CLAIMS, reversed(spans)).token == token
    another_owner = {tp: claim._replace(owner="you") for tp, claim in CLAIMS.items()}
    assert Work.of(another_owner, spans).token == token


@given(st.sampled_from(["group", "epoch", "start", "end", "partition"]), st.integers(1, 1000))
def test_other_work_has_another_token(what: str, by: int) -> None:
    claim, span = CLAIMS[A], Span(A, 5, 5000)
    token = Work.of({A: claim}, [span]).token
    match what:
        case "group":
            claim = claim._replace(group=f"billing{by}")
        case "epoch":
            claim = claim._replace(epoch=claim.epoch + by)
        case "partition":
            other = TopicPartition("orders", by)
            claim, span = claim._replace(partition=other), span._replace(partition=other)
        case _:
            span = span._replace(**{what: getattr(span, what) + by})
    assert Work.of({span.partition: claim}, [span]).token != token


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([], "at least one"),
        ([Span(TopicPartition("orders", 9), 0, 1)], "not covered by a claim"),
        ([Span(A, 5, 5)], "moves forward"),
        ([Span(A, 5, 4)], "moves forward"),
        ([Span(A, -1, 4)], "moves forward"),
        ([Span(A, 0, 1 << 63)], "moves forward"),
        ([Span(A, 0, 1), Span(A, 1, 2)], "each partition once"),
    ],
)
def test_work_that_cannot_be_done_is_refused(spans: list[Span], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Work.of(CLAIMS, spans)


def test_work_is_of_one_group() -> None:
    claims = CLAIMS | {B: CLAIMS[B]._replace(group="shipping")}
    with pytest.raises(ConfigurationError, match="one group"):
        Work.of(claims, [Span(A, 0, 1), Span(B, 0, 1)])


def test_work_says_what_it_is() -> None:
    partitions = [TopicPartition("orders", number) for number in range(6)]
    claims = {tp: Claim("billing", tp, 0, 1, "me") for tp in partitions}
    text = str(Work.of(claims, [Span(tp, 0, 3) for tp in partitions], move=Move.SKIP))
    assert "billing" in text
    assert "orders[3]@[0, 3) and 2 more" in text


def test_a_record_knows_its_partition_and_its_size() -> None:
    record = Record("orders", 1, 7, b"key", b"value")
    assert record.source == B
    assert record.size == 8
    assert Record("orders", 1, 7).size == 0
