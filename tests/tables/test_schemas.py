"""Records that name a schema of a real registry: from a serializer into a table and back, by each language."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from tidegate.core.schemas import Reference, Schema, SchemaKind, framed
from tidegate.kafka import RegistryClient, SchemaSerializer
from tidegate.kafka.registry import RegistrySettings
from tidegate.sandbox import Registry
from tidegate.tables import Feed, Rows, SchemaFormat, Table, Target
from tidegate.tables.column import Column
from tidegate.tables.format import Wanted
from tidegate.tables.types import ColumnType, TypeName

from .places import Place
from .test_protobuf import WIDE

FEW = settings(max_examples=6, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"], max_codepoint=0xFFFF), max_size=8)
I32, I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
MOMENT = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC))
DECIMAL = st.integers(-(10**12), 10**12).map(lambda digits: Decimal(digits).scaleb(-3))
REAL = st.integers(-(2**20), 2**20).map(lambda whole: whole / 64)
INNER = st.fixed_dictionaries({"name": TEXT, "number": I32}, optional={"flag": st.booleans()})
FREE = st.dictionaries(TEXT, st.none() | st.booleans() | TEXT | I32 | st.lists(I32, max_size=2), max_size=2)


@pytest.fixture
def client(registry: Registry) -> Iterator[RegistryClient]:
    opened = RegistryClient(RegistrySettings(registry.url))
    yield opened
    opened.close()


class Topic:
    """A topic whose values are serialized by the schemas of one language, and a format that reads them."""

    def __init__(self, client: RegistryClient, name: str) -> None:
        self.client = client
        self.topic = f"t{secrets.token_hex(6)}"
        self.name = name

    @property
    def form(self) -> SchemaFormat:
        return SchemaFormat(self.name, registry=self.client)  # type: ignore[arg-type]

    def bytes_of(self, schema: Any, *values: Any, **more: Any) -> list[bytes | None]:
        """Serialize values by a schema, which is registered if it is new."""
        write = SchemaSerializer(schema, self.name, registry=self.client, **more)
        return [write.serialize(value, self.topic, "value") for value in values]

    def put(self, place: Place, table: Table, data: list[bytes | None], **more: Any) -> Rows:
        target = Target(place.engine, table, format=self.form, **more)
        rows = target.read(Feed(value=data, key=[None] * len(data), headers=[()] * len(data)))
        place.write(target, rows)
        return rows


def found_in(place: Place, name: str, kinds: Mapping[str, ColumnType | None]) -> list[dict[str, Any]]:
    """Return the rows of a table with their values as a schema's decoder gives them."""
    with place.engine.connect() as conn:
        rows = conn.execute(text(f"SELECT * FROM {place.quote(name)} ORDER BY id")).mappings().all()
    return [{column: plain(value, kinds.get(column)) for column, value in row.items()} for row in rows]


def plain(value: Any, kind: ColumnType | None) -> Any:
    if value is None or kind is None:
        return value
    match kind.name:
        case TypeName.BOOLEAN:
            return bool(value)
        case TypeName.DECIMAL:
            return Decimal(str(value))
        case TypeName.BYTES:
            return bytes(value)
        case TypeName.DATE:
            return date.fromisoformat(value) if isinstance(value, str) else value
        case TypeName.TIMESTAMP:
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        case TypeName.JSON:
            return json.loads(value) if isinstance(value, str) else value
    return value


EVERYTHING = st.fixed_dictionaries(
    {
        "d": REAL,
        "f": REAL,
        **dict.fromkeys(("i32", "s32", "sx32"), I32),
        **dict.fromkeys(("s64", "sx64"), I64),
        **dict.fromkeys(("u32", "x32"), st.integers(0, 2**32 - 1)),
        **dict.fromkeys(("u64", "x64"), st.integers(0, 2**64 - 1)),
        "yes": st.booleans(),
        "text": TEXT,
        "raw": st.binary(max_size=8),
        "colour": st.sampled_from(["NONE", "RED", "BLUE"]),
        "many": st.lists(I32, max_size=3),
        "named": st.dictionaries(TEXT, INNER, max_size=2),
        "numbered": st.dictionaries(I32.map(str), st.booleans(), max_size=2),
        "inners": st.lists(INNER, max_size=2),
        "colours": st.lists(st.sampled_from(["RED", "BLUE"]), max_size=2),
    },
    optional={
        "maybe": I32,
        "perhaps": TEXT,
        "inner": INNER,
        "at": MOMENT,
        "took": st.just("PT1.5S"),
        "free": FREE,
        "wrapped": TEXT,
        "wrapped_number": st.integers(0, 2**64 - 1),
        "day": st.dates(date(1970, 1, 1), date(2200, 1, 1)),
        "price": DECIMAL,
        "opens": st.just("08:30:00.5"),
        "cost": DECIMAL,
        "right": I64,
    },
)


