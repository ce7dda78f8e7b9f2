"""The codec of Avro: what is written is read again, as another implementation reads it; and nothing else is read."""

from __future__ import annotations

import io
import json
import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables.avro.values import Drawn, every_type, logical, records, rows_of_every_type

from tidegate.core.schemas import Reference, Schema, SchemaKind
from tidegate.tables.codec import Codec, Mismatched, codec_of


def codec(schema: Any) -> Codec:
    return codec_of(Schema(SchemaKind.AVRO, json.dumps(schema)))


@given(records())
def test_a_value_is_read_as_it_was_written(drawn: Drawn) -> None:
    schema, value = drawn
    read = codec(schema)
    assert read.decode(read.encode(value)) == value


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        return {name: without_logical_types(each) for name, each in schema.items() if name != "logicalType"}
    return schema


@given(records())
def test_bytes_are_those_of_another_implementation(drawn: Drawn) -> None:
    """fastavro reads what was written to the same bytes, and what it writes is read to the same value."""
    schema, value = drawn
    data = codec(schema).encode(value)
    ours = codec(without_logical_types(schema))
    plain = fastavro.parse_schema(without_logical_types(schema))
    source, back = io.BytesIO(data), io.BytesIO()
    theirs = fastavro.schemaless_reader(source, plain)
    assert source.tell() == len(data)
    assert ours.decode(data) == theirs
    fastavro.schemaless_writer(back, plain, theirs)
    assert ours.decode(back.getvalue()) == theirs


@given(records(), st.data())
def test_damaged_bytes_are_read_or_refused_without_their_values(drawn: Drawn, data: st.DataObject) -> None:
    """A byte is changed, left out or added: there is a value, or an error that names the field."""
    schema, value = drawn
    read = codec(schema)
    good = bytearray(read.encode(value))
    place = data.draw(st.integers(0, len(good)))
    match data.draw(st.sampled_from(["change", "cut", "add"])):
        case "change" if place < len(good):
            good[place] = data.draw(st.integers(0, 255))
        case "cut":
            good = good[:place]
        case _:
            good.insert(place, data.draw(st.integers(0, 255)))
    try:
        found = read.decode(bytes(good))
    except Mismatched:
        return
    assert found.keys() == value.keys()


def test_bytes_that_are_left_over_are_refused() -> None:
    read = codec(every_type())
    data = read.encode(rows_of_every_type()[0])
    with pytest.raises(Mismatched, match="1 bytes are left over"):
        read.decode(data + b"\0")
    for end in range(len(data)):
        with pytest.raises(Mismatched):
            read.decode(data[:end])


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("boolean", b"\x02", "no boolean"),
        ("int", b"\xff\xff\xff\xff\x7f", "more than 32 bits"),
        ("long", b"\xff" * 10 + b"\x01", "more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
        ("string", b"\x01", "a length below zero"),
        ("string", b"\x02\xff", "not UTF-8"),
        ("string", b"\xfe\xff\xff\xff\x0f", "end too early"),
        (["null", "int"], b"\x04", "no branch"),
        (["null", "int"], b"\x01", "no branch"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "no symbol"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "no symbol"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", "more elements"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", "more elements"),
        (logical("bytes", "decimal", precision=4, scale=2), b"\x06\x7f\xff\xff", "more than 4 digits"),
        (logical("bytes", "decimal", precision=4, scale=2), b"\x00", "without bytes"),
        (logical("int", "date"), b"\xff\xff\xff\xff\x0f", "a date outside"),
        (logical("int", "time-millis"), b"\x01", "not within a day"),
        (logical("long", "timestamp-micros"), b"\xfe" + b"\xff" * 8 + b"\x01", "a timestamp outside"),
        (logical("string", "uuid"), b"\x02a", "not a UUID"),
    ],
)
def test_bytes_that_the_schema_does_not_allow_are_refused_by_field(kind: Any, data: bytes, why: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "first", "type": "int"}, {"name": "it", "type": kind}]}
    with pytest.raises(Mismatched, match=f"field 'it': .*{why}"):
        codec(schema).decode(b"\x02" + data)


