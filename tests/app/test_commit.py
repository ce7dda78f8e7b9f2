"""A commit: what is handled before, in and after the transaction, and what becomes of the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tidegate.app.binding import bind
from tidegate.app.commit import Commit
from tidegate.app.handler import FunctionHandler, HandlerFailed, Postponed
from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.batches import TURN, Batch
from tidegate.core.policies import Backoff, DeadLetter, Delivery, Fail, FailurePolicy, Retry, Skip
from tidegate.core.records import Record, TopicPartition
from tidegate.core.work import Span
from tidegate.errors import Fenced, HeldTooLong, LedgerConflict, LedgerUnavailable, StatementTooLong
from tidegate.ledger import Limits, MemoryLedger
from tidegate.ledger.memory import MemoryTransaction
from tidegate.ledger.threads import Threads
from tidegate.ledger.transaction import Conflict, ConnectionLost, OutcomeUnknown
from tidegate.observe.events import Committed, DeadLettered, Skipped

GROUP = "billing"
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
LATER = Backoff(1, 1, 1)
DELIVERIES = pytest.mark.parametrize("delivery", list(Delivery))


class Poison(Exception):
    """What the handlers of these tests raise."""


class Watchless(Threads):
    """Time that passes only when a test says so: a busy machine does not change what is handled in it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Desk:
    """A ledger with two claimed partitions, and what their listener was called with."""

    def __init__(self, hold: float = 10.0) -> None:
        self.time = Watchless()
        self.ledger = MemoryLedger(Limits(hold=hold, lock_wait=hold), self.time)
        self.claims = self.ledger.claim(GROUP, [ZERO, ONE])
        self.hurry = threading.Event()
        self.calls: list[tuple[int, int]] = []
        self.positions_seen: list[dict[TopicPartition, int]] = []
        self.then: Callable[[Record], object] = lambda _: None
        self.batches = [batch(ZERO, 3), batch(ONE, 3)]

    def handle(self, record: Record) -> None:
        self.positions_seen.append(self.positions())
        self.calls.append((record.partition, record.offset))
        self.then(record)

    def commit(self, policy: FailurePolicy | None = None, delivery: Delivery = Delivery.EXACTLY_ONCE) -> Commit:
        spec = ListenerSpec(topics=Topics(("orders",)), group=GROUP, delivery=delivery)
        return Commit(
            spec,
            self.ledger,
            self.claims,
            self.batches,
            handler=FunctionHandler(bind(self.handle), policy or Fail(), is_apart=True),
            hurry=self.hurry,
            runtime=self.time,
        )

    def positions(self) -> dict[TopicPartition, int]:
        return {tp: row.next_offset for tp, row in self.ledger.read(GROUP).positions.items()}

    def fails_at(self, partition: int, offset: int) -> None:
        def fail(record: Record) -> None:
            if (record.partition, record.offset) == (partition, offset):
                raise Poison

        self.then = fail


def batch(tp: TopicPartition, count: int) -> Batch:
    return Batch(1, Span(tp, 0, count, count), tuple(Record(*tp, offset, None, b"") for offset in range(count)))


ALL = [(partition, offset) for partition in range(2) for offset in range(3)]


def test_a_handler_that_takes_no_transaction_is_run_before_one_opens() -> None:
    desk = Desk()
    commit = desk.commit()
    result = commit.run()
    assert desk.calls == ALL
    assert all(seen == {ZERO: 0, ONE: 0} for seen in desk.positions_seen)
    assert desk.positions() == {ZERO: 3, ONE: 3}
    assert [type(event) for event in commit.events(result)] == [Committed]
    assert list(commit.rest()) == []


def test_at_most_once_it_is_run_after_the_advance_has_committed() -> None:
    desk = Desk()
    desk.fails_at(1, 1)
    commit = desk.commit(DeadLetter(), Delivery.AT_MOST_ONCE)
    result = commit.run()
    assert desk.calls == ALL
    assert all(seen == {ZERO: 3, ONE: 3} for seen in desk.positions_seen)
    assert [parked.letter.record.offset for parked in desk.ledger.dead_letters(GROUP)] == [1]
    assert [type(event) for event in commit.events(result)] == [Committed, DeadLettered]


