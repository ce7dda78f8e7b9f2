"""Routes of change events: all tables of a source by one sink, on each database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.app.sink.depot import Depot

from tidegate import App, ConfigurationError, Table
from tidegate.tables import DebeziumFormat, Evolution, Part, Route

TOPICS, HEARTBEATS = "^shop[.]|^__debezium", "__debezium-heartbeat.shop"
AS: dict[str, Any] = {"format": "debezium"}


@pytest.fixture
def depot(url: str) -> Iterator[Depot]:
    """On each database."""
    opened = Depot(url)
    yield opened
    opened.close()


def change(op: str, after: Any = None, before: Any = None) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"connector": "postgresql"}, "ts_ms": 1}


def family(depot: Depot, by: str = "topic") -> Route:
    """Orders and lines; the lines come first, which is not the order of the foreign key."""
    of = "shop." if by == "topic" else ""
    return Route(
        [
            Part(Table(depot.table("lines"), key=["order_id", "n"], mode="upsert"), where={by: f"{of}lines"}),
            Part(Table(depot.table("orders"), key="id", mode="upsert"), where={by: f"{of}orders"}),
        ],
        parent_wait=0,
    )


def enveloped(event: dict[str, Any], **types: str) -> dict[str, Any]:
    """An event with its schema, as the converters write it by default."""
    row = [{"field": name, "type": type, "optional": name != "id"} for name, type in types.items()]
    return {
        "schema": {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": row}]},
        "payload": event,
    }


def test_each_table_of_the_source_has_its_own(depot: Depot) -> None:
    for topic in ("shop.orders", "shop.customers"):
        depot.kit.topic(topic)
    for event, number in [
        (change("r", {"id": 1, "total": 5}), 1),
        (change("c", {"id": 2, "total": 6}), 2),
        (change("u", {"id": 1, "total": 7}), 1),
        (change("d", None, {"id": 2, "total": 0}), 2),
    ]:
        depot.send("shop.orders", enveloped(event, id="int32", total="int64"), key=json.dumps({"id": number}))
    depot.send("shop.orders", None, key=json.dumps({"id": 2}))
    ann = change("c", {"id": 1, "name": "ann"})
    depot.send("shop.customers", enveloped(ann, id="int32", name="string"), key=json.dumps({"id": 1}))
    depot.run(TOPICS, Table(depot.table("{topic}"), key="id", mode="upsert", create=True, evolve=True), **AS)
    assert depot.tables() == ["shop_customers", "shop_orders"]
    assert depot.rows("shop_orders", "id, total") == [(1, 7)]
    assert depot.rows("shop_customers", "id, name") == [(1, "ann")]
    assert not depot.parked()


def test_each_table_has_the_key_of_its_records(depot: Depot) -> None:
    depot.sql(
        f"CREATE TABLE {depot.table('shop_lines')} "
        "(n INTEGER, order_id INTEGER, sku VARCHAR(9), PRIMARY KEY (order_id, n))"
    )
    for topic in ("shop.orders", "shop.lines", "shop.keyless"):
        depot.kit.topic(topic)
    for event, number in [(change("c", {"id": 1, "total": 5}), 1), (change("c", {"id": 2}), 2), (change("d"), 1)]:
        depot.send("shop.orders", enveloped(event, id="int32", total="int64"), key=json.dumps({"id": number}))
    key = {"schema": {"type": "struct", "fields": []}, "payload": {"order_id": 1, "n": 2}}
    depot.send("shop.lines", change("c", {"order_id": 1, "n": 2, "sku": "tea"}), change("d"), key=json.dumps(key))
    depot.send("shop.lines", change("c", {"order_id": 3, "n": 4, "sku": "pot"}), key=json.dumps(key))
    depot.send("shop.keyless", change("c", {"id": 1}))
    depot.run(TOPICS, Table(depot.table("{topic}"), key="{key}", mode="upsert", create=True, evolve=True), **AS)
    assert depot.tables() == ["shop_lines", "shop_orders"]
    assert depot.rows("shop_orders", "id, total") == [(2, None)]
    assert depot.rows("shop_lines") == [(4, 3, "pot")]
    ((topic, _, error),) = depot.letters()
    assert topic == "shop.keyless"
    assert "this record's key has no fields that could be columns" in error


def test_the_key_of_a_table_is_that_of_events(depot: Depot) -> None:
    """Other records before them have keys, too."""
    depot.kit.topic("shop.a")
    depot.send("shop.a", {"ts_ms": 5}, key=json.dumps({"serverName": "shop"}))
    depot.send("shop.a", change("m"), key=json.dumps({"prefix": "p"}))
    depot.send("shop.a", {"no": "event"}, key=json.dumps({"other": 1}))
    for number in (1, 2):
        event = enveloped(change("c", {"id": number, "v": "x"}), id="int32", v="string")
        depot.send("shop.a", event, key=json.dumps({"id": number}))
    depot.run(TOPICS, Table(depot.table("{topic}"), key="{key}", mode="upsert", create=True), **AS)
    assert depot.rows("shop_a", "id, v") == [(1, "x"), (2, "x")]
    ((_, offset, error),) = depot.letters()
    assert (offset, "not a change event" in error) == (2, True)


def test_an_altered_key_of_the_source_is_not_taken_for_that_of_the_table(depot: Depot) -> None:
    """Two rows of the source would be one, and the deletion of one would delete the other."""
    depot.kit.topic("shop.seats")
    types = {"row": "int32", "seat": "int32"}
    for key in ({"row": 1}, {"row": 2}, {"row": 1, "seat": 1}, {"row": 1, "seat": 2}, {"seat": 3}):
        event = change("c", {"row": 1, "seat": 7} | key)
        depot.send("shop.seats", enveloped(event, **types), key=json.dumps(key))
    for gone in ({"row": 1, "seat": 2}, {"row": 2}):
        depot.send("shop.seats", enveloped(change("d"), **types), None, key=json.dumps(gone))
    into = Table(depot.table("{topic}"), key="{key}", mode="upsert", create=True)
    depot.run(TOPICS, into, **AS)
    assert depot.rows("shop_seats", "seat", "1") == [(7,)]
    assert depot.parked() == [("shop.seats", offset) for offset in (2, 3, 4, 5)]
    assert all("other fields than the key of its table" in error for _, _, error in depot.letters())


def test_the_key_of_records_goes_with_other_formats_too(depot: Depot) -> None:
    for topic, rows in {"shop.a": [{"x": 1, "v": 1}, {"x": 1, "v": 2}], "shop.b": [{"y": "u", "v": 3}]}.items():
        depot.kit.topic(topic)
        for row in rows:
            depot.send(topic, row, key=json.dumps(dict([next(iter(row.items()))])))
    depot.send("shop.b", b"no JSON", key="no JSON")
    depot.run(TOPICS, Table(depot.table("{topic}"), key="{key}", mode="upsert", create=True))
    assert depot.rows("shop_a", "x, v") == [(1, 2)]
    assert depot.rows("shop_b", "y, v") == [("u", 3)]
    assert depot.parked() == [("shop.b", 1)]


@pytest.mark.parametrize(
    "into",
    [
        lambda: Table("t", key="{key}", mode="upsert"),
        lambda: Part(Table("t", key="{key}", mode="upsert")),
        lambda: Part(Table("a_{topic}", key=["{key}", "n"], mode="upsert")),
        lambda: Part(Table("a_{topic}", key="{key}", mode="upsert"), columns={"id": "value.id"}),
    ],
)
def test_where_the_key_of_records_cannot_be_the_tables_it_is_refused(into: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"key='\{key\}' is"):
        App("nowhere.invalid:9092", "sqlite:///none.db").sink("shop", into=into(), group="shop")


@pytest.mark.parametrize("creates", [True, False])
def test_what_changes_no_row_makes_no_table_and_needs_none(depot: Depot, creates: bool) -> None:
    for topic in (HEARTBEATS, "shop.transaction", "shop.ddl"):
        depot.kit.topic(topic)
    depot.send(HEARTBEATS, {"ts_ms": 5}, key=json.dumps({"serverName": "shop"}))
    depot.send("shop.transaction", {"status": "BEGIN", "id": "1:2", "ts_ms": 1})
    depot.send("shop.ddl", {"source": {"server": "shop"}, "ddl": "CREATE TABLE t (id INT)", "ts_ms": 1})
    depot.send("shop.ddl", {"no": "event"}, None)
    depot.run(TOPICS, Table(depot.table("{topic}"), key="id", mode="upsert", create=creates, columns={"id": int}), **AS)
    assert depot.tables() == (["shop_ddl"] if creates else [])
    assert depot.parked() == [("shop.ddl", 1)]


def test_what_changes_no_row_needs_no_part(depot: Depot) -> None:
    depot.orders()
    depot.kit.topic(HEARTBEATS)
    depot.send(HEARTBEATS, {"ts_ms": 5})
    depot.send("shop.lines", None)
    depot.send("shop.gifts", change("c", {"id": 1}), None, key=json.dumps({"id": 1}))
    depot.run(TOPICS, family(depot), **AS)
    assert depot.letters() == [("shop.gifts", 0, "DecodingError: no part of the route takes the record")]


def test_parents_come_before_children_and_go_after_them(depot: Depot) -> None:
    """Half of the batch, tried alone, would have a child without its parent, or a parent that still has children."""
    depot.orders()
    tea, pot = {"order_id": 1, "n": 0}, {"order_id": 3, "n": 0}
    for table, event, key in [
        ("lines", change("d"), {"order_id": 7, "n": 7}),
        ("lines", change("c", {**tea, "sku": "tea"}), tea),
        ("orders", change("c", {"id": 1, "customer": "ann"}), {"id": 1}),
        ("lines", change("d"), {"order_id": 8, "n": 8}),
        ("orders", change("c", {"id": 2, "customer": "bob"}), {"id": 2}),
        ("orders", change("d", None, {"id": 1, "customer": ""}), {"id": 1}),
        ("lines", change("d", None, {**tea, "sku": ""}), tea),
        ("lines", change("c", {**pot, "sku": "pot"}), pot),
        ("orders", change("c", {"id": 3, "customer": "eve"}), {"id": 3}),
    ]:
        depot.send("shop.all", event, key=json.dumps(key), headers={"table": table})
    depot.run("shop.all", family(depot, "headers.table"), **AS)
    assert depot.rows("orders") == [(2, "bob"), (3, "eve")]
    assert depot.rows("lines") == [(3, 0, "pot")]
    assert not depot.parked()


def test_a_change_of_the_key_is_in_its_place_between_the_tables(depot: Depot) -> None:
    """The order's number changes after its old lines are gone, and before it has new ones."""
    depot.orders()
    moved = change("u", {"id": 2, "customer": "ann"}, {"id": 1, "customer": "ann"})
    for table, event, key in [
        ("orders", change("c", {"id": 1, "customer": "ann"}), {"id": 1}),
        ("lines", change("c", {"order_id": 1, "n": 0, "sku": "tea"}), {"order_id": 1, "n": 0}),
        ("lines", change("d"), {"order_id": 1, "n": 0}),
        ("orders", moved, {"uuid": 5}),  # the source's key is another
        ("lines", change("c", {"order_id": 2, "n": 0, "sku": "pot"}), {"order_id": 2, "n": 0}),
    ]:
        depot.send("shop.all", event, key=json.dumps(key), headers={"table": table})
    depot.run("shop.all", family(depot, "headers.table"), **AS)
    assert depot.rows("orders") == [(2, "ann")]
    assert depot.rows("lines") == [(2, 0, "pot")]
    assert not depot.parked()


