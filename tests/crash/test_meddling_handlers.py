"""Handlers that end the transaction they were given, knowingly or not: nothing is half done, whatever they swallow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from tests.crash.place import BATCH, GROUP, ORDERS, Place, span_at

from tidegate import Ledger, Limits, Record, Span, open_ledger
from tidegate.errors import LedgerError, TransactionBroken
from tidegate.ledger import FailedRecord, Outcome

SPAN = span_at(0)


def commit(tx: Any) -> None:
    tx.connection.commit()


def commit_by_statement(tx: Any) -> None:
    tx.execute(text("COMMIT"))


def commit_by_driver(tx: Any) -> None:
    tx.connection.connection.dbapi_connection.commit()


def roll_back(tx: Any) -> None:
    tx.connection.rollback()


def roll_back_by_driver(tx: Any) -> None:
    tx.connection.connection.dbapi_connection.rollback()


def begin_anew(tx: Any) -> None:
    tx.execute(text("COMMIT"))
    tx.execute(text("BEGIN"))


MEDDLING = [commit, commit_by_statement, commit_by_driver, roll_back, roll_back_by_driver, begin_anew]


@pytest.mark.parametrize("meddle", MEDDLING)
def test_a_handler_that_ends_its_transaction_commits_nothing_of_it(
    sql_place: Place, meddle: Callable[[Any], None]
) -> None:
    ledger = sql_place.ledger()
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: Any) -> None:
        sql_place.write(tx, SPAN)
        meddle(tx)
        sql_place.write(tx, span_at(10_000))  # would be committed without the position

    with pytest.raises(TransactionBroken, match="Leave the transaction to Tidegate"):
        ledger.transact(claims, [SPAN], handler)
    assert sql_place.check(ledger) == 0
    assert ledger.transact(claims, [SPAN], lambda tx: sql_place.write(tx, SPAN)).outcome is Outcome.COMMITTED
    assert sql_place.check(ledger) == BATCH


@pytest.mark.parametrize("meddle", MEDDLING)
def test_a_handler_that_ends_its_transaction_and_swallows_the_error_breaks_nothing(
    sql_place: Place, meddle: Callable[[Any], None]
) -> None:
    """Either the store refused and all is well, or everything is gone; but never a part."""
    ledger = sql_place.ledger()
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: Any) -> None:
        with suppress(Exception):
            meddle(tx)
        sql_place.write(tx, SPAN)

    with suppress(TransactionBroken):
        ledger.transact(claims, [SPAN], handler)
    assert sql_place.check(ledger) in (0, BATCH)


def close(tx: Any) -> None:
    tx.connection.close()


def close_at_the_end_of_a_block(tx: Any) -> None:
    with tx.connection:
        pass


def close_and_use(tx: Any) -> None:
    tx.connection.close()
    tx.execute(text("SELECT 1"))


def close_the_pooled_connection(tx: Any) -> None:
    tx.connection.connection.close()


def close_the_driver_s_connection(tx: Any) -> None:
    tx.connection.connection.driver_connection.close()


def invalidate(tx: Any) -> None:
    tx.connection.invalidate()


def invalidate_the_pooled_connection(tx: Any) -> None:
    tx.connection.connection.invalidate()


CLOSING = [
    close,
    close_at_the_end_of_a_block,
    close_and_use,
    close_the_pooled_connection,
    invalidate_the_pooled_connection,
]
BREAKING = [close_the_driver_s_connection, invalidate]


UNHURRIED = Limits()
"""A busy machine may stand still for a second, and that is not what is tried here."""


@pytest.fixture(params=["ours", "the user's"])
def sql_ledger(request: pytest.FixtureRequest, sql_place: Place) -> Iterator[Ledger[Any]]:
    """On an engine of its own, or on the user's."""
    if request.param == "ours":
        yield sql_place.ledger(UNHURRIED)
        return
    engine = create_engine(sql_place.url, pool_size=1, max_overflow=0, pool_timeout=2)
    yield open_ledger(engine, prefix=sql_place.prefix, limits=UNHURRIED)
    engine.dispose()


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("shut", CLOSING)
def test_a_handler_that_closes_its_connection_commits_nothing_and_the_next_transaction_works(
    sql_place: Place, sql_ledger: Ledger[Any], shut: Callable[[Any], None], swallow: bool
) -> None:
    claims = sql_ledger.claim(GROUP, [ORDERS])
    runs = []

    def handler(tx: Any) -> None:
        runs.append(tx)
        sql_place.write(tx, SPAN)
        with suppress(*[Exception] if swallow else []):
            shut(tx)

    with pytest.raises(TransactionBroken, match="Leave the transaction to Tidegate"):
        sql_ledger.transact(claims, [SPAN], handler)
    assert len(runs) == 1
    assert sql_place.check(sql_ledger) == 0
    for position in (0, BATCH):
        span = span_at(position)
        sql_ledger.transact(claims, [span], lambda tx, span=span: sql_place.write(tx, span))  # type: ignore[misc]
    assert sql_place.check(sql_ledger) == 2 * BATCH