def test_protobuf_goes_into_each_database_and_comes_out_as_it_was(database: Place, client: RegistryClient) -> None:
    text = WIDE.text.replace("message Everything {", "message Everything { int64 id = 99;")

    @FEW
    @given(values=st.lists(EVERYTHING, min_size=5, max_size=20))
    def check(values: list[dict[str, Any]]) -> None:
        topic, name = Topic(client, "protobuf"), database.name()
        numbered = [{"id": place, **value} for place, value in enumerate(values)]
        columns = {"price": "decimal(20,3)", "cost": "decimal(20,3)"}
        rows = topic.put(
            database, Table(name, create=True, evolve=True, columns=columns), topic.bytes_of(text, *numbered)
        )
        assert list(map(str, rows.misfits)) == []
        codec, _, _ = topic.form.codecs.selected(topic.bytes_of(text, numbered[0])[0] or b"", (), "value")
        implicit = {"i64": 0, "moments": [], "prices": {}}
        expected = [{**dict.fromkeys(codec.fields or {}), **implicit, **value} for value in numbered]
        assert found_in(database, name, codec.fields or {}) == expected
        database.run(f"DROP TABLE {database.quote(name)}")

    check()


ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": ["number", "null"]},
        "flag": {"type": "boolean"},
        "text": {"type": "string"},
        "day": {"type": "string", "format": "date"},
        "at": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "choice": {"enum": ["a", "b"]},
        "nested": {"$ref": "inner.json"},
        "list": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["id"],
}
INNER_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "number": {"type": "integer"}}}
ORDERS = st.fixed_dictionaries(
    {"text": TEXT},
    optional={
        "price": st.none() | DECIMAL,
        "flag": st.booleans(),
        "day": st.dates(date(1970, 1, 1), date(2200, 1, 1)),
        "at": st.none() | MOMENT,
        "raw": st.binary(max_size=8),
        "choice": st.sampled_from(["a", "b"]),
        "nested": st.fixed_dictionaries({}, optional={"name": TEXT, "number": I32}),
        "list": st.lists(I32, max_size=3),
    },
)


def test_json_goes_into_each_database_and_comes_out_as_it_was(database: Place, client: RegistryClient) -> None:
    inner = Schema(SchemaKind.JSON, json.dumps(INNER_SCHEMA))
    subject = f"inner-{secrets.token_hex(4)}"
    client.id_of(subject, inner, register=True)
    references = (Reference("inner.json", subject, 1, inner),)

    @FEW
    @given(values=st.lists(ORDERS, min_size=5, max_size=20))
    def check(values: list[dict[str, Any]]) -> None:
        topic, name = Topic(client, "json-schema"), database.name()
        numbered = [{"id": place, **value} for place, value in enumerate(values)]
        data = topic.bytes_of(ORDER, *numbered, references=references)
        rows = topic.put(database, Table(name, create=True, evolve=True, columns={"price": "decimal(20,3)"}), data)
        assert list(map(str, rows.misfits)) == []
        codec, _, _ = topic.form.codecs.selected(data[0] or b"", (), "value")
        expected = [{**dict.fromkeys(codec.fields or {}), **value} for value in numbered]
        assert found_in(database, name, codec.fields or {}) == expected
        database.run(f"DROP TABLE {database.quote(name)}")

    check()


