"""A real Debezium with a converter for Avro and a registry: sinks, a route and a pipeline leave the source's rows."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from time import monotonic, sleep
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer as Client
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from tests.patience import PATIENCE, wait_until
from tests.spark.orders import Place

from tidegate import App, Table
from tidegate.observe import Event, StoreBack, StoreLost
from tidegate.sandbox import Debezium, Kafka, MariaDB, Postgres, Registry
from tidegate.spark import Pipeline
from tidegate.tables import Part, Route

KINDS = """
id bigint PRIMARY KEY, n numeric(10,2), v numeric, d date, ts timestamp, tz timestamptz, tm time, iv interval,
j jsonb, raw bytea, f4 real, f8 double precision, bits bit(3), ar int[], days date[], ok boolean, u uuid, s smallint,
word text NOT NULL DEFAULT 'x', note text
"""
FULL = (
    "1.50, -123.456, '2024-02-03', '2024-02-03 04:05:06.789012', '2024-02-03 04:05:06.789012+00', '03:04:05.678901', "
    "'26:03:04', '{\"a\": [1]}', '\\x0001ff', 1.1, -1e300, B'101', '{1,NULL,3}', '{2024-01-02}', true, "
    "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', -7, 'ü'"
)
LONG = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i)"
CHANGES = f"""
INSERT INTO kinds (id) VALUES (2), (4);
UPDATE kinds SET n = 2.25, v = NULL WHERE id = 1;
UPDATE kinds SET id = 3 WHERE id = 2;
DELETE FROM kinds WHERE id = 4;
INSERT INTO lines VALUES (1, 1, 'a'), (1, 2, 'b');
UPDATE lines SET line = 9 WHERE line = 2;
BEGIN; INSERT INTO kinds (id) VALUES (50); ROLLBACK;
INSERT INTO brief VALUES (1); TRUNCATE brief; INSERT INTO brief VALUES (2);
ALTER TABLE kinds ADD COLUMN extra numeric(8,3);
UPDATE kinds SET extra = 1.125 WHERE id = 1;
INSERT INTO kinds (id, extra, note) VALUES (5, NULL, {LONG})
"""


def plain(name: str, value: Any) -> Any:
    match value:
        case Decimal() | float() | bool():
            return Decimal(str(float(value))) if not isinstance(value, Decimal) else value.normalize()
        case bytes() | memoryview():
            return bytes(value)
        case datetime():
            return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        case str() if name in ("j", "ar", "days"):
            return json.loads(value)
        case time():
            return value.isoformat()
        case timedelta():
            return f"{value // timedelta(hours=1):02}:{value // timedelta(minutes=1) % 60:02}:{value.seconds % 60:02}"
        case UUID():
            return str(value)
        case list():
            return [each.isoformat() if isinstance(each, date) else each for each in value]
        case int():
            return Decimal(value).normalize()
    return value


class Shop:
    """The source, and what reads its changes."""

    def __init__(self, source: Postgres, kafka: Kafka, registry: Registry) -> None:
        self.prefix = f"shop{secrets.token_hex(3)}"
        self.engine = create_engine(source.url, isolation_level="AUTOCOMMIT")
        self.kafka, self.registry = kafka, registry
        self.client = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}

    def run(self, statements: str) -> None:
        with self.engine.connect() as conn:
            for statement in statements.split(";"):
                conn.exec_driver_sql(statement.replace("%", "%%"))

    def rows(self, table: str, engine: Any = None, name: str = "") -> list[dict[str, Any]]:
        """The rows by the order of their keys, without nulls: a column may not be there yet."""
        order = "1, 2" if table == "lines" else "1"
        with (engine or self.engine).connect() as conn:
            found = conn.exec_driver_sql(f"SELECT * FROM {name or table} ORDER BY {order}").mappings().all()
        return [{key: plain(key, value) for key, value in row.items() if value is not None} for row in found]

    def topic(self, table: str) -> str:
        return f"{self.prefix}.public.{table}"

    def name(self, table: str) -> str:
        return self.topic(table).replace(".", "_")

    def app(self, place: Place, observers: Any) -> App:
        """A sink of two tables by themselves, and a route to all of them that also reads what stands beside them."""
        app = App(self.client, place.ledger, registry=self.registry.url, observers=observers)
        how: dict[str, Any] = {"mode": "upsert", "create": True, "evolve": True}
        for table in ("kinds", "brief"):
            into = Table(f"{place.name}_{table}", key=["id"], **how)
            app.sink(self.topic(table), into=into, group=f"{place.name}-{table}", format="debezium-avro")
        beside = rf"__debezium-heartbeat\.{self.prefix}|{self.prefix}\.transaction"
        app.sink(
            re.compile(rf"^({beside}|{self.prefix}\.public\.(kinds|lines))$"),
            into=Route(Part(Table("{topic}", key="{key}", **how)), most_tables=10_000),  # of other tests, too
            group=f"{place.name}-route",
            format="debezium-avro",
        )
        return app

    def differ(self, place: Place) -> Iterator[str]:
        """The tables whose rows are not those of the source."""
        tables = [(table, f"{place.name}_{table}") for table in ("kinds", "brief")]
        for table, name in (*tables, *((table, self.name(table)) for table in ("kinds", "lines"))):
            try:
                found, wanted = self.rows(table, place.engine, name), self.rows(table)
            except SQLAlchemyError:
                yield f"{name} is not there yet"
                continue
            if found != wanted:
                yield f"{name}: {found}, not {wanted}"

    def wait_until_equal(self, places: list[Place]) -> None:
        deadline = monotonic() + PATIENCE
        while wrong := [each for place in places for each in self.differ(place)]:
            assert monotonic() < deadline, wrong
            sleep(0.2)

    def pipe(self, place: Place, spark: SparkSession, **more: Any) -> None:
        Pipeline(
            self.topic("kinds"),
            Table(f"{place.name}_piped", key=["id"], mode="upsert", create=True, evolve=True),
            group=f"{place.name}-piped",
            format="debezium-avro",
            registry=self.registry.url,
            kafka=self.kafka.bootstrap,
            ledger=place.ledger,
            spark=spark,
            **more,
        ).run(available_now=True)


@contextmanager
def running(app: App) -> Iterator[None]:
    thread = threading.Thread(target=lambda: app.run(quiet=True))
    thread.start()
    try:
        yield
    finally:
        app.stop()
        thread.join(60)
        assert not thread.is_alive()


class Seen:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def has(self, kind: type[Event]) -> bool:
        return any(isinstance(each, kind) for each in self.events)


@pytest.fixture
def shop(kafka: Kafka) -> Iterator[Shop]:
    with Postgres(settings={"wal_level": "logical"}) as source, Registry() as registry:
        made = Shop(source, kafka, registry)
        made.run(
            f"CREATE TABLE kinds ({KINDS}); CREATE TABLE lines (a int, line int, sku text, PRIMARY KEY (a, line));"
            f"CREATE TABLE brief (id int PRIMARY KEY);"
            f"INSERT INTO kinds VALUES (1, {FULL}, {LONG});"
            "INSERT INTO lines VALUES (7, 7, 'first'); INSERT INTO brief VALUES (7)"
        )
        settings = {"heartbeat.interval.ms": 300, "provide.transaction.metadata": True}
        with Debezium(kafka, source, prefix=made.prefix, partitions=1, registry=registry, settings=settings):
            yield made
        made.engine.dispose()


def test_rows_of_a_source_are_left_in_each_database(
    shop: Shop, postgres: Postgres, mariadb: MariaDB, spark: SparkSession
) -> None:
    # A task of Connect that has to register a schema while the registry is away fails for good.
    topics = {f"__debezium-heartbeat.{shop.prefix}", *map(shop.topic, ("kinds", "lines", "brief"))}
    admin = AdminClient(shop.client)
    wait_until(lambda: topics <= admin.list_topics(timeout=10).topics.keys(), "the snapshot and a heartbeat")
    shop.registry.kill()
    places = [Place(postgres.url), Place(mariadb.url)]
    seen = [Seen() for _ in places]
    with ExitStack() as stack:
        for place, each in zip(places, seen, strict=True):
            stack.enter_context(running(shop.app(place, each)))
        wait_until(lambda: all(each.has(StoreLost) for each in seen), "the registry is away")
        shop.registry.start()
        wait_until(lambda: all(each.has(StoreBack) for each in seen), "the registry is back")
        shop.run(CHANGES)
        shop.wait_until_equal(places)
        shop.run(f"UPDATE kinds SET note = {LONG} WHERE id = 3; UPDATE kinds SET extra = 9 WHERE note IS NOT NULL")
        client = Client(shop.client)
        for value in (b"garbage", b"\0\0\0\x30\x39garbage"):
            client.produce(shop.topic("kinds"), value, b"\0\0\0\x30\x39")
        client.flush(30)
        shop.run("DELETE FROM kinds WHERE id = 5; UPDATE kinds SET word = 'last' WHERE id = 1")
        shop.wait_until_equal(places)
    for place in places:
        for group in ("kinds", "route"):
            whys = [each.letter.error for each in place.ledger.dead_letters(f"{place.name}-{group}")]
            assert len(whys) == 2, whys
            assert all("does not know the id 12345" in why and "garbage" not in why for why in whys)
        assert list(place.ledger.dead_letters(f"{place.name}-brief")) == []
    piped = places[0]
    shop.pipe(piped, spark, collect=0, max_records=4)
    shop.run("UPDATE kinds SET n = 7 WHERE id = 3")
    wait_until(lambda: is_piped(shop, piped, spark), "the pipeline has read the last change")
    assert len(list(piped.ledger.dead_letters(f"{piped.name}-piped"))) == 2
    for place in places:
        place.close()


def is_piped(shop: Shop, place: Place, spark: SparkSession) -> bool:
    shop.pipe(place, spark)
    return shop.rows("kinds", place.engine, f"{place.name}_piped") == shop.rows("kinds")