def test_at_most_once_a_record_that_waits_is_waited_for_and_nothing_is_handled_twice() -> None:
    desk = Desk()
    failures = [Poison(), Poison()]

    def fail(record: Record) -> None:
        if record.offset == 1 and failures:
            raise failures.pop()

    desk.then = fail
    desk.hurry.set()
    desk.commit(Retry(2, LATER, then=Fail()), Delivery.AT_MOST_ONCE).run()
    assert sorted(set(desk.calls)) == ALL, "a hurry skips the waits, and no record"
    assert len(desk.calls) == len(ALL) + 2


@pytest.mark.parametrize("delivery", [Delivery.EXACTLY_ONCE, Delivery.AT_LEAST_ONCE])
def test_what_is_in_front_of_a_record_that_fails_for_good_is_committed_before_the_listener_stops(
    delivery: Delivery,
) -> None:
    desk = Desk()
    desk.fails_at(1, 1)
    commit = desk.commit(delivery=delivery)
    commit.run()
    assert isinstance(commit.error, HandlerFailed)
    assert commit.error.offset == 1
    assert desk.positions() == {ZERO: 3, ONE: 1}
    assert [rest.span for rest in commit.rest()] == [Span(ONE, 1, 3, 2)]


def test_a_record_that_fails_first_commits_nothing() -> None:
    desk = Desk()
    desk.fails_at(0, 0)
    commit = desk.commit()
    with pytest.raises(HandlerFailed):
        commit.run()
    assert desk.positions() == {ZERO: 0, ONE: 0}
    assert [rest.span for rest in commit.rest()] == [Span(ZERO, 0, 3, 3), Span(ONE, 0, 3, 3)]


def test_what_is_in_front_of_a_record_that_waits_is_committed_and_the_rest_knows_its_attempts() -> None:
    desk = Desk()
    desk.fails_at(0, 2)
    commit = desk.commit(Retry(5, LATER))
    commit.run()
    assert isinstance(commit.error, Postponed)
    assert desk.positions() == {ZERO: 2, ONE: 0}
    waiting, other = commit.rest()
    assert (waiting.span, other.span) == (Span(ZERO, 2, 3, 1), Span(ONE, 0, 3, 3))
    assert {place: tried.failed for place, tried in waiting.tries.items()} == {(ZERO, 2): 1}
    assert not other.tries


