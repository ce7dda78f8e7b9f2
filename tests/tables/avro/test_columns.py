"""Columns of Avro: reading each field from all records at once gives what decoding one record after the other gives."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tables.avro.values import every_type, logical, records, rows_of_every_type, values_of
from tests.tables.ways import columns, natural, same

from tidegate.core.schemas import Schema, SchemaKind
from tidegate.tables.codec import Codec, codec_of
from tidegate.tables.column import Column
from tidegate.tables.feed import Feed
from tidegate.tables.format import FieldMatch, Unmatched, Wanted
from tidegate.tables.types import ColumnType


def codec(schema: Any) -> Codec:
    return codec_of(Schema(SchemaKind.AVRO, json.dumps(schema)))


@st.composite
def batches(draw: st.DrawFn) -> tuple[Any, list[bytes | None]]:
    """A schema, and the bytes of some records; a few are damaged in one of many ways, or missing."""
    schema, _ = draw(records())
    read = codec(schema)
    data: list[bytes | None] = [read.encode(value) for value in draw(st.lists(values_of(schema), max_size=6))]
    for _ in range(draw(st.integers(0, 3)) if data else 0):
        place = draw(st.integers(0, len(data) - 1))
        good = bytearray(data[place] or b"")
        at = draw(st.integers(0, len(good)))
        match draw(st.sampled_from(["change", "cut", "add", "long", "left over", "gone", "anything"])):
            case "change" if at < len(good):
                good[at] = draw(st.integers(0, 255))
            case "cut":
                good = good[:at]
            case "add":
                good.insert(at, draw(st.integers(0, 255)))
            case "long":
                good[at:at] = b"\xff" * draw(st.integers(6, 11))
            case "gone":
                data[place] = None
                continue
            case "anything":
                good = bytearray(draw(st.binary(max_size=60)))
            case _:
                good += b"\0"
        data[place] = bytes(good)
    return schema, data


@settings(max_examples=150)
@given(batches())
def test_columns_have_the_values_of_records(drawn: tuple[Any, list[bytes | None]]) -> None:
    schema, data = drawn
    read = codec(schema)
    reader = same(read, data, natural(read))
    assert reader is not None or has_empty_values(schema)


def has_empty_values(schema: Any) -> bool:
    """Whether a schema has values that take no bytes: arrays of them are bounded record by record."""
    text = json.dumps(schema)
    return '"type": "null"' in text or '"items": "null"' in text or '"fields": []' in text


def paths_of(schema: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for each in schema["fields"]:
        kinds = each["type"] if isinstance(each["type"], list) else [each["type"]]
        found += [(*before, each["name"]), (*before, each["name"], "f0")]
        for kind in kinds:
            if isinstance(kind, dict) and kind["type"] == "record":
                found += paths_of(kind, (*before, each["name"]))
    return found


WATCHES = [FieldMatch(case, match) for case in (True, False) for match in Unmatched]


@settings(max_examples=150)
@given(st.data())
def test_columns_of_any_type_from_any_field(draw: st.DataObject) -> None:
    """Nested fields and unmatched ones, and columns whose type is not that of the field."""
    schema, data = draw.draw(batches())
    wanted = draw.draw(columns(paths_of(schema)))
    same(codec(schema), data, wanted, draw.draw(st.sampled_from(WATCHES)))


FLAT: dict[str, Any] = {
    "type": "record",
    "name": "Flat",
    "fields": [
        {"name": f"f{number}", "type": kind}
        for number, kind in enumerate(
            [
                "long",
                ["null", "string"],
                "int",
                ["double", "null"],
                "string",
                logical("bytes", "decimal", precision=30, scale=4),
                ["null", logical("bytes", "decimal", precision=9, scale=2)],
                {"type": "enum", "name": "E", "symbols": ["A", "B"]},
                ["null", logical("string", "uuid")],
                logical("long", "timestamp-micros"),
            ]
        )
    ],
}


@settings(max_examples=60)
@given(st.lists(values_of(FLAT), min_size=1, max_size=40), st.data())
def test_bytes_that_are_cut_at_any_place_spoil_only_their_record(rows: list[Any], draw: st.DataObject) -> None:
    read = codec(FLAT)
    data = [read.encode(row) for row in rows]
    place = draw.draw(st.integers(0, len(rows) - 1))
    data[place] = data[place][: draw.draw(st.integers(0, len(data[place])))]
    assert same(read, data, natural(read)) is not None


_MOMENT = datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)
NUMBERS = [bytes([0xFF] * size + [last]) for size in range(11) for last in (0, 1, 2, 0x7F)]


@pytest.mark.parametrize(
    "kind",
    [
        "long",
        "int",
        "string",
        ["null", "long"],
        ["null", "string"],
        {"type": "enum", "name": "E", "symbols": ["A"]},
        logical("int", "date"),
        logical("int", "time-millis"),
        logical("long", "time-micros"),
        logical("long", "timestamp-millis"),
        logical("bytes", "decimal", precision=4, scale=2),
        {"type": "array", "items": "int"},
    ],
)
def test_numbers_of_every_length_are_read_or_refused(kind: Any) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "it", "type": kind}, {"name": "end", "type": "int"}]}
    read = codec(schema)
    data = [number + rest for number in NUMBERS for rest in (b"", b"\x02", b"\x04a\x02", b"\0" * 9)]
    assert same(read, data, natural(read)) is not None


DECIMALS = [
    number + sign * off for number in (0, 10**4, 2**63, 2**64, 10**18, 10**38) for sign in (1, -1) for off in (0, 1)
]


@pytest.mark.parametrize("precision", [1, 4, 18, 19, 38, 39])
def test_decimals_of_every_size(precision: int) -> None:
    kind = logical("bytes", "decimal", precision=precision, scale=1)
    schema = {"type": "record", "name": "R", "fields": [{"name": "it", "type": kind}]}
    data = [b"\0"]
    for number in DECIMALS:
        for size in range((number.bit_length() // 8) + 1, 20):
            data.append(bytes([2 * size]) + number.to_bytes(size, "big", signed=True))
    read = codec(schema)
    for to in ("text", "decimal", "decimal(38,1)", "decimal(10,0)", "integer", "json"):
        column = Column("it", ColumnType.of(to), "")
        assert same(read, data, [Wanted(column, ("it",))]) is not None


def test_fields_of_every_type_are_read_at_once() -> None:
    read = codec(every_type())
    data = [read.encode(row) for row in rows_of_every_type()] * 5
    reader = same(read, data, natural(read))
    assert reader is not None


def test_large_batches_are_read_in_parts() -> None:
    read = codec(FLAT)
    rng = random.Random(1)
    row = {f"f{number}": None for number in range(10)} | {"f0": 1, "f2": 2, "f4": "x", "f5": 1, "f7": "A"}
    row["f9"] = read.decode(read.encode(row | {"f9": _MOMENT}))["f9"]
    data: list[bytes | None] = []
    for number in range(25_000):
        good = read.encode(row | {"f0": number, "f1": None if number % 3 else "größer", "f4": "y" * (number % 50)})
        data.append(good[: rng.randrange(len(good))] if number % 1000 == 7 else None if number % 1000 == 8 else good)
    reader = same(read, data, natural(read))
    assert reader is not None
    found = reader.read(Feed(value=data))
    assert len(found.misfits) == 25
    assert pa.types.is_int64(found.converted["f0"].array.type)


def doubled(levels: int) -> Any:
    """A record that has two fields of the record below it, and so on."""
    nested: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for level in range(1, levels):
        fields = [{"name": "a", "type": ["null", nested]}, {"name": "b", "type": ["null", f"R{level - 1}"]}]
        nested = {"type": "record", "name": f"R{level}", "fields": fields}
    return nested


def test_records_that_share_their_types_are_not_read_by_every_path() -> None:
    read = codec(doubled(40))  # a trillion paths
    data = [b"\0\0", b"\2\2\0\0\2\0\0", b"\0\2\2\2\0\0\0", b"\2\2\2\0"]
    for path in (("none",), ("a", "a"), ("b", "a", "b", "a"), ("b", *"a" * 38, "x")):
        assert same(read, data, [Wanted(Column("it", ColumnType.of("json"), ""), path)]) is not None


def test_a_nested_record_with_a_field_of_the_same_name_twice_is_read_whole() -> None:
    nested = {"type": "record", "name": "N", "fields": [{"name": "x", "type": kind} for kind in ("string", "int")]}
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "it", "type": nested}, {"name": "s", "type": "string"}],
    }
    wanted = [Wanted(Column("x", ColumnType.of("json"), ""), ("it", "x"))]
    wanted += [Wanted(Column("s", ColumnType.of("text"), ""), ("s",))]
    assert same(codec(schema), [b"\0\4\2a", b"\0\4\0", b"\0\4"], wanted) is not None
