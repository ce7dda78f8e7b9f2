"""A server that becomes read-only in the middle of a transaction, as in a failover."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tidegate import LedgerDenied, Span, TopicPartition
from tidegate.sandbox import Database

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
            with pytest.raises(LedgerDenied, match="read.only"):
                store.ledger.transact(claims, [Span(ORDERS, 0, 1)], handler)
        finally:
            conn.execute(text("SET GLOBAL read_only = OFF"))
    assert store.rows() == []
    store.ledger.transact(claims, [Span(ORDERS, 0, 1)], lambda tx: store.write(tx, Row("orders", 0, 0, "b")))
    assert [row.payload for row in store.rows()] == ["b"]
    assert store.ledger.verify("billing").ok
    store.close()
    admin.dispose()
