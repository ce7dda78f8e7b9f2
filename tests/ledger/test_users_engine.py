"""A ledger on an engine that belongs to the user: it is used as it is, and left as it was."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from tidegate import ConfigurationError, Limits, Span, TopicPartition, open_ledger
from tidegate.sandbox import Database, Postgres

ORDERS = TopicPartition("orders", 0)
SPAN = Span(ORDERS, 0, 5, 5)


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    if request.param != "sqlite":
        url = request.getfixturevalue(request.param).url
    made = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=2)
    yield made
    made.dispose()


@pytest.fixture
def prefix() -> str:
    return f"t{secrets.token_hex(4)}_"


def settings(engine: Engine) -> Any:
    """What the ledger changes in a session while it works."""
    with engine.connect() as conn:
        if engine.dialect.name == "sqlite":
            driver: Any = conn.connection.dbapi_connection
            return driver.isolation_level, driver.execute("PRAGMA busy_timeout").fetchone()
        if engine.dialect.name == "postgresql":
            names = ("lock_timeout", "idle_in_transaction_session_timeout")
            return [conn.execute(text(f"SHOW {name}")).scalar() for name in names]
        names = ["innodb_lock_wait_timeout", "net_read_timeout", "wait_timeout"]
        names += ["idle_transaction_timeout"] if engine.dialect.is_mariadb else []  # MySQL has none
        return [conn.execute(text(f"SELECT @@{name}")).scalar() for name in names]


def test_data_and_position_commit_through_the_users_engine_and_its_sessions_are_left_as_they_were(
    engine: Engine, prefix: str
) -> None:
    before = settings(engine)
    ledger = open_ledger(engine, prefix=prefix, limits=Limits(hold=1, lock_wait=2))
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE {prefix}bills (n INTEGER)"))
    claims = ledger.claim("billing", [ORDERS])
    ledger.transact(claims, [SPAN], lambda tx: tx.execute(text(f"INSERT INTO {prefix}bills VALUES (5)")))
    with pytest.raises(ZeroDivisionError):
        ledger.transact(claims, [Span(ORDERS, 5, 6)], lambda tx: 1 / 0)
    assert settings(engine) == before
    with engine.connect() as conn:
        assert conn.execute(text(f"SELECT n FROM {prefix}bills")).scalars().all() == [5]
    assert ledger.read("billing").positions[ORDERS].next_offset == 5
    ledger.close()
    with engine.connect() as conn:  # closing the ledger does not close what is not its own
        assert conn.execute(text("SELECT 1")).scalar() == 1


def test_an_orm_session_may_be_bound_to_the_transaction(engine: Engine, prefix: str) -> None:
    ledger = open_ledger(engine, prefix=prefix)
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE {prefix}bills (n INTEGER)"))

    def handler(tx: Any) -> None:
        with Session(bind=tx.connection) as session:
            session.execute(text(f"INSERT INTO {prefix}bills VALUES (5)"))
            session.commit()  # of the session, which leaves the transaction alone

    claims = ledger.claim("billing", [ORDERS])
    ledger.transact(claims, [SPAN], handler)
    assert ledger.read("billing").positions[ORDERS].next_offset == 5
    with engine.connect() as conn:
        assert conn.execute(text(f"SELECT n FROM {prefix}bills")).scalars().all() == [5]


def test_postgres_in_autocommit_mode_is_refused(postgres: Postgres, prefix: str) -> None:
    engine = create_engine(postgres.url, isolation_level="AUTOCOMMIT")
    ledger = open_ledger(engine, prefix=prefix)
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        ledger.claim("billing", [ORDERS])
    engine.dispose()


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_mysql_in_autocommit_mode_is_none_the_less_one_transaction(
    name: str, prefix: str, request: pytest.FixtureRequest
) -> None:
    server: Database = request.getfixturevalue(name)
    engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
    ledger = open_ledger(engine, prefix=prefix)
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE {prefix}bills (n INTEGER)"))
    claims = ledger.claim("billing", [ORDERS])

    def handler(tx: Any) -> None:
        tx.execute(text(f"INSERT INTO {prefix}bills VALUES (5)"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.transact(claims, [SPAN], handler)
    with engine.connect() as conn:
        assert conn.execute(text(f"SELECT n FROM {prefix}bills")).scalars().all() == []
    assert ledger.read("billing").positions[ORDERS].next_offset == 0
    engine.dispose()
