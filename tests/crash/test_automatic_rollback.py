"""SQLite may roll a whole transaction back by itself. If a handler swallows that, nothing it does afterwards counts."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from tests.crash.place import BATCH, GROUP, ORDERS, Place, span_at

from tidegate import Ledger, open_ledger
from tidegate.errors import TransactionBroken
from tidegate.ledger import Outcome

SPAN = span_at(0)


def driver_of(tx: Any) -> sqlite3.Connection:
    driver = tx.connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def conflict(tx: Any) -> None:
    tx.execute(text("INSERT OR ROLLBACK INTO once VALUES (1)"))


def conflict_by_driver(tx: Any) -> None:
    driver_of(tx).execute("INSERT OR ROLLBACK INTO once VALUES (1)")


def trigger(tx: Any) -> None:
    tx.execute(text("INSERT INTO guarded VALUES (1)"))


def full_disk(tx: Any) -> None:
    driver = driver_of(tx)
    (pages,) = driver.execute("PRAGMA page_count").fetchone()
    driver.execute(f"PRAGMA max_page_count = {pages}")
    try:
        tx.execute(text("INSERT INTO big VALUES (zeroblob(1000000))"))
    finally:
        driver.execute("PRAGMA max_page_count = 1000000000")


def interruption(tx: Any) -> None:
    driver = driver_of(tx)
    driver.set_progress_handler(lambda: 1, 1)
    try:
        driver.execute("INSERT INTO once SELECT value + 100 FROM generated")
    finally:
        driver.set_progress_handler(None, 0)


LOSSES = [conflict, conflict_by_driver, trigger, full_disk, interruption]

WITH = "WITH n AS (SELECT 77) INSERT INTO written SELECT * FROM n"


def savepoint(tx: Any) -> None:
    with tx.savepoint():
        tx.execute(text("INSERT INTO written VALUES (77)"))


def savepoint_by_driver(tx: Any) -> None:
    driver_of(tx).execute("SAVEPOINT mine")
    driver_of(tx).execute("INSERT INTO written VALUES (77)")
    driver_of(tx).execute("RELEASE mine")


def savepoint_left_open(tx: Any) -> None:
    driver_of(tx).execute("SAVEPOINT mine")
    driver_of(tx).execute("INSERT INTO written VALUES (77)")


def with_clause(tx: Any) -> None:
    tx.execute(text(WITH))


def with_clause_by_driver(tx: Any) -> None:
    driver_of(tx).execute(WITH)


def many(tx: Any) -> None:
    driver_of(tx).executemany("INSERT INTO written VALUES (?)", [(77,), (78,)])


def many_with_clause(tx: Any) -> None:
    driver_of(tx).executemany("WITH n AS (SELECT ?) INSERT INTO written SELECT * FROM n", [(77,), (78,)])


def replace(tx: Any) -> None:
    tx.execute(text("REPLACE INTO once VALUES (77)"))


def commented(tx: Any) -> None:
    driver_of(tx).execute("/* one */ -- two\n INSERT INTO written VALUES (77)")


def script(tx: Any) -> None:
    driver_of(tx).executescript("INSERT INTO written VALUES (77); UPDATE written SET n = 78")


def script_with_its_own_transaction(tx: Any) -> None:
    driver_of(tx).executescript("BEGIN; INSERT INTO written VALUES (77); COMMIT")


def table(tx: Any) -> None:
    tx.execute(text("CREATE TABLE IF NOT EXISTS made AS SELECT 77 AS n"))


def pragma(tx: Any) -> None:
    driver_of(tx).execute("PRAGMA user_version = 77")


def attached(tx: Any) -> None:
    with suppress(sqlite3.Error):
        driver_of(tx).execute("ATTACH (SELECT path FROM elsewhere) AS other")
    driver_of(tx).execute("CREATE TABLE IF NOT EXISTS other.made (n)")
    driver_of(tx).execute("WITH n AS (SELECT 77) INSERT INTO other.made SELECT * FROM n")


def vacuum(tx: Any) -> None:
    driver_of(tx).execute("VACUUM INTO (SELECT path FROM elsewhere)")


def autocommit(tx: Any) -> None:
    driver_of(tx).isolation_level = None
    driver_of(tx).execute("INSERT INTO written VALUES (77)")


WRITES = [
    savepoint,
    savepoint_by_driver,
    savepoint_left_open,
    with_clause,
    with_clause_by_driver,
    many,
    many_with_clause,
    replace,
    commented,
    script,
    script_with_its_own_transaction,
    table,
    pragma,
    attached,
    vacuum,
    autocommit,
]


@pytest.fixture
def sqlite(fresh: Callable[[str], Place], tmp_path: Path) -> Place:
    place = fresh(f"sqlite:///{tmp_path / 'ledger.db'}")
    for statement in (
        "CREATE TABLE once (id INTEGER PRIMARY KEY)",
        "INSERT INTO once VALUES (1)",
        "CREATE TABLE written (n INTEGER)",
        "CREATE TABLE big (content BLOB)",
        "CREATE TABLE guarded (n INTEGER)",
        "CREATE TRIGGER guard BEFORE INSERT ON guarded BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        "CREATE VIEW generated AS "
        "WITH RECURSIVE g(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM g LIMIT 1000) SELECT value FROM g",
        "CREATE TABLE elsewhere (path TEXT)",
        f"INSERT INTO elsewhere VALUES ('{tmp_path / 'elsewhere.db'}')",
    ):
        place.run(statement)
    return place


@pytest.fixture(params=["ours", "the user's"])
def ledger(request: pytest.FixtureRequest, sqlite: Place) -> Iterator[Ledger[Any]]:
    """On an engine of its own, or on the user's, whose driver keeps prepared statements."""
    if request.param == "ours":
        yield sqlite.ledger()
        return
    engine: Engine = create_engine(sqlite.url, connect_args={"cached_statements": 500})
    yield open_ledger(engine, prefix=sqlite.prefix)
    engine.dispose()