def test_the_path_leads_through_records_and_lists() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "b", "type": "boolean"}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": inner}}]}
    with pytest.raises(Mismatched, match=r"field 'a\[1\].b'"):
        codec(schema).decode(b"\x04\x01\x02\x00")


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    schema = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    read = codec(schema)
    assert read.decode(b"\x02" * 20 + b"\x00")["next"]["next"] is not None
    with pytest.raises(Mismatched, match="nested too deep"):
        read.decode(b"\x02" * 1_000_000 + b"\x00")


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("int", 2**31, "32 bits"),
        ("int", True, "a whole number"),
        ("int", 1.5, "a whole number"),
        ("float", 1e300, "too large"),
        ("double", 2**53 + 1, "too many digits"),
        ("string", b"a", "text"),
        ("string", "\ud800", "surrogate"),
        ("bytes", "a", "bytes"),
        ("boolean", 1, "a boolean"),
        (logical("bytes", "decimal", precision=4, scale=2), Decimal("1.234"), "4 digits"),
        (logical("bytes", "decimal", precision=4, scale=2), Decimal("100"), "4 digits"),
        (logical("bytes", "decimal", precision=4, scale=2), Decimal("NaN"), "4 digits"),
        (logical("bytes", "decimal", precision=4, scale=2), 0.5, "a decimal"),
        (logical("long", "timestamp-micros"), datetime(2024, 1, 1), "with a zone"),
        (logical("long", "local-timestamp-micros"), datetime(2024, 1, 1, tzinfo=UTC), "without a zone"),
        (logical("int", "date"), datetime(2024, 1, 1), "a date"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "no symbol"),
        ({"type": "fixed", "name": "F", "size": 2}, b"a", "1 bytes instead of 2"),
        ({"type": "map", "values": "int"}, {1: 1}, "text"),
        (["null", "int"], "secret", "a whole number"),
        (["boolean", "int"], "secret", "no branch"),
    ],
)
def test_values_that_do_not_fit_are_not_written(kind: Any, value: Any, why: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "it", "type": kind}]}
    with pytest.raises(Mismatched, match=f"field 'it.*: .*{why}") as raised:
        codec(schema).encode({"it": value})
    assert "secret" not in str(raised.value)


def test_missing_fields_take_their_defaults_and_unknown_ones_are_refused() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int", "default": 7}]}
    fields = [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", "string"], "default": None},
        {"name": "c", "type": "bytes", "default": "\u00ff"},
        {"name": "d", "type": logical("int", "date"), "default": 1},
        {"name": "e", "type": {"type": "array", "items": "int"}, "default": []},
        {"name": "f", "type": inner, "default": {}},
    ]
    read = codec({"type": "record", "name": "R", "fields": fields})
    found = read.decode(read.encode({"a": 1}))
    assert found == {"a": 1, "b": None, "c": b"\xff", "d": datetime(1970, 1, 2).date(), "e": [], "f": {"x": 7}}
    with pytest.raises(Mismatched, match="field 'a': it is missing"):
        read.encode({})
    with pytest.raises(Mismatched, match="field 'z': the schema has no such field"):
        read.encode({"a": 1, "z": 1})


def test_a_time_of_another_zone_is_the_same_moment() -> None:
    read = codec(logical("long", "timestamp-micros"))
    moment = datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert read.decode(read.encode(moment)) == moment


def test_numbers_that_are_none_are_kept() -> None:
    read = codec("double")
    assert math.isnan(read.decode(read.encode(math.nan)))


def long(number: int) -> bytes:
    return codec("long").encode(number)


EMPTY_RECORD = {"type": "record", "name": "E", "fields": []}


def lattice(levels: int) -> Any:
    """Return a record that takes no bytes, and consists of two to the power of ``levels`` records."""
    kind: Any = EMPTY_RECORD
    for level in range(levels):
        below = kind["name"]
        kind = {
            "type": "record",
            "name": f"L{level}",
            "fields": [{"name": "a", "type": kind}, {"name": "b", "type": below}],
        }
    return kind