V1 = 'syntax = "proto3"; message Order { int64 id = 1; int32 amount = 2; }'
V2 = 'syntax = "proto3"; message Order { int64 id = 1; int64 amount = 2; optional string note = 3; }'
J1 = {"type": "object", "properties": {"id": {"type": "integer"}, "amount": {"type": "integer"}}}
J2 = {"type": "object", "properties": {**J1["properties"], "note": {"type": "string"}}}  # type: ignore[dict-item]
A1 = {"type": "record", "name": "Order", "fields": [{"name": each, "type": "long"} for each in ("id", "amount")]}
A2: dict[str, Any] = {
    **A1,
    "fields": [*A1["fields"], {"name": "note", "type": ["null", "string"], "default": None}],
}
CHANGES = [("protobuf", V1, V2), ("json-schema", J1, J2), ("avro", A1, A2)]


@pytest.mark.parametrize(("name", "one", "two"), CHANGES)
def test_a_schema_may_change_in_the_middle_of_a_batch(
    sqlite: Place, client: RegistryClient, name: str, one: Any, two: Any
) -> None:
    topic = Topic(client, name)
    old = topic.bytes_of(one, {"id": 1, "amount": 10}, {"id": 3, "amount": 30})
    new = topic.bytes_of(two, {"id": 2, "amount": 2**40, "note": "big"}, {"id": 4, "amount": 40})
    for evolve in (False, True):
        table = sqlite.create("id INTEGER PRIMARY KEY, amount INTEGER")
        rows = topic.put(sqlite, Table(table, evolve=evolve), [old[0], new[0], old[1], new[1]])
        assert list(map(str, rows.misfits)) == []
        more = [(None,), ("big",), (None,), (None,)] if evolve else [()] * 4
        assert sqlite.rows(table) == [
            (each, amount, *rest) for each, amount, rest in zip([1, 2, 3, 4], [10, 2**40, 30, 40], more, strict=True)
        ]


@pytest.mark.parametrize(("name", "one", "two"), CHANGES)
def test_garbage_between_records_of_two_schemas_is_parked_alone(
    sqlite: Place, client: RegistryClient, name: str, one: Any, two: Any
) -> None:
    topic = Topic(client, name)
    good = [*topic.bytes_of(one, {"id": 1, "amount": 10}), *topic.bytes_of(two, {"id": 2, "amount": 20})]
    other = Schema(SchemaKind.AVRO, '"int"') if name != "avro" else Schema(SchemaKind.JSON, json.dumps(J1))
    of_other = client.id_of(f"{topic.topic}-other", other, register=True)
    first, second = ((data or b"")[:5] for data in good)
    bad = {
        b"": "too short to name its schema",
        b"{}": "too short to name its schema",
        b'{"id": 1}': "does not begin with the id of a schema",
        framed(2**31 - 1, b"\0\x08\x01"): "does not know the id 2147483647",
        framed(of_other, b"\x02"): f"schema {of_other} is of the kind {other.kind.value}",
        first + b"\0\x0a\x03abc{": rf"schema {int.from_bytes(first[1:])}: ",
        second + b"\0\x1a\x03ab": rf"schema {int.from_bytes(second[1:])}: ",
        first: rf"schema {int.from_bytes(first[1:])}: ",
    }
    table = sqlite.create("id INTEGER PRIMARY KEY, amount INTEGER")
    data: list[bytes | None] = [good[0], *bad, good[1]]
    rows = topic.put(sqlite, Table(table), data)
    assert sqlite.rows(table) == [(1, 10), (2, 20)]
    assert [misfit.place for misfit in rows.misfits] == list(range(1, len(bad) + 1))
    for misfit, why in zip(rows.misfits, bad.values(), strict=True):
        assert why in str(misfit)


@pytest.mark.parametrize(("name", "one"), [("protobuf", V1), ("json-schema", J1), ("avro", A1)])
def test_a_tombstone_among_records_deletes_its_row(sqlite: Place, client: RegistryClient, name: str, one: Any) -> None:
    topic = Topic(client, name)
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, amount INTEGER"), mode="upsert", key="id")
    data = topic.bytes_of(one, {"id": 1, "amount": 10}, {"id": 2, "amount": 20}, None)
    target = Target(sqlite.engine, table, format=topic.form)
    rows = target.read(Feed(value=[None, *data], key=[b"9", b"1", b"2", b"1"], headers=[()] * 4))
    sqlite.write(target, rows)
    assert sqlite.rows(table.name) == [(2, 20)]


