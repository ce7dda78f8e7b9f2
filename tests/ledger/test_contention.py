"""Transactions of a group that get into each other's way: conflicts are told, and turns are taken."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tidegate import ConfigurationError, Limits, Span, TopicPartition, open_ledger
from tidegate.errors import LedgerBusy, LedgerConflict
from tidegate.ledger import MemoryLedger
from tidegate.sandbox import PgBouncer

GROUP = "billing"
FIRST, SECOND = PARTITIONS = [TopicPartition("orders", number) for number in range(2)]
SOON = 30.0


class Place:
    """Two rows that everybody wants, and ledgers that know nothing of each other, as in two processes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = f"c{secrets.token_hex(5)}_"
        self.update = text(f"UPDATE {self.name}counters SET n = n + 1 WHERE id = :id")
        self._stack = ExitStack()
        self.engine = create_engine(url)
        self._stack.callback(self.engine.dispose)
        with self.engine.begin() as conn:
            conn.execute(text(f"CREATE TABLE {self.name}counters (id INT PRIMARY KEY, n INT NOT NULL)"))
            conn.execute(text(f"INSERT INTO {self.name}counters VALUES (0, 0), (1, 0)"))
        self.first, self.second = self.open(), self.open()
        self.claims = self.first.claim(GROUP, PARTITIONS)

    def open(self, engine: Any = None, **limits: float) -> Any:
        ledger = open_ledger(engine or self.url, prefix=self.name, limits=Limits(**limits))
        self._stack.callback(ledger.close)
        return ledger

    def close(self) -> None:
        self._stack.close()

    def counted(self) -> list[int]:
        with self.engine.connect() as conn:
            return list(conn.execute(text(f"SELECT n FROM {self.name}counters ORDER BY id")).scalars())

    def advance(self, ledger: Any, span: Span, handler: Any = None, **options: Any) -> Any:
        claims = {span.partition: self.claims[span.partition]}
        return ledger.transact(claims, [span], handler, **options)

    @contextmanager
    def open_transaction(self, ledger: Any, span: Span) -> Iterator[None]:
        """One that is open while the block runs, on another thread."""
        is_open, may_end = threading.Event(), threading.Event()

        def hold(_: Any) -> None:
            is_open.set()
            assert may_end.wait(SOON)

        with ThreadPoolExecutor(1) as executor:
            held = executor.submit(self.advance, ledger, span, hold)
            assert is_open.wait(SOON), held.exception(1)
            try:
                yield
            finally:
                may_end.set()
            held.result(SOON)