def test_events_that_are_older_than_a_guarded_row_change_nothing(depot: Depot) -> None:
    for name in ("orders", "lines"):
        depot.sql(f"CREATE TABLE {depot.table(name)} (id INTEGER PRIMARY KEY, v INTEGER, lsn BIGINT)")
    for name in ("orders", "lines"):
        for position, op, v in [(20, "c", 1), (10, "c", 0), (30, "u", 2), (25, "d", None), (30, "u", 3)]:
            event = change(op, None if v is None else {"id": 1, "v": v}) | {"source": {"lsn": position}}
            depot.send("shop.all", event, key=json.dumps({"id": 1}), headers={"table": name})
    parts = [
        Part(Table(depot.table(name), key="id", mode="upsert", guard="lsn"), where={"headers.table": name})
        for name in ("orders", "lines")
    ]
    depot.run("shop.all", parts, **AS)
    assert depot.rows("orders") == depot.rows("lines") == [(1, 3, 30)]
    assert not depot.parked()


def test_a_truncate_is_parked_and_empties_nothing(depot: Depot) -> None:
    depot.orders()
    depot.send("shop.orders", change("c", {"id": 1, "customer": "ann"}), key=json.dumps({"id": 1}))
    depot.send("shop.orders", change("t"))
    depot.send("shop.orders", change("c", {"id": 2, "customer": "bob"}), key=json.dumps({"id": 2}))
    depot.run("shop.orders", family(depot), **AS)
    assert depot.rows("orders") == [(1, "ann"), (2, "bob")]
    ((topic, offset, error),) = depot.letters()
    assert (topic, offset) == ("shop.orders", 1)
    assert "it empties the table, and has no order among the rows of other tables" in error