@pytest.mark.parametrize("trouble", [Conflict, ConnectionLost, OutcomeUnknown])
def test_a_conflict_or_a_lost_connection_repeats_the_advance_and_not_the_handler(trouble: type[Exception]) -> None:
    desk = Desk()
    desk.fails_at(0, 1)
    begin, troubles = desk.ledger._open, [trouble("no"), trouble("not yet")]

    def troubled(work: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return begin(work)

    desk.ledger._open = troubled  # type: ignore[method-assign]
    result = desk.commit(DeadLetter()).run()
    assert result.attempts == 3
    assert desk.calls == ALL
    assert desk.positions() == {ZERO: 3, ONE: 3}
    assert [parked.letter.record.offset for parked in desk.ledger.dead_letters(GROUP)] == [1]


def test_what_was_handled_and_not_committed_is_known_as_such() -> None:
    desk = Desk()

    def fail(record: Record) -> None:
        if record.partition == 0 and record.offset < 2:
            raise Poison

    desk.then = fail

    def away(*_: Any) -> Any:
        raise LedgerUnavailable("it went away")

    transact, desk.ledger.transact = desk.ledger.transact, away  # type: ignore[method-assign]
    commit = desk.commit(Skip())
    with pytest.raises(LedgerUnavailable):
        commit.run()
    desk.ledger.transact = transact  # type: ignore[method-assign]
    desk.batches = list(commit.rest())
    again = desk.commit(Skip())
    result = again.run()
    assert desk.calls == ALL
    assert desk.positions() == {ZERO: 3, ONE: 3}
    told = [event.span.start for event in again.events(result) if isinstance(event, Skipped)]
    assert told == [0, 1], "what was given up is told when it is committed"


def test_a_member_that_has_lost_the_partition_runs_nothing() -> None:
    desk = Desk()
    desk.ledger.claim(GROUP, [ONE])
    commit = desk.commit()
    with pytest.raises(Fenced) as raised:
        commit.run()
    assert list(raised.value.owners) == [ONE]
    assert desk.calls == []


def test_what_was_committed_before_is_not_handled_again() -> None:
    desk = Desk()
    desk.commit().run()
    desk.commit().run()
    assert desk.calls == ALL


@pytest.mark.parametrize("delivery", [Delivery.EXACTLY_ONCE, Delivery.AT_LEAST_ONCE])
def test_a_hurry_ends_after_the_record_in_hand(delivery: Delivery) -> None:
    desk = Desk()
    desk.then = lambda record: desk.hurry.set() if record.offset == 1 else None
    commit = desk.commit(delivery=delivery)
    commit.run()
    assert desk.calls == [(0, 0), (0, 1)]
    assert desk.positions() == {ZERO: 2, ONE: 0}
    assert commit.error is None
    assert [rest.span for rest in commit.rest()] == [Span(ZERO, 2, 3, 1), Span(ONE, 0, 3, 3)]


def test_half_of_hold_is_enough_for_one_commit() -> None:
    desk = Desk(hold=0.2)
    desk.then = lambda _: desk.time.sleep(0.06)
    commit = desk.commit()
    commit.run()
    assert desk.calls == [(0, 0), (0, 1)]
    assert desk.positions() == {ZERO: 2, ONE: 0}
    assert commit.seconds >= 0.12


def test_errors_of_a_database_of_its_own_stop_the_listener_behind_what_was_handled() -> None:
    desk = Desk()
    error = LedgerUnavailable("another database")

    def fail(record: Record) -> None:
        if record.offset == 2:
            raise error

    desk.then = fail
    commit = desk.commit(DeadLetter())
    commit.run()
    assert commit.error is error
    assert desk.positions() == {ZERO: 2, ONE: 0}


def write(record: Record, tx: MemoryTransaction) -> None:
    tx.append("seen", record.offset)


@DELIVERIES
def test_in_a_transaction_what_is_done_when_time_is_over_is_committed(delivery: Delivery) -> None:
    desk = Desk(hold=0.2)

    def handle(record: Record, tx: MemoryTransaction) -> None:
        write(record, tx)
        desk.time.sleep(0.06)

    desk.handle = handle  # type: ignore[method-assign,assignment]
    commit = desk.commit(delivery=delivery)
    commit._handler.is_apart = False
    commit.run()
    if delivery is Delivery.AT_MOST_ONCE:
        assert desk.ledger.data["seen"] == [0, 1, 2, 0, 1, 2], "in as many transactions as it takes"
        assert desk.positions() == {ZERO: 3, ONE: 3}
    else:
        assert desk.ledger.data["seen"] == [0, 1]
        assert desk.positions() == {ZERO: 2, ONE: 0}
        assert [rest.span for rest in commit.rest()] == [Span(ZERO, 2, 3, 1), Span(ONE, 0, 3, 3)]


def test_at_most_once_what_takes_too_long_in_one_transaction_is_written_in_several() -> None:
    desk = Desk()
    begin = desk.ledger._detached
    sizes: list[int] = []

    @contextmanager
    def impatient(work: Any) -> Iterator[Any]:
        with begin(work) as tx:
            yield tx
            sizes.append(len(tx.rows))
            if len(tx.rows) > 2:
                raise HeldTooLong("billing", "Do less", seconds=11, hold=10)

    desk.ledger._detached = impatient  # type: ignore[method-assign]
    desk.handle = write  # type: ignore[method-assign,assignment]
    commit = desk.commit(delivery=Delivery.AT_MOST_ONCE)
    commit._handler.is_apart = False
    commit.run()
    assert sizes == [6, 3, 1, 1, 1, 1, 1, 1]
    assert desk.ledger.data["seen"] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE])
