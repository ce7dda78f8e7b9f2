"""What records cost that name a schema, change rows or go into several tables, beside plain JSON of the same."""

from __future__ import annotations

import json
import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from sqlalchemy import Engine, create_engine, text

from benchmarks.report import Report
from benchmarks.sinks import BOUNDS, Watch
from tidegate import App, Table, open_ledger
from tidegate.core.schemas import Schema, SchemaKind, framed
from tidegate.kafka import RegistryClient, RegistrySettings
from tidegate.sandbox import Kafka, Postgres, Registry
from tidegate.spark import Pipeline
from tidegate.spark.session import SparkOptions, open_session
from tidegate.tables import Feed, SchemaFormat
from tidegate.tables.codec import codec_of
from tidegate.tables.column import Column
from tidegate.tables.format import Format, Wanted
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.types import ColumnType

SCALE = float(os.environ.get("FORMATS_BENCH_SCALE", "1"))  # less than 1: for a look, not for figures
RECORDS, PARTITIONS, ROUNDS = int(200_000 * SCALE), 4, 5
START = datetime(2024, 1, 1, tzinfo=UTC)
FLAT = (
    "id BIGINT NOT NULL, customer TEXT NOT NULL, quantity INTEGER NOT NULL, amount BIGINT NOT NULL, "
    "price DOUBLE PRECISION NOT NULL, paid BOOLEAN NOT NULL, at TIMESTAMPTZ NOT NULL, note TEXT"
)
NESTED = "id BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL, amount BIGINT NOT NULL, customer JSONB, lines JSONB, tags JSONB"
FLAT_COLUMNS = {
    "id": "integer",
    "customer": "text",
    "quantity": "integer",
    "amount": "integer",
    "price": "double",
    "paid": "boolean",
    "at": "timestamp",
    "note": "text",
}
NESTED_COLUMNS = {
    "id": "integer",
    "at": "timestamp",
    "amount": "integer",
    "customer": "json",
    "lines": "json",
    "tags": "json",
}
TABLES = 10  # that one topic is spread over, by the field quantity
TEN = tuple(f"orders_{number}" for number in range(TABLES))

Avro = dict[str, Any]


def _record(name: str, /, **fields: Any) -> Avro:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields.items()]}