@pytest.mark.parametrize("shut", CLOSING)
def test_a_replay_that_closes_its_connection_leaves_the_letter_and_the_next_one_works(
    sql_place: Place, shut: Callable[[Any], None]
) -> None:
    ledger = sql_place.ledger()
    claims = ledger.claim(GROUP, [ORDERS])
    letter = FailedRecord(Record(*ORDERS, 0), "no")
    ledger.transact(claims, [SPAN], lambda tx: tx.park(letter))
    (parked,) = ledger.dead_letters(GROUP)

    def handler(tx: Any) -> None:
        sql_place.write(tx, SPAN)
        tx.park(letter)
        with suppress(Exception):
            shut(tx)

    with pytest.raises(TransactionBroken, match="Leave the transaction to Tidegate"):
        ledger.replay(parked, handler)
    assert (ledger.dead_letters(GROUP), sql_place.offsets()) == ([parked], [])
    assert ledger.replay(parked, lambda tx: sql_place.write(tx, SPAN)).outcome is Outcome.COMMITTED
    assert (ledger.dead_letters(GROUP), sql_place.check(ledger)) == ([], BATCH)


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("shatter", BREAKING)
def test_a_handler_that_breaks_its_connection_is_run_again_as_after_an_outage(
    sql_place: Place, sql_ledger: Ledger[Any], shatter: Callable[[Any], None], swallow: bool
) -> None:
    claims = sql_ledger.claim(GROUP, [ORDERS])
    runs = []

    def handler(tx: Any) -> None:
        runs.append(tx)
        sql_place.write(tx, SPAN)
        if len(runs) == 1:
            with suppress(*[Exception] if swallow else []):
                shatter(tx)
                tx.execute(text("SELECT 1"))

    assert sql_ledger.transact(claims, [SPAN], handler).attempts == len(runs) == 2
    assert sql_place.check(sql_ledger) == BATCH


def test_a_handler_that_takes_its_connection_from_the_pool_commits_all_the_same(
    sql_place: Place, sql_ledger: Ledger[Any]
) -> None:
    claims = sql_ledger.claim(GROUP, [ORDERS])

    def handler(tx: Any, span: Span) -> None:
        tx.connection.detach()
        sql_place.write(tx, span)

    for position in (0, BATCH):
        span = span_at(position)
        sql_ledger.transact(claims, [span], lambda tx, span=span: handler(tx, span))  # type: ignore[misc]
    assert sql_place.check(sql_ledger) == 2 * BATCH


@pytest.mark.parametrize("swallow", [False, True])
def test_ddl_in_a_handler_breaks_nothing(sql_place: Place, swallow: bool) -> None:
    """SQLite and PostgreSQL run it within the transaction; MariaDB, which would commit, refuses."""
    ledger = sql_place.ledger()
    claims = ledger.claim(GROUP, [ORDERS])
    refused = sql_place.url.startswith("mysql")

    def handler(tx: Any) -> None:
        sql_place.write(tx, SPAN._replace(end=5))
        try:
            tx.execute(text(f"CREATE TABLE {sql_place.prefix}extra (id INTEGER)"))
        except DBAPIError:
            if not swallow:
                raise
        sql_place.write(tx, SPAN._replace(start=5))

    if refused and not swallow:
        with pytest.raises(TransactionBroken):
            ledger.transact(claims, [SPAN], handler)
        assert sql_place.check(ledger) == 0
    else:
        ledger.transact(claims, [SPAN], handler)
        assert sql_place.check(ledger) == BATCH


def test_a_temporary_table_in_a_handler_works_or_the_error_says_why_not(sql_place: Place) -> None:
    """MySQL refuses them in XA transactions; it is the only one."""
    ledger = sql_place.ledger()
    claims = ledger.claim(GROUP, [ORDERS])
    refused = sql_place.url.startswith("mysql") and "MariaDB" not in sql_place.run("SELECT version()")[0][0]

    def handler(tx: Any) -> None:
        sql_place.write(tx, SPAN)
        tx.execute(text(f"CREATE TEMPORARY TABLE {sql_place.prefix}scratch (id INTEGER)"))
        tx.execute(text(f"INSERT INTO {sql_place.prefix}scratch VALUES (1)"))

    if refused:
        with pytest.raises(TransactionBroken, match=r"orders.*temporary table, which MySQL refuses.*Use an ordinary"):
            ledger.transact(claims, [SPAN], handler)
    else:
        ledger.transact(claims, [SPAN], handler)
    assert sql_place.check(ledger) == (0 if refused else BATCH)