def test_protobuf_with_an_id_in_a_header_has_the_message_there_too(sqlite: Place, client: RegistryClient) -> None:
    topic = Topic(client, "protobuf")
    (data,) = topic.bytes_of(V1, {"id": 1})
    assert data is not None
    name, number = "__value_schema_id", data[:5]
    headers = [
        (name, number + b"\0"),
        ("other", b"x"),
        (name, number),
        ("apicurio.value.contentId", bytes(4) + data[1:5]),
        (name, number + b"\0rest"),
        (name, number + b"\2\x12"),
        (name, number + b"\2"),
    ]
    target = Target(sqlite.engine, Table(sqlite.create("id INTEGER")), format=topic.form)
    rows = target.read(Feed(value=[data[6:], data, *[data[6:]] * 5], headers=[(each,) for each in headers]))
    whys = [(misfit.place, str(misfit)) for misfit in rows.misfits]
    untold = "the header with the id of the schema does not tell which message of it this is"
    of_schema = f"schema {int.from_bytes(number[1:], 'big')}: "
    assert whys == [
        (2, untold),
        (3, untold),
        (4, f"{of_schema}the header with its id has bytes that stand for nothing"),
        (5, f"{of_schema}the index before the message names no message of its schema"),
        (6, f"{of_schema}the index before the message is none"),
    ]
    assert rows.batch.to_pydict() == {"id": [1, 1]}


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("protobuf", "google.protobuf"),
        ("protobuf", "grpc_tools"),
        ("json-schema", "jsonschema_rs"),
        ("avro", "numpy"),
    ],
)
def test_a_missing_package_is_named_at_the_start_with_its_extra(tmp_path: Path, name: str, package: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from tidegate import App, Table\n"
        "app = App('localhost:1', 'sqlite:///shop.db', registry='http://localhost:1')\n"
        f"app.sink('orders', into=Table('orders'), format={name!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    error = done.stderr.splitlines()[-1]
    assert f"need the package {package}" in error
    assert 'pip install "tidegate[registry]"' in error


NESTED = (
    'syntax = "proto3"; message Order { int64 id = 1; Address address = 2; } '
    "message Address { string city = 1; optional string zip = 2; }"
)
INNER_AVRO = {
    "type": "record",
    "name": "Address",
    "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": ["null", "string"], "default": None}],
}
NESTED_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "address", "type": ["null", INNER_AVRO], "default": None}],
}
NESTED_JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "address": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "string"}}},
    },
}


@pytest.mark.parametrize(
    ("name", "schema"), [("protobuf", NESTED), ("json-schema", NESTED_JSON), ("avro", NESTED_AVRO)]
)
def test_nested_records_are_flattened_if_so_chosen(
    sqlite: Place, client: RegistryClient, name: str, schema: Any
) -> None:
    topic = Topic(client, name)
    values = [{"id": 1, "address": {"city": "a", "zip": "b"}}, {"id": 2, "address": {"city": "c"}}, {"id": 3}]
    data = topic.bytes_of(schema, *values)
    form = SchemaFormat(name, flatten="_", registry=client)  # type: ignore[arg-type]
    for declared in ({}, {"id": int, "address_city": str, "address_zip": str}):
        table = Table(sqlite.name(), create=True, columns=declared)
        target = Target(sqlite.engine, table, format=form)
        sqlite.write(target, target.read(Feed(value=data)))
        assert sqlite.rows(table.name) == [(1, "a", "b"), (2, "c", None), (3, None, None)]


@pytest.mark.parametrize(("precision", "scale"), [(66, 2), (1001, 3), (65, 39)])
def test_a_decimal_of_more_digits_than_a_column_may_have_becomes_a_column_without_bounds(
    database: Place, client: RegistryClient, precision: int, scale: int
) -> None:
    topic = Topic(client, "avro")
    total = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    fields = [{"name": "id", "type": "long"}, {"name": "total", "type": total}, {"name": "later", "type": total}]
    table = Table(database.name(), key="id", mode="upsert", create=True, evolve=True)
    for number, known in ((1, fields[:2]), (2, fields)):
        schema = {"type": "record", "name": "Order", "fields": known}
        value = {"id": number, "total": Decimal("-1.5"), "later": Decimal("2.5")}
        data = topic.bytes_of(schema, {field["name"]: value[field["name"]] for field in known})  # type: ignore[index]
        assert topic.put(database, table, data).misfits == ()
    found = [[None if value is None else Decimal(value) for value in row] for row in database.rows(table.name)]
    assert found == [[1, Decimal("-1.5"), None], [2, Decimal("-1.5"), Decimal("2.5")]]


