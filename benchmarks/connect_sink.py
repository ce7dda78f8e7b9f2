"""Beside the Debezium JDBC sink on Kafka Connect, tuned: the same records into the same tables of PostgreSQL.

Connect is timed from the moment when a part of the rows is there, because the JVM is slower until then; a sink of
Tidegate from its first commit to its last. Each has one process, the connector a task for each partition or one task,
whichever is faster.
"""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import Engine, create_engine, text

from benchmarks.report import Report
from benchmarks.sinks import BOUNDS, Watch
from tidegate import App, Table, open_ledger
from tidegate.java.jars import Jars
from tidegate.sandbox import Debezium, Kafka, Postgres
from tidegate.sandbox.server import Setting

SCALE = float(os.environ.get("CONNECT_BENCH_SCALE", "1"))  # less than 1: for a look, not for figures
RECORDS, PARTITIONS, ROUNDS = int(300_000 * SCALE), 4, 3
UPDATED = 1_000_000_000  # the least amount of a row that was updated
WARM = RECORDS // 5  # rows of Connect that are not timed
PLUGIN = Jars(
    "debezium-jdbc-3.5.0.Final",
    ("io.debezium:debezium-connector-jdbc:3.5.0.Final",),
    needed_by="Kafka Connect",
    archive="plugin",
)
COLUMNS = "id BIGINT NOT NULL, customer TEXT NOT NULL, amount BIGINT NOT NULL, note TEXT"
FIELDS = [
    {"field": "id", "type": "int64", "optional": False},
    {"field": "customer", "type": "string", "optional": False},
    {"field": "amount", "type": "int64", "optional": False},
    {"field": "note", "type": "string", "optional": True},
]
ROW = {"type": "struct", "optional": False, "name": "shop.public.orders.Value", "fields": FIELDS}
KEY = {"type": "struct", "optional": False, "name": "shop.public.orders.Key", "fields": FIELDS[:1]}
SOURCE = {
    "type": "struct",
    "optional": False,
    "name": "io.debezium.connector.postgresql.Source",
    "field": "source",
    "fields": [
        {"field": "version", "type": "string", "optional": False},
        {"field": "connector", "type": "string", "optional": False},
        {"field": "name", "type": "string", "optional": False},
        {"field": "ts_ms", "type": "int64", "optional": False},
        {"field": "db", "type": "string", "optional": False},
        {"field": "schema", "type": "string", "optional": False},
        {"field": "table", "type": "string", "optional": False},
        {"field": "txId", "type": "int64", "optional": True},
        {"field": "lsn", "type": "int64", "optional": True},
    ],
}
CHANGE = {
    "type": "struct",
    "optional": False,
    "name": "shop.public.orders.Envelope",
    "version": 2,
    "fields": [
        {**ROW, "field": "before", "optional": True},
        {**ROW, "field": "after", "optional": True},
        SOURCE,
        {"field": "op", "type": "string", "optional": False},
        {"field": "ts_ms", "type": "int64", "optional": True},
    ],
}
TUNED: dict[str, Setting] = {
    "insert.mode": "insert",
    "primary.key.mode": "none",
    "batch.size": 5_000,
    "schema.evolution": "none",
    "consumer.override.max.poll.records": 5_000,
    "consumer.override.max.partition.fetch.bytes": 16 << 20,
    "consumer.override.fetch.max.bytes": 64 << 20,
}


class JdbcSink(Debezium):
    """Kafka Connect with the JDBC sink of Debezium."""

    def __init__(
        self, kafka: Kafka, target: Postgres, topic: str, table: str, tasks: int, more: Mapping[str, Setting]
    ) -> None:
        super().__init__(kafka, target, prefix=topic, jvm=("-Xmx2g", "-XX:+UseParallelGC"))
        self.connector = f"sink-{secrets.token_hex(4)}"  # and so its group
        self._target, self._topic, self._table, self._tasks, self._more = target, topic, table, tasks, more

    def _worker(self) -> dict[str, Setting]:
        return {
            **super()._worker(),
            "plugin.path": str(PLUGIN.fetched()),
            "offset.flush.interval.ms": 10_000,
            "connector.client.config.override.policy": "All",
        }

    def _connector(self) -> dict[str, Setting]:
        target = self._target
        url = f"jdbc:postgresql://{target.host}:{target.port}/{target.database}?reWriteBatchedInserts=true"
        return {
            "name": self.connector,
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "tasks.max": self._tasks,
            "topics": self._topic,
            "connection.url": url,
            "connection.username": target.user,
            "connection.password": target.password,
            "collection.name.format": self._table,
            "consumer.override.auto.offset.reset": "earliest",
            **TUNED,
            **self._more,
        }


class Load(NamedTuple):
    """Records of one kind, and how each side writes them."""

    name: str
    topic: str
    bar: float
    rows: int
    form: str
    into: Mapping[str, Any]
    settings: Mapping[str, Setting]


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "customer": f"customer-{number % 997}",
        "amount": number * 31 % 100_000,
        "note": "one order of very many",
    }


def enveloped(number: int) -> bytes:
    return msgspec.json.encode({"schema": ROW, "payload": row(number)})


