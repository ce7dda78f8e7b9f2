"""Connections that the server ended while they were idle in the pool are replaced, and nobody notices."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tidegate import Limits, Span, TopicPartition, open_ledger
from tidegate.sandbox import Database, MySQL, Postgres

from .stores import fresh_name

ORDERS = TopicPartition("orders", 0)
ONE_TRY = Limits(hold=3, lock_wait=10, attempts=1)


def sessions(conn: Any, user: str) -> list[int]:
    """The numbers of a login's sessions, as the server lists them."""
    if conn.dialect.name == "postgresql":
        query = "SELECT pid FROM pg_stat_activity WHERE usename = :user"
    else:
        query = "SELECT id FROM information_schema.processlist WHERE user = :user"
    return list(conn.execute(text(query), {"user": user}).scalars())


@pytest.mark.parametrize("name", ["mariadb", "mysql", "postgres"])
def test_a_ledger_whose_idle_connections_were_ended_goes_on_at_the_first_try(
    name: str, request: pytest.FixtureRequest
) -> None:
    server: Database = request.getfixturevalue(name)
    user = fresh_name()
    admin = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        if isinstance(server, Postgres):
            conn.execute(text(f"CREATE USER {user} SUPERUSER PASSWORD '{user}'"))
        else:
            conn.execute(text(f"CREATE USER {user} IDENTIFIED BY '{user}'"))
            conn.execute(text(f"GRANT ALL ON *.* TO {user}"))
        with open_ledger(server.url_for(user, user), prefix=user, limits=ONE_TRY) as ledger:
            claims = ledger.claim("billing", [ORDERS])
            ledger.transact(claims, [Span(ORDERS, 0, 1)])
            idle = sessions(conn, user)
            assert idle
            began = time.monotonic()
            if not isinstance(server, MySQL):  # which ends them by itself, because the limit is the session's there
                end = "SELECT pg_terminate_backend({})" if isinstance(server, Postgres) else "KILL {}"
                for number in idle:
                    conn.execute(text(end.format(number)))
            while sessions(conn, user) or time.monotonic() - began < ONE_TRY.hold / 2:
                assert time.monotonic() - began < 60, "the server did not end an idle session"
                time.sleep(0.02)
            assert ledger.read("billing").positions[ORDERS].next_offset == 1
            ledger.transact(claims, [Span(ORDERS, 1, 2)])
            assert ledger.verify("billing").ok
    admin.dispose()