NULLS = {"type": "record", "name": "N", "fields": [{"name": f"n{n}", "type": "null"} for n in range(1_000)]}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ({"type": "array", "items": EMPTY_RECORD}, long(60_000) * 150 + b"\0"),
        (
            {"type": "array", "items": {"type": "array", "items": "null"}},
            (long(1) + long(60_000) + b"\0") * 150 + b"\0",
        ),
        ({"type": "array", "items": "null"}, long(2**62) + b"\0"),
        ({"type": "map", "values": lattice(12)}, long(150) + b"\2a" * 150 + b"\0"),
        ({"type": "array", "items": NULLS}, long(1_000) + b"\0"),
        (lattice(60), b""),
    ],
)
def test_a_few_bytes_do_not_become_any_number_of_values(kind: Any, data: bytes) -> None:
    with pytest.raises(Mismatched, match="more elements and fields that take no bytes"):
        codec(kind).decode(data)


def test_some_values_may_take_no_bytes() -> None:
    assert codec({"type": "array", "items": "null"}).decode(long(1_000) + b"\0") == [None] * 1_000
    fields = [
        {"name": "a", "type": "boolean"},
        {"name": "b", "type": "null"},
        {"name": "c", "type": EMPTY_RECORD | {"name": "F"}},
    ]
    record = {"type": "record", "name": "R", "fields": fields}
    found = codec({"type": "array", "items": record}).decode(long(100_000) + b"\0" * 100_001)
    assert len(found) == 100_000


def test_the_namespace_may_be_none() -> None:
    """Two types have one simple name: one is in the namespace of the record, and the other is in none."""
    first = {"type": "enum", "name": "E", "symbols": ["YES", "NO"]}
    second = {"type": "enum", "name": "E", "namespace": "", "symbols": ["NO", "YES"]}
    fields = [{"name": "x", "type": first}, {"name": "y", "type": second}, {"name": "z", "type": "ns.E"}]
    schema = {"type": "record", "name": "A", "namespace": "ns", "fields": fields}
    assert codec(schema).decode(b"\0\0\0") == {"x": "YES", "y": "NO", "z": "YES"}


def test_types_of_references_are_known() -> None:
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
    line = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "price", "type": "Money"}]}
    lines = {"type": "array", "items": "shop.Line"}
    order = {"type": "record", "name": "Order", "fields": [{"name": "lines", "type": lines}]}
    of_money = Reference("shop.Money", "money", 1, Schema(SchemaKind.AVRO, json.dumps(money)))
    of_line = Reference("shop.Line", "line", 1, Schema(SchemaKind.AVRO, json.dumps(line), (of_money,)))
    read = codec_of(Schema(SchemaKind.AVRO, json.dumps(order), (of_line,)))
    value = {"lines": [{"price": {"cents": 5}}]}
    assert read.decode(read.encode(value)) == value
    with pytest.raises(Mismatched, match="not one of Avro"):
        codec(order)


def test_logical_types_that_are_unknown_or_invalid_are_ignored() -> None:
    for kind in (
        logical("int", "nonsense"),
        logical("long", "date"),
        logical("long", "timestamp-nanos"),
    ):
        assert codec(kind).decode(b"\x02") == 1
    assert codec(logical("bytes", "decimal", precision="x")).decode(b"\x02a") == b"a"
    assert codec(logical("bytes", "decimal", precision=2, scale=3)).decode(b"\x02a") == b"a"
    assert codec(logical("bytes", "decimal", precision=10_001)).decode(b"\x02a") == b"a"
    assert codec(logical("bytes", "decimal", precision=10**9)).decode(b"\x02a") == b"a"
    assert codec(logical("bytes", "decimal", precision=10_000)).decode(b"\x02a") == 97


def test_a_size_without_end_is_refused() -> None:
    with pytest.raises(Mismatched, match="not one of Avro"):
        codec_of(Schema(SchemaKind.AVRO, '{"type": "fixed", "name": "F", "size": 1e999}'))
