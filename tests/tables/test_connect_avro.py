"""Connect's Avro: the samples of a real Debezium and random events leave what the same in JSON leave."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from tests.tables.converter import DECIMAL, Converter, with_schema
from tests.tables.events import MISSING, Story, cuts, encoded, event, samples, sent
from tests.tables.handlers import sink_handler
from tests.tables.places import Place
from tests.tables.trial import write

from tidegate import ConfigurationError, Record, Table
from tidegate.app.sink import Sink
from tidegate.core.schemas import SchemaKind, framed
from tidegate.spark.spec import PipelineSpec
from tidegate.tables import ConnectAvroFormat, DebeziumAvroFormat, DoesNotFit, Part, Route, Target
from tidegate.tables.feed import Feed
from tidegate.tables.router import Router


def put(place: Place, table: Table, records: Sequence[Record], form: Any) -> list[str]:
    target = Target(place.engine, table, format=form)
    rows = target.read(records)
    place.write(target, rows)
    return [str(misfit) for misfit in rows.misfits]


def changes(converter: Converter, **more: Any) -> DebeziumAvroFormat:
    return DebeziumAvroFormat(registry=converter, **more)


def test_the_steps_of_a_real_source_leave_in_avro_what_they_leave_in_json(database: Place) -> None:
    for topic in ("orders", "composite"):
        records = samples("enveloped", topic)
        key = next(json.loads(each.key)["payload"] for each in records if each.key is not None)
        converter = Converter()
        found = []
        for given, form in ((records, "debezium"), (converter.records(records), changes(converter))):
            table = Table(database.name(), key=list(key), mode="upsert", create=True, evolve=True)
            sink = sink_handler(Sink(table, format=form), database.engine, count=lambda: 1)
            left: list[Any] = []
            for each in given:  # schemas change in between
                with database.engine.begin() as conn:
                    left.append(write(sink, conn, [each]))
                left.append(database.rows(table.name))
            found.append((left, [(each.name, each.type) for each in Target(database.engine, table).layout.columns]))
        assert found[0] == found[1]
        assert any(found[0][0][1::2])


@pytest.mark.parametrize("number", range(4))
def test_any_cut_leaves_what_the_events_leave_one_by_one(sqlite: Place, number: int) -> None:
    story = Story(f"avro {number}", is_soft=number > 1)
    story.tell(100)
    converter = Converter()
    records = converter.records([with_schema(each) for each in story.records])
    for size in (1, 7, 1000):
        name = sqlite.create("id INTEGER PRIMARY KEY, n INTEGER, big VARCHAR(20), gone BOOLEAN DEFAULT 0")
        table = Table(name, key="id", mode="upsert", soft_delete="gone" if number > 1 else None)
        sink = sink_handler(Sink(table, format=changes(converter)), sqlite.engine, count=lambda: 1)
        parked: set[int] = set()
        for batch in cuts(records, size):
            with sqlite.engine.begin() as conn:
                parked |= write(sink, conn, batch)
        found = {key: (n, big, bool(gone)) for key, n, big, gone in sqlite.rows(name)}
        assert found == (story.kept if number > 1 else {key: (*row, False) for key, row in story.rows.items()})
        assert parked == story.parked


def test_soft_deletes_a_guard_and_unavailable_values_are_as_in_json(sqlite: Place) -> None:
    converter = Converter()

    def avro(*events: Any) -> list[Record]:
        return converter.records([with_schema(each) for each in sent(*events)])

    table = Table(sqlite.name(), key="id", mode="upsert", create=True, evolve=True, soft_delete="gone", guard="at")
    new = ({"id": 1}, event("c", {"id": 1, "n": 5, "big": "long"}, source={"lsn": 5}))
    old = ({"id": 1}, event("u", {"id": 1, "n": 4, "big": "older"}, source={"lsn": 4}))
    same = ({"id": 1}, event("u", {"id": 1, "n": 6, "big": MISSING}, source={"lsn": 6}))
    gone = ({"id": 1}, event("d", None, {"id": 1, "n": 6, "big": ""}, source={"lsn": 7}))
    assert put(sqlite, table, avro(new, old, same), changes(converter)) == []
    assert sqlite.rows_of(f"SELECT id, n, big, gone, at FROM {table.name}") == [(1, 6, "long", 0, 6)]
    assert put(sqlite, table, avro(gone, (gone[0], None)), changes(converter)) == []
    assert sqlite.rows_of(f"SELECT n, gone, at FROM {table.name}") == [(6, 1, 7)]
    other = [({"id": 2}, event("u", {"id": 2, "n": 1, "big": "gap"}, source={"lsn": 8}))]
    with pytest.raises(DoesNotFit, match="with a value that is not in the event"):
        put(sqlite, table, avro(*other), changes(converter, placeholder="gap"))


def test_what_is_no_event_of_avro_is_refused_with_the_reason(sqlite: Place) -> None:
    converter = Converter()
    good = converter.records([with_schema(each) for each in sent(({"id": 1}, event("c", {"id": 1, "n": 1})))])[0]
    assert good.key is not None
    assert good.value is not None
    number = int.from_bytes(good.value[1:5], "big")
    proto = converter.registered("syntax", SchemaKind.PROTOBUF)
    plain = converter.framed(
        {"type": "record", "name": "R", "fields": [{"name": "secret", "type": "string"}]}, {"secret": "s3cret"}
    )
    bad = {
        event("c", {"id": 1, "n": 1}): "does not begin with the id of a schema",
        b"\0\0s3": "too short to name its schema: 4 bytes",
        b"": "too short to name its schema: 0 bytes",
        framed(99, b"s3cret"): "does not know the id 99",
        framed(proto, b"s3cret"): f"schema {proto} is of the kind PROTOBUF, not AVRO",
        good.value[:-2]: f"schema {number}: field 'op': the bytes end too early",
        good.value + b"s3cret": f"schema {number}: 6 bytes are left over",
        plain: "not a change event: it has no 'op'",
    }
    keys = {
        b"s3cret": "key: the key does not begin",
        framed(99, b"\2"): "key: the schema registry does not know the id 99",
    }
    records = [good._replace(value=value) for value in bad] + [good._replace(key=key) for key in keys]
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, n INTEGER"), key="id", mode="upsert")
    whys = put(sqlite, table, [*records, good, good._replace(key=b"s3cret", value=None)], changes(converter))
    assert len(whys) == len(records)
    for why, part in zip(whys, [*bad.values(), *keys.values()], strict=True):
        assert part in why
        assert "s3c" not in why
    assert sqlite.rows(table.name) == [(1, 1)]


def test_ids_may_be_in_headers(sqlite: Place) -> None:
    converter = Converter()
    (record,) = converter.records([with_schema(each) for each in sent(({"id": 1}, event("c", {"id": 1, "n": 1})))])
    assert record.key is not None
    assert record.value is not None
    ids = [("apicurio.key.contentId", b"\0\0\0" + record.key[:5]), ("__value_schema_id", record.value[:5])]
    moved = record._replace(key=record.key[5:], value=record.value[5:], headers=tuple(ids))
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, n INTEGER"), key="id", mode="upsert")
    assert put(sqlite, table, [moved], changes(converter)) == []
    assert sqlite.rows(table.name) == [(1, 1)]


def of_type(tree: Any, name: str = "Row") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "v", "type": tree}]}


DAY = "1970-01-01 00:00:00"
TYPES: list[tuple[Any, Any, str, Any]] = [
    ({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}, 1, "timestamp", f"{DAY}.000001"),
    ({"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"}, 1000, "timestamp", f"{DAY}.000001"),
    ({"type": "long", "logicalType": "timestamp-millis"}, 1, "timestamp", f"{DAY}.001"),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, 1, "timestamp", f"{DAY}.000001"),
    ({"type": "int", "logicalType": "date"}, 1, "date", "1970-01-02"),
    ({"type": "int", "connect.name": "org.apache.kafka.connect.data.Date"}, 1, "date", "1970-01-02"),
    ({"type": "int", "logicalType": "time-millis"}, 1500, "text", "00:00:01.500000"),
    ({"type": "long", "connect.name": "io.debezium.time.NanoDuration"}, 10**9, "text", "00:00:01"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, b"\x7b", "decimal(5,2)", Decimal("1.23")),
    ({"type": "bytes", "logicalType": "decimal", "precision": 5}, b"\x7b", "decimal(5,0)", Decimal(123)),
    (
        {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 1},
        b"\xff\x85", "decimal(4,1)", Decimal("-12.3"),
    ),
    (
        {"type": "bytes", "connect.name": DECIMAL, "connect.parameters": {"scale": "2"}},
        b"\x7b", "decimal", Decimal("1.23"),
    ),
    (
        {"type": "bytes", "connect.name": "io.debezium.data.Bits", "connect.parameters": {"length": "4"}},
        b"\x05", "text", "0101",
    ),
    (["null", {"type": "string", "connect.name": "io.debezium.data.Json"}], '{"a":1}', "json", '{"a":1}'),
    ("float", 1.100000023841858, "double", 1.1),
    ("double", 1.5, "double", 1.5),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "text", "B"),
    (
        {"type": "array", "items": {"type": "int", "connect.name": "io.debezium.time.Date"}},
        [1], "json", '["1970-01-02"]',
    ),
    ({"type": "map", "values": "bytes"}, {"k": b"\0"}, "json", '{"k":"AA=="}'),
    (["null", "long", "string"], "x", "json", '"x"'),
]  # fmt: skip


@pytest.mark.parametrize(("tree", "value", "kind", "shown"), TYPES)
def test_the_types_of_connect_and_those_of_avro_make_columns(
    sqlite: Place, tree: Any, value: Any, kind: str, shown: Any
) -> None:
    converter = Converter()
    records = sent((None, converter.framed(of_type(tree), {"v": value})))
    target = Target(sqlite.engine, Table(sqlite.name(), create=True), format=ConnectAvroFormat(registry=converter))
    rows = target.read(records)
    assert rows.misfits == ()
    (column,) = target.layout.columns
    sqlite.write(target, rows)
    ((found,),) = sqlite.rows(target.table.name)
    assert str(target.layout.by_name["v"].type.name.value) in kind or kind == str(column.type)
    if isinstance(shown, Decimal):
        assert Decimal(str(found)) == shown
    elif isinstance(shown, str) and kind == "timestamp":
        assert str(found).replace("T", " ").startswith(shown)
    else:
        assert found == shown


def test_numbers_that_json_does_not_have_are_written(on_postgres: Place) -> None:
    converter = Converter()
    given = [math.nan, math.inf, -math.inf, 0.1]
    records = sent(
        *((None, converter.framed(of_type(kind), {"v": each})) for kind in ("double", "float") for each in given)
    )
    table = Table(on_postgres.name(), create=True)
    assert put(on_postgres, table, records, ConnectAvroFormat(registry=converter)) == []
    assert (
        list(map(repr, (each for (each,) in on_postgres.rows_of(f"SELECT v FROM {table.name}"))))
        == ["nan", "inf", "-inf", "0.1"] * 2
    )


def test_types_that_contain_themselves_or_each_other_without_end_are_bounded(sqlite: Place) -> None:
    converter = Converter()
    itself = of_type("long") | {"fields": [{"name": "v", "type": "long"}, {"name": "next", "type": ["null", "Row"]}]}
    value = {"v": 1, "next": {"v": 2, "next": None}}
    table = Table(sqlite.create("v INTEGER, next TEXT"))
    form = ConnectAvroFormat(registry=converter)
    assert put(sqlite, table, sent((None, converter.framed(itself, value))), form) == []
    ((_, found),) = sqlite.rows(table.name)
    assert json.loads(found) == {"v": 2, "next": None}
    twice: Any = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "long"}]}
    for level in range(1, 40):
        names = [{"name": "a", "type": twice}, {"name": "b", "type": f"R{level - 1}"}]
        twice = {"type": "record", "name": f"R{level}", "fields": names}
    (why,) = put(sqlite, table, sent((None, framed(converter.registered(twice), b"\0"))), form)
    assert why == f"schema {len(converter.schemas)}: a schema of more than 20000 types"


def test_names_of_types_belong_to_their_namespace(sqlite: Place) -> None:
    converter = Converter()
    parts = [{"name": "d", "type": {"type": "int", "logicalType": "date"}}, {"name": "e", "type": ["null", "Day"]}]
    day = {"type": "record", "name": "Day", "namespace": "a", "fields": parts}
    tree = {"type": "record", "name": "b.Row", "fields": [{"name": "x", "type": day}, {"name": "y", "type": "a.Day"}]}
    value = {"x": {"d": 1, "e": None}, "y": {"d": 2, "e": None}}
    table = Table(sqlite.name(), create=True)
    target = Target(
        sqlite.engine, table, format=ConnectAvroFormat(registry=converter), columns={"x": "value.x.d", "y": "value.y.d"}
    )
    rows = target.read(sent((None, converter.framed(tree, value))))
    sqlite.write(target, rows)
    assert sqlite.rows_of(f"SELECT x, y FROM {table.name}") == [("1970-01-02", "1970-01-03")]


def test_rows_of_connect_are_read_with_keys_in_the_format_of_keys(sqlite: Place) -> None:
    converter = Converter()
    form = ConnectAvroFormat(registry=converter)
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, v INTEGER"), key="id", mode="upsert")
    tree = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, {"name": "v", "type": "int"}]}
    rows = [(encoded({"id": n}), converter.framed(tree, {"id": n, "v": n})) for n in (1, 2)]
    records = [Record("t", 0, place, key, value, (), 0) for place, (key, value) in enumerate(rows)]
    assert put(sqlite, table, [*records, records[0]._replace(value=None)], form) == []
    assert sqlite.rows(table.name) == [(2, 2)]
    assert put(sqlite, table, [records[0]._replace(value=b"[]")], form) == [
        "the value is too short to name its schema: 2 bytes"
    ]


def test_what_contradicts_the_format_is_refused() -> None:
    table = Table("t", key="id", mode="upsert")
    with pytest.raises(ConfigurationError, match="needs a schema registry"):
        Sink(table, "debezium-avro").with_registry(None)
    with pytest.raises(ConfigurationError, match="are Avro, too"):
        Sink(table, "debezium-avro", key_format="protobuf").with_registry(Converter())
    with pytest.raises(ConfigurationError, match="mode='upsert'"):
        Sink(Table("t"), "debezium-avro")
    with pytest.raises(ConfigurationError, match="mode='upsert'"):
        Sink(Table("t"), DebeziumAvroFormat())
    with pytest.raises(ConfigurationError, match="guard is the position"):
        Sink(Table("t", key="id", mode="upsert", guard="at"), "connect-avro")
    with pytest.raises(ConfigurationError, match="do you mean|'debezium-avro'"):
        Sink(table, "debezium-arvo")
    with pytest.raises(ConfigurationError, match="placeholder"):
        DebeziumAvroFormat(placeholder="")
    with pytest.raises(ConfigurationError, match="registry"):
        ConnectAvroFormat(registry="http://host")
    for name in ("debezium-avro", "connect-avro"):
        with pytest.raises(ConfigurationError, match="needs a schema registry"):
            PipelineSpec(("t",), table, "g", name)
        for more, match in (
            ({"where": "value.id > 1"}, "do not read them yet"),
            ({"delivery": "at-most-once"}, "would lose them"),
        ):
            with pytest.raises(ConfigurationError, match=match):
                PipelineSpec(("t",), table, "g", name, registry=Converter(), **more)
    with pytest.raises(ConfigurationError, match="are Avro, too"):
        PipelineSpec(("t",), table, "g", "debezium-avro", registry=Converter(), key_format="json-schema")
    spec = PipelineSpec(("t",), table, "g", "debezium-avro", registry=Converter(), key_format="avro")
    assert spec.keys is None


def test_a_format_is_sent_to_executors_as_it_was_made() -> None:
    converter = Converter()
    (record,) = converter.records([with_schema(each) for each in sent(({"id": 1}, event("c", {"id": 1, "n": 1})))])
    made = pickle.loads(pickle.dumps(changes(converter, placeholder="gap")))
    assert (type(made), made.placeholder) == (DebeziumAvroFormat, "gap")
    assert b'"op":"c"' in made.translated(Feed.of([record])).value[0]


def routed(place: Place, records: Sequence[Record], route: Route, form: Any) -> list[str]:
    router = Router(place.engine, route, format=form)
    draft = router.draft(Feed.of(records))
    with place.engine.begin() as conn:
        draft.write(conn, draft.rows)
    return [str(misfit) for misfit in draft.rows.misfits]


def test_routes_choose_by_fields_of_keys(sqlite: Place) -> None:
    converter = Converter()
    events = [({"id": n}, event("c", {"id": n, "n": n % 2})) for n in range(4)]
    records = converter.records([with_schema(each) for each in sent(*events)])
    made = Table("{topic}_" + sqlite.name(), key="{key}", mode="upsert", create=True, evolve=True)
    unknown = records[0]._replace(value=framed(99, b"s3cret"), topic="other")
    why = ["the schema registry does not know the id 99"]
    assert routed(sqlite, [unknown], Route([Part(made)]), changes(converter)) == why
    assert routed(sqlite, [*records, unknown], Route([Part(made)]), changes(converter)) == why
    assert sqlite.rows_of(f"SELECT id, n FROM {made.name.format(topic='t')}") == [(n, n % 2) for n in range(4)]
    tables = [Table(sqlite.create("id INTEGER PRIMARY KEY, n INTEGER"), key="id", mode="upsert") for _ in range(2)]
    parts = [Part(tables[0], where={"key.id": [0, 1]}), Part(tables[1], where={"key.id": 3})]
    assert routed(sqlite, records, Route(parts, unmatched="ignore"), changes(converter)) == []
    assert [sqlite.rows(table.name) for table in tables] == [[(0, 0), (1, 1)], [(3, 1)]]


def test_the_elements_of_an_array_have_rows_of_their_own(sqlite: Place) -> None:
    converter = Converter()
    item = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]}
    tree = {"type": "record", "name": "R", "fields": [{"name": "items", "type": {"type": "array", "items": item}}]}
    record = sent((None, converter.framed(tree, {"items": [{"sku": "a"}, {"sku": "b"}]})))
    table = Table(sqlite.create("sku TEXT"))
    route = Route([Part(table, each="value.items")])
    assert routed(sqlite, record, route, ConnectAvroFormat(registry=converter)) == []
    assert sqlite.rows(table.name) == [("a",), ("b",)]


def test_columns_may_come_from_keys_and_whole_values_as_json(sqlite: Place) -> None:
    converter = Converter()
    (record,) = converter.records([with_schema(each) for each in sent(({"id": 1}, event("c", {"id": 1, "n": 5})))])
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, k INTEGER, whole TEXT, at INTEGER"), key="id", mode="upsert")
    columns = {"id": "value.id", "k": "key.id", "whole": "key", "at": "offset"}
    target = Target(sqlite.engine, table, format=changes(converter), columns=columns)
    rows = target.read([record])
    sqlite.write(target, rows)
    assert sqlite.rows(table.name) == [(1, 1, '{"id":1}', 0)]
