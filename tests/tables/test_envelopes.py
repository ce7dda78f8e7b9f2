"""Envelopes, and change events, are read all at once where that is quicker: with the same result as one by one."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from hashlib import md5
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tables.events import MISSING, samples
from tests.tables.ways import compared

from tidegate.tables import DebeziumFormat, connect_format, debezium_format
from tidegate.tables.column import Column
from tidegate.tables.connect_format import ConnectJsonFormat, schema_of, with_plain_keys
from tidegate.tables.debezium_format import RowGuard
from tidegate.tables.envelope import Enveloped, Envelopes
from tidegate.tables.feed import Feed
from tidegate.tables.format import FieldMatch, NewFields, Unmatched, Wanted
from tidegate.tables.types import ColumnType, TypeName


def struct(*fields: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"field": name, "type": kind} for name, kind in fields], **more}


ROW = (("id", "int64"), ("name", "string"), ("ratio", "double"))
SCHEMAS = (
    struct(*ROW),
    struct(*ROW, version=2),
    {"type": "struct", "fields": [struct(*ROW, field="before"), struct(*ROW, field="after")]},
    {"type": "struct", "fields": [struct(*ROW[:2], field="after"), {"field": "op", "type": "string"}]},
    None,
)


class Whole(Enveloped, gc=False):
    """An envelope that may have any other member."""

    payload: msgspec.Raw = msgspec.Raw(b"")
    op: str | None = None


class Strict(Enveloped, gc=False, forbid_unknown_fields=True, kw_only=True):
    """An envelope that has a payload, and nothing else."""

    payload: msgspec.Raw


def taken(found: tuple[Enveloped, Any] | None) -> Any:
    if found is None:
        return None
    envelope, schema = found
    others = {name: getattr(envelope, name) for name in envelope.__struct_fields__ if name != "schema"}
    return schema, {name: bytes(each) if isinstance(each, msgspec.Raw) else each for name, each in others.items()}


def opened_whole(kind: type[Enveloped], value: bytes) -> Any:
    """As a decoder reads the value, which has never seen another one."""
    try:
        found = msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return taken((found, bytes(found.schema)))


scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "NaN", 'a"b', "ü", "payload", MISSING])
values_of_json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
)


def written(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@st.composite
def spoiled(draw: st.DrawFn, value: bytes) -> bytes:
    """A value with a piece that was taken out, put in or doubled."""
    at = draw(st.integers(0, len(value)))
    end = draw(st.integers(at, min(len(value), at + 12)))
    pieces = (b"", b" ", b"\n", b",", b"}", b"{", b'"', b"\\u0061", b"\xff", b"0", value[at:end] * 2)
    return value[:at] + draw(st.sampled_from(pieces)) + value[end:]


@st.composite
def envelopes(draw: st.DrawFn) -> bytes:
    """JSON like an envelope: members in any order, doubled, with spaces, with others beside them, or no JSON at all."""
    members = [
        b'"schema"%b:%b' % (draw(st.sampled_from([b"", b"", b"", b" "])), written(draw(st.sampled_from(SCHEMAS)))),
        b'"payload":' + written(draw(values_of_json)),
    ]
    others = (b'"payload":1', b'"schema":null', b'"schema":%b' % written(SCHEMAS[1]), b'"op":"c"', b'"\\u0070ayload":2')
    members += draw(st.lists(st.sampled_from(others), max_size=2)) if draw(st.booleans()) else []
    value = b"{%b}" % b",".join(draw(st.permutations(members)) if draw(st.booleans()) else members)
    value += draw(st.sampled_from([b"", b"", b"", b" ", b"\n", b"}", b"{}", b"\x00"]))
    return draw(spoiled(value)) if draw(st.booleans()) else value


@pytest.mark.parametrize("kind", [Whole, Strict])
@given(values=st.lists(envelopes(), min_size=1, max_size=12), times=st.integers(1, 3))
def test_a_known_schema_makes_no_difference(kind: type[Enveloped], values: list[bytes], times: int) -> None:
    known = Envelopes(kind, bytes)
    for value in values * times:
        expected = opened_whole(kind, value)
        assert taken(known.open(value)) == expected
        assert taken(known.open(value)) == expected  # now its schema is known
    together = known.open_all(values)
    one_by_one = [opened_whole(kind, value) for value in values]
    if together is not None:
        assert [taken((each, together[1])) for each in together[0]] == one_by_one
    for value, expected in zip(values, one_by_one, strict=True):
        if (alone := known.open_all([value, value])) is not None:
            assert [taken((each, alone[1])) for each in alone[0]] == [expected] * 2


SCHEMA = written(SCHEMAS[0])
ENVELOPE = b'{"schema":%b,"payload":{"id":1}}' % SCHEMA


@pytest.mark.parametrize(
    "value",
    [
        b' {"schema":%b,"payload":{"id":2}}' % SCHEMA,
        b'{"schema": %b,"payload":{"id":2}}' % SCHEMA,
        b'{"schema":%b , "payload":{"id":2}}' % SCHEMA,
        b'{"payload":{"id":2},"schema":%b}' % SCHEMA,
        b'{"schema":%b,"payload":{"id":2},"schema":null}' % SCHEMA,
        b'{"schema":%b,"payload":{"id":2},"schema":{"type":"int32"}}' % SCHEMA,
        b'{"schema":%b,"payload":{"id":2},"payload":{"id":3}}' % SCHEMA,
        b'{"schema":%b,"payload":{"id":2},"other":1}' % SCHEMA,
        b'{"schema":%b,"payload":{"id":2}}}' % SCHEMA,
        b'{"schema":%b,"payload":{"id":2}} ' % SCHEMA,
        b'{"schema":%b,"payload":{"id":2}' % SCHEMA,
        b'{"schema":%b,"payload":{"id":2}},' % SCHEMA,
        b'{"schema":%b,"payload":}' % SCHEMA,
        b'{"schema":%b,"payload":' % SCHEMA,
        b'{"schema":%b,"payload":{"id":2}}' % SCHEMA.replace(b"id", b"i\\u0064"),
        b'{"schema":%b,"payload":{"id":2}}' % SCHEMA[:-1],
        b'{"schema":%b,"payload":%b}' % (SCHEMA, b"[" * 5000 + b"]" * 5000),
    ],
)
def test_what_is_no_envelope_of_a_known_schema_is_read_as_a_whole(value: bytes) -> None:
    for kind in (Whole, Strict):
        known = Envelopes(kind, bytes)
        assert known.open(ENVELOPE) is not None
        assert taken(known.open(value)) == opened_whole(kind, value)
        assert (known.open_all([ENVELOPE, value]) is None) or opened_whole(kind, value) is not None


def test_few_schemas_are_kept_and_no_long_ones() -> None:
    read: list[bytes] = []

    def note(raw: bytes) -> None:
        read.append(raw)

    known = Envelopes(Strict, note)
    for number in range(100):
        assert known.open(b'{"schema":%d,"payload":1}' % number) is not None
    assert len(known._known) == 16
    known.open(b'{"schema":99,"payload":1}')
    assert len(read) == 100
    known.open(b'{"schema":"%b","payload":1}' % (b"x" * (1 << 19)))
    assert all(len(each.start) < 100 for each in known._known)


COLUMNS = {"id": "integer", "name": "text", "ratio": "double", "doc": "json", "sum": "decimal(9,2)", "at": "timestamp"}
WANTED = [Wanted(Column(name, ColumnType.of(kind), kind), (name,)) for name, kind in COLUMNS.items()]
NEW = FieldMatch(unmatched=Unmatched.NEW)
PLAIN = FieldMatch()

rows = st.fixed_dictionaries(
    {"id": st.integers(0, 5)},
    optional={
        "name": st.sampled_from(["a", None, MISSING, 5]),
        "ratio": st.sampled_from([1.5, "NaN", "x"]),
        "doc": st.sampled_from([{"k": [1]}, None, f"[{MISSING}]"]),
        "sum": st.sampled_from(["AJY=", 1, None]),
        "more": st.sampled_from([None, 1]),
        "ID": st.just(3),
    },
)


@st.composite
def events(draw: st.DrawFn) -> tuple[bytes | None, bytes | None]:
    """The key and the value of a record, mostly as connectors write them."""
    is_odd = draw(st.integers(0, 4)) == 0
    row = {"id": 1, "name": "a", "ratio": 0.5} if draw(st.booleans()) else draw(rows)
    op = draw(st.sampled_from(["c", "r", "u", "d", "t", "m", "x", None] if is_odd else ["c", "u", "u", "d"]))
    event: Any = {
        "op": op,
        "before": draw(st.sampled_from([None, row, {"id": 4, "name": ""}])),
        "after": None if op == "d" or (is_odd and draw(st.booleans())) else row,
        "source": draw(st.sampled_from([{"lsn": 5}] * 9 + [{}, {"file": "a.000001", "pos": 4, "server_id": 1}, None])),
        "ts_ms": 1,
    }
    if draw(st.integers(0, 9)) < 4:
        event = {"schema": draw(st.sampled_from(SCHEMAS[2:4] if not is_odd else SCHEMAS)), "payload": event}
    value = written(event)
    if is_odd and draw(st.booleans()):
        value = draw(spoiled(value))
    key: bytes | None = written({"id": row["id"]})
    if is_odd or draw(st.integers(0, 5)) == 0:
        key = draw(
            st.sampled_from(
                [
                    None,
                    b"{}",
                    b"5",
                    b'{"ID":1}',
                    b'{"id":1,"n":2}',
                    b'{"id":1,"name":"z"}',
                    b'{"id":1,"id":2}',
                    b'{"i\\u0064":1}',
                ]
            )
        )
    return key, None if draw(st.integers(0, 9)) == 0 else value


def feed_of(found: Sequence[tuple[bytes | None, bytes | None]]) -> Feed:
    return Feed(value=[value for _, value in found], key=[key for key, _ in found])


def read(reader: Any, feed: Feed) -> Any:
    try:
        found = reader.read(feed)
    except NewFields as new:
        return type(new)
    effects = {
        "deletes": found.deletes and found.deletes.to_pylist(),
        "existing": found.existing and found.existing.to_pylist(),
        "passed": list(found.passed),
        "truncates": list(found.truncates),
    }
    return compared(found) | effects


GUARDS = (
    None,
    RowGuard(Column("lsn", ColumnType(TypeName.INTEGER), "bigint")),
    RowGuard(Column("lsn", ColumnType(TypeName.INTEGER), "bigint"), True, 1, 2),
)


@pytest.mark.parametrize("watch", [PLAIN, NEW, FieldMatch(ignore_case=False)])
@settings(max_examples=250)
@given(
    found=st.lists(events(), max_size=4), key=st.sampled_from([("id",), ("id", "name")]), guard=st.sampled_from(GUARDS)
)
def test_events_that_are_read_at_once_are_those_that_are_read_one_by_one(
    watch: FieldMatch, found: list[tuple[bytes | None, bytes | None]], key: tuple[str, ...], guard: RowGuard | None
) -> None:
    def reader() -> Any:
        return DebeziumFormat().keyed_reader(WANTED, [(name,) for name in key], watch, guard)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(debezium_format, "AT_ONCE", 3)
        at_once = read(reader(), feed_of(found))
        patch.setattr(debezium_format._ChangeFields, "_add_all", lambda *_: False)
        assert at_once == read(reader(), feed_of(found))


@given(found=st.lists(envelopes() | st.none(), max_size=8))
def test_envelopes_that_are_read_at_once_are_those_that_are_read_one_by_one(found: list[bytes | None]) -> None:
    feed = Feed(value=found, key=found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect_format, "AT_ONCE", 3)
        at_once = read(ConnectJsonFormat().reader(WANTED), feed), with_plain_keys(feed)
        patch.setattr(Envelopes, "open_all", lambda *_: None)
        assert at_once == (read(ConnectJsonFormat().reader(WANTED), feed), with_plain_keys(feed))


@pytest.mark.parametrize(
    ("key", "op", "row"),
    [
        (b'{"id":1,"n":2}', "d", None),
        (b'{"id":1,"name":"z"}', "d", None),
        (b'{"id":1}', "c", None),
        (b'{"id":1}', "u", None),
        (b'{"id":1}', "c", {"id": 1, "name": MISSING}),
        (b'{"id":1}', "u", {"id": 1, "doc": [str(UUID(bytes=md5(MISSING.encode()).digest(), version=3))]}),
        (b'{"id":1}', "u", {"id": 1, "doc": list(MISSING.encode())}),
        (b'{"id":1}', "u", {"id": 1, "name": base64.b64encode(MISSING.encode()).decode()}),
        (None, "u", {"id": 1}),
        (b'{"ID":1}', "u", {"id": 1}),
        (b'{"id":1}', "t", None),
    ],
)
def test_one_event_that_takes_a_closer_look_gets_it(key: bytes | None, op: str, row: Any) -> None:
    plain = b'{"id":1}', written({"op": "u", "after": {"id": 1, "name": "a"}})
    odd = key, written({"op": op, "after": row, "before": {"id": 2, "name": ""}})
    for watch in (PLAIN, NEW):
        reader = DebeziumFormat().keyed_reader(WANTED, [("id",)], watch)
        for found in ([plain, odd], [odd, plain], [odd]):
            at_once = read(reader, feed_of(found))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(debezium_format._ChangeFields, "_add_all", lambda *_: False)
                assert at_once == read(reader, feed_of(found))


@pytest.mark.parametrize("kind", ["enveloped", "plain"])
def test_the_events_of_a_real_source_are_read_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [each for each in samples(kind, "orders") if each.value is None or b'"op":"t"' not in each.value]
    feed = with_plain_keys(Feed.of(records))
    names = ("id", "customer")
    reader = DebeziumFormat().keyed_reader(
        [Wanted(Column(name, ColumnType(TypeName.JSON), ""), (name,)) for name in names], [("id",)], PLAIN
    )
    monkeypatch.setattr(debezium_format, "AT_ONCE", 1)
    each = debezium_format._ChangeFields._add_each
    plain: list[int] = []
    monkeypatch.setattr(
        debezium_format._ChangeFields, "_add_each", lambda self, *args: (plain.append(args[1]), each(self, *args))
    )
    at_once = read(reader, feed)
    assert len(plain) < len(records) / 2
    monkeypatch.setattr(debezium_format._ChangeFields, "_add_all", lambda *_: False)
    assert read(reader, feed) == at_once


def test_a_schema_that_cannot_be_read_is_unknown_each_time() -> None:
    value = b'{"schema":{"type":5},"payload":{"id":1}}'
    assert schema_of(b'{"type":5}') is not None
    feed = Feed(value=[value, value])
    assert read(ConnectJsonFormat().reader(WANTED[:1]), feed)["arrays"] == {"id": "[1, 1]"}


def coded(number: int) -> str:
    size = (number.bit_length() + 8) // 8
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


DECIMAL = "org.apache.kafka.connect.data.Decimal"
TIMES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Timestamp", "io.debezium.time.MicroTimestamp")
odd = st.sampled_from([None, "", "=", "A", "A===", "AA\\/A", "ü", " AA==", "AA==\n", 5, 1.5, -0.0, 2**70, True, [], {}])
decimals = st.integers(-(2**70), 2**70).map(coded) | st.integers(-1000, 1000).map(coded) | odd
times = st.integers(-800_000, 3_000_000) | st.integers(-(2**63), 2**63) | odd
unbounded = Column("n", ColumnType(TypeName.DECIMAL), "numeric")


@pytest.mark.parametrize(
    ("column", "values"),
    [
        *(
            (column, decimals)
            for column in (
                Column("n", ColumnType.decimal(9, 2), "numeric(9,2)"),
                Column("n", ColumnType.decimal(38, 20), "numeric(38,20)"),
                Column("n", ColumnType.decimal(60, 3), "numeric(60,3)"),
                Column("n", ColumnType.decimal(90, 3), "numeric(90,3)"),
                unbounded,
                Column("n", ColumnType(TypeName.TEXT), "text"),
            )
        ),
        *((Column("n", ColumnType(name), name.value), times) for name in (TypeName.DATE, TypeName.TIMESTAMP)),
    ],
    ids=lambda each: each.sql_type if isinstance(each, Column) else "",
)
@settings(max_examples=60)
@given(data=st.data())
def test_a_column_that_is_converted_at_once_has_the_values_that_are_converted_one_by_one(
    column: Column, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    is_decimal = values is decimals
    name = DECIMAL if is_decimal else data.draw(st.sampled_from(TIMES))
    parameters = {"scale": str(data.draw(st.sampled_from([0, 2, 6, 7, 20, 40, -1])))} if is_decimal else {}
    field = {"field": "n", "type": "bytes", "name": name, "parameters": parameters}
    schema = data.draw(st.sampled_from([{"type": "struct", "fields": [field]}, None]))
    pick = data.draw(
        st.sampled_from([values.filter(lambda each: isinstance(each, str if is_decimal else int)), values])
    )
    found = [written({"schema": schema, "payload": {"n": each}}) for each in data.draw(st.lists(pick, max_size=5))]

    def all_read() -> Any:
        return read(ConnectJsonFormat().reader([Wanted(column, ("n",))]), Feed(value=found))

    with pytest.MonkeyPatch.context() as patch:
        at_once = all_read()
        patch.setattr(connect_format, "_at_once", lambda *_, **__: None)
        assert at_once == all_read()


def test_plain_columns_are_converted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("value by value")

    monkeypatch.setattr(connect_format, "_decimal", refuse)
    monkeypatch.setattr(connect_format, "_days", refuse)
    for column, value in ((unbounded, coded(-1250)), (Column("n", ColumnType(TypeName.DATE), "date"), 19_000)):
        name = DECIMAL if isinstance(value, str) else TIMES[0]
        schema = struct(("n", "bytes"))
        schema["fields"][0] |= {"name": name, "parameters": {"scale": "2"}}
        found = [written({"schema": schema, "payload": {"n": each}}) for each in (value, None)]
        [array] = read(ConnectJsonFormat().reader([Wanted(column, ("n",))]), Feed(value=found))["arrays"].values()
        assert array in ("['-12.50', None]", "[datetime.date(2022, 1, 8), None]")
