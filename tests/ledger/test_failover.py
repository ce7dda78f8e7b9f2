"""A server that becomes read-only in the middle of a transaction, as in a failover."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tidegate import Ledger, Span, TopicPartition, open_ledger
from tidegate.errors import WritesRefused
from tidegate.sandbox import Database, Postgres

from .stores import Row, SqlStore

ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_a_commit_that_a_read_only_server_refuses_writes_nothing_and_is_told_as_that(
    name: str, request: pytest.FixtureRequest
) -> None:
    server: Database = request.getfixturevalue(name)
    store = SqlStore(server.url)  # whose login is not exempt
    claims = store.ledger.claim("billing", [ORDERS])
    admin = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:

        def handler(tx: Any) -> None:
            store.write(tx, Row("orders", 0, 0, "a"))
            conn.execute(text("SET GLOBAL read_only = ON"))

        try:
            with pytest.raises(WritesRefused, match="read.only"):
                store.ledger.transact(claims, [Span(ORDERS, 0, 1)], handler)
            with pytest.raises(WritesRefused, match="read.only"):
                store.ledger.pause("billing")
            with (
                pytest.raises(WritesRefused, match="read.only"),
                store.ledger.transaction(claims, [Span(ORDERS, 0, 1)]),
            ):
                pass
            assert store.ledger.silence < 1
        finally:
            conn.execute(text("SET GLOBAL read_only = OFF"))
    assert store.rows() == []
    store.ledger.transact(claims, [Span(ORDERS, 0, 1)], lambda tx: store.write(tx, Row("orders", 0, 0, "b")))
    assert [row.payload for row in store.rows()] == ["b"]
    assert store.ledger.verify("billing").ok
    store.close()
    admin.dispose()


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("postgres", "SET SESSION default_transaction_read_only = on"),
        ("mariadb", "SET SESSION tx_read_only = ON"),
        ("mysql", "SET SESSION transaction_read_only = ON"),
        ("mariadb", "USE mysql"),
        ("mysql", "USE mysql"),
        ("mysql", "SET SESSION completion_type = 1"),
        ("mysql", "set names latin1"),
    ],
)
def test_a_handler_that_changes_its_session_leaves_nothing_of_it_to_the_next_transaction(
    name: str, statement: str, owned: bool, request: pytest.FixtureRequest
) -> None:
    server: Database = request.getfixturevalue(name)
    store = SqlStore(server.url)
    engine = create_engine(server.url, pool_size=1, max_overflow=0, pool_timeout=5)
    ledger: Ledger[Any] = open_ledger(server.url if owned else engine, prefix=store.prefix)
    claims = ledger.claim("billing", [ORDERS])
    place = f"{server.database}.{store.prefix}data" if not isinstance(server, Postgres) else f"{store.prefix}data"
    row = text(
        f"INSERT INTO {place} (topic, {quoted(name, 'partition')}, {quoted(name, 'offset')}, payload) "
        "VALUES ('orders', 0, :offset, 'a')"
    )

    def handler(tx: Any) -> None:
        tx.execute(row, {"offset": tx.work.steps[0].span.start})
        tx.connection.exec_driver_sql(statement)

    for offset in range(3):
        ledger.transact(claims, [Span(ORDERS, offset, offset + 1)], handler)
    assert [row.offset for row in store.rows()] == [0, 1, 2]
    assert ledger.verify("billing").ok
    ledger.close()
    store.close()
    engine.dispose()


def quoted(name: str, column: str) -> str:
    return f'"{column}"' if name == "postgres" else f"`{column}`"


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_a_statement_that_no_packet_takes_is_refused_by_that_name_and_leaves_the_transaction_as_it_was(
    name: str, request: pytest.FixtureRequest
) -> None:
    server: Database = request.getfixturevalue(name)
    store = SqlStore(server.url)
    admin = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        before = conn.execute(text("SELECT @@GLOBAL.max_allowed_packet")).scalar()
        conn.execute(text("SET GLOBAL max_allowed_packet = 65536"))
        try:
            ledger = store.open()
            claims = ledger.claim("billing", [ORDERS])
            refused: list[Exception] = []
            large = "x" * 100_000

            def handler(tx: Any) -> None:
                try:
                    tx.execute(text("SELECT LENGTH(:a)"), {"a": large})
                except Exception as error:
                    refused.append(error)
                store.write(tx, Row("orders", 0, 0, "a"))

            ledger.transact(claims, [Span(ORDERS, 0, 1)], handler)
            with pytest.raises(Exception, match="max_allowed_packet is 65536"):
                ledger.transact(claims, [Span(ORDERS, 1, 2)], lambda tx: tx.execute(text(f"SELECT 1 -- {large}")))
        finally:
            conn.execute(text(f"SET GLOBAL max_allowed_packet = {before}"))
    assert len(refused) == 1 and "max_allowed_packet is 65536" in str(refused[0])
    assert [row.payload for row in store.rows()] == ["a"]
    store.close()
    admin.dispose()