@pytest.mark.parametrize("freezes", [1, 2])
def test_a_record_that_takes_too_long_by_itself_is_tried_twice_for_a_process_may_be_stopped_once(
    delivery: Delivery, freezes: int
) -> None:
    desk = Desk()
    desk.batches = [batch(ZERO, 1)]
    begin, left = desk.ledger._detached, [HeldTooLong("billing", "Do less", seconds=11, hold=10)] * freezes

    @contextmanager
    def frozen(work: Any) -> Iterator[Any]:
        with begin(work) as tx:
            yield tx
            if left:
                raise left.pop()

    desk.ledger._detached = frozen  # type: ignore[method-assign]
    desk.handle = write  # type: ignore[method-assign,assignment]
    commit = desk.commit(delivery=delivery)
    commit._handler.is_apart = False
    if freezes == 1:
        commit.run()
        assert desk.ledger.data["seen"] == [0]
    else:
        with pytest.raises(HeldTooLong):
            commit.run()
        assert desk.ledger.data.get("seen", []) == []


@pytest.mark.parametrize(
    "trouble",
    [
        HeldTooLong("billing", "Do less", seconds=11, hold=10),
        StatementTooLong("no answer, twice"),
        LedgerConflict("a deadlock"),
    ],
    ids=lambda trouble: type(trouble).__name__,
)
def test_at_most_once_records_are_not_handled_again_because_parking_one_of_them_failed(trouble: Exception) -> None:
    desk = Desk()
    desk.fails_at(1, 1)
    begin, troubles = desk.ledger._detached, [trouble]

    @contextmanager
    def troubled(work: Any) -> Iterator[Any]:
        with begin(work) as tx:
            yield tx
            if troubles:
                raise troubles.pop()

    desk.ledger._detached = troubled  # type: ignore[method-assign]
    commit = desk.commit(DeadLetter(), Delivery.AT_MOST_ONCE)
    result = commit.run()
    assert desk.calls == ALL
    assert [parked.letter.record.offset for parked in desk.ledger.dead_letters(GROUP)] == [1]
    assert sum(isinstance(event, DeadLettered) for event in commit.events(result)) == 1


def test_at_most_once_one_record_that_takes_too_long_is_an_error_that_names_it() -> None:
    desk = Desk()

    @contextmanager
    def impatient(work: Any) -> Iterator[Any]:
        raise HeldTooLong("billing", "Do less", seconds=11, hold=10)
        yield

    desk.ledger._detached = impatient  # type: ignore[method-assign]
    desk.handle = write  # type: ignore[method-assign,assignment]
    commit = desk.commit(delivery=Delivery.AT_MOST_ONCE)
    commit._handler.is_apart = False
    with pytest.raises(HeldTooLong, match=r"orders\[0\] offset 0.*hold=15, lock_wait=22"):
        commit.run()


def test_a_commit_for_which_others_wait_ends_after_a_turn_and_not_after_half_of_hold() -> None:
    desk = Desk()
    begin = desk.ledger._open

    @contextmanager
    def in_turn(work: Any) -> Iterator[Any]:
        with begin(work) as tx:
            tx.in_turn = True
            yield tx

    def write_slowly(record: Record, tx: MemoryTransaction) -> None:
        desk.time.sleep(TURN / 2.5)

    desk.ledger._open = in_turn  # type: ignore[method-assign]
    desk.handle = write_slowly  # type: ignore[method-assign,assignment]
    commit = desk.commit()
    commit._handler.is_apart = False
    commit.run()
    assert desk.positions() == {ZERO: 3, ONE: 0}
    assert [rest.span for rest in commit.rest()] == [Span(ONE, 0, 3, 3)]
