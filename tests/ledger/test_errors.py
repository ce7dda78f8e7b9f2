"""Whatever happens to the store, at whichever statement: what leaves a ledger is an error of Tidegate's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text

from tidegate import Limits, Record, Span, TidegateError, TopicPartition, open_ledger
from tidegate.ledger import FailedRecord
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.sql.ledger import SqlLedger
from tidegate.sandbox import Postgres, Proxy
from tidegate.sandbox.database import Database

from .stores import fresh_name

ORDERS = TopicPartition("orders", 0)
OTHERS = TopicPartition("orders", 1)
ONE_TRY = Limits(hold=1, lock_wait=2, attempts=1)  # the first trouble is the last

Operation = Callable[[Ledger[Any], Any], object]


def span(claims: Any) -> Span:
    start = claims[ORDERS].position
    return Span(ORDERS, start, start + 1)


def block(ledger: Ledger[Any], claims: Any) -> None:
    with ledger.transaction(claims, [span(claims)]):
        pass


def detached(ledger: Ledger[Any], claims: Any) -> None:
    with ledger.detached(claims, [span(claims)]) as tx:
        tx.park(FailedRecord(Record(*ORDERS, 0, value=b"x"), "failed", 1))


def park(tx: Any) -> None:
    tx.park(FailedRecord(Record(*ORDERS, 0, value=b"x"), "failed", 1))


def replay(ledger: Ledger[Any], claims: Any) -> None:
    for letter in ledger.dead_letters("billing"):
        ledger.replay(letter, lambda tx: None)
        ledger.failed_again(letter, "again")


OPERATIONS: dict[str, Operation] = {
    "create": lambda ledger, claims: ledger.create(),
    "claim": lambda ledger, claims: ledger.claim("billing", [ORDERS, OTHERS]),
    "reclaim": lambda ledger, claims: ledger.reclaim(claims, take=True),
    "release": lambda ledger, claims: ledger.release(claims),
    "transact": lambda ledger, claims: ledger.transact(claims, [span(claims)], park),
    "transaction": block,
    "detached": detached,
    "replay": replay,
    "edit": lambda ledger, claims: ledger.edit("billing", {ORDERS: 5}),
    "pause": lambda ledger, claims: ledger.pause("billing"),
    "resume": lambda ledger, claims: ledger.resume("billing"),
    "verify": lambda ledger, claims: ledger.verify("billing"),
    "read": lambda ledger, claims: ledger.read("billing", [ORDERS]),
    "read all": lambda ledger, claims: ledger.read_all(),
    "totals": lambda ledger, claims: ledger.totals(),
    "journal": lambda ledger, claims: list(ledger.journal("billing")),
    "newest": lambda ledger, claims: list(ledger.newest("billing")),
    "prune": lambda ledger, claims: ledger.prune(timedelta(0)),
    "letters": lambda ledger, claims: ledger.dead_letters("billing"),
    "letter heads": lambda ledger, claims: ledger.letter_heads("billing"),
    "count of letters": lambda ledger, claims: ledger.count_letters(),
    "errors of letters": lambda ledger, claims: ledger.letter_errors("billing"),
    "history": lambda ledger, claims: list(ledger.history("billing", datetime.now(UTC) - timedelta(days=1))),
    "confirm": lambda ledger, claims: ledger.confirm(claims, [span(claims)]),
    "begin pruning": lambda ledger, claims: ledger.begin_pruning("billing", timedelta(0)),
    "drop": lambda ledger, claims: ledger.drop_letters("billing", [1, 2, 3]),
}


class Blow:
    """Strikes before the statement with a given number, on whichever connection of an engine."""

    def __init__(self, engine: Engine, strike: Callable[[Any], object], number: int) -> None:
        self._count, self._number, self._strike = itertools.count(), number, strike
        self.struck = False
        self._engine = engine

    def __enter__(self) -> Blow:
        event.listen(self._engine, "before_cursor_execute", self._sent)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine, "before_cursor_execute", self._sent)

    def _sent(self, conn: Any, cursor: Any, *_: Any) -> None:
        if next(self._count) == self._number:
            self.struck = True
            self._strike(conn)


@contextmanager
def administered(server: Database) -> Iterator[Any]:
    admin = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        yield conn
    admin.dispose()


def tell(errors: list[BaseException], operation: Operation, ledger: Ledger[Any], claims: Any) -> None:
    try:
        operation(ledger, claims)
    except TidegateError:
        pass
    except BaseException as error:
        errors.append(error)


@pytest.mark.parametrize("name", ["postgres", "mariadb", "mysql"])
def test_a_connection_that_is_ended_before_any_statement_of_any_operation_is_told_as_an_error_of_the_ledgers(
    name: str, request: pytest.FixtureRequest
) -> None:
    server: Database = request.getfixturevalue(name)
    prefix, failures, struck = fresh_name(), [], 0
    with (
        administered(server) as admin,
        open_ledger(server.url, prefix=prefix) as sound,
        open_ledger(server.url, prefix=prefix, limits=ONE_TRY) as ledger,
    ):
        assert isinstance(ledger, SqlLedger)

        def opening(_: Ledger[Any], claims: Any) -> None:
            with SqlLedger(ledger.engine, prefix=prefix, limits=ONE_TRY) as fresh:
                fresh.read("billing")

        def end(conn: Any) -> None:
            driver = conn.connection.dbapi_connection
            if isinstance(server, Postgres):
                admin.execute(text(f"SELECT pg_terminate_backend({driver.info.backend_pid})"))
            else:
                admin.execute(text(f"KILL {driver.thread_id()}"))

        for what, operation in {"opening": opening, **OPERATIONS}.items():
            for number in itertools.count():
                claims = sound.claim("billing", [ORDERS])
                errors: list[BaseException] = []
                with Blow(ledger.engine, end, number) as blow:
                    tell(errors, operation, ledger, claims)
                failures += [(what, number, error) for error in errors]
                if not blow.struck:
                    break
                struck += 1
            sound.resume("billing")
    assert struck > 50
    assert not failures, failures


@pytest.mark.parametrize("name", ["sqlite", "postgres", "mariadb", "mysql"])
@pytest.mark.parametrize(
    "table", ["positions", "journal", "groups", "dead_letters", "deployments", "schema", "history", "changes"]
)
def test_a_table_that_is_gone_is_told_as_an_error_of_the_ledgers(
    name: str, table: str, request: pytest.FixtureRequest
) -> None:
    url = (
        f"sqlite:///{request.getfixturevalue('tmp_path') / 'ledger.db'}"
        if name == "sqlite"
        else request.getfixturevalue(name).url
    )
    prefix, failures = fresh_name(), []
    with open_ledger(url, prefix=prefix, limits=ONE_TRY) as ledger:
        claims = ledger.claim("billing", [ORDERS])
        engine = create_engine(url)
        with engine.begin() as conn:
            conn.execute(text(f"DROP TABLE {prefix}{table}{' CASCADE' if name == 'postgres' else ''}"))
        for what, operation in OPERATIONS.items():
            if what != "create":
                errors: list[BaseException] = []
                tell(errors, operation, ledger, claims)
                failures += [(what, error) for error in errors]
        engine.dispose()
    assert not failures, failures


@pytest.mark.parametrize("name", ["postgres", "mariadb", "mysql", "redis_server"])
def test_a_server_that_is_gone_is_told_as_an_error_of_the_ledgers_whatever_was_asked(
    name: str, request: pytest.FixtureRequest
) -> None:
    server: Database = request.getfixturevalue(name)
    prefix = fresh_name() if name != "redis_server" else f"{{{fresh_name()}}}:"
    failures = []
    with Proxy(server.host, server.port) as proxy:
        url = server.url_for(port=proxy.port)
        with open_ledger(url, prefix=prefix, limits=ONE_TRY) as ledger:
            claims = ledger.claim("billing", [ORDERS])
            proxy.cut()
            for what, operation in OPERATIONS.items():
                errors: list[BaseException] = []
                tell(errors, operation, ledger, claims)
                failures += [(what, error) for error in errors]
    assert not failures, failures
