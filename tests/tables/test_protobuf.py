"""Protobuf: schemas from text, messages to values and back, and columns that agree with them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from tests.tables.ways import columns, natural, same

from tidegate.core.schemas import Reference, Schema, SchemaKind, framed
from tidegate.errors import RegistryUnavailable
from tidegate.tables.codec import Codecs, Mismatched, codec_of
from tidegate.tables.column import Column
from tidegate.tables.feed import Feed
from tidegate.tables.format import FieldMatch, NewFields, Unmatched, Wanted
from tidegate.tables.protobuf.codec import ProtobufCodec
from tidegate.tables.protobuf.columns import MessageColumns
from tidegate.tables.protobuf.schema import MessageTypes, read_index, written_index
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.values import array_of


def schema(text: str, **references: str) -> Schema:
    below = tuple(
        Reference(name.replace("__", "/") + ".proto", name, 1, schema(each)) for name, each in references.items()
    )
    return Schema(SchemaKind.PROTOBUF, text, below)


WIDE = schema(
    """
    syntax = "proto3";
    package shop;
    import "confluent/type/decimal.proto";
    import "google/protobuf/duration.proto";
    import "google/protobuf/struct.proto";
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/wrappers.proto";
    import "google/type/date.proto";
    import "google/type/decimal.proto";
    import "google/type/timeofday.proto";

    message Everything {
      double d = 1; float f = 2; int32 i32 = 3; int64 i64 = 4; uint32 u32 = 5; uint64 u64 = 6; sint32 s32 = 7;
      sint64 s64 = 8; fixed32 x32 = 9; fixed64 x64 = 10; sfixed32 sx32 = 11; sfixed64 sx64 = 12; bool yes = 13;
      string text = 14; bytes raw = 15; Colour colour = 16;
      optional int32 maybe = 17; optional string perhaps = 18; Inner inner = 19;
      repeated int64 many = 20; map<string, Inner> named = 21; map<int32, bool> numbered = 22;
      oneof choice { string left = 23; int64 right = 24; }
      google.protobuf.Timestamp at = 25; google.protobuf.Duration took = 26; google.protobuf.Struct free = 27;
      google.protobuf.Value any_json = 28; google.protobuf.StringValue wrapped = 29;
      google.protobuf.UInt64Value wrapped_number = 30; google.type.Date day = 31; google.type.Decimal price = 32;
      google.type.TimeOfDay opens = 33; confluent.type.Decimal cost = 34; repeated Inner inners = 35;
      repeated Colour colours = 36; repeated google.protobuf.Timestamp moments = 37;
      map<string, google.type.Decimal> prices = 38;
    }
    message Inner { string name = 1; int64 number = 2; optional bool flag = 3; Inner inner = 4; }
    enum Colour { NONE = 0; RED = 1; BLUE = 7; }
    """
)

I32, I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=8)
COLOUR = st.sampled_from(["NONE", "RED", "BLUE"])
MOMENT = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
DECIMAL = st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20)
LENGTH = st.from_regex(r"-?PT[1-9][0-9]{0,10}(\.[0-9]{0,8}[1-9])?S", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | TEXT | st.integers(-(2**53) + 1, 2**53 - 1) | st.sampled_from([0.5, -1.25, 1e300]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
INNER = st.recursive(
    st.fixed_dictionaries({"name": TEXT, "number": I64}, optional={"flag": st.booleans()}),
    lambda inner: st.fixed_dictionaries({"name": TEXT, "number": I64, "inner": inner}),
    max_leaves=2,
)
ALWAYS = {
    "d": st.floats(allow_nan=False),
    "f": st.floats(allow_nan=False, width=32),
    **dict.fromkeys(("i32", "s32", "sx32"), I32),
    **dict.fromkeys(("i64", "s64", "sx64"), I64),
    **dict.fromkeys(("u32", "x32"), U32),
    **dict.fromkeys(("u64", "x64"), U64),
    "yes": st.booleans(),
    "text": TEXT,
    "raw": st.binary(max_size=8),
    "colour": COLOUR,
    "many": st.lists(I64, max_size=3),
    "named": st.dictionaries(TEXT, INNER, max_size=2),
    "numbered": st.dictionaries(I32.map(str), st.booleans(), max_size=2),
    "inners": st.lists(INNER, max_size=2),
    "colours": st.lists(COLOUR, max_size=2),
    "moments": st.lists(MOMENT, max_size=2),
    "prices": st.dictionaries(TEXT, DECIMAL, max_size=2),
}
SOMETIMES = {
    "maybe": I32,
    "perhaps": TEXT,
    "inner": INNER,
    "at": MOMENT,
    "took": LENGTH,
    "free": st.dictionaries(TEXT, JSON, max_size=2),
    "any_json": JSON,
    "wrapped": TEXT,
    "wrapped_number": U64,
    "day": st.dates(),
    "price": DECIMAL,
    "opens": st.just("08:30:00.5") | st.just("23:59:59"),
    "cost": DECIMAL,
}
EVERYTHING = st.fixed_dictionaries(ALWAYS, optional=SOMETIMES).flatmap(
    lambda value: st.sampled_from([value, value | {"left": "l"}, value | {"right": 0}])
)


@pytest.fixture(scope="module")
def wide() -> ProtobufCodec:
    found = codec_of(WIDE)
    assert isinstance(found, ProtobufCodec)
    return found


@settings(max_examples=60)
@given(value=EVERYTHING)
def test_every_type_comes_back_as_it_was(wide: ProtobufCodec, value: Mapping[str, Any]) -> None:
    assert wide.decode(wide.encode(value)) == value


def wanted_of(codec: Any) -> list[Wanted]:
    kinds = {name: kind or ColumnType(TypeName.TEXT) for name, kind in codec.fields.items()}
    return [Wanted(Column(name, kind, str(kind), takes_nul=True), (name,)) for name, kind in kinds.items()]


def seen(codec: ProtobufCodec, values: list[bytes | None], **match: Any) -> list[Any]:
    """Return, for each value, the row that its columns make, or the reason why it has none."""
    wanted = wanted_of(codec)
    found = MessageColumns(codec, wanted, FieldMatch(**match)).read(Feed(value=values))
    rows: list[Any] = [None] * len(values)
    for row, place in enumerate(found.places):
        made = {}
        for column, _ in wanted:
            array, problems = found.converted[column.name]
            lacks = column.name in found.lacking and found.lacking[column.name][row].as_py()
            made[column.name] = UNSET if lacks else problems.get(row, array[row].as_py())
            if row in problems:
                rows[place] = "misfit"
        rows[place] = rows[place] or made
    for misfit in found.misfits:
        rows[misfit.place] = "misfit"
    return rows


def decoded(codec: ProtobufCodec, value: bytes | None) -> Any:
    """Return what :func:`seen` must: by way of dictionaries."""
    wanted = wanted_of(codec)
    try:
        row = {} if value is None else codec.decode(b"\0" + value)
    except Mismatched:
        return "misfit"
    made = {}
    for column, (name,) in wanted:
        array, problems = array_of([row.get(name)], column)
        if problems:
            return "misfit"
        made[column.name] = array[0].as_py() if name in row else UNSET
    return made


@settings(max_examples=25)
@given(values=st.lists(EVERYTHING | st.none(), max_size=5))
def test_columns_are_what_the_single_messages_are(wide: ProtobufCodec, values: list[Mapping[str, Any] | None]) -> None:
    messages = [None if value is None else wide.encode(value)[1:] for value in values]
    assert seen(wide, messages) == [decoded(wide, message) for message in messages]


@settings(max_examples=60)
@given(data=st.data(), value=EVERYTHING)
def test_garbage_is_a_misfit_on_both_ways_and_spoils_no_neighbour(
    wide: ProtobufCodec, data: st.DataObject, value: Mapping[str, Any]
) -> None:
    good = wide.encode(value)[1:]
    at = data.draw(st.integers(0, len(good)))
    bad = data.draw(
        st.one_of(
            st.just(good[:at]),
            st.binary(max_size=6).map(lambda more: good + more),
            st.binary(min_size=1, max_size=3).map(lambda other: good[:at] + other + good[at + len(other) :]),
            st.binary(max_size=30),
        )
    )
    assert seen(wide, [good, bad, good]) == [decoded(wide, each) for each in (good, bad, good)]
    try:
        wide.decode(b"\0" + bad)
    except Mismatched as error:
        assert str(error)


FLAT = schema(
    """
    syntax = "proto3";
    package shop;
    import "google/protobuf/timestamp.proto";

    message Flat {
      double d = 1; float f = 2; int32 i32 = 3; int64 i64 = 4; uint32 u32 = 5; uint64 u64 = 6; sint32 s32 = 7;
      sint64 s64 = 8; fixed32 x32 = 9; fixed64 x64 = 10; sfixed32 sx32 = 11; sfixed64 sx64 = 12; bool yes = 13;
      string text = 14; bytes raw = 15; Colour colour = 16; optional int32 maybe = 17; optional string perhaps = 18;
      oneof choice { string left = 23; int64 right = 24; }
      google.protobuf.Timestamp at = 3000;
    }
    enum Colour { NONE = 0; RED = 1; BLUE = -7; }
    """
)


def damaged(good: bytes, draw: st.DataObject) -> bytes:
    """Draw what may have become of a message: cut, changed, or with more fields, among them some that it has twice."""
    at = draw.draw(st.integers(0, len(good)))
    return draw.draw(
        st.one_of(
            st.just(good[:at]),
            st.just(good + good),
            st.just(good[at:] + good[:at]),
            st.binary(max_size=6).map(lambda more: good + more),
            st.sampled_from([b"\x80" * 8, b"\xff" * 10, b"\x80\x01"]).map(lambda more: good[:at] + more + good[at:]),
            st.binary(min_size=1, max_size=3).map(lambda other: good[:at] + other + good[at + len(other) :]),
        )
    )


@settings(max_examples=150)
@given(values=st.lists(EVERYTHING | st.none(), max_size=6), draw=st.data())
def test_flat_messages_are_read_at_once_as_one_by_one(values: list[dict[str, Any] | None], draw: st.DataObject) -> None:
    whole = codec_of(FLAT)
    codec, _ = whole.selected(b"\0")
    names = list(codec.fields or {})
    data = [
        None if each is None else whole.encode({name: each[name] for name in names if name in each})[1:]
        for each in values
    ]
    for place, good in enumerate(data):
        if good is not None and draw.draw(st.integers(0, 3)) == 0:
            data[place] = damaged(good, draw)
    assert same(codec, data, natural(codec)) is not None
    others = [(name,) for name in names if name != "colour"]  # numbers take an enum's number, and not its text
    assert same(codec, data, draw.draw(columns(others))) is not None


def test_large_batches_of_messages_are_read_in_parts() -> None:
    whole = codec_of(FLAT)
    codec, _ = whole.selected(b"\0")
    data = [whole.encode({"i64": number - 9, "text": "ö" * (number % 40)})[1:] for number in range(21_000)]
    data[70::700] = [each[:-1] for each in data[70::700]]
    assert same(codec, data, natural(codec)) is not None


def test_columns_take_their_types_from_the_schema(wide: ProtobufCodec) -> None:
    found = {name: str(kind) for name, kind in wide.fields.items()}
    assert found["u64"] == found["x64"] == found["wrapped_number"] == "decimal(20,0)"
    assert (found["i64"], found["u32"], found["f"], found["yes"]) == ("integer", "integer", "double", "boolean")
    assert (found["raw"], found["colour"], found["wrapped"]) == ("bytes", "text", "text")
    assert (found["at"], found["day"], found["price"], found["cost"]) == ("timestamp", "date", "decimal", "decimal")
    assert {found[name] for name in ("many", "named", "inner", "inners", "free", "any_json")} == {"json"}
    assert wide.inside("inner") == wide.inside("inner.inner")
    assert wide.inside("free") is wide.inside("at") is wide.inside("many") is None


PROTO2 = schema(
    """
    syntax = "proto2";
    message Old {
      required int32 id = 1; optional int32 usual = 2 [default = 5]; optional int32 plain = 3;
      optional Kind kind = 4; repeated group Part = 5 { optional string name = 6; }
      extensions 100 to 200;
    }
    enum Kind { A = 1; B = 2; }
    """
)


def test_proto2_has_required_fields_defaults_and_closed_enums() -> None:
    old = codec_of(PROTO2)
    assert old.decode(b"\0\x08\x07") == {"id": 7, "usual": 5, "part": []}
    assert old.decode(old.encode({"id": 1, "kind": "B", "part": [{"name": "x"}]})) == {
        "id": 1,
        "usual": 5,
        "kind": "B",
        "part": [{"name": "x"}],
    }
    for data, why in ((b"\0\x18\x01", "'id': missing"), (b"\0\x08\x01\x20\x09", "'kind': a number that the enum Kind")):
        with pytest.raises(Mismatched, match=why):
            old.decode(data)
    with pytest.raises(Mismatched, match="'id': missing"):
        old.encode({"plain": 1})


def test_editions_say_which_fields_may_lack() -> None:
    new = codec_of(
        schema('edition = "2023"; message New { int32 a = 1; int32 b = 2 [features.field_presence = IMPLICIT]; }')
    )
    assert new.decode(b"\0") == {"b": 0}


def test_a_field_may_have_the_name_of_a_method() -> None:
    odd = codec_of(
        schema(
            'syntax = "proto3"; message Odd { int32 HasField = 1; optional int32 ListFields = 2; Odd FromString = 3; '
            "repeated int32 from = 4; int32 SerializeToString = 5; int32 IsInitialized = 6; int32 DESCRIPTOR = 7; "
            "optional int32 f = 8; map<string, int32> Clear = 9; }"
        )
    )
    value = {"HasField": 1, "ListFields": 2, "from": [3], "SerializeToString": 4, "IsInitialized": 5, "DESCRIPTOR": 6}
    value |= {"f": 7, "Clear": {"a": 1}}
    whole = value | {"FromString": value}
    assert odd.decode(odd.encode(whole)) == whole
    assert isinstance(odd, ProtobufCodec)
    assert seen(odd, [odd.encode(whole)[1:]])[0]["f"] == 7


def test_wrong_bytes_name_the_field_and_never_the_value() -> None:
    codec = codec_of(
        schema(
            'syntax = "proto3"; import "google/protobuf/any.proto"; message M { int32 number = 1; string name = 2; '
            "M inner = 3; repeated M inners = 4; google.protobuf.Any any = 5; enum E { A = 0; } E e = 6; "
            "map<string, M> named = 7; }"
        )
    )
    for data, why in (
        (b"", "the index before the message"),
        (b"\x02\x7e", "names no message"),
        (b"\x7f" * 40, "the index before the message"),
        (b"\0\x08", "'number': the bytes end within it"),
        (b"\0\x12\x02\xff\xfe", "'name': text that is not UTF-8"),
        (b"\0\x1a\x03\x12\x05a", "'inner.name': the bytes end within it"),
        (b"\0\x0a\x03abc", "'number': bytes of another type"),
        (b"\0\x1a\x03\x0a\x01a", "'inner.number': bytes of another type"),
        (b"\0\x22\x03\x0a\x01a", r"'inners.\[…\].number': bytes of another type"),
        (b"\0\x3a\x0a\x0a\x03abc\x12\x03\x0a\x01a", r"'named.\{…\}.number': bytes of another type"),
        (b"\0\x2a\x00", "'any': google.protobuf.Any is not supported"),
        (b"\0\x30\x63", "'e': a number that the enum E does not have"),
        (b"\0\xf8\x7f\x01", "none belongs to a field"),
    ):
        with pytest.raises(Mismatched, match=why) as caught:
            codec.decode(data)
        assert "abc" not in str(caught.value)


def test_fields_that_the_schema_lacks_follow_the_tables_choice() -> None:
    codec = codec_of(schema('syntax = "proto3"; message M { int32 id = 1; string name = 2; }'))
    assert isinstance(codec, ProtobufCodec)
    known, more, foreign = b"\x08\x01", b"\x08\x01\x50\x05", b"\x50\x05"
    assert codec.decode(b"\0" + more) == codec.decode(b"\0" + known)
    assert seen(codec, [known, more, foreign, b""]) == [
        {"id": 1, "name": ""},
        {"id": 1, "name": ""},
        "misfit",
        {"id": 0, "name": ""},
    ]
    assert seen(codec, [known, more], unmatched=Unmatched.REFUSED) == [{"id": 1, "name": ""}, "misfit"]


def test_a_field_without_a_column_is_new_by_the_schema_alone() -> None:
    codec = codec_of(schema('syntax = "proto3"; message M { int32 id = 1; string name = 2; optional M m = 3; }'))
    assert isinstance(codec, ProtobufCodec)
    wanted = [each for each in wanted_of(codec) if each.column.name == "id"]
    feed = Feed(value=[b"\x08\x01", b"\x12\x01a"])
    with pytest.raises(NewFields):
        MessageColumns(codec, wanted, FieldMatch(unmatched=Unmatched.NEW)).read(feed)
    refused = MessageColumns(codec, wanted, FieldMatch(unmatched=Unmatched.REFUSED)).read(feed)
    assert [misfit.place for misfit in refused.misfits] == [1]
    left_out = FieldMatch(unmatched=Unmatched.NEW, left_out=frozenset({"name"}), waiting=frozenset({"m"}))
    assert not MessageColumns(codec, wanted, left_out).read(feed).misfits


def test_paths_lead_through_messages_maps_and_free_json() -> None:
    codec = codec_of(
        schema(
            'syntax = "proto3"; import "google/protobuf/struct.proto"; message M { Inner Inner = 1; '
            "map<string, int32> counts = 2; google.protobuf.Struct free = 3; } message Inner { int32 n = 1; "
            "optional string s = 2; }"
        )
    )
    assert isinstance(codec, ProtobufCodec)
    paths = {"n": ("inner", "n"), "s": ("inner", "s"), "a": ("counts", "a"), "b": ("free", "b", "c"), "no": ("no",)}
    kinds = {"s": "text", "b": "boolean"}
    wanted = [Wanted(Column(name, ColumnType.of(kinds.get(name, "integer")), ""), path) for name, path in paths.items()]
    values: list[Any] = [{"Inner": {"n": 1}, "counts": {"a": 2}, "free": {"b": {"c": True}}}, {}]
    found = MessageColumns(codec, wanted).read(Feed(value=[codec.encode(value)[1:] for value in values]))
    assert {name: array.to_pylist() for name, (array, _) in found.converted.items()} == {
        "n": [1, None],
        "s": [None, None],
        "a": [2, None],
        "b": [True, None],
        "no": [None, None],
    }
    assert {name: mask.to_pylist() for name, mask in found.lacking.items()} == {
        "n": [False, True],
        "s": [True, True],
        "a": [False, True],
        "b": [False, True],
        "no": [True, True],
    }


def test_an_enum_goes_into_a_column_of_numbers_as_its_number(wide: ProtobufCodec) -> None:
    wanted = [Wanted(Column("colour", ColumnType(TypeName.INTEGER), ""), ("colour",))]
    found = MessageColumns(wide, wanted).read(Feed(value=[wide.encode({"colour": "BLUE"})[1:], b"\x80\x01\x63"]))
    assert found.converted["colour"].array.to_pylist() == [7, 99]


class Colour(Enum):
    RED = "RED"


@dataclass
class Inner:
    name: str


@dataclass
class Given:
    text: str
    colour: Colour
    inner: Inner
    at: datetime
    took: timedelta
    maybe: int | None = None


def test_dataclasses_and_generated_messages_are_written(wide: ProtobufCodec) -> None:
    at = datetime(2024, 2, 29, 12, tzinfo=UTC)
    value = Given("a", Colour.RED, Inner("b"), at, timedelta(seconds=-1, microseconds=-500_000))
    found = wide.decode(wide.encode(value))
    assert (found["text"], found["colour"], found["inner"]["name"], found["at"]) == ("a", "RED", "b", at)
    assert found["took"] == "-PT1.5S"
    assert "maybe" not in found
    made = MessageTypes(WIDE).named("shop.Inner")(name="x", number=1)
    data = wide.encode(made)
    assert data[:2] == b"\x02\x02"
    assert wide.decode(data) == {"name": "x", "number": 1}
    with pytest.raises(Mismatched, match=r"google.protobuf.Timestamp, which the schema does not have"):
        wide.encode(Timestamp())


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"i32": 2**31}, "'i32': a number outside of"),
        ({"u64": -1}, "'u64': a number outside of"),
        ({"i32": "secret"}, "'i32': expected a whole number"),
        ({"i32": True}, "'i32': expected a whole number"),
        ({"f": 1e39}, "'f': a number too large"),
        ({"d": 10**400}, "'d': a number too large"),
        ({"text": "\ud800"}, "'text': text with half of a surrogate"),
        ({"colour": "secret"}, "'colour': expected a value of the enum Colour"),
        ({"left": "a", "right": 1}, "'right': 'left' is set as well"),
        ({"secret": 1}, "'secret': the schema has no such field"),
        ({"inner": {"number": "secret"}}, "'inner.number': expected a whole number"),
        ({"many": [1, None]}, r"'many.\[…\]': expected a whole number"),
        ({"named": {"secret": {"number": "x"}}}, r"'named.\{…\}.number': expected"),
        ({"numbered": {"secret": True}}, r"'numbered.\{…\}': expected a whole number"),
        ({"at": "secret"}, "'at': expected a datetime"),
        ({"price": Decimal("NaN")}, "'price': a decimal that is not a finite number"),
        ({"day": datetime(2024, 1, 1)}, "'day': expected a date"),
        (5, "expected an object"),
    ],
)
def test_values_that_do_not_fit_name_the_field_and_never_the_value(wide: ProtobufCodec, value: Any, why: str) -> None:
    with pytest.raises(Mismatched, match=why) as caught:
        wide.encode(value)
    assert "secret" not in str(caught.value).replace("'secret'", "")


NESTED = schema(
    """
    syntax = "proto3"; package p;
    message A { map<string, int32> counts = 1; message B { int32 b = 1; message C { int32 c = 1; } } message D {} }
    message E {}
    """
)


def test_the_index_does_not_count_the_entries_of_maps() -> None:
    types = MessageTypes(NESTED)
    found = {index: types.at(index).DESCRIPTOR.full_name for index in [(0,), (0, 0), (0, 0, 0), (0, 1), (1,)]}
    assert list(found.values()) == ["p.A", "p.A.B", "p.A.B.C", "p.A.D", "p.E"]
    assert all(types.index_of(name) == index for index, name in found.items())
    for index in [(2,), (0, 2), (-1,), (1, 0)]:
        with pytest.raises(Mismatched, match="names no message"):
            types.at(index)


@given(index=st.lists(st.integers(0, 2**20), min_size=1, max_size=5).map(tuple))
def test_an_index_is_read_as_it_was_written(index: tuple[int, ...]) -> None:
    assert read_index(written_index(index) + b"rest") == (index, len(written_index(index)))


def test_the_index_is_written_as_by_confluent() -> None:
    assert [written_index(index) for index in [(0,), (1,), (0, 1), (64, 0)]] == [
        b"\0",
        b"\x02\x02",
        b"\x04\x00\x02",
        b"\x04\x80\x01\x00",
    ]


def test_a_schema_may_be_a_descriptor_in_base64_with_references_of_both_kinds() -> None:
    text = 'syntax = "proto3"; import "one/two.proto"; import "confluent/meta.proto"; message M { two.T t = 1; }'
    two = 'syntax = "proto3"; package two; message T { int32 n = 1; }'
    both = schema(text, one__two=two)
    whole = codec_of(both)
    assert isinstance(whole, ProtobufCodec)
    file = FileDescriptorProto()
    whole.descriptor.file.CopyToProto(file)
    file.name = "main.proto"
    coded = base64.b64encode(file.SerializeToString()).decode()
    value = {"t": {"n": 5}}
    for each in (both, schema(coded, one__two=two), schema(text, one__two=base64_of(two))):
        assert codec_of(each).decode(whole.encode(value)) == value


def base64_of(text: str) -> str:
    codec = codec_of(schema(text))
    assert isinstance(codec, ProtobufCodec)
    file = FileDescriptorProto()
    codec.descriptor.file.CopyToProto(file)
    return base64.b64encode(file.SerializeToString()).decode()


def test_two_versions_of_a_schema_live_side_by_side() -> None:
    one, two = (codec_of(schema(f'syntax = "proto3"; message M {{ {kind} a = 1; }}')) for kind in ("int32", "string"))
    assert one.decode(one.encode({"a": 5})) == {"a": 5}
    assert two.decode(two.encode({"a": "x"})) == {"a": "x"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('syntax = "proto3"; message {', "1:28: Expected message name"),
        ('import "../../etc/passwd"; message M {}', "was not found"),
        ('import "/etc/passwd"; message M {}', "was not found|File not found"),
        ('import "missing.proto"; message M {}', "missing.proto: File not found"),
        ('syntax = "proto3"; message M { Missing a = 1; }', '"Missing" is not defined'),
        ("no schema", "Expected top-level statement"),
        ('syntax = "proto3"; enum E { A = 0; }', "has no message"),
        ("", "has no message"),
    ],
)
def test_an_invalid_schema_is_refused_with_the_place(text: str, why: str) -> None:
    with pytest.raises(Mismatched, match=why) as caught:
        codec_of(schema(text))
    assert "/tmp" not in str(caught.value)


@pytest.mark.parametrize("name", ["/etc/passwd", "../up.proto", "a/../../up.proto", "", "a\\b", "a\0b"])
def test_the_name_of_a_reference_stays_within_its_folder(name: str) -> None:
    inner = Schema(SchemaKind.PROTOBUF, 'syntax = "proto3"; message N {}')
    given = Schema(SchemaKind.PROTOBUF, 'syntax = "proto3"; message M {}', (Reference(name, "s", 1, inner),))
    with pytest.raises(Mismatched, match="which is no name of a file"):
        codec_of(given)


@pytest.mark.parametrize("name", ["é" * 150 + ".proto", "the-schema.proto", "./the-schema.proto"])
def test_a_reference_has_no_name_that_is_too_long_or_that_of_the_schema(name: str) -> None:
    inner = Schema(SchemaKind.PROTOBUF, 'syntax = "proto3"; message N {}')
    given = Schema(SchemaKind.PROTOBUF, 'syntax = "proto3"; message M {}', (Reference(name, "s", 1, inner),))
    with pytest.raises(Mismatched, match="the Protobuf schema refers to"):
        codec_of(given)
    own = FileDescriptorProto.FromString(base64.b64decode(base64_of(given.text)))
    own.name = "own.proto"
    coded = base64.b64encode(own.SerializeToString()).decode()
    with pytest.raises(Mismatched, match="which is its own name"):
        codec_of(Schema(SchemaKind.PROTOBUF, coded, (Reference("own.proto", "s", 1, inner),)))


def test_a_required_field_within_a_map_is_named_without_the_key() -> None:
    text = (
        'syntax = "proto2"; message A { map<string, B> m = 1; repeated B r = 2; } message B { required int32 x = 1; }'
    )
    found = codec_of(schema(text))
    with pytest.raises(Mismatched, match="^field 'm': missing within it, and the schema requires it$"):
        found.decode(b"\0\x0a\x11\x0a\x0dcard-4111-sec\x12\0")
    with pytest.raises(Mismatched, match="^field 'm': missing within it, and the schema requires it$"):
        found.encode({"m": {"card-4111-sec": {}}})


@pytest.mark.parametrize("name", ["IsInitialized", "FindInitializationErrors"])
def test_a_required_field_may_have_the_name_of_a_method(name: str) -> None:
    text = f'syntax = "proto2"; message A {{ required int32 {name} = 1; optional int32 b = 2; }}'
    found = codec_of(schema(text))
    assert found.decode(b"\0\x08\1") == {name: 1}
    with pytest.raises(Mismatched, match=f"^field '{name}': missing, and the schema requires it$"):
        found.decode(b"\0\x10\1")


@pytest.mark.parametrize(
    ("package", "name", "fields"),
    [
        ("google.protobuf", "Timestamp", "string x = 1;"),
        ("google.protobuf", "StringValue", "string x = 1;"),
        ("google.protobuf", "Struct", "string fields = 1;"),
        ("google.protobuf", "Value", "string x = 1;"),
        ("google.type", "Date", "string year = 1; string month = 2; string day = 3;"),
        ("google.type", "Decimal", "string text = 1;"),
        ("confluent.type", "Decimal", "string value = 1;"),
    ],
)
def test_a_schema_may_have_types_with_the_names_of_known_ones(package: str, name: str, fields: str) -> None:
    text = f'syntax = "proto3"; package {package}; message A {{ {name} t = 1; }} message {name} {{ {fields} }}'
    found = codec_of(schema(text))
    assert isinstance(found, ProtobufCodec)
    value = found.decode(b"\0\x0a\x03\x0a\x01a")
    assert "a" in value["t"].values()
    assert found.decode(found.encode(value)) == value
    assert seen(found, [b"\x0a\x03\x0a\x01a"]) != ["misfit"]


def test_an_own_timestamp_in_a_column_of_timestamps_is_a_misfit() -> None:
    text = "package google.protobuf; message A { Timestamp t = 1; } message Timestamp { string x = 1; }"
    found = codec_of(schema(f'syntax = "proto3"; {text}'))
    assert isinstance(found, ProtobufCodec)
    column = Column("t", ColumnType(TypeName.TIMESTAMP), "timestamp", takes_nul=True)
    fields = MessageColumns(found, [Wanted(column, ("t",))]).read(Feed(value=[b"\x0a\x03\x0a\x01a"]))
    assert list(fields.converted["t"].problems) == [0]


def test_messages_that_are_nested_without_end_are_a_schema_that_cannot_be_used() -> None:
    chain = " ".join(f"message M{n} {{ M{n + 1} m = 1; }}" for n in range(600))
    with pytest.raises(Mismatched, match="the schema cannot be read: RecursionError"):
        codec_of(schema(f'syntax = "proto3"; {chain} message M600 {{ int32 x = 1; }}'))


class OneSchema:
    """A registry of one schema. Only ``by_id`` is asked."""

    def __init__(self, given: Schema) -> None:
        self._given = given

    def by_id(self, number: int) -> Schema:
        return self._given

    def latest(self, subject: str) -> Any:
        raise NotImplementedError

    def id_of(self, subject: str, schema: Schema, *, register: bool) -> int:
        raise NotImplementedError


WITHIN = """syntax = "proto3";
message A { int32 n = 1; message B { int32 n = 1; } }
message C { int32 n = 1; message D { int32 n = 1; message E { string word = 1; } } }"""
# What SchemaId.id_to_bytes of confluent-kafka 2.16.0 (schema_registry/common/serde.py) returns for the id 7.
GOLDEN = {
    b"\0\0\0\0\7\0": ("A", b"\x08\x05", {"n": 5}),
    b"\0\0\0\0\7\x04\0\0": ("A.B", b"\x08\x05", {"n": 5}),
    b"\0\0\0\0\7\x02\x02": ("C", b"\x08\x05", {"n": 5}),
    b"\0\0\0\0\7\x06\x02\0\0": ("C.D.E", b"\x0a\x01x", {"word": "x"}),
}


@pytest.mark.parametrize(("header", "name"), [(header, name) for header, (name, _, _) in GOLDEN.items()])
def test_headers_of_confluents_client_choose_the_message(header: bytes, name: str) -> None:
    codecs = Codecs(SchemaKind.PROTOBUF, OneSchema(schema(WITHIN)))
    _, data, value = GOLDEN[header]
    codec, number, rest = codecs.selected(data, [("__value_schema_id", header)], "value")
    assert (codec.name, number, codec.decode(rest)) == (name, 7, value)
    with pytest.raises(Mismatched, match="has a GUID"):
        codecs.selected(data, [("__value_schema_id", b"\1" + bytes(16) + header[5:])], "value")


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.kill(os.getpid(), 9)",
        "import time; time.sleep(60)",
        "raise SystemExit(1)",
        "import missing_module",
    ],
)
def test_a_compiler_that_is_ended_says_nothing_about_the_schema(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = schema(f'syntax = "proto3"; message M {{ int32 n = {len(code)}; }}')
    codecs = Codecs(SchemaKind.PROTOBUF, OneSchema(given))
    data = framed(7, b"\0")
    with monkeypatch.context() as patch:
        patch.setattr("tidegate.tables.protobuf.schema._COMPILER", [sys.executable, "-c", code])
        patch.setattr("tidegate.tables.protobuf.schema._SECONDS", 2.0)
        with pytest.raises(RegistryUnavailable, match="the compiler of Protobuf schemas"):
            codecs.decoded(data, (), "value")
    assert codecs.decoded(data, (), "value") == {"n": 0}


def test_days_and_moments_that_are_none_are_misfits(wide: ProtobufCodec) -> None:
    types = MessageTypes(WIDE)
    everything = types.at((0,))
    for fields, why in (
        ({"day": {"year": 2024}}, "'day': a google.type.Date that is no full date"),
        ({"at": {"seconds": 2**60}}, "'at': a timestamp outside of the years"),
        ({"at": {"nanos": -1}}, "'at': a Timestamp whose nanos"),
        ({"took": {"seconds": 1, "nanos": -1}}, "'took': a Duration whose nanos"),
        ({"price": {"value": "secret"}}, "'price': a google.type.Decimal that"),
        ({"opens": {"hours": 25}}, "'opens': a google.type.TimeOfDay"),
        ({"cost": {"value": b"1", "scale": 10**6}}, "'cost': a decimal with too many digits"),
    ):
        data = everything(**fields).SerializeToString()
        with pytest.raises(Mismatched, match=why):
            wide.decode(b"\0" + data)
        assert seen(wide, [data]) == ["misfit"]
    assert wide.decode(b"\0" + everything(day={"year": 2024, "month": 2, "day": 29}).SerializeToString())[
        "day"
    ] == date(2024, 2, 29)
