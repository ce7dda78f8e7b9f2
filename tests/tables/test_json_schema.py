"""JSON Schema: checks in each draft, references, column types, and columns that are those of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.schemas import Reference, Schema, SchemaKind
from tidegate.tables.codec import Codec, Mismatched, codec_of
from tidegate.tables.column import Column
from tidegate.tables.feed import Feed
from tidegate.tables.format import Wanted
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.types import ColumnType

DRAFTS = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
]


def schema(tree: Any, **references: Any) -> Schema:
    below = tuple(Reference(f"{name}.json", name, 1, each) for name, each in references.items())
    return Schema(SchemaKind.JSON, tree if isinstance(tree, str) else json.dumps(tree), below)


def codec(tree: Any, **references: Any) -> Codec:
    return codec_of(schema(tree, **references))


def fields(tree: Any, **references: Any) -> dict[str, str]:
    return {name: str(kind) for name, kind in (codec(tree, **references).fields or {}).items()}


@pytest.mark.parametrize("draft", DRAFTS)
def test_each_draft_has_its_own_rules(draft: str) -> None:
    bound = {"minimum": 5, "exclusiveMinimum": True} if "draft-04" in draft else {"exclusiveMinimum": 5}
    found = codec({"$schema": draft, "properties": {"n": {"type": "integer", **bound}}})
    assert found.decode(b'{"n": 6}') == {"n": 6}
    with pytest.raises(Mismatched, match="'n': not valid under the schema"):
        found.decode(b'{"n": 5}')


def test_a_schema_without_a_draft_is_of_draft_7_and_one_of_an_unknown_draft_is_refused() -> None:
    found = codec({"$defs": {"n": {"type": "string"}}, "properties": {"n": {"$ref": "#/$defs/n", "maxLength": 1}}})
    assert found.decode(b'{"n": "long"}') == {"n": "long"}  # in draft 7 nothing beside $ref counts
    newer = codec(
        {
            "$schema": DRAFTS[-1],
            "$defs": {"n": {"type": "string"}},
            "properties": {"n": {"$ref": "#/$defs/n", "maxLength": 1}},
        }
    )
    with pytest.raises(Mismatched, match="'n': not valid"):
        newer.decode(b'{"n": "long"}')
    with pytest.raises(Mismatched, match="a draft other than"):
        codec({"$schema": "https://example.com/mine"})


TYPES: dict[str, tuple[Any, str]] = {
    "n": ({"type": "integer"}, "integer"),
    "beyond": ({"type": "integer", "maximum": 2**70}, "decimal"),
    "number": ({"type": "number"}, "decimal"),
    "both": ({"type": ["integer", "number"]}, "decimal"),
    "flag": ({"type": "boolean"}, "boolean"),
    "text": ({"type": ["null", "string"]}, "text"),
    "day": ({"type": "string", "format": "date"}, "date"),
    "at": ({"oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]}, "timestamp"),
    "opens": ({"type": "string", "format": "time"}, "text"),
    "id": ({"type": "string", "format": "uuid"}, "text"),
    "raw": ({"type": "string", "contentEncoding": "base64"}, "bytes"),
    "choice": ({"enum": ["a", "b", None]}, "text"),
    "level": ({"enum": [1, 2]}, "integer"),
    "fixed": ({"const": True}, "boolean"),
    "mixed": ({"enum": [1, "a"]}, "json"),
    "either": ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "json"),
    "moment": ({"oneOf": [{"type": "string", "format": "date"}, {"type": "string"}]}, "text"),
    "list": ({"type": "array", "items": {"type": "integer"}}, "json"),
    "nested": ({"type": "object", "properties": {"city": {"type": "string"}}}, "json"),
    "all": ({"allOf": [{"type": "string"}, {"maxLength": 5}]}, "text"),
    "local": ({"$ref": "#/definitions/amount"}, "decimal"),
    "anything": ({}, "json"),
    "nothing": ({"type": "null"}, "None"),
    "never": (False, "None"),
    "connect_double": ({"type": "number", "connect.type": "float64"}, "double"),
    "connect_time": ({"type": "integer", "title": "org.apache.kafka.connect.data.Timestamp"}, "timestamp(ms)"),
}
ALL = {
    "title": "Everything",
    "type": "object",
    "properties": {name: tree for name, (tree, _) in TYPES.items()},
    "definitions": {"amount": {"type": "number"}},
}


def test_columns_take_their_types_from_the_schema() -> None:
    assert fields(ALL) == {name: kind for name, (_, kind) in TYPES.items()}
    assert codec(ALL).name == "Everything"
    assert {name: str(kind) for name, kind in (codec(ALL).inside("nested") or {}).items()} == {"city": "text"}
    assert codec(ALL).inside("list") is codec(ALL).inside("text") is codec(ALL).inside("missing") is None


def test_the_fields_of_alternatives_are_those_of_all_of_them() -> None:
    one = {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    two = {"properties": {"a": {"type": "number"}, "c": {"type": "boolean"}}}
    found = {"a": "decimal", "b": "text", "c": "boolean"}
    assert fields({"oneOf": [one, two]}) == fields({"allOf": [one, two]}) == fields({"anyOf": [one, two]}) == found
    assert fields({"oneOf": [{"$ref": "one.json"}, {"$ref": "two.json"}]}, one=schema(one), two=schema(two)) == found
    assert codec({"type": "string", "format": "date"}).fields is None
    assert str(codec({"type": "string", "format": "date"}).whole) == "date"


def test_a_schema_that_contains_itself_in_many_ways_ends() -> None:
    every = {"$ref": "#"}
    inner = {"properties": {"a": every, "b": every, "c": {"type": "integer"}}}
    assert "c" in (codec({"oneOf": [every, every, inner]}).fields or {"c": None})
    found = codec({"properties": {"me": every, "n": {"type": "integer"}}})
    for _ in range(3_000):  # a bound on the work of one question is none on that of all questions
        assert str((found.inside("me.me.me") or {})["n"]) == "integer"


def test_references_are_followed_and_nothing_is_fetched() -> None:
    deep = schema({"definitions": {"q": {"type": ["integer", "null"]}}})
    product = Schema(
        SchemaKind.JSON,
        json.dumps({"$id": "http://example.com/p.json", "properties": {"n": {"$ref": "deep/x.json#/definitions/q"}}}),
        (Reference("deep/x.json", "deep", 1, deep),),
    )
    for root in ({}, {"$id": "http://example.com/order.json"}, {"$id": "http://else.where/order.json"}):
        found = codec({**root, "properties": {"product": {"$ref": "product.json"}}}, product=product)
        assert found.decode(b'{"product": {"n": 5}}') == {"product": {"n": 5}}
        assert str((found.inside("product") or {})["n"]) == "integer"
        with pytest.raises(Mismatched, match=r"'product.n': not valid under the schema: a value of another type"):
            found.decode(b'{"product": {"n": "secret"}}')
    for address in ("missing.json", "http://127.0.0.1:1/x.json", "file:///etc/hostname", "#/definitions/missing"):
        with pytest.raises(Mismatched, match="the JSON Schema cannot be used"):
            codec({"properties": {"a": {"$ref": address}}})


@pytest.mark.parametrize("tree", ["", "no json", "[]", '"text"', {"type": "objec"}, {"pattern": "("}, {"required": 5}])
def test_an_invalid_schema_is_refused(tree: Any) -> None:
    with pytest.raises(Mismatched, match="the JSON Schema"):
        codec(tree)


SHOP = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number", "multipleOf": 0.01},
        "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
        "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
        "lines": {"type": "array", "items": {"required": ["sku"], "properties": {"sku": {"type": "string"}}}},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["id"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "an empty value"),
        (b"{", "not JSON"),
        (b'{"id": 1}secret', "not JSON"),
        (b"\xff", "not JSON|not UTF-8"),
        (b'{"id": NaN}', "not JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"id": ' + b"9" * 5000 + b"}", "a number out of all bounds"),
        (b"[]", "not valid under the schema: a value of another type"),
        (b"{}", "'id': missing, and the schema requires it"),
        (b'{"id": "secret"}', "'id': not valid under the schema: a value of another type"),
        (b'{"id": 1, "secret": 1}', "a field that it does not have"),
        (b'{"id": 1, "price": 0.075}', "'price': not valid under the schema: multipleOf"),
        (b'{"id": 1, "code": "SECRET"}', "'code': not valid under the schema: "),
        (b'{"id": 1, "tags": {"secret": "x"}}', r"'tags.\{…\}': not valid"),
        (b'{"id": 1, "lines": [{"sku": "a"}, {}]}', r"'lines.\[…\].sku': missing"),
        (b'{"id": 1, "kind": "secret"}', "'kind': not valid under the schema: none of the allowed values"),
    ],
)
def test_what_is_not_valid_names_the_field_and_never_the_value(value: bytes, why: str) -> None:
    with pytest.raises(Mismatched, match=why) as caught:
        codec(SHOP).decode(value)
    assert "secret" not in str(caught.value).lower()


def nodes(**more: Any) -> dict[str, Any]:
    """Return the schema of a tree: each node is of one of four kinds."""
    below = {"$ref": "#/definitions/node"}
    kinds = [
        {"type": "object", "required": ["kind"], "properties": {"kind": {"const": kind}, "of": below}}
        for kind in ("add", "sub", "mul", "div")
    ]
    node = {"anyOf": [*kinds, {"type": "integer"}]}
    return {"definitions": {"node": node}, "properties": {"tree": below, "size": {"type": "integer"}}, **more}


def test_a_small_value_does_not_make_errors_without_number() -> None:
    """Alternatives that refer to themselves would make about four times as many errors with each level."""
    value: Any = "not a number"
    for depth in range(40):
        value = {"kind": ("add", "sub", "mul", "div")[depth % 4], "of": value}
    found = codec(nodes())
    with pytest.raises(Mismatched, match="^not valid under the schema$"):
        found.decode(json.dumps({"tree": value}).encode())
    with pytest.raises(Mismatched, match=r"'size': not valid under the schema: a value of another type"):
        found.decode(json.dumps({"tree": 1, "size": "secret"}).encode())


def test_numbers_keep_their_digits() -> None:
    found = codec(SHOP)
    assert found.decode(b'{"id": 1, "price": 0.07}') == {"id": 1, "price": Decimal("0.07")}
    assert found.decode(b'{"id": 1, "price": 123456789012345678901.25}')["price"] == Decimal("123456789012345678901.25")


def test_a_pattern_that_takes_for_ever_is_given_up() -> None:
    with pytest.raises(Mismatched):
        codec({"properties": {"a": {"pattern": r"^(?=(a+)+$)(a|aa)+$"}}}).decode(b'{"a": "%s!"}' % (b"a" * 5_000))


VALUES = st.one_of(
    st.fixed_dictionaries(
        {"id": st.integers(-(2**63), 2**63 - 1)},
        optional={
            "price": st.integers(-1000, 1000).map(lambda cents: cents / 100),
            "code": st.from_regex(r"[a-z]{1,5}", fullmatch=True),
            "tags": st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=2),
            "lines": st.lists(st.fixed_dictionaries({"sku": st.text(max_size=3)}), max_size=2),
            "kind": st.sampled_from(["a", "b", "c"]),
        },
    ).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=8),
    st.none(),
)


@given(values=st.lists(VALUES, max_size=6))
def test_columns_are_those_of_json_without_what_is_not_valid(values: list[bytes | None]) -> None:
    checked = codec(SHOP)
    wanted = [
        Wanted(Column(name, ColumnType.of(str(kind)), ""), (name,)) for name, kind in (checked.fields or {}).items()
    ]
    reader = checked.columns(wanted, None)
    assert reader is not None
    found = reader.read(Feed(value=values))
    bad = {place for place, value in enumerate(values) if value is not None and not is_valid(checked, value)}
    assert {misfit.place for misfit in found.misfits} == bad
    plain = (
        JsonFormat()
        .reader(wanted)
        .read(Feed(value=[None if place in bad else value for place, value in enumerate(values)]))
    )
    assert {name: each.array for name, each in found.converted.items()} == {
        name: each.array for name, each in plain.converted.items()
    }
    assert dict(found.lacking) == dict(plain.lacking)


def is_valid(checked: Codec, value: bytes) -> bool:
    try:
        checked.decode(value)
    except Mismatched:
        return False
    return True


@dataclass
class Order:
    id: int
    price: Decimal | None = None
    raw: bytes = b""
    day: date = date(2024, 2, 29)
    at: datetime = datetime(2024, 1, 1)


def test_values_are_written_as_valid_json() -> None:
    tree: Mapping[str, Any] = {
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "raw": {"type": "string", "contentEncoding": "base64"},
            "day": {"type": "string"},
            "at": {"type": "string"},
        }
    }
    data = codec(tree).encode(Order(1, Decimal("1.50"), b"\0\xff", at=datetime(2024, 1, 1, tzinfo=UTC)))
    assert data == b'{"id":1,"price":1.50,"raw":"AP8=","day":"2024-02-29","at":"2024-01-01T00:00:00+00:00"}'
    texts = codec({"properties": {"price": {"type": "string"}}})
    assert texts.encode({"price": Decimal("1.50")}) == b'{"price":"1.50"}'


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"id": "secret"}, "'id': not valid"),
        ({"id": 1, "price": float("nan")}, "NaN or Infinity"),
        ({"id": 1, "code": "\ud800"}, "half of a surrogate pair"),
        ({1: 2}, "a name of a field that is no text"),
        ({"id": object()}, "JSON cannot represent a object"),
        ({}, "'id': missing"),
    ],
)
def test_values_that_are_not_valid_are_not_written(value: Any, why: str) -> None:
    with pytest.raises(Mismatched, match=why) as caught:
        codec(SHOP).encode(value)
    assert "secret" not in str(caught.value)
