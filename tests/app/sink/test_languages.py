"""Protobuf and JSON Schema through a real broker and registry: a producer, a sink, and listeners."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import BaseModel
from sqlalchemy import create_engine, text

from tidegate import App, DeadLetter, Producer, Table
from tidegate.kafka import SchemaSerializer
from tidegate.sandbox import Kafka, Registry
from tidegate.tables import Part

PROTO = """
syntax = "proto3";
import "google/protobuf/duration.proto";
import "google/protobuf/timestamp.proto";
import "google/type/decimal.proto";
message Order {
  int64 id = 1; google.type.Decimal price = 2; Kind kind = 3; google.protobuf.Timestamp at = 4; bytes raw = 5;
  repeated Line lines = 6; optional string note = 7; google.protobuf.Duration took = 8;
}
message Line { string sku = 1; }
enum Kind { NEW = 0; OLD = 1; }
"""
JSON = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "kind": {"enum": ["NEW", "OLD"]},
        "at": {"type": "string", "format": "date-time"},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "lines": {"type": "array", "items": {"properties": {"sku": {"type": "string"}}}},
        "note": {"type": ["null", "string"]},
        "took": {"type": "string"},
    },
    "required": ["id"],
}
LANGUAGES = [("protobuf", PROTO), ("json-schema", JSON)]
AT = datetime(2024, 2, 29, 12, 30, 0, 5, UTC)


class Kind(Enum):
    NEW = "NEW"
    OLD = "OLD"


@dataclass
class Line:
    sku: str


@dataclass
class Order:
    id: int
    price: Decimal
    kind: Kind
    at: datetime
    raw: bytes
    lines: list[Line]
    took: str | timedelta
    note: str | None = None


@dataclass
class Timed:
    """An order, of which a listener takes the duration as one."""

    id: int
    took: timedelta
    raw: bytes
    lines: list[Line]
    kind: Kind


@dataclass
class Wrong:
    id: str


class Model(BaseModel):
    id: int
    price: Decimal
    kind: Kind
    at: datetime
    lines: list[Line]
    note: str | None = None


ORDERS = [
    Order(1, Decimal("1.50"), Kind.OLD, AT, b"\0\xff", [Line("a"), Line("b")], "PT1.5S", "first"),
    Order(2, Decimal("-0.01"), Kind.NEW, AT, b"", [], "PT0S"),
]


@pytest.fixture
def url(postgres: Any) -> str:
    return str(postgres.url)


class Flow:
    """A topic, and what reads it with a ledger of its own."""

    def __init__(self, kafka: Kafka, registry: Registry, url: str) -> None:
        self.topic = f"flow-{secrets.token_hex(4)}"
        self.table = f"t_{secrets.token_hex(4)}"
        self.url = url
        self._registry = registry.url
        self._kafka = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
        admin = AdminClient(self._kafka)
        admin.create_topics([NewTopic(self.topic, 1, 1)])[self.topic].result(60)
        self._apps: list[App] = []

    def send(self, name: str, schema: Any, *values: Any) -> None:
        write = SchemaSerializer(schema, name)
        with Producer(self._kafka, registry=self._registry, value_serializer=write) as producer:
            for value in values:
                producer.send(self.topic, value)

    def send_bytes(self, *values: bytes) -> None:
        with Producer(self._kafka) as producer:
            for value in values:
                producer.send(self.topic, value)

    def app(self) -> App:
        self._apps.append(App(self._kafka, self.url, registry=self._registry))
        return self._apps[-1]

    def close(self) -> None:
        for app in self._apps:
            assert app.ledger is not None
            app.ledger.close()

    def rows(self, columns: str) -> list[tuple[Any, ...]]:
        engine = create_engine(self.url)
        with engine.connect() as conn:
            found = [tuple(row) for row in conn.execute(text(f"SELECT {columns} FROM {self.table} ORDER BY id"))]
        engine.dispose()
        return found


@pytest.fixture
def flow(kafka: Kafka, registry: Registry, url: str) -> Iterator[Flow]:
    opened = Flow(kafka, registry, url)
    yield opened
    opened.close()


@pytest.mark.parametrize(("name", "schema"), LANGUAGES)
def test_a_producers_records_become_rows_and_garbage_is_parked(flow: Flow, name: str, schema: Any) -> None:
    flow.send(name, schema, ORDERS[0])
    flow.send_bytes(b"garbage", b"\0\x7f\xff\xff\xffsecret")
    flow.send(name, schema, ORDERS[1])
    app = flow.app()
    app.sink(flow.topic, into=Table(flow.table, create=True), group=flow.table, format=name)
    app.run(until_caught_up=True, quiet=True)
    assert flow.rows("id, price, kind, at, raw, lines, note, took") == [
        (1, Decimal("1.50"), "OLD", AT, b"\0\xff", [{"sku": "a"}, {"sku": "b"}], "first", "PT1.5S"),
        (2, Decimal("-0.01"), "NEW", AT, b"", [], None, "PT0S"),
    ]
    assert app.ledger is not None
    errors = [each.letter.error for each in app.ledger.dead_letters(flow.table, limit=10)]
    assert len(errors) == 2
    assert any("does not begin with the id of a schema" in error for error in errors)
    assert any("does not know the id 2147483647" in error for error in errors)
    assert "secret" not in "".join(errors)


@pytest.mark.parametrize(("name", "schema"), LANGUAGES)
def test_a_route_chooses_by_fields_and_takes_the_elements_of_arrays(flow: Flow, name: str, schema: Any) -> None:
    flow.send(name, schema, *ORDERS)
    app = flow.app()
    old = Part(Table(flow.table, create=True), where={"value.kind": "OLD"}, columns={"id": "value.id"})
    sources = {"id": "index", "order_id": "value.id", "sku": "each.sku", "price": "value.price"}
    lines = Part(Table(f"{flow.table}_lines", create=True), each="value.lines", columns=sources)
    app.sink(flow.topic, into=[old, lines], group=flow.table, format=name)
    app.run(until_caught_up=True, quiet=True)
    assert app.ledger is not None
    assert not app.ledger.dead_letters(flow.table)
    assert flow.rows("id") == [(1,)]
    flow.table += "_lines"
    assert flow.rows("id, order_id, sku, price") == [(0, 1, "a", Decimal("1.50")), (1, 1, "b", Decimal("1.50"))]


@pytest.mark.parametrize(("name", "schema"), LANGUAGES)
def test_listeners_get_what_they_get_from_json(flow: Flow, name: str, schema: Any) -> None:
    flow.send(name, schema, *ORDERS)
    app = flow.app()
    orders: list[Order] = []
    timed: list[Timed] = []
    models: list[Model] = []
    plain: list[dict[str, Any]] = []

    @app.listener(flow.topic, group=f"{flow.table}-a", decoder=name)
    def take_order(order: Order) -> None:
        orders.append(order)

    @app.listener(flow.topic, group=f"{flow.table}-b", decoder=name)
    def take_timed(order: Timed) -> None:
        timed.append(order)

    @app.listener(flow.topic, group=f"{flow.table}-c", decoder=name)
    def take_model(order: Model) -> None:
        models.append(order)

    @app.listener(flow.topic, group=f"{flow.table}-d", decoder=name)
    def take_dict(order: dict[str, Any]) -> None:
        plain.append(order)

    app.run(until_caught_up=True, quiet=True)
    assert [(each.id, each.price, each.kind, each.at, each.raw, each.lines, each.note) for each in orders] == [
        (each.id, each.price, each.kind, each.at, each.raw, each.lines, each.note) for each in ORDERS
    ]
    assert [each.took for each in timed] == [timedelta(seconds=1.5), timedelta(0)]
    assert [(each.price, each.kind, each.at) for each in models] == [(e.price, e.kind, e.at) for e in ORDERS]
    assert [(each["id"], each["price"], each["lines"]) for each in plain] == [
        (1, Decimal("1.50"), [{"sku": "a"}, {"sku": "b"}]),
        (2, Decimal("-0.01"), []),
    ]


@pytest.mark.parametrize(("name", "schema"), LANGUAGES)
def test_a_listener_parks_what_does_not_fit_its_type(flow: Flow, name: str, schema: Any) -> None:
    flow.send(name, schema, ORDERS[0])
    app = flow.app()

    @app.listener(flow.topic, group=flow.table, decoder=name, on_error=DeadLetter())
    def take(order: Wrong) -> None:
        raise AssertionError("never called")

    app.run(until_caught_up=True, quiet=True)
    assert app.ledger is not None
    errors = [each.letter.error for each in app.ledger.dead_letters(flow.table, limit=10)]
    assert len(errors) == 1
    assert "id: expected a string, got a number" in errors[0]
