"""Few hands: how many functions and modules stand between a transaction and the work that is done in it.

What counts, measured on a real commit to SQLite, with the topics of the test kit:

- *Hands* are the frames on the stack from ``Ledger.transact``, which counts, to the user's function or to the write of
  a sink, ``Target.write``, which do not. Generators of context managers are not on the stack: they are suspended.
- *Modules* are those of ``tidegate`` whose functions are entered from the call of ``Ledger.transact`` until its return;
  on Spark, from the call of the task's commit, when its rows are made, until its return.
- Both in the steady state: of several commits, the one that enters the fewest modules, so without what happens at first
  use or every few seconds.

A Spark task is called in this process, with the Arrow batches that Spark would give it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import text
from tests.tracing import Way, code_of, traced

from tidegate import App, BatchBounds, Delivery, Ledger, Limits, Record, Span, Table, TopicPartition, Transaction
from tidegate.ledger import SqlLedger
from tidegate.spark.address import LedgerAddress
from tidegate.spark.executor import Ended, ExecutorCommit
from tidegate.spark.records import RAW, RAW_TYPES
from tidegate.spark.rows import FixedTable, Plain
from tidegate.spark.writer import Writing
from tidegate.tables import JsonFormat, Target
from tidegate.tables.shape import look_at_shape
from tidegate.tables.writer import Writer
from tidegate.testing.broker import LocalBroker

ORDERS = TopicPartition("orders", 0)
RECORDS = 12
AT_ONCE = 3


@dataclass
class Order:
    id: int
    total: int


def values() -> Iterator[bytes]:
    for number in range(RECORDS):
        yield json.dumps({"id": number, "total": number}).encode()


@pytest.fixture
def app(tmp_path: Path) -> App:
    """An app with a table for bills, and a topic of orders in this process."""
    app = App("localhost:1", ledger=f"sqlite:///{tmp_path}/shop.db")
    app.broker = broker = LocalBroker()
    broker.create(ORDERS.topic, 1)
    for value in values():
        broker.append(Record(*ORDERS, 0, None, value))
    ledger = app.ledger
    assert isinstance(ledger, SqlLedger)
    with ledger.engine.begin() as conn:
        conn.execute(text("CREATE TABLE bills (id INTEGER PRIMARY KEY, total INTEGER)"))
    return app


def bills(app: App) -> int:
    assert isinstance(app.ledger, SqlLedger)
    with app.ledger.engine.connect() as conn:
        return int(conn.execute(text("SELECT count(*) FROM bills")).scalar_one())


def shortest(ways: list[Way]) -> Way:
    """The way of a commit in the steady state."""
    assert len(ways) == RECORDS // AT_ONCE
    return min(ways, key=lambda way: len(way.modules))


def check(way: Way, *, hands: int, modules: int) -> None:
    assert way.hands is not None
    assert len(way.hands) <= hands, "\n".join(way.hands)
    assert len(way.modules) <= modules, "\n".join(sorted(way.modules))


def test_the_way_of_a_listener(app: App) -> None:
    @app.listener(ORDERS.topic, group="billing", batch=BatchBounds(count=AT_ONCE))
    def bill(order: Order, tx: Transaction) -> None:
        tx.connection.execute(text("INSERT INTO bills VALUES (:id, :total)"), vars(order))  # type: ignore[attr-defined]

    with traced(code_of(Ledger.transact), code_of(bill)) as ways:
        app.run(until_caught_up=True)
    assert bills(app) == RECORDS
    check(shortest(ways), hands=4, modules=13)


def test_the_way_of_a_sink(app: App) -> None:
    app.sink(ORDERS.topic, into=Table("bills", key=["id"]), batch=BatchBounds(count=AT_ONCE))
    with traced(code_of(Ledger.transact), code_of(Target.write)) as ways:
        app.run(until_caught_up=True)
    assert bills(app) == RECORDS
    check(shortest(ways), hands=6, modules=20)


def test_the_way_of_a_spark_task(app: App) -> None:
    ledger = app.ledger
    assert isinstance(ledger, SqlLedger)
    table = Table("bills", key=["id"])
    layout = Target(ledger.engine, table).layout
    claims = ledger.claim("etl", [ORDERS])
    address = LedgerAddress(str(ledger.engine.url), {}, ledger.prefix, Limits())
    records = [Record(*ORDERS, offset, None, value) for offset, value in enumerate(values())]
    with traced(code_of(ExecutorCommit._commit), code_of(Writer.run)) as ways:
        for start in range(0, RECORDS, AT_ONCE):
            task = ExecutorCommit(
                address,
                Writing(layout, look_at_shape(ledger.engine, table)),
                Plain(frozenset({"value"})),
                FixedTable(layout, JsonFormat(), None),
                Delivery.EXACTLY_ONCE,
                claims,
                {ORDERS: Span(ORDERS, start, start + AT_ONCE, AT_ONCE)},
            )
            (result,) = task([arrow(records[start : start + AT_ONCE])])
            assert result.column("ended").to_pylist() == [Ended.COMMITTED]
    assert bills(app) == RECORDS
    check(shortest(ways), hands=5, modules=12)


def arrow(records: list[Record]) -> pa.RecordBatch:
    """A batch of raw records, as Spark hands it to a task."""
    columns = {name: [getattr(record, part) for record in records] for part, name in RAW.items()}
    columns[RAW["headers"]] = [None] * len(records)
    return pa.record_batch([pa.array(columns[name], RAW_TYPES[part]) for part, name in RAW.items()], list(RAW.values()))