def test_an_event_that_fits_no_table_is_parked_alone(depot: Depot) -> None:
    depot.orders()
    key = json.dumps({"id": 1})
    depot.send("shop.orders", change("c", {"id": 1, "customer": "ann"}), change("c", {"id": "one"}), key=key)
    depot.send("shop.orders", change("x", {"id": 1}), b"no JSON", change("d"), key=None)
    depot.send("shop.orders", change("u", {"id": 1, "customer": "eve"}, {"id": 1, "customer": "ann"}), key=key)
    depot.run("shop.orders", family(depot), **AS)
    assert depot.rows("orders") == [(1, "eve")]
    assert depot.parked() == [("shop.orders", offset) for offset in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Part(Table("t", key="id", mode="append")), "change events need mode='upsert'"),
        (Part(Table("t", key="id", mode="upsert", tombstones="ignore")), "change events need mode='upsert'"),
        (
            Part(Table("t", key="id", mode="upsert", tombstones="ignore"), where={"value.kind": "a"}),
            "change events need mode='upsert'",
        ),
        (
            Part(Table("t", key=["id", "n"], mode="upsert"), each="value.l", columns={"id": "value.id", "n": "index"}),
            "has no rows in value.l",
        ),
    ],
)
@pytest.mark.parametrize("form", ["debezium", DebeziumFormat()])
def test_parts_that_take_no_change_events_are_refused_at_once(part: Part, why: str, form: Any) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        App("nowhere.invalid:9092", "sqlite:///none.db").sink("shop", into=part, group="shop", format=form)


def test_each_table_of_a_route_follows_its_records_by_its_own_policy(depot: Depot) -> None:
    for name in ("orders", "customers"):
        depot.sql(f"CREATE TABLE {depot.table(name)} (id INTEGER PRIMARY KEY, note VARCHAR(3))")
        depot.kit.topic(f"shop.{name}")
        depot.send(f"shop.{name}", *({"id": each, "note": "x" * each} for each in (2, 6, 3)))
    parts = [
        Part(Table(depot.table(name), key="id", mode="upsert", evolve=policy), where={"topic": f"shop.{name}"})
        for name, policy in (("orders", Evolution(widen="widen")), ("customers", True))
    ]
    depot.run("^shop[.]", Route(parts))
    assert depot.rows("orders") == [(2, "xx"), (3, "xxx"), (6, "xxxxxx")]
    assert depot.rows("customers") == [(2, "xx"), (3, "xxx")]
    assert depot.parked() == [("shop.customers", 1)]