AT = {"type": "long", "logicalType": "timestamp-millis"}
FLAT_AVRO = _record(
    "Order",
    id="long",
    customer="string",
    quantity="int",
    amount="long",
    price="double",
    paid="boolean",
    at=AT,
    note=["null", "string"],
)
NESTED_AVRO = _record(
    "Order",
    id="long",
    at=AT,
    amount="long",
    customer=_record("Customer", name="string", city="string", age=["null", "int"]),
    lines={"type": "array", "items": _record("Line", sku="string", quantity="int", price="double")},
    tags={"type": "array", "items": "string"},
)
FLAT_PROTOBUF = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1; string customer = 2; int32 quantity = 3; int64 amount = 4; double price = 5; bool paid = 6;
  google.protobuf.Timestamp at = 7; optional string note = 8;
}
"""


def flat(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "customer": f"customer-{number % 997}",
        "quantity": number % TABLES,
        "amount": number * 31 % 100_000,
        "price": number % 1000 / 8,
        "paid": number % 3 == 0,
        "at": START + timedelta(seconds=number),
        "note": None if number % 4 == 0 else "one order of very many",
    }


def nested(number: int) -> dict[str, Any]:
    lines = [{"sku": f"sku-{number % 99}-{each}", "quantity": each, "price": number % 100 / 4} for each in (1, 2)]
    return {
        "id": number,
        "at": START + timedelta(seconds=number),
        "amount": number * 31 % 100_000,
        "customer": {"name": f"customer-{number % 997}", "city": "Hamburg", "age": number % 90},
        "lines": lines,
        "tags": ["new", "web"],
    }


def change(number: int) -> bytes:
    """A change event of Debezium for PostgreSQL, without a schema: half of them create rows, half update them."""
    row = flat(number % (RECORDS // 2))
    row["at"] = row["at"].isoformat()
    source = {
        "version": "3.6.2.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1704067200000 + number,
        "snapshot": "false",
        "db": "shop",
        "sequence": f'["{24023128 + number}","{24023128 + number}"]',
        "schema": "public",
        "table": "orders",
        "txId": 555 + number,
        "lsn": 24023128 + number,
        "xmin": None,
    }
    is_new = number < RECORDS // 2
    event = {"before": None, "after": row, "source": source, "op": "c" if is_new else "u", "ts_ms": 1704067200000}
    return msgspec.json.encode(event | {"transaction": None})


class Formats:
    """The servers, the topics in each format, and the tables."""

    def __init__(self, kafka: Kafka, postgres: Postgres, registry: Registry) -> None:
        self.kafka, self.postgres, self.registry = kafka, postgres, registry
        self.engine: Engine = create_engine(postgres.url)
        self.client = RegistryClient(RegistrySettings(registry.url))

    def fill(
        self,
        topic: str,
        values: Iterable[bytes],
        keys: Callable[[int], bytes] | None = None,
        partitions: int = PARTITIONS,
    ) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        settings = {"linger.ms": 50, "batch.num.messages": 10_000, "compression.type": "lz4"}
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, **settings})
        for number, value in enumerate(values):
            while True:
                try:
                    producer.produce(topic, value, key=keys and keys(number), partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.flush(120)

    def encoder(self, topic: str, kind: SchemaKind, schema: str) -> Callable[[Any], bytes]:
        registered = Schema(kind, schema)
        number = self.client.id_of(f"{topic}-value", registered, register=True)
        codec = codec_of(registered)
        return lambda value: framed(number, codec.encode(value))

    def close(self) -> None:
        self.client.close()
        self.engine.dispose()

    def run(self, side: Side) -> tuple[float, float]:
        """Write topics into new tables.

        Return the seconds that all records would take if all took what those after the first commit do, and the
        processor's time of the sink.
        """
        watch = Watch()
        with self.engine.begin() as conn:
            for name in side.tables:
                conn.execute(text(f"CREATE TABLE {name} ({side.columns})"))
        began = time.process_time()
        with open_ledger(self.postgres.url) as ledger:
            app = App(self.kafka.bootstrap, ledger, observers=[watch], registry=self.registry.url)
            into = Table(side.name_of_table, **side.into)
            app.sink(side.topics, into=into, group=f"bench-{secrets.token_hex(6)}", format=side.form, batch=BOUNDS)
            app.run(until_caught_up=True, quiet=True)
        spent = time.process_time() - began
        with self.engine.begin() as conn:
            counts = [conn.execute(text(f"SELECT count(*) FROM {name}")).scalar_one() for name in side.tables]
            assert sum(counts) == side.rows, (side, counts)
            for name in side.tables:
                conn.execute(text(f"DROP TABLE {name}"))
        return watch.each * RECORDS, spent


@dataclass(frozen=True)
class Side:
    """Topics in one format, and the tables that their records go into."""

    name: str
    topics: tuple[str, ...]
    form: str = "json"
    columns: str = FLAT
    into: Mapping[str, Any] = field(default_factory=dict)
    rows: int = RECORDS
    name_of_table: str = "bench"
    tables: tuple[str, ...] = ("bench",)


class PipelineFormats:
    """The same topics, by pipelines of one session."""

    def __init__(self, formats: Formats, spark: SparkSession) -> None:
        self._formats, self._spark = formats, spark

    def run(self, side: Side) -> tuple[float, float]:
        """Write a topic into a new table; return the seconds that it takes, by the clock in both places."""
        formats = self._formats
        with formats.engine.begin() as conn:
            conn.execute(text(f"CREATE TABLE bench ({side.columns})"))
        began = time.perf_counter()
        Pipeline(
            side.topics[0],
            Table("bench", **side.into),
            group=f"bench-{secrets.token_hex(6)}",
            kafka=formats.kafka.bootstrap,
            ledger=formats.postgres.url,
            registry=formats.registry.url,
            format=side.form,
            max_records=RECORDS // 5,
            collect=0,
            spark=self._spark,
        ).run(available_now=True)
        took = time.perf_counter() - began
        with formats.engine.begin() as conn:
            assert conn.execute(text("SELECT count(*) FROM bench")).scalar_one() == side.rows
            conn.execute(text("DROP TABLE bench"))
        return took, took


def compare(formats: Formats | PipelineFormats, report: Report, ours: Side, plain: Side, bar: float | None) -> None:
    """Both in turns; the ratio of records per second."""
    ratios, rates, costs = [], [], []
    for number in range(ROUNDS + 1):
        first, second = (plain, ours) if number % 2 else (ours, plain)
        took = {first.name: formats.run(first), second.name: formats.run(second)}
        if number:  # the first round warms up
            (seconds, spent), (its_seconds, its_spent) = took[ours.name], took[plain.name]
            ratios.append(its_seconds / seconds)
            rates.append(RECORDS / seconds)
            costs.append(spent / its_spent)
    by = "pipeline: " if isinstance(formats, PipelineFormats) else ""
    detail = f"median of {ROUNDS} ({min(ratios):.2f}-{max(ratios):.2f}); {statistics.median(rates):,.0f} records/s"
    detail += "" if by else f"; processor time: {statistics.median(costs):.2f} x"
    report.figure(
        f"{by}{ours.name} / {plain.name}, records per second",
        statistics.median(ratios),
        "x",
        at_least=bar,
        detail=detail,
    )


def decoding(report: Report, name: str, form: Format, values: list[bytes], columns: Mapping[str, str]) -> None:
    """What one core decodes into columns, without broker and database."""
    wanted = [Wanted(Column(each, ColumnType.of(kind), ""), (each,)) for each, kind in columns.items()]
    reader, feed = form.reader(wanted), Feed(value=values)
    took = []
    for _ in range(ROUNDS):
        began = time.process_time()
        reader.read(feed)
        took.append(time.process_time() - began)
    report.figure(f"{name}, decoded into columns by one core", len(values) / min(took) / 10**6, "million/s")


def run(report: Report) -> None:
    with Kafka() as kafka, Postgres() as postgres, Registry() as registry:
        formats = Formats(kafka, postgres, registry)
        report.heading("Formats, by a sink of one process into PostgreSQL")
        print(
            f"{RECORDS:,} records, {PARTITIONS} partitions, {BOUNDS}; 8 fields if not nested; {ROUNDS} rounds, in turns"
        )
        in_avro = formats.encoder("avro", SchemaKind.AVRO, json.dumps(FLAT_AVRO))
        nested_avro = formats.encoder("nested_avro", SchemaKind.AVRO, json.dumps(NESTED_AVRO))
        in_protobuf = formats.encoder("protobuf", SchemaKind.PROTOBUF, FLAT_PROTOBUF)
        numbers = range(RECORDS)
        formats.fill("json", (msgspec.json.encode(flat(number)) for number in numbers))
        formats.fill("avro", (in_avro(flat(number)) for number in numbers))
        formats.fill("protobuf", (in_protobuf(flat(number)) for number in numbers))
        formats.fill("nested_json", (msgspec.json.encode(nested(number)) for number in numbers))
        formats.fill("nested_avro", (nested_avro(nested(number)) for number in numbers))
        half = RECORDS // 2
        formats.fill("plain", (msgspec.json.encode(flat(number % half)) for number in numbers))
        formats.fill("changes", map(change, numbers), lambda number: b'{"id":%d}' % (number % half))

        for number, topic in enumerate(TEN):
            few = range(number, RECORDS, len(TEN))
            formats.fill(topic, (msgspec.json.encode(flat(each)) for each in few), partitions=1)

        some = range(min(RECORDS, 20_000))
        avro, protobuf = (SchemaFormat(name, registry=formats.client) for name in ("avro", "protobuf"))
        decoding(report, "flat JSON", JsonFormat(), [msgspec.json.encode(flat(each)) for each in some], FLAT_COLUMNS)
        decoding(report, "flat Avro", avro, [in_avro(flat(each)) for each in some], FLAT_COLUMNS)
        decoding(report, "Protobuf", protobuf, [in_protobuf(flat(each)) for each in some], FLAT_COLUMNS)
        decoding(report, "nested Avro", avro, [nested_avro(nested(each)) for each in some], NESTED_COLUMNS)

        plain = Side("JSON", ("json",))
        upsert, keyed = {"mode": "upsert", "key": "id"}, f"{FLAT}, PRIMARY KEY (id)"
        numbered = tuple(f"bench_{number}" for number in range(TABLES))
        for ours, its, bar in (
            (Side("flat Avro", ("avro",), "avro"), plain, 1.0),
            (Side("Protobuf", ("protobuf",), "protobuf"), plain, 0.7),
            (
                Side("nested Avro", ("nested_avro",), "avro", NESTED),
                Side("nested JSON", ("nested_json",), "json", NESTED),
                0.4,
            ),
            (
                Side("change events", ("changes",), "debezium", keyed, upsert, half),
                Side("upsert of JSON", ("plain",), "json", keyed, upsert, half),
                0.6,
            ),
            (
                Side("ten topics into ten tables", TEN, name_of_table="{topic}", tables=TEN),
                Side("ten topics into one", TEN),
                0.8,
            ),
            (
                Side("ten tables by a field", ("json",), name_of_table="bench_{value.quantity}", tables=numbered),
                plain,
                None,
            ),
        ):
            compare(formats, report, ours, its, bar)

        spark = open_session(SparkOptions("local[2]", conf={"spark.driver.memory": "2g"}))
        compare(PipelineFormats(formats, spark), report, Side("flat Avro", ("avro",), "avro"), plain, 1.0)
        spark.stop()
        formats.close()