def test_an_error_that_a_handler_swallows_is_not_committed_around(sql_place: Place) -> None:
    """PostgreSQL's COMMIT of an aborted transaction would return in silence."""
    ledger = sql_place.ledger()
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: Any) -> None:
        sql_place.write(tx, SPAN)
        with suppress(DBAPIError):
            tx.execute(text("INSERT INTO no_such_table VALUES (1)"))

    with suppress(TransactionBroken):
        ledger.transact(claims, [SPAN], handler)
    assert sql_place.check(ledger) == (0 if sql_place.url.startswith("postgres") else BATCH)


def test_a_statement_may_fail_inside_a_savepoint(sql_place: Place) -> None:
    ledger = sql_place.ledger()
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: Any) -> None:
        sql_place.write(tx, SPAN)
        with suppress(DBAPIError), tx.savepoint():
            sql_place.write(tx, span_at(10_000))
            tx.execute(text("INSERT INTO no_such_table VALUES (1)"))

    ledger.transact(claims, [SPAN], handler)
    assert sql_place.check(ledger) == BATCH


def test_an_automatic_rollback_that_a_handler_swallows_commits_nothing(fresh: Any, tmp_path: Any) -> None:
    """SQLite's INSERT OR ROLLBACK ends the transaction; later writes must not commit one by one."""
    place = fresh(f"sqlite:///{tmp_path / 'ledger.db'}")
    place.run("CREATE TABLE once (id INTEGER PRIMARY KEY)")
    place.run("INSERT INTO once VALUES (1)")
    ledger = place.ledger()
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: Any) -> None:
        place.write(tx, SPAN)
        with suppress(DBAPIError):
            tx.execute(text("INSERT OR ROLLBACK INTO once VALUES (1)"))
        with suppress(DBAPIError):
            place.write(tx, SPAN)
        tx.connection.connection.dbapi_connection.execute(f"INSERT INTO {place.data} VALUES (77)")

    with pytest.raises(TransactionBroken):
        ledger.transact(claims, [SPAN], handler)
    assert place.check(ledger) == 0


@contextmanager
def deadlock(place: Place) -> Iterator[Callable[[Any], None]]:
    """Gives a function that runs the caller's transaction into a deadlock with another one, once."""
    table = f"{place.prefix}rows"
    place.run(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, n INTEGER)")
    place.run(f"INSERT INTO {table} VALUES (1, 0), (2, 0)")
    engine = create_engine(place.url)
    lock = f"UPDATE {table} SET n = n + 1 WHERE id = %d"
    met = threading.Event()

    def other(conn: Any) -> None:
        with suppress(DBAPIError):
            conn.execute(text(lock % 1))
            # Until here it waited for the victim; whoever is chosen, the rows are free again when it is over.
        conn.rollback()

    def run_into(tx: Any) -> None:
        if met.is_set():
            return
        met.set()
        tx.execute(text(lock % 1))
        rival = engine.connect()
        if place.url.startswith("mysql"):  # the one that changed less is the victim
            rival.execute(text(f"INSERT INTO {table} VALUES (:id, 0)"), [{"id": number} for number in range(100, 2000)])
        else:
            rival.execute(text("SET deadlock_timeout = '10s'"))  # so that the other one looks first
        rival.execute(text(lock % 2))
        waiting = threading.Thread(target=other, args=(rival,))
        waiting.start()
        try:
            tx.execute(text(lock % 2))
        finally:
            waiting.join(20)
            rival.close()

    yield run_into
    engine.dispose()
    assert met.is_set()


def test_a_deadlock_in_a_handler_is_tried_again(row_locks: Place) -> None:
    ledger = row_locks.ledger()
    claims = ledger.claim(GROUP, [ORDERS])
    with deadlock(row_locks) as run_into:

        def handler(tx: Any) -> None:
            row_locks.write(tx, SPAN)
            run_into(tx)

        result = ledger.transact(claims, [SPAN], handler)
    assert (result.outcome, result.attempts) == (Outcome.COMMITTED, 2)
    assert row_locks.check(ledger) == BATCH


def test_a_deadlock_that_a_handler_swallows_breaks_nothing(row_locks: Place) -> None:
    ledger = row_locks.ledger()
    claims = ledger.claim(GROUP, [ORDERS])
    swallowed = []
    with deadlock(row_locks) as run_into:

        def handler(tx: Any) -> None:
            row_locks.write(tx, SPAN)
            try:
                run_into(tx)
            except DBAPIError as error:
                swallowed.append(error)

        with suppress(LedgerError):
            ledger.transact(claims, [SPAN], handler)
    assert swallowed, "there was no deadlock to swallow"
    assert row_locks.check(ledger) in (0, BATCH)
    position = row_locks.check(ledger)
    ledger.transact(claims, [span_at(position)], lambda tx: row_locks.write(tx, span_at(position)))
    assert row_locks.check(ledger) == position + BATCH
