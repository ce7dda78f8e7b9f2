"""Listeners of values that name a schema of a registry: bound to classes, models and dictionaries."""

from __future__ import annotations

import json
import secrets
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pydantic
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.ports import refused_port
from tests.tables.avro.values import logical

from tidegate import App, DeadLetter, Delivery, Producer, Record, TopicPartition, Transaction, open_ledger
from tidegate.app.schema_decoder import SchemaDecoder
from tidegate.core.schemas import Schema, SchemaKind, framed
from tidegate.errors import ConfigurationError
from tidegate.kafka import SchemaSerializer
from tidegate.observe import StoreLost
from tidegate.sandbox import Kafka, Registry

LINE = {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": logical("bytes", "decimal", precision=9, scale=2)},
        {"name": "at", "type": logical("long", "timestamp-micros")},
        {"name": "day", "type": logical("int", "date")},
        {"name": "time", "type": logical("int", "time-millis")},
        {"name": "key", "type": logical("string", "uuid")},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "weight", "type": "double"},
    ],
}


class Color(Enum):
    RED = "RED"
    GREEN = "GREEN"


@dataclass(frozen=True)
class Line:
    n: int


@dataclass(frozen=True)
class Order:
    id: int
    total: Decimal
    at: datetime
    day: date
    time: time
    key: UUID
    color: Color
    raw: bytes | None
    lines: list[Line]
    weight: float
    note: str = "none"


class Model(pydantic.BaseModel):
    id: int
    total: Decimal
    at: datetime
    color: Color
    raw: bytes | None
    lines: list[Line]


ORDER = Order(
    7,
    Decimal("1.50"),
    datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC),
    date(2024, 2, 29),
    time(1, 2, 3),
    UUID(int=5),
    Color.GREEN,
    b"\x00\xff",
    [Line(1), Line(2)],
    0.5,
)
SENT = {name: getattr(ORDER, name) for name in Order.__dataclass_fields__ if name != "note"}


@pytest.fixture
def topic(kafka: Kafka, registry: Registry) -> str:
    """A topic with an order, one whose weight is no number, one of an unknown schema, and a tombstone."""
    name = f"orders-{secrets.token_hex(4)}"
    client = {"bootstrap.servers": kafka.bootstrap}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(name, 1)])[name].result(30)
    with Producer(client, registry=registry.url, value_serializer=SchemaSerializer(SCHEMA)) as producer:
        producer.send(name, SENT)
        producer.send(name, {**SENT, "weight": float("nan")})
    with Producer(client) as producer:
        producer.send(name, b"\0\x7f\xff\xff\xffsecret")
    return name


@pytest.mark.parametrize("delivery", [Delivery.EXACTLY_ONCE, Delivery.AT_MOST_ONCE])
def test_values_are_bound_to_classes_models_and_dictionaries(
    topic: str, kafka: Kafka, registry: Registry, tmp_path: Path, delivery: Delivery
) -> None:
    app = App({"bootstrap.servers": kafka.bootstrap}, f"sqlite:///{tmp_path / 'shop.db'}", registry=registry.url)
    seen: dict[str, list[Any]] = {"class": [], "model": [], "dict": []}
    settings: dict[str, Any] = {"decoder": "avro", "on_error": DeadLetter(), "delivery": delivery}

    @app.listener(topic, group="class", **settings)
    def take_class(order: Order) -> None:
        seen["class"].append(order)

    @app.listener(topic, group="model", **settings)
    def take_model(order: Model) -> None:
        seen["model"].append(order)

    @app.listener(topic, group="dict", **settings)
    def take_dict(orders: list[dict[str, Any]]) -> None:
        seen["dict"] += orders

    app.run(until_caught_up=True, quiet=True)
    assert seen["class"] == [ORDER]
    first, second = seen["model"]
    assert [getattr(first, name) for name in Model.model_fields] == [
        getattr(ORDER, name) for name in Model.model_fields
    ]
    assert seen["dict"][0] == {**SENT, "color": "GREEN", "lines": [{"n": 1}, {"n": 2}]}
    assert len(seen["dict"]) == 2
    assert second.id == 7
    assert app.ledger is not None
    unknown = "DecodingError: the schema registry does not know the id 2147483647"
    assert [each.letter.error for each in app.ledger.dead_letters("class")] == [
        "DecodingError: a value that is NaN or Infinity; take it as a dict",
        unknown,
    ]
    assert [each.letter.error for each in app.ledger.dead_letters("model")] == [unknown]
    app.ledger.close()


@pytest.mark.parametrize("takes", ["records", "transaction"])
def test_at_most_once_the_position_does_not_move_while_the_registry_is_away(
    topic: str, kafka: Kafka, tmp_path: Path, takes: str
) -> None:
    """A record whose schema cannot be had is not lost: it is asked for before the position moves."""
    lost = threading.Event()
    app = App(
        {"bootstrap.servers": kafka.bootstrap},
        f"sqlite:///{tmp_path / 'shop.db'}",
        registry=f"http://127.0.0.1:{refused_port()}",
        observers=lambda event: lost.set() if isinstance(event, StoreLost) else None,
    )

    def take(order: Order) -> None: ...

    def take_in_transaction(order: Order, tx: Transaction) -> None: ...

    handler: Any = take if takes == "records" else take_in_transaction
    app.listener(topic, group="g", decoder="avro", delivery=Delivery.AT_MOST_ONCE, on_error=DeadLetter())(handler)
    thread = threading.Thread(target=lambda: app.run(quiet=True))
    thread.start()
    assert lost.wait(60)
    app.stop()
    thread.join(60)
    assert not thread.is_alive()
    with open_ledger(f"sqlite:///{tmp_path / 'shop.db'}") as ledger:
        assert ledger.read("g").positions[TopicPartition(topic, 0)].next_offset == 0
        assert ledger.dead_letters("g") == []


def test_what_is_not_possible_is_refused_by_name(registry: Registry) -> None:
    app = App(registry=registry.url)
    with pytest.raises(ConfigurationError, match="in a pool, values that name a schema are not decoded yet"):

        @app.listener("t", group="g", decoder="avro", workers=2)
        def compute(order: Order) -> None: ...

    with pytest.raises(ConfigurationError, match="needs a schema registry"):

        @App().listener("t", group="g", decoder="avro")
        def take(order: Order) -> None: ...


@dataclass(frozen=True)
class Former:
    id: int
    town: str


class FormerModel(pydantic.BaseModel):
    id: int
    town: str


@pytest.mark.parametrize("kind", [Former, FormerModel])
def test_a_renamed_field_fills_the_one_that_has_its_former_name(kind: type) -> None:
    class Named:
        def by_id(self, number: int) -> Schema:
            town = {"name": "city", "type": "string", "aliases": ["town"]}
            fields = [{"name": "id", "type": "long"}, town]
            return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "O", "fields": fields}))

    decode = SchemaDecoder(SchemaKind.AVRO, Named()).decoder(kind, False, None)  # type: ignore[arg-type]
    assert decode(Record("t", 0, 0, None, framed(1, b"\x02\x02a"), (), None)) == kind(id=1, town="a")
    as_dict = SchemaDecoder(SchemaKind.AVRO, Named()).decoder(dict, False, None)  # type: ignore[arg-type]
    assert as_dict(Record("t", 0, 0, None, framed(1, b"\x02\x02a"), (), None)) == {"id": 1, "city": "a"}
