"""Sinks of records that name a schema of a registry: from a producer, through a real registry, into each database."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, text
from tests.tables.avro.values import EVERY_TYPE, every_type, logical, rows_of_every_type

from tidegate import App, Producer, Table
from tidegate.core.schemas import Schema, SchemaKind
from tidegate.errors import ConfigurationError, SerializationError
from tidegate.kafka import RegistrySettings, SchemaSerializer
from tidegate.observe import Event, StoreBack, StoreLost
from tidegate.sandbox import Kafka, Registry
from tidegate.tables import Part, Route, SchemaFormat


class Store:
    """A topic of a test, and the table that its records go to."""

    def __init__(self, kafka: Kafka, registry: Registry, url: str) -> None:
        self.kafka, self.url, self.registry = kafka, url, registry
        self.topic = f"avro-{secrets.token_hex(4)}"
        self.table = f"t_{secrets.token_hex(4)}"
        self.client = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
        admin = AdminClient(self.client)
        admin.create_topics([NewTopic(self.topic, 1)])[self.topic].result(30)

    def send(self, schema: Any, *values: Any, keys: tuple[Any, Any] | None = None) -> None:
        """Send values by a schema, registered under the topic; ``keys`` are the schema of keys, and a field or None."""
        by_key = {} if keys is None else {"key_serializer": SchemaSerializer(keys[0])}
        with Producer(
            self.client, registry=self.registry.url, value_serializer=SchemaSerializer(schema), **by_key
        ) as producer:
            for value in values:
                key = None if keys is None else keys[1](value)
                producer.send(self.topic, value[1] if isinstance(value, tuple) else value, key=key)

    def send_bytes(self, *values: bytes | None, headers: dict[str, bytes] | None = None) -> None:
        with Producer(self.client) as producer:
            for value in values:
                producer.send(self.topic, value, headers=headers)

    def app(self, **more: Any) -> App:
        return App(self.client, self.url, **{"registry": self.registry.url, **more})

    def sink(self, table: dict[str, Any] | None = None, **more: Any) -> None:
        """Read the topic to its end."""
        app = self.app()
        into = Table(self.table, **{"create": True, **(table or {})})
        app.sink(self.topic, into=into, group=self.table, **{"format": "avro", **more})
        app.run(until_caught_up=True, quiet=True)
        assert app.ledger is not None
        app.ledger.close()

    def rows(self, columns: str = "*", order: str = "id", table: str = "") -> list[Any]:
        engine = create_engine(self.url)
        name = f"{self.table}{table}"
        with engine.connect() as conn:
            found = conn.execute(text(f"SELECT {columns} FROM {name} ORDER BY {order}")).mappings().all()
        engine.dispose()
        return [dict(row) for row in found]

    def route(self, *parts: Part, **more: Any) -> None:
        """Read the topic to its end, into several tables."""
        app = self.app()
        into = Route(list(parts), **more.pop("route", {}))
        app.sink(self.topic, into=into, group=self.table, **{"format": "avro", **more})
        app.run(until_caught_up=True, quiet=True)
        assert app.ledger is not None
        app.ledger.close()

    def letters(self) -> list[str]:
        app = self.app()
        assert app.ledger is not None
        found = [each.letter.error for each in app.ledger.dead_letters(self.table)]
        app.ledger.close()
        return found


@pytest.fixture
def store(kafka: Kafka, registry: Registry, url: str) -> Store:
    """A store on each database."""
    return Store(kafka, registry, url)


@pytest.fixture
def lite(kafka: Kafka, registry: Registry, tmp_path: Any) -> Store:
    return Store(kafka, registry, f"sqlite:///{tmp_path / 'one.db'}")


def as_read(name: str, value: Any) -> Any:
    """Return a value of a database as Avro has it."""
    kind = EVERY_TYPE[name][0]
    if value is None:
        return None
    if name == "a_boolean":
        return bool(value)
    if name in ("some_bytes", "a_fixed"):
        return bytes(value)
    if name in ("a_list", "a_map", "nested", "either"):
        return json.loads(value) if isinstance(value, str) and value != "one" else value  # psycopg parses JSON itself
    if "decimal" in name:
        return Decimal(str(value))
    if name == "a_date":
        return date.fromisoformat(str(value))
    if name in ("at_millis", "at_micros", "local"):
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
        return moment.replace(tzinfo=None) if name == "local" else moment
    if "time" in name:
        return type(EVERY_TYPE[name][1][0]).fromisoformat(str(value))
    assert kind is not None
    return value


def test_every_type_goes_from_a_producer_into_a_table_that_its_schema_creates(store: Store) -> None:
    store.send(every_type(), *rows_of_every_type())
    store.sink({"key": ["id"], "mode": "upsert"})
    assert store.letters() == []
    assert [{name: as_read(name, value) for name, value in row.items() if name != "id"} for row in store.rows()] == [
        {name: value for name, value in row.items() if name != "id"} for row in rows_of_every_type()
    ]


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": logical("bytes", "decimal", precision=9, scale=2)},
    ],
}
LATER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}


def test_a_new_field_of_the_schema_becomes_a_column_in_the_middle_of_a_batch(store: Store) -> None:
    store.send(ORDER, {"id": 1, "total": Decimal("1.50")})
    store.send(
        LATER, {"id": 2, "total": Decimal("2.50"), "note": "two"}, {"id": 3, "total": Decimal("3"), "note": None}
    )
    store.send(ORDER, {"id": 4, "total": Decimal("4")})
    store.send_bytes(b"\0\0\0\0")
    store.sink({"evolve": True, "key": ["id"]})
    assert [row["note"] for row in store.rows()] == [None, "two", None, None]
    (letter,) = store.letters()
    assert "too short to name its schema: 4 bytes" in letter


def test_without_evolve_a_new_field_is_left_out_or_refused(store: Store) -> None:
    store.send(ORDER, {"id": 1, "total": Decimal("1.50")})
    store.sink({"key": ["id"]})
    store.send(LATER, {"id": 2, "total": Decimal("2.50"), "note": "two"})
    store.sink({"key": ["id"]})
    assert [row["id"] for row in store.rows()] == [1, 2]
    store.send(LATER, {"id": 3, "total": Decimal("2.50"), "note": "three"})
    store.sink({"key": ["id"], "unknown": "refuse"})
    assert [row["id"] for row in store.rows()] == [1, 2]
    (letter,) = store.letters()
    assert "field 'note'" in letter


def test_keys_of_a_schema_delete_rows_and_fill_columns(store: Store) -> None:
    store.send(
        ORDER,
        {"id": 1, "total": Decimal("1.50")},
        {"id": 2, "total": Decimal("2.50")},
        keys=('"long"', lambda value: value["id"]),
    )
    with Producer(
        store.client, registry=store.registry.url, key_serializer=SchemaSerializer('"long"'), value_serializer="avro"
    ) as producer:
        producer.send(store.topic, None, key=1)
        producer.send(store.topic, {"id": 3, "total": Decimal("3.5")}, key=30)
    columns = {"id": "value.id", "total": "value.total", "k": "key"}
    store.sink({"key": ["id"], "mode": "upsert"}, key_format="avro", columns=columns)
    assert [(row["id"], row["k"]) for row in store.rows()] == [(2, 2), (3, 30)]


def test_a_record_without_a_key_has_none_although_keys_have_a_schema(lite: Store) -> None:
    lite.send(ORDER, {"id": 1, "total": Decimal("1.50")}, keys=('"string"', lambda value: "a"))
    lite.send(ORDER, {"id": 2, "total": Decimal("2.50")})
    lite.send_bytes(None)
    columns = {"k": "key", "total": "value.total"}
    lite.sink({"key": ["k"], "mode": "upsert"}, key_format="avro", columns=columns)
    assert [row["k"] for row in lite.rows(order="k")] == ["a"]
    assert ["column 'k': null, and the column needs a value" in letter for letter in lite.letters()] == [True, True]
    other = Store(lite.kafka, lite.registry, lite.url)
    other.topic = lite.topic
    other.sink(key_format="avro", columns=columns)
    assert [row["k"] for row in other.rows(order="total")] == ["a", None]


def test_keys_that_are_records_delete_rows(lite: Store) -> None:
    key = {
        "type": "record",
        "name": "K",
        "fields": [{"name": "id", "type": "long"}, {"name": "shop", "type": "string"}],
    }
    value = {"type": "record", "name": "V", "fields": [*key["fields"], {"name": "n", "type": "int"}]}  # type: ignore[misc]
    rows = [{"id": 1, "shop": "a", "n": 1}, {"id": 1, "shop": "b", "n": 2}]
    lite.send(value, *rows, keys=(key, lambda row: {"id": row["id"], "shop": row["shop"]}))
    with Producer(lite.client, registry=lite.registry.url, key_serializer=SchemaSerializer(key)) as producer:
        producer.send(lite.topic, None, key={"id": 1, "shop": "a"})
        producer.send(lite.topic, None)
    lite.sink({"key": ["id", "shop"], "mode": "upsert"}, key_format="avro")
    assert [row["shop"] for row in lite.rows()] == ["b"]
    assert ["a tombstone without a key" in letter for letter in lite.letters()] == [True]


def test_nested_records_are_columns_of_json_or_flattened(lite: Store) -> None:
    city = {
        "type": "record",
        "name": "City",
        "fields": [{"name": "name", "type": "string"}, {"name": "zip", "type": "int"}],
    }
    address = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": ["null", city]}]}
    schema = {
        "type": "record",
        "name": "P",
        "fields": [{"name": "id", "type": "int"}, {"name": "address", "type": ["null", address]}],
    }
    values = [{"id": 1, "address": {"city": {"name": "Köln", "zip": 5}}}, {"id": 2, "address": None}]
    lite.send(schema, *values)
    lite.sink(format=SchemaFormat(flatten="_"))
    assert lite.rows() == [
        {"id": 1, "address_city_name": "Köln", "address_city_zip": 5},
        {"id": 2, "address_city_name": None, "address_city_zip": None},
    ]
    other = Store(lite.kafka, lite.registry, lite.url)
    other.topic = lite.topic
    other.sink(columns={"id": "value.id", "city": "value.address.city.name", "address": "value.address"})
    assert [row["city"] for row in other.rows()] == ["Köln", None]
    assert json.loads(other.rows()[0]["address"]) == values[0]["address"]


def test_records_that_do_not_fit_are_dead_letters_with_the_id_and_the_field_and_without_values(lite: Store) -> None:
    lite.send(ORDER, {"id": 1, "total": Decimal("1.50")})
    number = lite.app().registry.latest(f"{lite.topic}-value").id  # type: ignore[union-attr]
    frame = b"\0" + number.to_bytes(4, "big")
    lite.send_bytes(frame + b"\x04", frame + b"\x04\x02\x01secret", b"\0\0\x98\x96\x80secret", b"{}", b'{"id": 1}')
    lite.send_bytes(b"\x04\x02\x05", headers={"__value_schema_id": frame})
    lite.send_bytes(b"\x06\x02\x05", headers={"apicurio.value.contentId": number.to_bytes(8, "big")})
    lite.send_bytes(b"\x06\x02\x05", headers={"__value_schema_id": b"\x01" + bytes(16)})
    lite.sink({"key": ["id"]})
    assert [row["id"] for row in lite.rows()] == [1, 2, 3]
    letters = lite.letters()
    for letter, expected in zip(
        letters,
        [
            f"schema {number}: field 'total': the bytes end too early",
            f"schema {number}: 6 bytes are left over",
            "the schema registry does not know the id 10000000",
            "too short to name its schema: 2 bytes",
            "does not begin with the id of a schema",
            "has a GUID, and only ids",
        ],
        strict=True,
    ):
        assert expected in letter
    assert "secret" not in str(letters)


_OBJECT = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'


def test_a_schema_of_another_kind_is_named(lite: Store) -> None:
    lite.send(ORDER, {"id": 1, "total": Decimal("1.50")})
    registry = lite.app().registry
    assert registry is not None
    other = registry.id_of(f"{lite.topic}-other", Schema(SchemaKind.JSON, _OBJECT), register=True)
    lite.send_bytes(b"\0" + other.to_bytes(4, "big") + b"{}")
    lite.sink({"key": ["id"]})
    assert lite.letters()[0].endswith(f"schema {other} is of the kind JSON, not AVRO")


def test_what_a_producer_cannot_write_is_refused_at_once(lite: Store) -> None:
    with pytest.raises(SerializationError, match="field 'total': a decimal that does not fit 9 digits"):
        lite.send(ORDER, {"id": 1, "total": Decimal("1.555")})
    lite.send(ORDER, {"id": 1, "total": Decimal("1.55")})
    unregistered = SchemaSerializer(LATER, register=False)
    with (
        Producer(lite.client, registry=lite.registry.url, value_serializer=unregistered) as producer,
        pytest.raises(SerializationError, match="not registered under the subject"),
    ):
        producer.send(lite.topic, {"id": 1, "total": 1})
    with pytest.raises(ConfigurationError, match="needs a registry"):
        Producer(lite.client, value_serializer=SchemaSerializer(ORDER))
    with pytest.raises(ConfigurationError, match="not one of Avro"):
        SchemaSerializer('{"type": "nonsense"}')


def test_without_a_registry_the_format_is_refused(lite: Store) -> None:
    with pytest.raises(ConfigurationError, match="needs a schema registry"):
        App(lite.client, lite.url).sink("t", into=Table("t"), format="avro")


class Seen:
    """Waits for events of an app."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, kind: type) -> Any:
        with self._changed:
            assert self._changed.wait_for(lambda: any(isinstance(each, kind) for each in self.events), 60)
            return next(each for each in self.events if isinstance(each, kind))


