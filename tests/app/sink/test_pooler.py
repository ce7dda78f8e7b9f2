"""Listeners and sinks through PgBouncer, whose sessions are anybody's after each transaction."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from tests.app.sink.shop import Shop

from tidegate import App, Table, open_ledger
from tidegate.ledger.sql.sessions import SqlTransaction
from tidegate.sandbox import Kafka, PgBouncer, Postgres
from tidegate.testing import TestKit


@pytest.mark.parametrize("into", [{}, {"key": "id"}, {"key": "id", "mode": "accumulate"}], ids=str)
def test_a_sink_writes_every_record_once_through_a_pooler(
    pgbouncer: PgBouncer, kafka: Kafka, into: dict[str, Any]
) -> None:
    shop = Shop(pgbouncer.url, kafka.bootstrap, partitions=2)
    shop.create("id INTEGER PRIMARY KEY, n INTEGER")
    for partition in range(2):
        for number in range(100):
            shop.kit.send("orders", {"id": 2 * number + partition, "n": number}, partition=partition)
    shop.sink(batch=20, into=into)
    assert shop.rows() == [(number, number // 2) for number in range(200)]
    shop.close()


def test_a_listener_and_a_sink_share_two_sessions_with_a_stranger(postgres: Postgres) -> None:
    name = f"s{secrets.token_hex(6)}"
    direct = create_engine(postgres.url)
    with direct.begin() as conn:
        conn.execute(text(f"CREATE TABLE {name}_heard (n INTEGER)"))
        conn.execute(text(f"CREATE TABLE {name}_sunk (n INTEGER)"))
    with (
        PgBouncer(postgres, settings={"default_pool_size": 2}) as pooler,
        open_ledger(pooler.url, prefix=name) as ledger,
    ):
        stranger = create_engine(pooler.url, isolation_level="AUTOCOMMIT", connect_args={"prepare_threshold": None})
        app = App("nowhere.invalid:9092", ledger)

        @app.listener("orders", group="hear")
        def hear(order: dict[str, int], tx: SqlTransaction) -> None:
            with stranger.connect() as conn:  # takes the other session, so that the next transaction may get that one
                conn.execute(text("SELECT 1"))
            tx.execute(text(f"INSERT INTO {name}_heard VALUES (:n)"), order)

        app.sink("orders", into=Table(f"{name}_sunk"), group="sink")
        with TestKit(app, broker="local", batch=5) as kit:
            for number in range(60):
                kit.send("orders", {"n": number})
            kit.run()
            kit.check()
        stranger.dispose()
    with direct.connect() as conn:
        for table in ("heard", "sunk"):
            found = conn.execute(text(f"SELECT n FROM {name}_{table} ORDER BY n")).scalars().all()
            assert found == list(range(60))
    direct.dispose()
