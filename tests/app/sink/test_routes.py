"""Routes: records into several tables, on each database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.app.sink.depot import GROUP, Depot, encoded, order

from tidegate import Backoff, DeadLetter, Record, Retry, Skip, Span, Table, TopicPartition
from tidegate.app.handler import Postponed
from tidegate.app.sink import Sink
from tidegate.errors import ConfigurationError
from tidegate.observe.events import Retried, Skipped
from tidegate.tables import CsvFormat, Part, Route


@pytest.fixture
def depot(url: str) -> Iterator[Depot]:
    """On each database."""
    opened = Depot(url)
    yield opened
    opened.close()


@pytest.fixture
def local(tmp_path: Any) -> Iterator[Depot]:
    """On SQLite, for what is no matter of the database."""
    opened = Depot(f"sqlite:///{tmp_path / 'depot.db'}")
    yield opened
    opened.close()


def family(depot: Depot, **lines: Any) -> list[Part]:
    """Orders, their lines and a lot of each line, from one record; in the order of names, not of foreign keys."""
    return [
        Part(
            Table(depot.table("lots"), key=["order_id", "n", "lot"], mode="upsert"),
            each="value.lines",
            columns={"order_id": "value.id", "n": "index", "lot": "each.lots"},
        ),
        Part(
            Table(depot.table("lines"), key=["order_id", "n"], mode="upsert", **lines),
            each="value.lines",
            columns={"order_id": "value.id", "n": "index", "sku": "each.sku"},
        ),
        Part(
            Table(depot.table("orders"), key="id", mode="upsert"),
            columns={"id": "value.id", "customer": "value.customer"},
        ),
    ]


def halves(depot: Depot) -> list[Part]:
    """Orders from one topic, and their lines from another."""
    return [
        Part(Table(depot.table("lines"), key=["order_id", "n"], mode="upsert"), where={"topic": "lines"}),
        Part(Table(depot.table("orders"), key="id", mode="upsert"), where={"topic": "orders"}),
    ]


# Tables from topics


def test_fifty_topics_go_into_fifty_tables(depot: Depot) -> None:
    topics = [f"shop.t{number:02}" for number in range(50)]
    for number, topic in enumerate(topics):
        depot.kit.topic(topic)
        depot.send(topic, {"id": number, "total": 1}, {"id": number + 100, "total": 2}, b"no JSON")
    into = Table(depot.table("{topic}"), key="id", mode="upsert", create=True)
    depot.run(re.compile(r"^shop\."), into)
    assert depot.tables() == [f"shop_t{number:02}" for number in range(50)]
    for number in range(50):
        assert depot.rows(f"shop_t{number:02}") == [(number, 1), (number + 100, 2)]
    assert depot.parked() == [(topic, 2) for topic in topics]


def test_each_table_is_created_and_gets_columns_by_itself(depot: Depot) -> None:
    into = Table(depot.table("{topic}"), key="id", mode="upsert", create=True, evolve=True)
    for topic in ("a", "b"):
        depot.kit.topic(topic)
    depot.send("a", {"id": 1, "x": 1})
    depot.send("b", {"id": 1, "y": "one"})
    depot.run(["a", "b"], into)
    depot.send("a", {"id": 1, "x": 1, "z": True})
    depot.send("b", {"id": 2, "y": "two"})
    depot.run(["a", "b"], into)
    assert depot.rows("a", "id, x, z") == [(1, 1, 1)]
    assert depot.rows("b") == [(1, "one"), (2, "two")]


def test_topics_that_would_end_in_one_table_are_refused_before_they_are_read(local: Depot) -> None:
    with pytest.raises(ConfigurationError, match="topics a.b and a_b would both end in table 'a_b'"):
        local.run(["a.b", "a_b"], Table("{topic}"))
    with pytest.raises(ConfigurationError, match="topics Orders and orders would both end in table 'orders'"):
        local.run(["Orders", "orders"], Route(Table("{topic}"), lower=True))


def test_topics_of_a_pattern_that_would_end_in_one_table_are_parked(depot: Depot) -> None:
    for topic in ("p.Orders", "p.orders"):
        depot.kit.topic(topic)
        depot.send(topic, {"id": 1})
    depot.run("^p", Route(Table(depot.table("{topic}"), create=True, key="id", mode="upsert")))
    if depot.database == "postgresql":  # where the names of tables keep their case
        assert depot.tables() == ["p_Orders", "p_orders"]
        assert not depot.parked()
    else:
        assert [name.lower() for name in depot.tables()] == ["p_orders"]
        ((_, _, error),) = depot.letters()
        assert "would be that of a table of other records" in error


# Tables from headers and fields


def test_a_header_chooses_among_declared_tables(depot: Depot) -> None:
    depot.sql(
        f"CREATE TABLE {depot.table('orders')} (id INTEGER)", f"CREATE TABLE {depot.table('refunds')} (id INTEGER)"
    )
    into = [
        Part(Table(depot.table("orders")), where={"headers.type": ["order", "reorder"]}),
        Part(Table(depot.table("refunds")), where={"headers.type": "refund"}),
    ]
    for number, kind in enumerate(["order", "refund", "reorder", "gift"]):
        depot.send("all", {"id": number}, headers={"type": kind})
    depot.send("all", {"id": 9})
    depot.run("all", into)
    assert depot.rows("orders", order="1") == [(0,), (2,)]
    assert depot.rows("refunds", order="1") == [(1,)]
    assert depot.letters() == [
        ("all", offset, "DecodingError: no part of the route takes the record") for offset in (3, 4)
    ]  # and not what the header said


def test_records_without_a_table_may_be_ignored(local: Depot) -> None:
    local.sql(f"CREATE TABLE {local.table('orders')} (id INTEGER)")
    local.send("all", {"id": 1, "kind": "gift"}, {"id": 2, "kind": "order"}, {"id": 3})
    parts = Part(Table(local.table("orders")), where={"value.kind": "order"})
    local.run("all", Route(parts, unmatched="ignore"))
    assert local.rows("orders", order="1") == [(2,)]
    assert not local.letters()


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (1, [1, 5]),
        (True, [2]),
        ("1", [3]),
        (None, [4, 6]),
        ([1, "1"], [1, 3, 5]),
    ],
    ids=["number", "boolean", "text", "null", "several"],
)
def test_a_field_is_compared_as_json_is(local: Depot, wanted: Any, ids: list[int]) -> None:
    local.sql(f"CREATE TABLE {local.table('found')} (id INTEGER)")
    local.send("all", b'{"id": 1, "k": 1}', b'{"id": 2, "k": true}', b'{"id": 3, "k": "1"}', b'{"id": 4, "k": null}')
    local.send("all", b'{"id": 5, "k": 1.0}', b'{"id": 6}', b'{"id": 7, "k": [1]}', b"no JSON")
    local.run("all", Route(Part(Table(local.table("found")), where={"value.k": wanted}), unmatched="ignore"))
    assert [row[0] for row in local.rows("found", order="1")] == ids
    assert local.parked() == [("all", 7)]  # whose field is not known


def test_the_names_that_a_header_makes_are_checked_and_bounded(depot: Depot) -> None:
    into = Table(depot.table("raw_{headers.type}"), create=True)
    names = [
        b"good",
        b'x"; DROP TABLE orders; --',
        b"x`; DROP TABLE orders; --",
        b"\xff\xfe",
        "sch\u00f6n".encode(),
        b"a" * 70,
        b"",
        b"with space",
        b"../../etc",
        b"nul\0",
    ]
    for name in names:
        depot.send("all", {"id": 1}, headers={"type": name})
    depot.send("all", {"id": 2})
    depot.run("all", into)
    assert depot.tables() == ["raw_good"]
    assert depot.parked() == [("all", offset) for offset in range(1, 11)]
    for _, _, error in depot.letters():
        assert "DROP" not in error
        assert "aaaa" not in error


def test_no_record_reaches_a_table_of_the_ledger(depot: Depot) -> None:
    into = Table(f"{depot.name}_{{headers.type}}", create=True, mode="append")
    for name in ("t_positions", "T_positions", "t_anything"):
        depot.send("all", {"consumer_group": "x", "topic": "y"}, headers={"type": name})
    depot.run("all", into)
    assert depot.parked() == [("all", 0), ("all", 1), ("all", 2)]
    assert all("one of the ledger's" in error for _, _, error in depot.letters())
    assert depot.tables() == []


def test_a_name_that_begins_with_a_header_is_refused_for_it_could_be_that_of_any_table() -> None:
    with pytest.raises(ConfigurationError, match="could be that of any table"):
        Part(Table("{headers.type}"))
    with pytest.raises(ConfigurationError, match="could be that of any table"):
        Part(Table("{value.kind}_raw"))


def test_so_many_tables_get_their_names_from_records_and_no_more_after_a_restart_either(depot: Depot) -> None:
    route = Route(Table(depot.table("raw_{headers.type}"), create=True), most_tables=3)
    for name in "abcde":
        depot.send("all", {"id": 1}, headers={"type": name})
    depot.run("all", route)
    assert depot.tables() == ["raw_a", "raw_b", "raw_c"]
    assert depot.parked() == [("all", 3), ("all", 4)]
    for name in "fa":
        depot.send("all", {"id": 2}, headers={"type": name})
    depot.run("all", route)  # a new process
    assert depot.tables() == ["raw_a", "raw_b", "raw_c"]
    assert depot.rows("raw_a", order="1") == [(1,), (2,)]
    assert depot.parked() == [("all", 3), ("all", 4), ("all", 5)]


def test_a_table_that_does_not_exist_parks_its_records_and_no_others(depot: Depot) -> None:
    depot.sql(f"CREATE TABLE {depot.table('raw_a')} (id INTEGER)")
    for name in "abab":
        depot.send("all", {"id": 1}, headers={"type": name})
    depot.run("all", Table(depot.table("raw_{headers.type}")))
    assert depot.rows("raw_a", order="1") == [(1,), (1,)]
    assert depot.parked() == [("all", 1), ("all", 3)]


# Several tables from one record


def test_one_record_goes_into_three_tables_in_the_order_of_their_foreign_keys(depot: Depot) -> None:
    depot.orders()
    depot.send("orders", order(1, "a", "b"), order(2), order(3, "c"), order(1, "x", customer="bob"))
    depot.run("orders", family(depot))
    assert depot.rows("orders") == [(1, "bob"), (2, "ann"), (3, "ann")]
    assert depot.rows("lines") == [(1, 0, "x"), (1, 1, "b"), (3, 0, "c")]
    assert depot.rows("lots", order="1, 2, 3") == [(1, 0, 1), (1, 1, 1), (3, 0, 3)]
    assert not depot.letters()


@pytest.mark.parametrize("by", ["reader", "database"])
def test_one_bad_child_parks_its_record_and_nothing_else(depot: Depot, by: str) -> None:
    depot.orders(lines=" CHECK (sku <> 'bad')")
    bad = 7 if by == "reader" else "bad"
    exact = {"exact": True} if by == "reader" else {}
    depot.send("orders", *(order(number, "a", "b") for number in range(1, 9)))
    depot.send("orders", order(9, "a", bad, "c"))
    depot.send("orders", *(order(number, "a") for number in range(10, 15)))
    depot.run("orders", family(depot, **exact))
    assert depot.parked() == [("orders", 8)]
    assert [row[0] for row in depot.rows("orders")] == [*range(1, 9), *range(10, 15)]
    assert 9 not in {row[0] for row in depot.rows("lines")} | {row[0] for row in depot.rows("lots", order="1, 2, 3")}
    assert len(depot.rows("lines")) == 8 * 2 + 5


def test_a_record_that_does_not_fit_one_table_is_in_none_of_them(depot: Depot) -> None:
    depot.sql(
        f"CREATE TABLE {depot.table('a')} (id INTEGER)", f"CREATE TABLE {depot.table('b')} (id INTEGER, n INTEGER)"
    )
    depot.send("all", {"id": 1, "n": 1}, {"id": 2, "n": "two"}, {"id": 3, "n": 3})
    depot.run("all", [Table(depot.table("a")), Table(depot.table("b"))])
    assert depot.rows("a", order="1") == [(1,), (3,)]
    assert depot.rows("b") == [(1, 1), (3, 3)]
    assert depot.letters() == [
        ("all", 1, f"DecodingError: table {depot.table('b')}: column 'n': expected a whole number, got text")
    ]


def test_with_a_trigger_the_records_keep_their_order(local: Depot) -> None:
    local.orders()
    local.sql(
        f"CREATE TRIGGER {local.table('touch')} AFTER INSERT ON {local.table('lines')} BEGIN "
        f"UPDATE {local.table('orders')} SET customer = 'touched' WHERE id = NEW.order_id; END"
    )
    into = [
        Part(Table(local.table("lines"), key=["order_id", "n"], mode="upsert"), where={"headers.t": "lines"}),
        Part(Table(local.table("orders"), key="id", mode="upsert"), where={"headers.t": "orders"}),
    ]
    local.send("all", {"id": 1, "customer": "ann"}, {"id": 2, "customer": "cid"}, headers={"t": "orders"})
    local.send("all", *({"order_id": number, "n": 0, "sku": "a"} for number in (1, 2)), headers={"t": "lines"})
    local.send("all", {"id": 1, "customer": "bob"}, headers={"t": "orders"})
    local.run("all", into)
    assert local.rows("orders") == [(1, "bob"), (2, "touched")]


def test_a_tombstone_deletes_children_before_parents(depot: Depot) -> None:
    depot.orders()
    depot.send("orders", order(1, "a", "b"), order(2, "c"), order(3, "d"))
    depot.send("orders", None, key="1")
    depot.send("orders", order(1, "new"))
    depot.send("orders", None, key='{"id": 2}')
    depot.run("orders", family(depot))
    assert depot.rows("orders") == [(1, "ann"), (3, "ann")]
    assert depot.rows("lines") == [(1, 0, "new"), (3, 0, "d")]
    assert depot.rows("lots", order="1, 2, 3") == [(1, 0, 1), (3, 0, 3)]
    assert not depot.letters()


def test_with_cascade_the_records_keep_their_order(depot: Depot) -> None:
    depot.orders(on_delete="ON DELETE CASCADE")
    depot.send("all", {"id": 1, "customer": "ann"}, key="1", headers={"t": "orders"})
    depot.send("all", {"order_id": 1, "n": 0, "sku": "gone"}, key="x", headers={"t": "lines"})
    depot.send("all", None, key='{"id": 1}', headers={"t": "orders"})
    depot.send("all", {"id": 1, "customer": "bob"}, key="1", headers={"t": "orders"})
    into = [
        Part(Table(depot.table("lines"), key=["order_id", "n"], mode="upsert"), where={"headers.t": "lines"}),
        Part(Table(depot.table("orders"), key="id", mode="upsert"), where={"headers.t": "orders"}),
    ]
    depot.run("all", into)
    assert depot.rows("orders") == [(1, "bob")]
    assert depot.rows("lines") == []  # the database deleted it with the first version of its order
    assert not depot.letters()


def test_arrays_are_optional_and_nothing_but_arrays(local: Depot) -> None:
    local.sql(f"CREATE TABLE {local.table('tags')} (id INTEGER, tag TEXT, at INTEGER)")
    part = Part(
        Table(local.table("tags")), each="value.tags", columns={"id": "value.id", "tag": "each", "at": "offset"}
    )
    local.send("all", {"id": 1, "tags": ["a", "b"]}, {"id": 2}, {"id": 3, "tags": None}, {"id": 4, "tags": []})
    local.send("all", {"id": 5, "tags": "c"}, {"id": 6, "tags": {"d": 1}}, {"id": 7, "tags": [["e"]]}, b"[]")
    local.run("all", part)
    assert local.rows("tags") == [(1, "a", 0), (1, "b", 0), (7, '["e"]', 6)]
    assert local.parked() == [("all", 4), ("all", 5), ("all", 7)]


def test_elements_are_objects_of_their_own_without_columns(depot: Depot) -> None:
    part = Part(Table(depot.table("items"), create=True, evolve=True), each="value.items")
    depot.send("all", {"items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}]}, {"items": [{"sku": "c", "price": 3}]})
    depot.run("all", part)
    assert depot.rows("items", "sku, n, price") == [("a", 1, None), ("b", 2, None), ("c", None, 3)]


def test_a_route_reads_csv_and_the_envelope_of_kafka_connect(local: Depot) -> None:
    payload = {"id": 1, "k": "x", "lines": [{"s": "q"}, {"s": "r"}]}
    lines = {"type": "array", "items": {"type": "struct", "fields": [{"field": "s", "type": "string"}]}}
    of = [{"field": "id", "type": "int64"}, {"field": "k", "type": "string"}, {"field": "lines", **lines}]
    local.send("all", {"schema": {"type": "struct", "fields": of}, "payload": payload})
    into = [
        Part(Table(local.table("o"), create=True, columns={"id": int, "k": str}), where={"value.k": "x"}),
        Part(
            Table(local.table("l"), create=True, columns={"o": int, "s": str}),
            each="value.lines",
            columns={"o": "value.id", "s": "each.s"},
        ),
    ]
    local.run("all", into, format="connect-json")
    assert local.rows("o") == [(1, "x")]
    assert local.rows("l") == [(1, "q"), (1, "r")]
    local.send("csv", b"1,x", b"2,y", b"3,", b"4,z,1")
    named = Part(Table(local.table("c_{value.k}"), create=True), where={"value.id": ["1", "3", "4"]})
    local.run("csv", Route(named, unmatched="ignore"), format=CsvFormat(["id", "k"]))
    assert local.rows("c_x") == [("1", "x")]
    assert local.parked() == [("csv", 2), ("csv", 3)]


# Parents that are late, or never come


def test_a_parent_on_another_partition_may_come_late(depot: Depot) -> None:
    depot.orders()
    for topic in ("lines", "orders"):
        depot.kit.topic(topic)
    depot.send("lines", *({"order_id": number, "n": 0, "sku": "a"} for number in range(1, 4)))
    depot.send("orders", *({"id": number, "customer": "ann"} for number in range(6, 0, -1)))
    events = depot.run(["lines", "orders"], Route(halves(depot), parent_wait=30), batch=1)
    assert [row[0] for row in depot.rows("lines")] == [1, 2, 3]
    assert not depot.letters()
    assert [event for event in events if isinstance(event, Retried)]


def test_a_parent_that_never_comes_parks_its_children_after_a_while_and_nothing_else(depot: Depot) -> None:
    depot.orders()
    for topic in ("lines", "orders"):
        depot.kit.topic(topic)
    depot.send("orders", {"id": 1, "customer": "ann"}, {"id": 3, "customer": "bob"})
    depot.send("lines", *({"order_id": number, "n": 0, "sku": "a"} for number in (1, 2, 3)))
    events = depot.run(["lines", "orders"], Route(halves(depot), parent_wait=0.4))
    assert [row[0] for row in depot.rows("lines")] == [1, 3]
    assert depot.parked() == [("lines", 1)]
    waits = [event for event in events if isinstance(event, Retried)]
    assert len(waits) >= 2, "it was tried again"
    assert "IntegrityError" in depot.letters()[0][2]


def test_partitions_that_wait_for_each_other_get_on(depot: Depot) -> None:
    """Lines wait for an order behind one that cannot go before one of the lines has gone."""
    depot.orders()
    for topic in ("lines", "orders"):
        depot.kit.topic(topic)
    deletes: dict[str, Any] = {"mode": "upsert", "tombstones": "delete"}
    parts = [
        Part(Table(depot.table("lines"), key=["order_id", "n"], **deletes), where={"topic": "lines"}),
        Part(Table(depot.table("orders"), key="id", **deletes), where={"topic": "orders"}),
    ]

    def send(number: int) -> None:
        depot.send("orders", {"id": number, "customer": "ann"}, key=f'{{"id": {number}}}')
        depot.send("lines", {"order_id": number, "n": 0, "sku": "a"}, key=f'{{"order_id": {number}, "n": 0}}')

    send(1)
    depot.run(["lines", "orders"], Route(parts, parent_wait=30))
    send(2)
    depot.send("orders", None, key='{"id": 1}')
    depot.send("lines", None, key='{"order_id": 1, "n": 0}')
    depot.run(["lines", "orders"], Route(parts, parent_wait=30))
    assert not depot.letters()
    assert [row[0] for row in depot.rows("orders")] == [2]
    assert [row[0] for row in depot.rows("lines")] == [2]


def test_many_orphans_wait_together(local: Depot) -> None:
    local.orders()
    for topic in ("lines", "orders"):
        local.kit.topic(topic)
    local.send("lines", *({"order_id": number, "n": 0, "sku": "a"} for number in range(100)))
    events = local.run(["lines", "orders"], Route(halves(local), parent_wait=0.5))
    assert local.parked() == [("lines", number) for number in range(100)]
    waits = [event for event in events if isinstance(event, Retried)]
    assert {(event.partition.topic, event.offset) for event in waits} == {("lines", 0)}, (
        "only the first one is tried again"
    )
    local.send("lines", {"order_id": 200, "n": 0, "sku": "a"})
    events = local.run(["lines", "orders"], Route(halves(local), parent_wait=0.5))
    assert [event for event in events if isinstance(event, Retried)], "a later one waits as well"


def test_a_partition_that_is_read_again_waits_again(local: Depot) -> None:
    local.orders()
    sink = Sink(Route(halves(local), parent_wait=0.2))
    handler = sink.open(local.ledger, GROUP, DeadLetter())
    tp = TopicPartition("lines", 0)
    record = Record(*tp, 0, None, b'{"order_id": 7, "n": 0, "sku": "a"}')

    def waits(group: str) -> list[float]:
        claims, found = local.ledger.claim(group, [tp]), list[float]()
        while True:
            try:
                local.ledger.transact(claims, [Span(tp, 0, 1, 1)], handler.prepare([record]).run)
            except Postponed as postponed:
                found.append(postponed.after)
            else:
                return found

    assert waits("first") == waits("second") == [0.1, 0.1]


@pytest.mark.parametrize("policy", [Skip(), Retry(2, Backoff(0.001, 1, 0.001), then=Skip())], ids=["skip", "retry"])
def test_what_happens_after_the_wait_is_the_policys_to_say(local: Depot, policy: Any) -> None:
    local.orders()
    local.kit.topic("lines")
    local.send("lines", {"order_id": 7, "n": 0, "sku": "a"})
    events = local.run("lines", Route(halves(local), parent_wait=0.2), on_error=policy)
    assert [event for event in events if isinstance(event, Skipped)]
    assert not local.letters()


def test_a_letter_whose_parent_has_come_is_replayed(depot: Depot) -> None:
    depot.orders()
    for topic in ("lines", "orders"):
        depot.kit.topic(topic)
    depot.send("lines", {"order_id": 7, "n": 0, "sku": "a"})
    route = Route(halves(depot), parent_wait=0)
    depot.run(["lines", "orders"], route)
    depot.run(["lines", "orders"], Route(halves(depot), parent_wait=30))
    (replayed,) = depot._app.replay(GROUP)
    assert replayed.error is not None  # and it has not waited
    depot.send("orders", {"id": 7, "customer": "ann"})
    depot.run(["lines", "orders"], route)
    (replayed,) = depot._app.replay(GROUP)
    assert replayed.error is None
    assert [row[0] for row in depot.rows("lines")] == [7]


# What is refused


def test_what_a_route_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="in two parts of the route"):
        Route([Table("a"), Table("A")])
    with pytest.raises(ConfigurationError, match="a tombstone could not delete"):
        Part(Table("a", key="sku", mode="upsert"), each="value.lines", columns={"sku": "each.sku"})
    with pytest.raises(ConfigurationError, match="replace: "):
        Route(Table("{topic}"), replace={".": '"'})
    with pytest.raises(ConfigurationError, match="the schema is fixed"):
        Part(Table("a", schema="{topic}"))
    with pytest.raises(ConfigurationError, match="a source begins with one of"):
        Part(Table("a"), columns={"a": "each.a"})
    with pytest.raises(ConfigurationError, match="not possible here"):
        Part(Table("raw_{offset}"))


def test_a_route_is_not_combined_with_what_belongs_to_one_table(local: Depot) -> None:
    with pytest.raises(ConfigurationError, match="give them to each Part"):
        local.run("all", [Table("a")], columns={"id": "value.id"})
    with pytest.raises(ConfigurationError, match="give it one with group="):
        local._app.sink("all", into="{topic}")
    part = Part(Table(local.table("a"), create=True), where={"value.kind": "x"})
    local.send("all", {"id": 1})
    with pytest.raises(ConfigurationError, match="a function makes the rows"):
        local.run("all", part, format=lambda record: {"id": 1})


# What a reader of the page has found


def test_values_that_make_one_name_go_into_one_table_whatever_batch_they_are_in(local: Depot) -> None:
    local.send("all", {"id": 1, "kind": 1}, {"id": 2, "kind": "1"}, b'{"id": 3, "kind": 1.0}', {"id": 4, "kind": 1})
    local.run("all", Part(Table(local.table("raw_{value.kind}"), create=True, columns={"id": int})))
    assert local.rows("raw_1", "id", "1") == [(1,), (2,), (3,), (4,)]
    assert not local.parked()


@pytest.mark.parametrize("number", [b"1e9999999999999999999999", b"9" * 5000, b"[" * 3000 + b"]" * 3000])
def test_a_number_that_is_none_stops_no_sink(local: Depot, number: bytes) -> None:
    local.send("all", b'{"id": 1, "kind": %b}' % number, {"id": 2, "kind": "b"})
    local.run("all", Part(Table(local.table("raw_{value.kind}"), create=True, columns={"id": int})))
    assert local.rows("raw_b", "id", "1") == [(2,)]
    assert local.parked() == [("all", 0)]


def test_one_table_is_in_one_part_whatever_its_schema_is_called(local: Depot) -> None:
    parts = [
        Part(Table(local.table("o"), schema=schema, create=True, columns={"id": int})) for schema in (None, "main")
    ]
    with pytest.raises(ConfigurationError, match="is in two parts of the route"):
        local.run("all", parts)


def test_rows_that_no_tombstone_could_reach_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="a tombstone has no value"):
        Part(Table("orders", key="id", mode="upsert"), where={"value.kind": "a"})
    with pytest.raises(ConfigurationError, match="a tombstone has no value"):
        Part(Table("raw_{value.kind}", key="id", mode="upsert"))
    with pytest.raises(ConfigurationError, match="soft_delete"):
        Part(Table("lines", key="id", mode="upsert", soft_delete="gone"), {"id": "value.id"}, each="value.lines")
    with pytest.raises(ConfigurationError, match="guard_table keeps a table.s truncates"):
        Part(Table("lines", key="id", mode="upsert", guard="lsn", guard_table="guard"))


def test_a_tombstone_is_refused_in_the_table_of_an_array_too(local: Depot) -> None:
    of = {"o": int, "n": int}
    table = Table(local.table("l"), key=["o", "n"], mode="upsert", create=True, tombstones="refuse", columns=of)
    local.send("all", {"id": 1, "lines": [{}]})
    local.kit.send("all", None, key=b"1")
    local.run("all", Part(table, {"o": "value.id", "n": "index"}, each="value.lines"))
    assert local.rows("l") == [(1, 0)]
    assert local.parked() == [("all", 1)]


def test_fields_are_read_only_of_records_that_may_have_them(local: Depot) -> None:
    local.kit.send("all", b"no JSON", headers=[("f", b"text")])
    local.kit.send("all", {"id": 1, "kind": "k"}, headers=[("f", b"json")])
    parts = [
        Part(Table(local.table("raw"), create=True, columns={"v": str}), {"v": "value"}, where={"headers.f": "text"}),
        Part(Table(local.table("o"), create=True, columns={"id": int}), where={"value.kind": "k", "headers.f": "json"}),
    ]
    local.run("all", parts)
    assert local.rows("raw", "v", "1") == [("no JSON",)]
    assert local.rows("o", "id", "1") == [(1,)]
    assert not local.parked()


def test_fields_of_an_envelope_without_a_schema_choose_tables_as_they_are(local: Depot) -> None:
    for number, kind in ((1, "x"), (2, "5")):
        local.send("all", {"schema": None, "payload": {"id": number, "k": kind}})
    kinds = Part(Table(local.table("k_{value.k}"), create=True, columns={"id": int}), where={"value.k": ["x", "5"]})
    local.run("all", kinds, format="connect-json")
    assert local.parked() == []
    assert [local.rows(name, "id", "1") for name in ("k_x", "k_5")] == [[(1,)], [(2,)]]


@pytest.mark.parametrize(
    ("source", "format"), [("topic", "json"), ("headers.a", "json"), ("key", "json"), ("value.a", CsvFormat(["a"]))]
)
def test_a_number_is_refused_as_the_condition_of_what_is_always_text(
    local: Depot, source: str, format: CsvFormat | str
) -> None:
    for value in (1, True, ["a", 1]):
        with pytest.raises(ConfigurationError, match=f"{source} is text, so it is never (1|true); write it as text"):
            local.run("all", Part(Table(local.table("t"), create=True), where={source: value}), format=format)


def test_a_place_without_its_end_is_no_name() -> None:
    for name in ("t_{topic", "t_topic}", "{topic}_{a", "{{topic}}"):
        with pytest.raises(ConfigurationError, match="a place, such as {topic}, begins with"):
            Route(Table(name))


def test_elements_that_only_a_schema_explains_are_not_written_as_they_stand(local: Depot) -> None:
    decimal = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    price = {"field": "price", **decimal}
    lines = {"field": "lines", "type": "array", "items": {"type": "struct", "fields": [price]}}
    schema = {"type": "struct", "fields": [{"field": "id", "type": "int64"}, lines]}
    local.send("all", {"schema": schema, "payload": {"id": 1, "lines": [{"price": "BNI="}]}})
    table = Table(local.table("l"), create=True, columns={"o": int, "price": str})
    local.run("all", Part(table, {"o": "value.id", "price": "each.price"}, each="value.lines"), format="connect-json")
    assert local.parked() == [("all", 0)]
    assert "l" not in local.tables() or local.rows("l", "o", "1") == []


def test_keys_in_an_envelope_choose_tables(local: Depot) -> None:
    key = {"schema": {"type": "struct", "fields": [{"field": "id", "type": "int64"}]}, "payload": {"id": 7}}
    value = {"schema": {"type": "struct", "fields": [{"field": "n", "type": "int64"}]}, "payload": {"n": 1}}
    local.kit.send("all", value, key=encoded(key))
    part = Part(Table(local.table("l_{key.id}"), create=True, columns={"n": int}), where={"key.id": 7})
    local.run("all", part, format="connect-json")
    assert local.rows("l_7", "n", "1") == [(1,)]


def test_an_array_with_its_own_columns_may_refuse_other_fields(local: Depot) -> None:
    table = Table(local.table("l"), create=True, unknown="refuse", columns={"o": int, "s": str})
    local.send("all", {"id": 1, "lines": [{"s": "a"}]})
    local.run("all", Part(table, {"o": "value.id", "s": "each.s"}, each="value.lines"))
    assert local.rows("l") == [(1, "a")]