@pytest.fixture
def own(lite: Store) -> Iterator[Store]:
    """A store with a registry of its own, which may be killed."""
    with Registry(login=True) as registry:
        lite.registry = registry
        yield lite


def running(app: App) -> Callable[[], None]:
    thread = threading.Thread(target=lambda: app.run(quiet=True))
    thread.start()

    def stop() -> None:
        app.stop()
        thread.join(30)
        assert not thread.is_alive()

    return stop


def test_a_registry_that_is_away_slow_or_refuses_the_login_is_waited_for(own: Store) -> None:
    """Nothing is parked meanwhile, the observers are told, and the app stops when it is asked to."""
    server = own.registry
    login = {"user": server.user, "password": server.password}
    with Producer(
        own.client,
        registry=RegistrySettings(server.url, **login),
        value_serializer=SchemaSerializer(ORDER),
    ) as producer:
        producer.send(own.topic, {"id": 1, "total": 1})
        producer.flush()

    def started(seen: Seen, **settings: Any) -> Callable[[], None]:
        app = own.app(registry=RegistrySettings(server.url, **settings), observers=seen)
        app.sink(own.topic, into=Table(own.table, create=True), group=own.table, format="avro")
        return running(app)

    wrong = Seen()
    stop = started(wrong, user=server.user, password="wrong-one")
    lost = wrong.wait(StoreLost)
    stop()
    assert (lost.what, "refused the login (401)" in lost.reason) == ("registry", True)
    assert "wrong-one" not in lost.reason

    server.pause()
    slow = Seen()
    stop = started(slow, **login, timeout=0.5)
    assert "no answer within 0.5 s" in slow.wait(StoreLost).reason
    stop()
    server.resume()

    server.kill()
    away = Seen()
    stop = started(away, **login)
    assert away.wait(StoreLost).what == "registry"
    server.start()
    assert away.wait(StoreBack).what == "registry"
    stop()
    own.registry = server
    assert [row["id"] for row in own.rows()] == [1]
    app = own.app(registry=None)
    assert app.ledger is not None
    assert list(app.ledger.dead_letters(own.table)) == []