def changed(number: int) -> bytes:
    """Half of the events create rows, half update them."""
    half = RECORDS // 2
    source = {
        "version": "3.6.2.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1704067200000 + number,
        "db": "shop", "schema": "public", "table": "orders", "txId": number, "lsn": 24_023_128 + number,
    }  # fmt: skip
    after, is_new = row(number % half), number < half
    after |= {} if is_new else {"amount": UPDATED + number}
    payload = {"before": None, "after": after, "source": source, "op": "c" if is_new else "u", "ts_ms": 1}
    return msgspec.json.encode({"schema": CHANGE, "payload": payload})


def key(number: int) -> bytes:
    return msgspec.json.encode({"schema": KEY, "payload": {"id": number % (RECORDS // 2)}})


def fill(kafka: Kafka, topic: str, value: Callable[[int], bytes]) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    settings = {"linger.ms": 50, "batch.num.messages": 10_000, "compression.type": "lz4"}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, **settings})
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(topic, value(number), key=key(number), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(120)


class Sides:
    """The servers, and both ways into a new table."""

    def __init__(self, kafka: Kafka, postgres: Postgres) -> None:
        self._kafka, self._postgres = kafka, postgres
        self.engine: Engine = create_engine(postgres.url)

    def _table(self, load: Load) -> str:
        name = f"t_{secrets.token_hex(4)}"
        with self.engine.begin() as conn:
            primary = ", PRIMARY KEY (id)" if load.into else ""
            conn.execute(text(f"CREATE TABLE {name} ({COLUMNS}{primary})"))
        return name

    def _written(self, table: str) -> int:
        """How many records are in the table: each row by itself, and those that were updated once more."""
        with self.engine.connect() as conn:
            counted = f"SELECT count(*) + count(*) FILTER (WHERE amount >= {UPDATED}) FROM {table}"
            return int(conn.execute(text(counted)).scalar_one())

    def ours(self, load: Load) -> float:
        """Records per second."""
        table, watch = self._table(load), Watch()
        with open_ledger(self._postgres.url) as ledger:
            app = App(self._kafka.bootstrap, ledger, observers=[watch])
            group = f"connect-{secrets.token_hex(6)}"
            app.sink(load.topic, into=Table(table, **load.into), group=group, format=load.form, batch=BOUNDS)
            app.run(until_caught_up=True, quiet=True)
        self._drop(table, load)
        return RECORDS / watch.took

    def theirs(self, load: Load, tasks: int) -> float:
        """Records per second, once the JVM is warm."""
        table = self._table(load)
        began, last = 0.0, time.perf_counter()
        first = written = 0
        with JdbcSink(self._kafka, self._postgres, load.topic, table, tasks, load.settings):
            while written < RECORDS:
                time.sleep(0.2)
                now, found = time.perf_counter(), self._written(table)
                if found > written:
                    written, last = found, now
                if not began and written >= WARM:
                    began, first = now, written
                if now - last > 60:
                    raise RuntimeError(f"Kafka Connect stopped at {written:,} of {RECORDS:,} records of {load.name}")
        self._drop(table, load)
        return (written - first) / (last - began)

    def _drop(self, table: str, load: Load) -> None:
        with self.engine.begin() as conn:
            count = conn.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
            assert count == load.rows, (load.name, count)
            conn.execute(text(f"DROP TABLE {table}"))


def run(report: Report) -> None:
    report.heading("Beside the Debezium JDBC sink on Kafka Connect, into PostgreSQL")
    upsert = {"mode": "upsert", "key": "id"}
    by_value: dict[str, Setting] = {
        "insert.mode": "upsert", "primary.key.mode": "record_value", "primary.key.fields": "id",
        "use.reduction.buffer": True,
    }  # fmt: skip
    by_key: dict[str, Setting] = {
        "insert.mode": "upsert", "primary.key.mode": "record_key", "delete.enabled": True, "use.reduction.buffer": True
    }  # fmt: skip
    loads = (
        Load("append", "rows", 5.0, RECORDS, "connect-json", {}, {}),
        Load("upsert", "rows", 3.0, RECORDS, "connect-json", upsert, by_value),
        Load("change events", "changes", 3.0, RECORDS // 2, "debezium", upsert, by_key),
    )
    with Kafka() as kafka, Postgres() as postgres:
        fill(kafka, "rows", enveloped)
        fill(kafka, "changes", changed)
        sides = Sides(kafka, postgres)
        print(
            f"{RECORDS:,} records of 4 columns as JSON with schemas, {PARTITIONS} partitions; {ROUNDS} rounds, in turns"
        )
        for load in loads:
            tasks = max((1, PARTITIONS), key=lambda tasks: sides.theirs(load, tasks))
            sides.ours(load)  # warms up
            pairs = [(sides.ours(load), sides.theirs(load, tasks)) for _ in range(ROUNDS)]
            ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
            detail = f"{ours:,.0f} records/s / {theirs:,.0f} records/s, with {tasks} tasks"
            ratio = statistics.median(mine / other for mine, other in pairs)
            report.figure(f"{load.name}: sink / Debezium JDBC sink", ratio, "x", at_least=load.bar, detail=detail)
        sides.engine.dispose()