def test_a_schema_with_a_name_that_no_column_can_have_is_named_as_the_reason_why_there_is_no_table(
    on_postgres: Place, client: RegistryClient
) -> None:
    name = "n" * 64
    fields = [{"name": "id", "type": "long"}, {"name": name, "type": ["null", "long"]}]
    topic = Topic(client, "avro")
    data = topic.bytes_of({"type": "record", "name": "O", "fields": fields}, {"id": 1, name: None})
    (misfit,) = topic.put(on_postgres, Table(on_postgres.name(), create=True), data).misfits
    assert "the table does not exist yet, and cannot have a column 'nn" in str(misfit)
    assert "more than 63 bytes" in str(misfit)


FREE_JSON = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "more": {"type": "object"}},
    "patternProperties": {"^x": {"type": "integer"}},
    "additionalProperties": {"type": "string"},
}


def test_fields_that_a_json_schema_allows_and_does_not_name_become_columns_as_those_of_json_do(
    sqlite: Place, client: RegistryClient
) -> None:
    topic = Topic(client, "json-schema")
    first = topic.bytes_of(FREE_JSON, {"id": 1, "note": "a"})
    invalid = [first[0][:5] + b'{"id": 2, "odd": 5}']  # type: ignore[index]
    table = Table(sqlite.name(), key="id", mode="upsert", create=True, evolve=True)
    misfits = topic.put(sqlite, table, first + invalid).misfits
    assert ["not valid under the schema" in str(each) for each in misfits] == [True]
    assert topic.put(sqlite, table, topic.bytes_of(FREE_JSON, {"id": 3, "x1": 7, "tag": "b"})).misfits == ()
    assert sqlite.rows(table.name) == [(1, None, "a", None, None), (3, None, None, 7, "b")]
    other = Table(sqlite.name(), create=True)
    columns = {"id": "value.id", "size": "value.more.size"}
    assert (
        topic.put(sqlite, other, topic.bytes_of(FREE_JSON, {"id": 4, "more": {"size": 5}}), columns=columns).misfits
        == ()
    )
    assert sqlite.rows(other.name) == [(4, 5)]


CLASHING = 'syntax = "proto3"; message A { int64 id = 1; X x = 2; string x_a = 3; } message X { string a = 1; }'
CLASHING_JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "x": {"type": "object", "properties": {"a": {"type": "string"}}},
        "x_a": {"type": "string"},
    },
}


CLASHING_AVRO = {
    "type": "record",
    "name": "A",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "x", "type": {"type": "record", "name": "X", "fields": [{"name": "a", "type": "string"}]}},
        {"name": "x_a", "type": "string"},
    ],
}


@pytest.mark.parametrize(
    ("name", "schema"), [("avro", CLASHING_AVRO), ("protobuf", CLASHING), ("json-schema", CLASHING_JSON)]
)
def test_a_record_does_not_fit_if_two_of_its_fields_are_flattened_into_one_column(
    sqlite: Place, client: RegistryClient, name: str, schema: Any
) -> None:
    data = Topic(client, name).bytes_of(schema, {"id": 1, "x": {"a": "inner"}, "x_a": "outer"})
    form = SchemaFormat(name, flatten="_", registry=client)  # type: ignore[arg-type]
    target = Target(sqlite.engine, Table(sqlite.name(), create=True, columns={"id": int, "x_a": str}), format=form)
    (misfit,) = target.read(Feed(value=data)).misfits
    assert "field 'x_a': two fields become the same column" in str(misfit)


SEVERAL_KEYS = {
    "avro": {"type": "record", "name": "K", "fields": [{"name": name, "type": "long"} for name in ("id", "n")]},
    "protobuf": 'syntax = "proto3"; message K { int64 id = 1; int64 n = 2; }',
    "json-schema": {"type": "object", "properties": {"id": {"type": "integer"}, "n": {"type": "integer"}}},
}