@pytest.fixture(params=["postgres", "mariadb", "mysql", "pgbouncer"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "pgbouncer":
        pooler: PgBouncer = request.getfixturevalue("pgbouncer")
        opened = Place(pooler.url)
    else:
        opened = Place(request.getfixturevalue(request.param).url)
    yield opened
    opened.close()


def span(partition: TopicPartition, start: int, end: int) -> Span:
    return Span(partition, start, end, end - start)


def takes_turns(ledger: Any) -> None:
    ledger._turns.conflicted(GROUP, in_turn=False)


def fight(place: Place, **options: Any) -> list[Any]:
    """Both transactions count both rows up, in the opposite order, and the first time neither can."""
    met = threading.Barrier(2)
    attempts = {FIRST: 0, SECOND: 0}

    def contender(ledger: Any, tp: TopicPartition, rows: tuple[int, int]) -> Any:
        def handler(tx: Any) -> None:
            attempts[tp] += 1
            tx.execute(place.update, {"id": rows[0]})
            if attempts[tp] == 1:
                met.wait(SOON)
            tx.execute(place.update, {"id": rows[1]})

        try:
            return place.advance(ledger, span(tp, 0, 2), handler, **options)
        except LedgerConflict as error:
            return error

    with ThreadPoolExecutor(2) as executor:
        first = executor.submit(contender, place.first, FIRST, (0, 1))
        second = executor.submit(contender, place.second, SECOND, (1, 0))
        return [first.result(SOON), second.result(SOON)]


def test_a_deadlock_is_run_again_for_a_caller_that_waits_and_is_counted(place: Place) -> None:
    results = fight(place)
    assert place.counted() == [2, 2]
    assert sum(result.conflicts for result in results) >= 1
    assert all(result.attempts == result.conflicts + 1 for result in results)
    assert place.first.verify(GROUP).ok


def test_a_deadlock_is_told_to_a_caller_that_would_rather_try_less(place: Place) -> None:
    results = fight(place, conflicts=1)
    told = [each for each in results if isinstance(each, LedgerConflict)]
    assert 1 <= len(told) <= 2
    assert {each.conflicts for each in told} == {1}
    assert isinstance(told[0], LedgerBusy)
    assert "nothing was written" in str(told[0])
    assert place.counted() == [2 - len(told)] * 2
    losers = [ledger for ledger, each in zip((place.first, place.second), results, strict=True) if each in told]
    assert all(ledger._turns.taken_by(GROUP) for ledger in losers)


def test_transactions_that_take_turns_run_one_after_the_other(place: Place) -> None:
    takes_turns(place.first)
    takes_turns(place.second)
    began = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        with place.open_transaction(place.first, span(FIRST, 0, 1)):
            waiting = executor.submit(place.advance, place.second, span(SECOND, 0, 1), lambda _: began.set())
            assert not began.wait(0.3)
        result = waiting.result(SOON)
    assert began.is_set()
    assert result.in_turn
    assert not result.conflicts


def test_whoever_does_not_take_turns_does_not_wait_for_them(place: Place) -> None:
    takes_turns(place.first)
    with place.open_transaction(place.first, span(FIRST, 0, 1)):
        assert not place.advance(place.second, span(SECOND, 0, 1)).in_turn
        assert place.second.read(GROUP).positions[SECOND].next_offset == 1


def test_a_turn_that_does_not_come_within_the_bound_is_done_without(place: Place) -> None:
    hasty = place.open(hold=3, lock_wait=3)  # a busy machine may idle for half a second
    takes_turns(place.first)
    takes_turns(hasty)
    with place.open_transaction(place.first, span(FIRST, 0, 1)):
        result = place.advance(hasty, span(SECOND, 0, 1))
    assert (result.in_turn, result.conflicts) == (False, 1)


def test_an_operator_can_pause_a_group_that_takes_turns(place: Place) -> None:
    takes_turns(place.first)
    for start in range(3):
        place.advance(place.first, span(FIRST, start, start + 1))
    assert place.second.pause(GROUP)
    assert place.second.read(GROUP).paused


def test_an_operator_can_pause_and_resume_a_group_whose_members_are_busy_with_turns(place: Place) -> None:
    done = threading.Event()

    def work(ledger: Any, tp: TopicPartition) -> int:
        start = 0
        while not done.is_set():
            takes_turns(ledger)
            place.advance(ledger, span(tp, start, start + 1), lambda tx: tx.execute(place.update, {"id": 0}))
            start += 1
        return start

    with ThreadPoolExecutor(2) as executor:
        workers = [executor.submit(work, place.first, FIRST), executor.submit(work, place.second, SECOND)]
        try:
            changed = [change for _ in range(10) for change in (place.open().pause(GROUP), place.open().resume(GROUP))]
        finally:
            done.set()
        commits = [worker.result(SOON) for worker in workers]
    assert changed == [True] * 20
    assert place.counted() == [sum(commits), 0]
    assert place.first.verify(GROUP).ok


def test_the_number_of_conflicts_is_a_whole_number_from_one_on() -> None:
    ledger = MemoryLedger()
    claims = ledger.claim(GROUP, [FIRST])
    for wrong in (0, -1, "many", 1.5):
        with pytest.raises(ConfigurationError, match="conflicts"):
            ledger.transact(claims, [span(FIRST, 0, 1)], conflicts=wrong)  # type: ignore[arg-type]
    ledger.transact(claims, [span(FIRST, 0, 1)], conflicts="2")  # type: ignore[arg-type]


@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_a_batch_that_no_deadlock_would_roll_back_hears_of_the_turns_of_others(
    server: str, request: pytest.FixtureRequest
) -> None:
    place = Place(request.getfixturevalue(server).url)
    takes_turns(place.first)
    with place.open_transaction(place.first, span(FIRST, 0, 1)), pytest.raises(LedgerConflict, match="take turns"):
        place.advance(place.second, span(SECOND, 0, 9), conflicts=1)
    assert place.advance(place.second, span(SECOND, 0, 9), conflicts=1).in_turn
    place.close()


def test_transactions_that_see_a_snapshot_do_not_wait_for_turns(postgres: Any) -> None:
    """By the time of their turn their snapshot would be old, and every change of the one before would be a conflict."""
    place = Place(postgres.url)
    snapshots = create_engine(postgres.url, isolation_level="REPEATABLE READ")
    second = place.open(snapshots)
    takes_turns(place.first)
    takes_turns(second)
    with place.open_transaction(place.first, span(FIRST, 0, 1)):
        place.advance(second, span(SECOND, 0, 1))
    place.close()
    snapshots.dispose()


def test_without_a_turn_a_batch_waits_for_a_row_only_briefly_and_one_record_as_long_as_the_limits_say(
    postgres: Any,
) -> None:
    place = Place(postgres.url)
    done = threading.Event()

    def count(tx: Any) -> None:
        tx.execute(place.update, {"id": 0})

    with ThreadPoolExecutor(1) as executor:
        with place.engine.begin() as conn:
            conn.execute(place.update, {"id": 0})
            with pytest.raises(LedgerConflict, match="locked by another transaction"):
                place.advance(place.first, span(FIRST, 0, 2), count, conflicts=1)
            alone = executor.submit(place.advance, place.second, span(SECOND, 0, 1), count, conflicts=1)
            alone.add_done_callback(lambda _: done.set())
            assert not done.wait(0.6)
        assert alone.result(SOON).conflicts == 0
    assert place.advance(place.first, span(FIRST, 0, 2), count, conflicts=1).in_turn
    assert place.counted() == [3, 0]
    place.close()
