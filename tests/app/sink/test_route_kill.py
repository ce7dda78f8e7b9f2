"""SIGKILL in the middle of a transaction over three tables with foreign keys, on each database."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, event
from tests.app.sink.test_kill import Striker
from tests.processes import die, ended, finished, killed, running

from tidegate import App, BatchBounds, Ledger, Limits, Table, TopicPartition, open_ledger
from tidegate.sandbox import Database, Kafka
from tidegate.tables import Part, Route

GROUP = "family"
PARTITIONS, RECORDS, BATCH = 2, 400, 150
KEYS, LINES = 97, 4
BAD = range(13, RECORDS, 113)  # records with a line that the database refuses
TOMBSTONES = range(50, RECORDS, 37)
LIMITS = Limits(hold=2.0, lock_wait=4.0)
STRIKES = [("orders", 1, 1), ("lines", 2, 2000), ("lots", 3, 1)]  # in the table, in which load, how many bytes into it
ROWS = [100, 1500, 2000]


@dataclass(frozen=True)
class Family:
    """Orders with lines and lots: a topic, and three tables with foreign keys."""

    bootstrap: str
    url: str = field(repr=False)  # has a password in it
    name: str = field(default_factory=lambda: f"f{secrets.token_hex(5)}")

    def table(self, name: str) -> str:
        return f"{self.name}_{name}"

    @property
    def route(self) -> Route:
        keys = {"order_id": "value.id", "n": "index"}
        lots = Table(self.table("lots"), key=["order_id", "n", "lot"], mode="upsert")
        lines = Table(self.table("lines"), key=["order_id", "n"], mode="upsert")
        orders = Table(self.table("orders"), key="id", mode="upsert")
        return Route(
            [
                Part(lots, each="value.lines", columns={**keys, "lot": "each.lot"}),
                Part(lines, each="value.lines", columns={**keys, "sku": "each.sku"}),
                Part(orders, columns={"id": "value.id", "version": "offset", "note": "value.note"}),
            ],
            parent_wait=0,
        )

    def prepare(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(self.name, PARTITIONS, 1)])[self.name].result(30)
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "enable.idempotence": True})
        for partition in range(PARTITIONS):
            for offset in range(RECORDS):
                found = value_of(partition, offset)
                data = None if found is None else json.dumps(found)
                producer.produce(self.name, data, str(key_of(partition, offset)), partition)
            producer.poll(0)
        assert producer.flush(30) == 0
        orders, lines, lots = map(self.table, ("orders", "lines", "lots"))
        self.run(
            f"CREATE TABLE {orders} (id INTEGER NOT NULL PRIMARY KEY, version INTEGER NOT NULL, note VARCHAR(99))",
            f"CREATE TABLE {lines} (order_id INTEGER NOT NULL, n INTEGER NOT NULL, sku VARCHAR(40) NOT NULL "
            f"CHECK (sku <> 'bad'), PRIMARY KEY (order_id, n), FOREIGN KEY (order_id) REFERENCES {orders} (id))",
            f"CREATE TABLE {lots} (order_id INTEGER NOT NULL, n INTEGER NOT NULL, lot INTEGER NOT NULL, "
            f"PRIMARY KEY (order_id, n, lot), FOREIGN KEY (order_id, n) REFERENCES {lines} (order_id, n))",
        )
        with self.ledger() as ledger:
            ledger.create()

    def ledger(self, url: str | None = None) -> Ledger[Any]:
        return open_ledger(url or self.url, prefix=f"{self.name}_t_", limits=LIMITS)

    def run(self, *statements: str) -> list[Any]:
        engine = create_engine(self.url)
        found: list[Any] = []
        with engine.begin() as conn:
            for statement in statements:
                result = conn.exec_driver_sql(statement)
                found = [tuple(row) for row in result] if result.returns_rows else []
        engine.dispose()
        return found

    def position(self) -> int:
        with self.ledger() as ledger:
            return sum(row.next_offset for row in ledger.read(GROUP).positions.values())

    def check(self) -> None:
        """Tables, letters and positions are what plain statements, one record at a time, leave."""
        orders, lines, lots = expected()
        assert dict(self.run(f"SELECT id, version FROM {self.table('orders')}")) == orders
        found = self.run(f"SELECT order_id, n, sku FROM {self.table('lines')}")
        assert {(row[0], row[1]): row[2] for row in found} == lines
        assert set(self.run(f"SELECT order_id, n, lot FROM {self.table('lots')}")) == lots
        with self.ledger() as ledger:
            parked = {(each.letter.record.partition, each.letter.record.offset) for each in letters(ledger)}
            assert parked == {
                (partition, offset) for partition in range(PARTITIONS) for offset in BAD if is_bad(offset)
            }
            positions = ledger.read(GROUP).positions
            assert {tp.partition: row.next_offset for tp, row in positions.items()} == dict.fromkeys(
                range(PARTITIONS), RECORDS
            )
            assert ledger.verify(GROUP).ok


def letters(ledger: Ledger[Any]) -> list[Any]:
    return ledger.dead_letters(GROUP, limit=10_000)


def is_bad(offset: int) -> bool:
    return offset in BAD and offset not in TOMBSTONES


def key_of(partition: int, offset: int) -> int:
    return partition * KEYS + offset * 7 % KEYS


def value_of(partition: int, offset: int) -> dict[str, Any] | None:
    if offset in TOMBSTONES:
        return None
    lines = [{"sku": f"s{offset}", "lot": offset % 5} for _ in range(offset % (LINES + 1))] or [{"sku": "x", "lot": 0}]
    if is_bad(offset):
        lines[-1]["sku"] = "bad"
    return {"id": key_of(partition, offset), "note": "some words " * 5, "lines": lines}


def expected() -> tuple[dict[int, int], dict[tuple[int, int], str], set[tuple[int, int, int]]]:
    orders: dict[int, int] = {}
    lines: dict[tuple[int, int], str] = {}
    lots: set[tuple[int, int, int]] = set()
    for partition in range(PARTITIONS):
        for offset in range(RECORDS):
            key, value = key_of(partition, offset), value_of(partition, offset)
            if value is None:
                orders.pop(key, None)
                lines = {line: sku for line, sku in lines.items() if line[0] != key}
                lots = {lot for lot in lots if lot[0] != key}
            elif not is_bad(offset):
                orders[key] = offset
                for n, line in enumerate(value["lines"]):
                    lines[key, n] = line["sku"]
                    lots.add((key, n, line["lot"]))
    return orders, lines, lots


@dataclass(frozen=True)
class Errand:
    """What a child is to do: load, through a proxy if it is given a URL, and die at that row of SQLite."""

    family: Family
    url: str | None = field(default=None, repr=False)
    dies_at_row: int | None = None


def consume(errand: Errand) -> None:
    family = errand.family
    ledger: Any = family.ledger(errand.url)
    if ledger.engine.dialect.name == "sqlite":
        event.listen(ledger.engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    if errand.dies_at_row is not None:
        _die_at(ledger.engine, family, errand.dies_at_row)
    app = App({"bootstrap.servers": family.bootstrap, "log_level": 0}, ledger)
    bounds = BatchBounds(count=BATCH, bytes=64 << 20, age=0.5)
    partitions = [TopicPartition(family.name, number) for number in range(PARTITIONS)]
    app.sink(partitions=partitions, into=family.route, group=GROUP, batch=bounds)
    app.run(until_caught_up=True)
    ledger.close()
    os._exit(0)  # without waiting for threads of the client


def _die_at(engine: Any, family: Family, row: int) -> None:
    rows = 0

    def tick() -> None:
        nonlocal rows
        rows += 1
        if rows == row:
            die()

    def watch(driver: sqlite3.Connection, _: object) -> None:
        driver.create_function("tick", 0, tick)
        for name in ("orders", "lines", "lots"):
            driver.execute(
                f"CREATE TEMP TRIGGER ticking_{name} BEFORE INSERT ON main.{family.table(name)} "
                "BEGIN SELECT tick(); END"
            )

    event.listen(engine, "connect", watch)


@pytest.fixture(params=["mariadb", "mysql", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[Database]:
    found: Database = request.getfixturevalue(request.param)
    yield found


def test_a_kill_leaves_all_tables_and_the_position_as_they_were_before(kafka: Kafka, server: Database) -> None:
    family = Family(kafka.bootstrap, server.url)
    family.prepare()
    for table, number, after in STRIKES:
        with Striker(server, family.table(table), number, after) as striker:
            with running(consume, Errand(family, server.url_for(port=striker.port))) as child:
                striker.pid = child.pid or 0
                assert ended(child) == -signal.SIGKILL
            assert striker.struck is not None
    finished(consume, Errand(family))
    family.check()


def test_a_kill_leaves_the_tables_and_the_position_of_sqlite_as_they_were_before(kafka: Kafka, tmp_path: Path) -> None:
    family = Family(kafka.bootstrap, f"sqlite:///{tmp_path / 'family.db'}")
    family.prepare()
    for row in ROWS:
        killed(consume, Errand(family, dies_at_row=row))
    assert family.position() < PARTITIONS * RECORDS
    finished(consume, Errand(family))
    family.check()