def test_a_registry_that_lost_its_schemas_makes_dead_letters(own: Store) -> None:
    """The registry is empty: it does not know the id."""
    login = RegistrySettings(own.registry.url, user=own.registry.user, password=own.registry.password)
    own.send_bytes(b"\0\0\0\x30\x39secret")
    app = own.app(registry=login)
    app.sink(own.topic, into=Table(own.table, columns={"id": "integer"}, create=True), group=own.table, format="avro")
    app.run(until_caught_up=True, quiet=True)
    assert app.ledger is not None
    (letter,) = app.ledger.dead_letters(own.table)
    assert "does not know the id 12345" in letter.letter.error


# Routes

LINE = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "sku", "type": ["null", "string"]},
        {"name": "price", "type": logical("bytes", "decimal", precision=9, scale=2)},
        {"name": "due", "type": logical("int", "date")},
        {"name": "seal", "type": "bytes"},
    ],
}
CART = {
    "type": "record",
    "name": "Cart",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "at", "type": logical("long", "timestamp-micros")},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
    ],
}
CART_KEY = {"type": "record", "name": "CartKey", "fields": [{"name": "cart", "type": "long"}]}


def cart(number: int, *prices: str, kind: str = "NEW") -> dict[str, Any]:
    day = date(2024, 2, 29)
    lines = [{"sku": None, "price": Decimal(price), "due": day, "seal": b"\x00\xff"} for price in prices]
    return {"id": number, "kind": kind, "at": datetime(2024, 2, 29, 1, 2, 3, 4, UTC), "lines": lines}