@pytest.mark.parametrize("name", SEVERAL_KEYS)
@pytest.mark.parametrize("sources", ["key", "value"])
def test_keys_that_cannot_be_read_are_misfits_and_all_others_stay_with_their_values(
    sqlite: Place, client: RegistryClient, name: str, sources: str
) -> None:
    topic = Topic(client, name)
    numbers = [{"id": number, "n": number * 10} for number in (1, 2, 3)]
    one, two, three = topic.bytes_of(SEVERAL_KEYS[name], *numbers)
    assert three is not None
    cut, unframed, unknown = three[:5] + b"\xff", b"junk", b"\x00\x7f\xff\xff\xff\x02"
    keys = [unframed, one, cut, two, unknown, unframed, one, three]
    values = [three, one, three, two, three, None, None, three]
    table = Table(sqlite.name(), key=["id", "n"], mode="upsert", create=True, columns={"id": int, "n": int})
    columns = {"id": f"{sources}.id", "n": f"{sources}.n"}
    target = Target(sqlite.engine, table, format=topic.form, key_format=topic.form, columns=columns)
    rows = target.read(Feed(value=values, key=keys, headers=[()] * len(keys)))
    sqlite.write(target, rows)
    assert [misfit.place for misfit in rows.misfits] == ([0, 2, 4, 5] if sources == "key" else [5])
    assert sqlite.rows(table.name) == [(2, 20), (3, 30)]


@pytest.mark.parametrize("name", SEVERAL_KEYS)
def test_a_key_as_a_whole_becomes_a_column_of_json(sqlite: Place, client: RegistryClient, name: str) -> None:
    topic = Topic(client, name)
    [key] = topic.bytes_of(SEVERAL_KEYS[name], {"id": 1, "n": 2})
    columns = {"k": "key", "n": "value.n"}
    table = Table(sqlite.name(), create=True)
    target = Target(sqlite.engine, table, format=topic.form, key_format=topic.form, columns=columns)
    sqlite.write(target, target.read(Feed(value=[key], key=[key], headers=[()])))
    [(whole, number)] = sqlite.rows(table.name)
    assert (json.loads(whole), number) == ({"id": 1, "n": 2}, 2)


class Trees:
    """A registry of a schema that contains itself in three places."""

    def by_id(self, number: int) -> Schema:
        fields: list[Any] = [{"name": name, "type": ["null", "S"]} for name in ("left", "right", "middle")]
        tree = {"type": "record", "name": "S", "fields": [*fields, {"name": "id", "type": "int"}]}
        return Schema(SchemaKind.AVRO, json.dumps(tree))

    def latest(self, subject: str) -> Any:
        raise NotImplementedError

    def id_of(self, subject: str, schema: Schema, *, register: bool) -> int:
        raise NotImplementedError


def test_a_schema_that_contains_itself_is_flattened_into_few_columns() -> None:
    form = SchemaFormat("avro", flatten="_", registry=Trees())
    feed = Feed(value=[framed(1, b"\x02\0\0\0\x04\0\0\x02")])
    found = form.infer(feed, None)
    assert {("id",), ("left_id",), ("left_right_id",)} <= found.keys()
    assert len(found) <= 1_000
    column = Column("left_id", ColumnType(TypeName.INTEGER), "integer", takes_nul=True)
    fields = form.reader([Wanted(column, ("left_id",))]).read(feed)
    assert fields.converted["left_id"].array.to_pylist() == [2]


def test_a_schema_that_cannot_be_used_is_compiled_once_and_parks_its_records(
    sqlite: Place, client: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(client, "protobuf")
    number = client.id_of(
        topic.topic, Schema(SchemaKind.PROTOBUF, 'syntax = "proto3"; enum E { A = 0; }'), register=True
    )
    runs: list[Any] = []
    from tidegate.tables.protobuf import schema as module

    real = module._compiled
    monkeypatch.setattr(module, "_compiled", lambda *given: runs.append(given) or real(*given))
    table = Table(sqlite.create("id INTEGER PRIMARY KEY"))
    rows = topic.put(sqlite, table, [framed(number, b"\0\x08\x01")] * 50)
    assert len(rows.misfits) == 50
    assert f"schema {number}: the Protobuf schema has no message" in str(rows.misfits[0])
    assert len(runs) == 1