def contents(place: Place) -> tuple[list[str], Any]:
    """Everything in the database, but for the ledger's own tables."""
    with sqlite3.connect(place.url.removeprefix("sqlite:///")) as conn:
        dump = [line for line in conn.iterdump() if place.prefix not in line]
        return dump, conn.execute("PRAGMA user_version").fetchone()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("lose", LOSSES)
def test_nothing_is_written_behind_an_automatic_rollback_that_was_swallowed(
    sqlite: Place,
    ledger: Ledger[Any],
    lose: Callable[[Any], None],
    write: Callable[[Any], None],
    tmp_path: Path,
) -> None:
    claims = ledger.claim(GROUP, [ORDERS])
    before = contents(sqlite)

    def handler(tx: Any) -> None:
        sqlite.write(tx, SPAN)
        with suppress(Exception):
            write(tx)  # so that the driver has its statements prepared
        with suppress(Exception):
            lose(tx)
        assert not driver_of(tx).in_transaction, "the transaction was not lost"
        for _ in range(2):
            with suppress(Exception):
                write(tx)

    with pytest.raises(TransactionBroken, match="Leave the transaction to Tidegate"):
        ledger.transact(claims, [SPAN], handler)
    assert contents(sqlite) == before
    elsewhere = tmp_path / "elsewhere.db"
    assert not elsewhere.exists() or not elsewhere.stat().st_size
    assert sqlite.check(ledger) == 0
    assert ledger.transact(claims, [SPAN], lambda tx: sqlite.write(tx, SPAN)).outcome is Outcome.COMMITTED
    assert sqlite.check(ledger) == BATCH


@pytest.mark.parametrize(
    "statement", ["INSERT INTO written VALUES (?)", "WITH n AS (SELECT ?) INSERT INTO written SELECT * FROM n"]
)
def test_a_statement_under_way_does_not_go_on_behind_an_automatic_rollback(
    sqlite: Place, ledger: Ledger[Any], statement: str
) -> None:
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: Any) -> None:
        def rows() -> Iterator[tuple[int]]:
            yield (1,)
            with suppress(Exception):
                conflict(tx)
            yield (2,)

        with suppress(Exception):
            driver_of(tx).executemany(statement, rows())

    with pytest.raises(TransactionBroken):
        ledger.transact(claims, [SPAN], handler)
    assert sqlite.run("SELECT n FROM written") == []
    assert sqlite.check(ledger) == 0


@pytest.mark.parametrize("write", WRITES)
def test_every_way_to_write_commits_with_the_position_or_not_at_all(
    sqlite: Place, ledger: Ledger[Any], write: Callable[[Any], None]
) -> None:
    """The same ways, without a rollback in between."""
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: Any) -> None:
        sqlite.write(tx, SPAN)
        with suppress(Exception):
            write(tx)

    ledger.transact(claims, [SPAN], handler)
    assert sqlite.check(ledger) == BATCH


def test_nothing_that_a_detached_transaction_writes_outlives_an_automatic_rollback(
    sqlite: Place, ledger: Ledger[Any]
) -> None:
    """It has no position that would tell."""
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: Any) -> None:
        with_clause(tx)
        with suppress(Exception):
            conflict(tx)
        with suppress(Exception):
            with_clause(tx)

    with pytest.raises(TransactionBroken), ledger.detached(claims, [SPAN]) as tx:
        handler(tx)
    assert sqlite.run("SELECT n FROM written") == []


def test_a_savepoint_that_is_rolled_back_leaves_the_rest_of_the_transaction(sqlite: Place, ledger: Ledger[Any]) -> None:
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: Any) -> None:
        for offset in range(SPAN.start, SPAN.end):
            with suppress(ZeroDivisionError), tx.savepoint():
                with_clause(tx)
                raise ZeroDivisionError
            with tx.savepoint():
                sqlite.write(tx, SPAN._replace(start=offset, end=offset + 1))

    ledger.transact(claims, [SPAN], handler)
    assert sqlite.check(ledger) == BATCH
    assert sqlite.run("SELECT n FROM written") == []


def test_a_select_that_is_still_read_when_a_savepoint_is_rolled_back_ends_with_an_error(
    sqlite: Place, ledger: Ledger[Any]
) -> None:
    """As documented: it must not just end early."""
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: Any) -> None:
        rows = tx.execute(text("SELECT value FROM generated, once"))
        for _ in rows:
            with suppress(ZeroDivisionError), tx.savepoint():
                with_clause(tx)
                raise ZeroDivisionError

    with pytest.raises(OperationalError, match="abort due to ROLLBACK"):
        ledger.transact(claims, [SPAN], handler)
    assert sqlite.check(ledger) == 0