def carts(store: Store) -> list[Part]:
    types = {"cart": "integer", "n": "integer", "price": "decimal(9,2)", "due": "date", "seal": "bytes", "kind": "text"}
    lines = Table(f"{store.table}_lines", key=["cart", "n"], mode="upsert", create=True, columns=types)
    sources = {"price": "each.price", "due": "each.due", "seal": "each.seal", "kind": "value.kind"}
    return [
        Part(lines, each="value.lines", columns={"cart": "key.cart", "n": "index", **sources}),
        Part(
            Table(f"{store.table}_new", key="cart", mode="upsert", create=True),
            where={"key.cart": [1, 2, 3]},
            columns={"cart": "key.cart", "at": "value.at"},
        ),
        Part(
            Table(f"{store.table}_old", key="id", mode="append", create=True),
            where={"value.kind": "OLD"},
            columns={"id": "value.id", "at": "value.at"},
        ),
    ]


def test_one_record_with_a_schema_goes_into_several_tables_with_the_values_of_its_types(store: Store) -> None:
    keys = (CART_KEY, lambda value: {"cart": value["id"]})
    store.send(CART, cart(1, "3.10", "0.05"), cart(2, "7.00", kind="OLD"), cart(9), keys=keys)
    store.route(*carts(store), key_format="avro", route={"unmatched": "ignore"})
    assert store.letters() == []
    lines = store.rows("cart, n, kind, price, due, seal", "cart, n", "_lines")
    read = {"price": lambda value: Decimal(str(value)), "due": str, "seal": bytes}
    assert [tuple(read.get(name, lambda value: value)(value) for name, value in row.items()) for row in lines] == [
        (1, 0, "NEW", Decimal("3.10"), "2024-02-29", b"\x00\xff"),
        (1, 1, "NEW", Decimal("0.05"), "2024-02-29", b"\x00\xff"),
        (2, 0, "OLD", Decimal("7.00"), "2024-02-29", b"\x00\xff"),
    ]
    assert [row["cart"] for row in store.rows("cart", "cart", "_new")] == [1, 2]
    ((number, at),) = [tuple(row.values()) for row in store.rows("id, at", "id", "_old")]
    assert (number, as_read("at_micros", at)) == (2, cart(2)["at"])


