"""How a pool's handler computes: what becomes of what it returns, and of what it fails on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from tidegate import (
    App,
    Backoff,
    BatchBounds,
    ConfigurationError,
    DeadLetter,
    Delivery,
    Fail,
    Ordering,
    Record,
    Retry,
    Skip,
    Table,
    Transaction,
)
from tidegate.app.binding import bind
from tidegate.app.handler import HandlerFailed
from tidegate.app.pool_handler import PoolHandler
from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.batches import Batch, Computed, Tried
from tidegate.core.policies import FailurePolicy, Park, StepOver
from tidegate.core.records import TopicPartition
from tidegate.core.work import Span
from tidegate.errors import LedgerUnavailable

TP = TopicPartition("orders", 0)
STATEMENT = text("SELECT 1")
QUICK = Backoff(0.001, 1, 0.001)


class Bench:
    """Records through the pool of a handler, without a consumer or a ledger."""

    def __init__(self, function: Callable[..., Any], policy: FailurePolicy = Fail(), **settings: Any) -> None:  # noqa: B008
        self.retries: list[tuple[int, int]] = []
        spec = ListenerSpec(topics=Topics(("orders",)), group="g", **{"workers": 2, **settings})
        pooling = PoolHandler(
            bind(function), policy, "g", lambda record, attempt, *_: self.retries.append((record.offset, attempt))
        )
        self.computing = pooling.queue(spec)

    def tries(self, *values: bytes | None) -> list[Tried]:
        records = tuple(Record(*TP, offset, None, value) for offset, value in enumerate(values))
        self.computing.add([Batch(1, Span(TP, 0, len(records), len(records)), records)])
        deadline = time.monotonic() + 30
        try:
            while not (batches := self.computing.ready()):
                assert time.monotonic() < deadline
                self.computing.wait(0.1)
        finally:
            self.computing.close()
        return [batches[0].tries[TP, offset] for offset in range(len(records))]


def fail_on_bad(record: Record) -> Any:
    if record.value == b"bad":
        raise ValueError("bad")
    return STATEMENT


def test_what_a_handler_returns_is_kept_for_the_transaction() -> None:
    def double(value: int) -> Any:
        return STATEMENT, {"n": value * 2}

    (first, second) = Bench(double).tries(b"1", b"2")
    assert first == Tried(0, Computed(((STATEMENT, {"n": 2}),)))
    assert second == Tried(0, Computed(((STATEMENT, {"n": 4}),)))


def test_a_tombstone_is_computed_like_any_record() -> None:
    seen: list[bytes | None] = []

    def handle(record: Record) -> None:
        seen.append(record.value)

    assert Bench(handle).tries(None) == [Tried(0, Computed(()))]
    assert seen == [None]


@pytest.mark.parametrize(
    ("policy", "settled"),
    [
        (DeadLetter(), Tried(1, Park("ValueError: bad", 1))),
        (Skip(), Tried(1, StepOver("skipped after ValueError: bad"))),
        (Retry(2, QUICK, then=DeadLetter()), Tried(3, Park("ValueError: bad", 3))),
    ],
)
def test_a_record_that_fails_is_given_up_as_the_policy_says(policy: FailurePolicy, settled: Tried) -> None:
    bench = Bench(fail_on_bad, policy)
    tries = bench.tries(b"good", b"bad", b"good")
    assert [tries[0], tries[2]] == [Tried(0, Computed(((STATEMENT, None),)))] * 2
    assert tries[1] == settled
    assert bench.retries == [(1, attempt) for attempt in range(1, settled.failed)]


@pytest.mark.parametrize(("policy", "attempts"), [(Fail(), 1), (Retry(2, QUICK), 3)])
def test_a_failure_that_stops_the_listener_names_the_record(policy: FailurePolicy, attempts: int) -> None:
    with pytest.raises(HandlerFailed, match="fail_on_bad, group 'g', orders.0. offset 1: the handler failed") as raised:
        Bench(fail_on_bad, policy).tries(b"good", b"bad")
    assert (raised.value.offset, raised.value.attempts, raised.value.partition) == (1, attempts, TP)
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_value_that_cannot_be_decoded_is_not_tried_again() -> None:
    def handle(value: int) -> None: ...

    bench = Bench(handle, Retry(5, QUICK, then=DeadLetter()))
    (tried,) = bench.tries(b"no number")
    assert isinstance(tried.settled, Park)
    assert (tried.failed, bench.retries) == (1, [])


def test_an_error_of_a_database_is_tried_again_and_then_stops_for_it_is_no_fault_of_the_record() -> None:
    def handle(record: Record) -> None:
        raise LedgerUnavailable("away")

    bench = Bench(handle, Retry(1, QUICK, then=DeadLetter()))
    with pytest.raises(HandlerFailed, match="failed 2 times with LedgerUnavailable"):
        bench.tries(b"")


def test_a_handler_that_returns_what_cannot_be_written_stops_at_once_whatever_the_policy() -> None:
    def handle(record: Record) -> int:
        return 1

    bench = Bench(handle, Retry(5, QUICK, then=DeadLetter()))
    with pytest.raises(HandlerFailed, match="NotWritable: the handler returned int; it may return None"):
        bench.tries(b"secret")
    assert bench.retries == []


def test_small_batches_do_not_keep_the_workers_from_working() -> None:
    computing = Bench(fail_on_bad, workers=16, batch=BatchBounds(count=1)).computing
    computing.hold(True)
    for offset in range(127):
        computing.add([Batch(1, Span(TP, offset, offset + 1, 1), (Record(*TP, offset),))])
    assert computing.full == set()
    computing.add([Batch(1, Span(TP, 127, 128, 1), (Record(*TP, 127),))])
    assert computing.full == {TP}
    computing.close()


def _with_transaction(record: Record, tx: Transaction) -> None: ...


def _batch(records: list[Record]) -> None: ...


@pytest.mark.parametrize("function", [_with_transaction, _batch])
def test_a_handler_that_cannot_run_outside_of_the_transaction_is_refused(function: Callable[..., None]) -> None:
    app = App("nowhere:1", "memory://")
    with pytest.raises(ConfigurationError, match="take one record or its value, and return what to write"):
        app.listener("orders", group="g", workers=2)(function)


@pytest.mark.parametrize(("setting", "value"), [("workers", 0), ("ordering", "offset")])
def test_settings_of_a_pool_that_make_no_sense_are_refused(setting: str, value: object) -> None:
    app = App("nowhere:1", "memory://")
    with pytest.raises(
        ConfigurationError,
        match=r"workers: expected a whole|ordering: expected one of 'partition', 'key', not 'offset'",
    ):
        app.listener("orders", group="g", **{"workers": 1, setting: value})(fail_on_bad)


def test_the_ordering_is_said_as_text_or_by_its_name() -> None:
    app = App("nowhere:1", "memory://")
    for said in ("key", Ordering.KEY):
        app.listener("orders", group="g", workers=2, ordering=said)(fail_on_bad)
    assert [listener.spec.ordering for listener in app.listeners] == [Ordering.KEY] * 2


def test_a_pool_without_a_ledger_cannot_be_at_most_once() -> None:
    app = App("nowhere:1", None)
    with pytest.raises(ConfigurationError, match="moves the position first, but a pool runs the function before that"):
        app.listener("orders", group="g", workers=2, delivery=Delivery.AT_MOST_ONCE)(fail_on_bad)


def test_a_sink_has_no_function_for_a_pool() -> None:
    app = App("nowhere:1", "sqlite:///shop.db")
    with pytest.raises(ConfigurationError, match="no function that a pool of workers could run"):
        app.sink("orders", into=Table("orders"), group="g", workers=2)
