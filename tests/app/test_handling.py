"""A handler over a batch, on every store: what commits, what is parked, what is tried again, and what stops."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import exc, text
from tests.ledger.stores import Kept, MemoryStore, RedisStore, Row, SqlStore, Store, empty_store

from tidegate.app.binding import bind
from tidegate.app.handler import FunctionHandler, Handled, HandlerFailed, Postponed, SkippedRecord
from tidegate.core.batches import NO_TRIES
from tidegate.core.policies import Backoff, DeadLetter, Fail, FailurePolicy, Retry, Skip
from tidegate.core.records import FailedRecord, Record, TopicPartition
from tidegate.core.work import Span, Work
from tidegate.errors import LedgerUnavailable, TransactionBroken
from tidegate.ledger import MemoryLedger, Outcome, SqlTransaction, Transaction
from tidegate.ledger.redis import RedisTransaction
from tidegate.ledger.transaction import Conflict, NoTransaction

GROUP = "billing"
ORDERS = TopicPartition("orders", 0)
NOW = Backoff(0, 1, 0)
OUTSIDE = NoTransaction(Work.again(GROUP, Record(*ORDERS, 0, None, None)))
LATER = Backoff(1, 1, 1)  # which is not waited for in these tests: the next transaction begins at once


@dataclass
class Order:
    n: int
    bad: bool = False


class Poison(Exception):
    """What the handlers of these tests raise."""


def opened(kind: str, request: pytest.FixtureRequest, folder: Path) -> Store:
    match kind:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqlStore(f"sqlite:///{folder / 'ledger.db'}")
        case "redis":
            return RedisStore(request.getfixturevalue("redis_server").url)
        case server:
            return SqlStore(request.getfixturevalue(server).url)


@pytest.fixture(params=["memory", "sqlite", "mariadb", "mysql", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, kept_stores: Kept) -> Iterator[Store]:
    """Each store."""
    with empty_store(kept_stores, request.param, lambda: opened(request.param, request, tmp_path)) as made:
        yield made


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres"])
def sql(request: pytest.FixtureRequest, tmp_path: Path, kept_stores: Kept) -> Iterator[SqlStore]:
    """Each store that knows SQL."""
    with empty_store(kept_stores, request.param, lambda: opened(request.param, request, tmp_path)) as made:
        assert isinstance(made, SqlStore)
        yield made


def records(count: int, bad: Sequence[int] = ()) -> list[Record]:
    """Orders with every second offset, as on a compacted topic."""
    return [
        Record(*ORDERS, 2 * n, f"key {n}".encode(), json.dumps({"n": n, "bad": n in bad}).encode())
        for n in range(count)
    ]


def row(n: int) -> Row:
    return Row(*ORDERS, 2 * n, f"order {n}")


class Run:
    """One transaction over some records, begun anew whenever one of them has to wait, and what came of it."""

    def __init__(self, store: Store, handling: FunctionHandler, batch: Sequence[Record]) -> None:
        self.claims = store.ledger.claim(GROUP, [ORDERS])
        self.handled: list[Handled] = []
        self.retried: list[tuple[int, int, float]] = []
        self.postponed: list[tuple[int, float]] = []
        self._tries = NO_TRIES
        span = Span(ORDERS, 0, batch[-1].offset + 1, len(batch))

        handling._on_retry = self._tell
        prepared = handling.prepare(batch)

        def handle(tx: Any) -> None:
            self.handled.append(prepared.run(tx, self._tries))

        while True:
            try:
                self.result = store.ledger.transact(self.claims, [span], handle)
            except Postponed as postponed:
                assert (written(store), parked(store), position(store)) == ([], [], 0)
                self.postponed.append((postponed.offset, postponed.after))
                self._tries = postponed.tries
            else:
                break
        assert position(store) == span.end

    def _tell(self, record: Record, attempts: int, after: float, error: Exception) -> None:
        self.retried.append((record.offset, attempts, after))


def position(store: Store) -> int:
    state = store.ledger.read(GROUP).positions
    return state[ORDERS].next_offset if ORDERS in state else 0


def written(store: Store) -> list[int]:
    """The orders whose rows are committed, in the order in which they were written."""
    assert all(each == row(each.offset // 2) for each in store.rows())
    return [each.offset // 2 for each in store.rows()]


def parked(store: Store) -> list[FailedRecord]:
    return [each.letter for each in store.ledger.dead_letters(GROUP, limit=1000)]


def parked_orders(store: Store) -> list[int]:
    return [letter.record.offset // 2 for letter in parked(store)]


def one_by_one(store: Store) -> Callable[..., None]:
    """A handler that writes first and complains afterwards, so that there is something to undo."""

    def handle(order: Order, tx: Transaction) -> None:
        store.write(tx, row(order.n))
        if order.bad:
            raise Poison(f"order {order.n}")

    return handle


def in_batches(store: Store) -> Callable[..., None]:
    def handle(orders: list[Order], tx: Transaction) -> None:
        for order in orders:
            store.write(tx, row(order.n))
        if bad := [order.n for order in orders if order.bad]:
            raise Poison(f"order {bad[0]}")

    return handle


def handling(handler: Callable[..., None], policy: FailurePolicy, **options: Any) -> FunctionHandler:
    return FunctionHandler(bind(handler, options.pop("decoder", None)), policy, **options)


BOTH = pytest.mark.parametrize("make", [one_by_one, in_batches])


@BOTH
def test_without_errors_everything_commits_in_order(store: Store, make: Any) -> None:
    run = Run(store, handling(make(store), DeadLetter()), records(7))
    assert written(store) == list(range(7))
    assert run.handled == [Handled(7, (), ())]


@BOTH
@pytest.mark.parametrize("bad", [[3], [0, 6], [2, 3, 4], range(7)], ids=["middle", "ends", "row", "all"])
def test_bad_records_are_parked_and_the_good_ones_commit_in_the_same_transaction(
    store: Store, make: Any, bad: Sequence[int]
) -> None:
    batch = records(7, bad)
    run = Run(store, handling(make(store), DeadLetter()), batch)
    assert written(store) == [n for n in range(7) if n not in bad]
    assert parked(store) == [FailedRecord(batch[n], f"Poison: order {n}", 1) for n in bad]
    assert run.handled == [Handled(7 - len(bad), (), tuple(parked(store)))]
    assert (run.result.outcome, run.result.attempts) == (Outcome.COMMITTED, 1)


@BOTH
def test_bad_records_are_skipped_if_the_policy_says_so(store: Store, make: Any) -> None:
    batch = records(5, [1, 4])
    run = Run(store, handling(make(store), Skip()), batch)
    assert written(store) == [0, 2, 3]
    assert not parked(store)
    notes = [SkippedRecord(batch[n], f"skipped after Poison: order {n}") for n in (1, 4)]
    assert run.handled == [Handled(3, tuple(notes), ())]


@BOTH
@pytest.mark.parametrize("policy", [Fail(), Retry(1, NOW)])
def test_failing_commits_nothing_and_says_where(store: Store, make: Any, policy: FailurePolicy) -> None:
    with pytest.raises(HandlerFailed) as raised:
        Run(store, handling(make(store), policy), records(5, [3]))
    assert isinstance(raised.value.__cause__, Poison)
    is_whole_batch = make is in_batches and policy == Fail()
    assert (raised.value.group, raised.value.partition) == (GROUP, ORDERS)
    assert raised.value.offset == (0 if is_whole_batch else 6)
    assert raised.value.attempts == (1 if policy == Fail() else 2)
    for said in (make.__name__, "'billing'", "orders[0] offset", "Poison: order 3"):
        assert said in str(raised.value)
    assert written(store) == []
    assert position(store) == 0


@BOTH
def test_a_record_is_tried_again_by_itself_and_then_parked_with_its_attempts(store: Store, make: Any) -> None:
    slept: list[float] = []
    policy = Retry(2, Backoff(0.5, 2, 9), then=DeadLetter())
    run = Run(store, handling(make(store), policy, sleep=slept.append), records(6, [2]))
    assert written(store) == [0, 1, 3, 4, 5]
    assert [(letter.record.offset, letter.attempts) for letter in parked(store)] == [(4, 3)]
    assert run.postponed == [(4, 0.5), (4, 1.0)]
    assert run.retried == [(4, 1, 0.5), (4, 2, 1.0)]
    assert slept == [], "nothing waits inside of the transaction"


@BOTH
def test_short_waits_stay_inside_of_the_transaction_until_they_add_up(make: Any) -> None:
    store, slept = MemoryStore(), list[float]()
    policy = Retry(5, Backoff(0.02, 1, 0.02), then=DeadLetter())
    run = Run(store, handling(make(store), policy, sleep=slept.append), records(3, [1]))
    assert slept == [0.02] * 4
    assert run.postponed == [(2, 0.02)]
    assert [letter.attempts for letter in parked(store)] == [6]
    assert written(store) == [0, 2]


@BOTH
def test_what_was_given_up_is_not_tried_again_because_another_record_waits(make: Any) -> None:
    store = MemoryStore()
    handler, calls = make(store), list[list[int]]()

    def one(order: Order, tx: Transaction) -> None:
        calls.append([order.n])
        handler(order, tx)

    def many(orders: list[Order], tx: Transaction) -> None:
        calls.append([order.n for order in orders])
        handler(orders, tx)

    policy = Retry(2, LATER, then=DeadLetter())
    Run(store, handling(one if make is one_by_one else many, policy), records(9, [2, 3, 7]))
    assert [calls.count([n]) for n in (2, 3, 7)] == [3, 3, 3]
    assert [letter.attempts for letter in parked(store)] == [3, 3, 3]
    assert written(store) == [0, 1, 4, 5, 6, 8]


def test_a_batch_that_has_waited_is_not_narrowed_down_again() -> None:
    store = MemoryStore()
    handler, calls = in_batches(store), list[int]()

    def handle(orders: list[Order], tx: Transaction) -> None:
        calls.append(len(orders))
        handler(orders, tx)

    run = Run(store, handling(handle, Retry(2, LATER, then=DeadLetter())), records(256, [77]))
    assert len(run.postponed) == 2
    assert calls[-5:] == [77, 1, 77, 1, 178]
    assert parked_orders(store) == [77]


@BOTH
def test_where_nothing_can_be_undone_what_was_processed_is_not_processed_again(make: Any) -> None:
    """As by a handler that takes no transaction."""
    seen: list[list[int]] = []

    def one(order: Order) -> None:
        many([order])

    def many(orders: list[Order]) -> None:
        seen.append([order.n for order in orders])
        if any(order.bad for order in orders) and (len(orders) > 1 or seen.count(seen[-1]) < 3):
            raise Poison

    batch, tries = records(5, [2]), NO_TRIES
    run = handling(one if make is one_by_one else many, Retry(5, LATER))
    for _ in range(2):
        handled = run.prepare(batch).run(OUTSIDE, tries)
        assert isinstance(handled.error, Postponed)
        assert handled[:4] == (2, (), (), 3), "what is in front of it can be committed"
        tries = handled.error.tries
    assert run.prepare(batch).run(OUTSIDE, tries) == Handled(5, (), ())
    narrowed = [[0, 1, 2, 3, 4], [0, 1], [2, 3, 4], [2], [2], [2], [3, 4]]
    assert seen == ([[0], [1], [2], [2], [2], [3], [4]] if make is one_by_one else narrowed)


@BOTH
@pytest.mark.parametrize("policy", [Fail(), Retry(1, NOW)])
def test_where_nothing_can_be_undone_what_is_in_front_of_a_failure_is_told_with_it(
    make: Any, policy: FailurePolicy
) -> None:
    def one(order: Order) -> None:
        many([order])

    def many(orders: list[Order]) -> None:
        if any(order.bad for order in orders):
            raise Poison

    batch = records(5, [3])
    handled = handling(one if make is one_by_one else many, policy).prepare(batch).run(OUTSIDE)
    assert isinstance(handled.error, HandlerFailed)
    whole_batch = make is in_batches and policy == Fail()
    assert handled[:4] == ((0, (), (), 5) if whole_batch else (3, (), (), 2))


@BOTH
def test_a_run_that_is_over_says_what_is_left_and_parks_only_what_is_in_front_of_that(make: Any) -> None:
    def one(order: Order) -> None:
        many([order])

    def many(orders: list[Order]) -> None:
        if any(order.bad for order in orders):
            raise Poison

    batch, begun = records(8, [1, 6]), list[int]()
    batch[7] = batch[7]._replace(value=b"?")

    def over(count: int) -> bool:
        begun.append(count)
        return len(begun) > (4 if make is one_by_one else 5)

    handled = handling(one if make is one_by_one else many, DeadLetter()).prepare(batch).run(OUTSIDE, over=over)
    assert [letter.record.offset for letter in handled.parked] == [2]
    assert begun == ([1] * 5 if make is one_by_one else [7, 3, 1, 2, 1, 1])
    assert handled.left == (4 if make is one_by_one else 6)
    assert handled.processed == (3 if make is one_by_one else 1)
    assert handled.error is None


@BOTH
def test_a_run_that_is_over_from_the_beginning_gets_on_all_the_same(make: Any) -> None:
    def one(order: Order) -> None:
        """Do nothing."""

    def many(orders: list[Order]) -> None:
        """Do nothing."""

    for policy in (Fail(), DeadLetter()):
        handled = (
            handling(one if make is one_by_one else many, policy).prepare(records(3)).run(OUTSIDE, over=lambda _: True)
        )
        assert handled == (Handled(1, (), (), 2) if make is one_by_one else Handled(3, (), ()))


@BOTH
def test_an_attempt_that_succeeds_leaves_nothing_of_the_ones_before(store: Store, make: Any) -> None:
    handler = make(store)
    calls: list[int] = []

    def one(order: Order, tx: Transaction) -> None:
        calls.append(order.n)
        order.bad = order.n == 1 and calls.count(1) < 3
        handler(order, tx)

    def many(orders: list[Order], tx: Transaction) -> None:
        calls.append(len(orders))
        for order in orders:
            order.bad = order.n == 1 and len(calls) < 6
        handler(orders, tx)

    run = Run(store, handling(one if make is one_by_one else many, Retry(9, NOW, then=DeadLetter())), records(3))
    assert written(store) == [0, 1, 2]
    assert run.handled == [Handled(3, (), ())]
    assert not parked(store)


def test_values_are_decoded_again_for_another_attempt() -> None:
    store = MemoryStore()
    seen: list[int] = []

    def handle(order: Order) -> None:
        seen.append(order.n)
        order.n += 100
        if len(seen) < 3:
            raise Poison

    Run(store, handling(handle, Retry(3, NOW)), records(1))
    assert seen == [0, 0, 0]


@BOTH
def test_what_cannot_be_decoded_is_parked_without_retries_in_the_order_of_the_records(store: Store, make: Any) -> None:
    batch = records(6, [1, 4])
    batch[0] = batch[0]._replace(value=b"")
    batch[3] = batch[3]._replace(value=None)
    batch[5] = batch[5]._replace(value=b'{"bad": false}')
    run = Run(store, handling(make(store), Retry(1, NOW, then=DeadLetter())), batch)
    assert written(store) == [2]
    assert [(letter.record, letter.attempts) for letter in parked(store)] == [
        *((batch[0], 1), (batch[1], 2), (batch[3], 1), (batch[4], 2), (batch[5], 1))
    ]
    errors = [letter.error for letter in parked(store)]
    assert errors[0] == "DecodingError: an empty value"
    assert errors[2].startswith("DecodingError: the record is a tombstone")
    assert errors[4] == "DecodingError: n: missing"
    assert run.handled[0].processed == 1


def test_a_batch_of_which_nothing_can_be_decoded_does_not_call_the_handler() -> None:
    store = MemoryStore()
    batch = [each._replace(value=b"?") for each in records(3)]

    def handle(orders: list[Order]) -> None:
        raise AssertionError

    Run(store, handling(handle, Skip()), batch)
    assert FunctionHandler(bind(handle)).prepare([]).run(None) == Handled(0, (), ())  # type: ignore[arg-type]


@BOTH
def test_a_value_that_cannot_be_decoded_stops_and_nothing_is_committed_if_the_policy_fails(make: Any) -> None:
    store = MemoryStore()
    batch = [*records(2), Record(*ORDERS, 9, None, b"{}")]
    with pytest.raises(HandlerFailed, match=r"orders\[0\] offset 9: the value cannot be decoded: n: missing"):
        Run(store, handling(make(store), Retry(5, then=Fail())), batch)
    assert written(store) == []
    assert position(store) == 0


def test_tombstones_and_empty_values_reach_a_handler_that_allows_them(store: Store) -> None:
    seen: list[bytes | None] = []

    def handle(value: bytes | None, record: Record) -> None:
        seen.append(value)

    batch = [each._replace(value=value) for each, value in zip(records(3), (None, b"", b"x"), strict=True)]
    Run(store, handling(handle, DeadLetter()), batch)
    assert seen == [None, b"", b"x"]
    assert not parked(store)


@pytest.mark.parametrize("how", ["null", "duplicate", "too long"])
@pytest.mark.parametrize("is_batch", [False, True], ids=["one by one", "in batches"])
def test_what_the_database_refuses_for_its_values_is_parked(sql: SqlStore, how: str, is_batch: bool) -> None:
    """Without its savepoint, PostgreSQL would refuse everything that follows."""
    if how == "too long" and sql.engine.dialect.name == "sqlite":
        pytest.skip("SQLite stores strings of any length")
    poison = {"null": {"payload": None}, "duplicate": {"id": 1000}, "too long": {"payload": "x" * 256}}[how]

    def write(order: Order, tx: SqlTransaction) -> None:
        fine = {**row(order.n)._asdict(), **({"id": 1000} if order.n == 0 else {"id": 1000 + order.n})}
        tx.execute(sql.data.insert().values({**fine, **(poison if order.bad else {})}))

    def each(order: Order, tx: Transaction) -> None:
        write(order, tx)

    def every(orders: list[Order], tx: Transaction) -> None:
        for order in orders:
            write(order, tx)

    Run(sql, handling(every if is_batch else each, DeadLetter()), records(8, [2, 5]))
    assert written(sql) == [0, 1, 3, 4, 6, 7]
    assert parked_orders(sql) == [2, 5]
    for letter in parked(sql):
        assert letter.error.startswith(("IntegrityError: ", "DataError: "))
        assert "INSERT" not in letter.error
        assert "\n" not in letter.error


def test_a_check_constraint_is_about_values_even_where_the_driver_calls_it_operational(sql: SqlStore) -> None:
    table = f"{sql.prefix}checked"
    with sql.engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {table} (n INTEGER CHECK (n <> 1))"))
    handler_engine = SqlStore(sql.url, sql.prefix)  # a login that may write to the new table

    def handle(order: Order, tx: SqlTransaction) -> None:
        tx.execute(text(f"INSERT INTO {table} VALUES (:n)"), {"n": order.n})

    Run(handler_engine, handling(handle, DeadLetter()), records(3))
    assert parked_orders(handler_engine) == [1]
    handler_engine.close()


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_what_a_trigger_or_a_json_column_refuses_on_mysql_is_about_values(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with_rights = opened(name, request, tmp_path)
    assert isinstance(with_rights, SqlStore)
    store = SqlStore(with_rights.url, with_rights.prefix)
    table = f"{store.prefix}guarded"
    with store.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {table} (n INTEGER, j JSON)")
        connection.exec_driver_sql(
            f"CREATE TRIGGER {table}_t BEFORE INSERT ON {table} FOR EACH ROW "
            "BEGIN IF NEW.n = 1 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no one'; END IF; END"
        )

    def handle(order: Order, tx: SqlTransaction) -> None:
        value = "{" if order.n == 2 else "{}"
        tx.execute(text(f"INSERT INTO {table} VALUES (:n, :j)"), {"n": order.n, "j": value})
        if order.n == 3 and name == "mysql":  # MariaDB answers with a warning
            tx.execute(text("SELECT JSON_EXTRACT('{', '$.a')"))

    Run(store, handling(handle, DeadLetter()), records(5))
    assert parked_orders(store) == ([1, 2, 3] if name == "mysql" else [1, 2])
    store.close()
    with_rights.close()


UNCERTAIN = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'ZZ001', MESSAGE = 'no'; END $$",
    "sqlite": "SELECT json_extract('{', '$.a')",
    "mysql": "SIGNAL SQLSTATE 'ZZ001' SET MYSQL_ERRNO = 5001, MESSAGE_TEXT = 'no'",
    "mariadb": "SIGNAL SQLSTATE 'ZZ001' SET MYSQL_ERRNO = 5001, MESSAGE_TEXT = 'no'",
}
"""Statements whose errors may be about values, or not."""


def uncertain(sql: SqlStore, make: Any) -> Callable[..., None]:
    """A handler that writes, and asks for trouble if an order is bad."""
    statement = UNCERTAIN[sql.engine.dialect.name]

    def many(orders: list[Order], tx: SqlTransaction) -> None:
        for order in orders:
            sql.write(tx, row(order.n))
            if order.bad:
                tx.connection.exec_driver_sql(statement)

    def one(order: Order, tx: SqlTransaction) -> None:
        many([order], tx)

    return one if make is one_by_one else many


@BOTH
@pytest.mark.parametrize("policy", [DeadLetter(), Retry(1, NOW, then=DeadLetter()), Retry(2, LATER, then=DeadLetter())])
def test_an_error_that_could_be_eithers_is_the_records_if_another_one_passes(
    sql: SqlStore, make: Any, policy: FailurePolicy
) -> None:
    Run(sql, handling(uncertain(sql, make), policy), records(6, [0, 3, 4]))
    assert written(sql) == [1, 2, 5]
    assert parked_orders(sql) == [0, 3, 4]


@BOTH
@pytest.mark.parametrize("policy", [DeadLetter(), Skip(), Fail(), Retry(1, NOW, then=DeadLetter())])
@pytest.mark.parametrize("count", [1, 3])
def test_an_error_that_could_be_eithers_stops_if_no_record_passes(
    sql: SqlStore, make: Any, policy: FailurePolicy, count: int
) -> None:
    with pytest.raises(HandlerFailed) as failed:
        Run(sql, handling(uncertain(sql, make), policy), records(count, range(count)))
    assert failed.value.offset == 0
    if policy != Fail():
        assert "No other record passed in its transaction" in str(failed.value)
    assert written(sql) == []
    assert not parked(sql)
    assert position(sql) == 0


def test_a_record_in_doubt_is_not_given_up_because_time_is_over(sql: SqlStore) -> None:
    """Another record has to pass first, so that the run goes on until one does."""
    claims = sql.ledger.claim(GROUP, [ORDERS])
    batch = records(5, [0, 1])
    handler = handling(uncertain(sql, one_by_one), DeadLetter())
    seen: list[Handled] = []

    def handle(tx: Any) -> None:
        seen[:] = [handler.prepare(batch).run(tx, over=lambda _: True)]
        tx.cut([Span(ORDERS, 0, batch[len(batch) - seen[0].left].offset, 3)])

    sql.ledger.transact(claims, [Span(ORDERS, 0, 9, 5)], handle)
    assert seen[0].left == 2
    assert parked_orders(sql) == [0, 1]
    assert written(sql) == [2]


def test_where_nothing_can_be_undone_such_an_error_passes_through(sql: SqlStore) -> None:
    statement = UNCERTAIN[sql.engine.dialect.name]

    def handle(order: Order) -> None:
        if order.bad:
            with sql.engine.connect() as conn:
                conn.exec_driver_sql(statement)

    handled = handling(handle, DeadLetter()).prepare(records(3, [1])).run(OUTSIDE)
    assert isinstance(handled.error, exc.DBAPIError)
    assert (handled.processed, handled.left) == (1, 2)


@pytest.mark.parametrize("policy", [Fail(), DeadLetter(), Skip(), Retry(5, NOW, then=Skip())])
@BOTH
def test_a_missing_table_is_no_records_fault(sql: SqlStore, make: Any, policy: FailurePolicy) -> None:
    handler = make(sql)

    def one(order: Order, tx: SqlTransaction) -> None:
        handler(order, tx)
        tx.execute(text("INSERT INTO no_such_table VALUES (1)"))

    def many(orders: list[Order], tx: SqlTransaction) -> None:
        handler(orders, tx)
        tx.execute(text("INSERT INTO no_such_table VALUES (1)"))

    with pytest.raises(exc.DBAPIError, match="no_such_table"):
        Run(sql, handling(one if make is one_by_one else many, policy), records(3))
    assert written(sql) == []
    assert position(sql) == 0


@pytest.mark.parametrize("policy", [Fail(), DeadLetter()])
@pytest.mark.parametrize("by", ["commit", "rollback", "statement"])
def test_a_handler_that_ends_the_transaction_is_not_mistaken_for_a_bad_record(
    sql: SqlStore, policy: FailurePolicy, by: str
) -> None:
    def handle(order: Order, tx: SqlTransaction) -> None:
        sql.write(tx, row(order.n))
        if order.bad:
            tx.execute(text("COMMIT")) if by == "statement" else getattr(tx.connection, by)()

    with pytest.raises(TransactionBroken):
        Run(sql, handling(handle, policy), records(5, [2]))
    assert written(sql) == []
    assert not parked(sql)
    assert position(sql) == 0


@pytest.mark.parametrize("policy", [Fail(), DeadLetter(), Retry(2, NOW, then=DeadLetter())])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("kind", ["mariadb", "mysql", "postgres"])
def test_a_deadlock_runs_the_transaction_again_and_parks_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, wrapped: bool, policy: FailurePolicy
) -> None:
    from tests.crash.place import Place
    from tests.crash.test_meddling_handlers import deadlock

    store = opened(kind, request, tmp_path)
    assert isinstance(store, SqlStore)
    place = Place.fresh(store.url)
    free = SqlStore(store.url, store.prefix)  # a login that may write to every table
    with deadlock(place) as run_into:

        def handle(order: Order, tx: SqlTransaction) -> None:
            store.write(tx, row(order.n))
            if order.n == 1:
                try:
                    run_into(tx)
                except exc.DBAPIError as error:
                    if wrapped:
                        raise Poison("it did not work") from error
                    raise

        run = Run(free, handling(handle, policy), records(3))
    assert run.result.attempts == 2
    assert written(store) == [0, 1, 2]
    assert not parked(store)
    for each in (place, free, store):
        each.close()


@pytest.mark.parametrize("error", [LedgerUnavailable("away"), TransactionBroken("ended")])
def test_an_error_of_the_ledger_passes_through(error: Exception) -> None:
    store = MemoryStore()

    def handle(order: Order) -> None:
        raise error

    with pytest.raises(type(error)):
        Run(store, handling(handle, DeadLetter()), records(1))


def test_trouble_runs_the_transaction_again_with_nothing_carried_over(store: Store) -> None:
    tries: list[int] = []

    def handle(order: Order, tx: Transaction) -> None:
        store.write(tx, row(order.n))
        if order.bad:
            raise Poison
        if order.n == 4:
            tries.append(order.n)
            if len(tries) < 3:
                raise Conflict("somebody else was first")

    run = Run(store, handling(handle, DeadLetter()), records(6, [2]))
    assert run.result.attempts == 3
    assert written(store) == [0, 1, 3, 4, 5]
    assert parked_orders(store) == [2]
    assert len(run.handled) == 1


def test_an_error_of_redis_passes_through_except_a_value_that_cannot_be_encoded(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    import redis

    store = opened("redis", request, tmp_path)

    def encodes(order: Order, tx: RedisTransaction) -> None:
        store.write(tx, row(order.n))
        tx.redis.set(f"{store.prefix}x", None if order.bad else 1)  # type: ignore[attr-defined]

    def asks(order: Order) -> None:
        raise redis.ConnectionError("away")

    Run(store, handling(encodes, DeadLetter()), records(3, [1]))
    assert (written(store), parked_orders(store)) == ([0, 2], [1])
    other = opened("redis", request, tmp_path)
    with pytest.raises(redis.ConnectionError):
        Run(other, handling(asks, DeadLetter()), records(1))
    store.close()
    other.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_is_no_exception_passes_through(error: BaseException) -> None:
    store = MemoryStore()

    def handle(order: Order, tx: Transaction) -> None:
        store.write(tx, row(order.n))
        raise error

    with pytest.raises(type(error)):
        Run(store, handling(handle, DeadLetter()), records(1))
    assert written(store) == []


def test_letters_that_a_handler_parks_itself_go_with_its_savepoint(store: Store) -> None:
    def handle(order: Order, record: Record, tx: Transaction) -> None:
        tx.park(FailedRecord(record, "by hand"))
        if order.bad:
            raise Poison("bad")

    Run(store, handling(handle, DeadLetter()), records(3, [1]))
    assert sorted((letter.record.offset // 2, letter.error) for letter in parked(store)) == [
        *((0, "by hand"), (1, "Poison: bad"), (2, "by hand"))
    ]


def test_savepoints_nest(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [ORDERS])

    def handler(tx: Transaction) -> None:
        with tx.savepoint():
            store.write(tx, row(0))
            with pytest.raises(Poison), tx.savepoint():
                store.write(tx, row(1))
                tx.park(FailedRecord(records(1)[0], "gone"))
                raise Poison
            store.write(tx, row(2))

    store.ledger.transact(claims, [Span(ORDERS, 0, 6, 3)], handler)
    assert written(store) == [0, 2]
    assert not parked(store)


def test_a_policy_that_cannot_step_over_needs_no_savepoints() -> None:
    class NoSavepoints(MemoryStore):
        def write(self, tx: Any, each: Row) -> None:
            tx._savepoint = None  # calling it would fail
            super().write(tx, each)

    for make in (one_by_one, in_batches):
        store = NoSavepoints()
        Run(store, handling(make(store), Fail()), records(3))
        assert written(store) == [0, 1, 2]


def test_a_batch_is_narrowed_down_with_few_calls() -> None:
    store = MemoryStore()
    calls: list[int] = []
    handler = in_batches(store)

    def handle(orders: list[Order], tx: Transaction) -> None:
        calls.append(len(orders))
        handler(orders, tx)

    Run(store, handling(handle, DeadLetter()), records(256, [77]))
    assert len(calls) == 17
    assert parked_orders(store) == [77]


def test_records_and_values_of_a_part_of_a_batch_belong_together() -> None:
    store = MemoryStore()

    def handle(orders: list[Order], recs: list[Record], tx: Transaction) -> None:
        for order, record in zip(orders, recs, strict=True):
            assert record.offset == 2 * order.n
            store.write(tx, row(order.n))
        is_bad = any(order.bad for order in orders)
        orders.clear()
        recs.clear()
        if is_bad:
            raise Poison

    Run(store, handling(handle, DeadLetter()), records(6, [4]))
    assert (written(store), parked_orders(store)) == ([0, 1, 2, 3, 5], [4])


@given(
    count=st.integers(1, 40),
    poison=st.sets(st.integers(0, 39)),
    garbage=st.sets(st.integers(0, 39)),
    is_batch=st.booleans(),
    policy=st.sampled_from(
        [DeadLetter(), Retry(1, NOW, then=DeadLetter()), Retry(2, LATER, then=DeadLetter()), Skip()]
    ),
)
def test_whatever_is_bad_the_good_commit_in_order_and_the_bad_are_given_up_in_order(
    count: int, poison: set[int], garbage: set[int], is_batch: bool, policy: FailurePolicy
) -> None:
    store = MemoryStore()
    batch = records(count, sorted(poison))
    batch = [each._replace(value=b"{") if n in garbage else each for n, each in enumerate(batch)]
    bad = [n for n in range(count) if n in poison | garbage]
    run = Run(store, handling((in_batches if is_batch else one_by_one)(store), policy), batch)
    assert written(store) == [n for n in range(count) if n not in bad]
    assert parked_orders(store) == ([] if policy == Skip() else bad)
    assert [each.record for each in run.handled[0].skipped] == ([batch[n] for n in bad] if policy == Skip() else [])
    assert isinstance(store.ledger, MemoryLedger)
    assert store.ledger.verify(GROUP).ok


def test_a_raw_error_of_a_driver_is_judged_like_one_of_sqlalchemy() -> None:
    store = MemoryStore()

    def handle(order: Order) -> None:
        raise sqlite3.IntegrityError("UNIQUE") if order.n == 0 else sqlite3.OperationalError("disk full")

    Run(store, handling(handle, DeadLetter()), records(1))
    assert [letter.error for letter in parked(store)] == ["IntegrityError: UNIQUE"]
    with pytest.raises(sqlite3.OperationalError):
        Run(MemoryStore(), handling(handle, DeadLetter()), records(2))


def test_a_lookup_that_finds_no_row_may_be_the_records_fault(sql: SqlStore) -> None:
    def handle(order: Order, tx: SqlTransaction) -> None:
        sql.write(tx, row(order.n))
        if order.bad:
            tx.execute(sql.data.select().where(sql.data.c.payload == "nobody")).one()

    Run(sql, handling(handle, DeadLetter()), records(3, [1]))
    assert (written(sql), parked_orders(sql)) == ([0, 2], [1])