def test_a_tombstone_whose_key_names_a_schema_deletes_its_rows_in_all_tables_of_a_route(store: Store) -> None:
    parts = carts(store)[:2]
    keys = (CART_KEY, lambda value: {"cart": value[0]})
    store.send(CART, (1, cart(1, "1.00", "2.00")), (2, cart(2, "3.00")), (1, None), keys=keys)
    store.route(*parts, key_format="avro")
    store.send(CART, (2, None), (3, cart(3, "4.00")), keys=keys)
    store.route(*parts, key_format="avro")
    assert store.letters() == []
    assert [tuple(row.values()) for row in store.rows("cart, n", "cart, n", "_lines")] == [(3, 0)]
    assert [row["cart"] for row in store.rows("cart", "cart", "_new")] == [3]


def test_a_route_chooses_tables_by_the_whole_key_that_a_schema_reads(lite: Store) -> None:
    keys = ('["string", "long"]', lambda value: "a" if value["id"] == 1 else value["id"])
    lite.send(ORDER, *({"id": number, "total": Decimal("1.50")} for number in (1, 2, 3)), keys=keys)
    columns = {"id": "value.id"}
    lite.route(
        Part(Table(f"{lite.table}_of_{{key}}", create=True), where={"key": ["a", 2]}, columns=columns),
        Part(Table(f"{lite.table}_3", create=True), where={"key": 3}, columns=columns),
        key_format="avro",
    )
    assert lite.letters() == []
    assert [lite.rows(table=name) for name in ("_of_a", "_of_2", "_3")] == [[{"id": 1}], [{"id": 2}], [{"id": 3}]]


def test_a_record_that_does_not_fit_its_schema_goes_into_no_table_of_a_route(lite: Store) -> None:
    lite.send(ORDER, {"id": 1, "total": Decimal("1.50")})
    with Producer(lite.client, registry=lite.registry.url, value_serializer=SchemaSerializer(ORDER)) as producer:
        handle = producer.send(lite.topic, {"id": 2, "total": Decimal("2.50")})
    assert handle.result(10).offset == 1
    lite.send_bytes(b"\x00\x7f\xff\xff\xff\x02", b"no schema")
    totals = Part(Table(f"{lite.table}_totals", create=True), columns={"total": "value.total"})
    named = Part(Table(f"{lite.table}_{{value.id}}", create=True), columns={"id": "value.id"})
    lite.route(totals, named)
    assert [float(row["total"]) for row in lite.rows("total", "total", "_totals")] == [1.5, 2.5]
    assert [lite.rows(table=f"_{number}") for number in (1, 2)] == [[{"id": 1}], [{"id": 2}]]
    unknown, short = lite.letters()
    assert "2147483647" in unknown
    assert "schema" in short


def test_a_key_format_that_reads_no_keys_is_refused(lite: Store) -> None:
    for name in ("debezium", "connect-json", "csv"):
        with pytest.raises(ConfigurationError, match="key_format: expected 'json', 'avro', 'protobuf', 'json-schema'"):
            lite.sink(key_format=name)
