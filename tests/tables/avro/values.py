"""Schemas and values for property tests: every type of Avro, nested."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tidegate.core.schemas import Schema, SchemaKind, framed
from tidegate.tables.codec import codec_of

Drawn = tuple[Any, Any]
"""A schema and a value that fits it."""


@dataclass
class Names:
    """Names of types, each given once."""

    given: int = field(default=0)

    def next(self) -> str:
        self.given += 1
        return f"Type{self.given}"


class Schemas:
    """A registry of a few schemas, which are numbered from 1."""

    def __init__(self, *schemas: Any) -> None:
        self.found = [Schema(SchemaKind.AVRO, json.dumps(each)) for each in schemas]

    def by_id(self, number: int) -> Schema:
        return self.found[number - 1]

    def latest(self, subject: str) -> Any:
        raise NotImplementedError

    def id_of(self, subject: str, schema: Schema, *, register: bool) -> int:
        raise NotImplementedError

    def bytes_of(self, number: int, value: Any) -> bytes:
        return framed(number, codec_of(self.found[number - 1]).encode(value))


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda number: Decimal(f"{number}E-{scale}"))


_MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
_MILLIS = _MOMENTS.map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000))
_TIMES = st.times()
_PRIMITIVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=200)),
    ("string", st.text(max_size=80)),
    (logical("int", "date"), st.dates(date.min, date.max)),
    (logical("int", "time-millis"), _TIMES.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))),
    (logical("long", "time-micros"), _TIMES),
    (logical("long", "timestamp-millis"), _MILLIS.map(lambda moment: moment.replace(tzinfo=UTC))),
    (logical("long", "timestamp-micros"), _MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))),
    (logical("long", "local-timestamp-millis"), _MILLIS),
    (logical("long", "local-timestamp-micros"), _MOMENTS),
    (logical("string", "uuid"), st.uuids()),
    (logical("bytes", "decimal", precision=12, scale=3), decimals(12, 3)),
    (logical("bytes", "decimal", precision=60, scale=0), decimals(60, 0)),
]


@st.composite
def typed(draw: st.DrawFn, names: Names, depth: int = 3) -> Drawn:
    """Draw a schema and a value."""
    kinds = ["primitive"] * 4 + ["enum", "fixed", "fixed decimal", "fixed uuid"]
    kinds += ["array", "map", "record", "union", "nullable"] if depth else []
    match draw(st.sampled_from(kinds)):
        case "primitive":
            schema, values = draw(st.sampled_from(_PRIMITIVES))
            return schema, draw(values)
        case "enum":
            symbols = ["RED", "GREEN", "BLUE"]
            return {"type": "enum", "name": names.next(), "symbols": symbols}, draw(st.sampled_from(symbols))
        case "fixed":
            size = draw(st.integers(1, 20))
            return {"type": "fixed", "name": names.next(), "size": size}, draw(st.binary(min_size=size, max_size=size))
        case "fixed decimal":
            kind = {"type": "fixed", "name": names.next(), "size": 6, "logicalType": "decimal"}
            return {**kind, "precision": 14, "scale": 4}, draw(decimals(14, 4))
        case "fixed uuid":
            return {"type": "fixed", "name": names.next(), "size": 16, "logicalType": "uuid"}, draw(st.uuids())
        case "array":
            schema, value = draw(typed(names, depth - 1))
            return {"type": "array", "items": schema}, [value] * draw(st.integers(0, 3))
        case "map":
            schema, value = draw(typed(names, depth - 1))
            return {"type": "map", "values": schema}, dict.fromkeys(
                draw(st.sets(st.text(max_size=5), max_size=3)), value
            )
        case "record":
            return draw(records(names, depth - 1))
        case "nullable":
            schema, value = draw(typed(names, depth - 1))
            if schema == "null" or isinstance(schema, list):
                return schema, value
            is_first = draw(st.booleans())
            return (["null", schema] if is_first else [schema, "null"]), draw(st.sampled_from([None, value]))
        case _:
            branches = ["null", "boolean", "long", "string", "bytes", logical("int", "date")]
            branches += [{"type": "map", "values": "double"}, {"type": "array", "items": "int"}]
            value = draw(
                st.none()
                | st.booleans()
                | st.integers(-(2**63), 2**63 - 1)
                | st.text(max_size=9)
                | st.binary(max_size=9)
                | st.dates()
                | st.just({"a": 1.5})
                | st.lists(st.integers(0, 9), max_size=3)
            )
            return draw(st.permutations(branches)), value


@st.composite
def records(draw: st.DrawFn, names: Names | None = None, depth: int = 3) -> Drawn:
    """Draw the schema of a record and a value."""
    names = names or Names()
    drawn = [draw(typed(names, depth)) for _ in range(draw(st.integers(0 if depth < 3 else 1, 6)))]
    fields = [{"name": f"f{number}", "type": schema} for number, (schema, _) in enumerate(drawn)]
    schema = {"type": "record", "name": names.next(), "namespace": "tests", "fields": fields}
    return schema, {f"f{number}": value for number, (_, value) in enumerate(drawn)}


def values_of(schema: Any, names: dict[str, Any] | None = None) -> st.SearchStrategy[Any]:
    """Values of a schema, as its codec decodes them."""
    names = {} if names is None else names
    if isinstance(schema, list):
        return st.one_of([values_of(each, names) for each in schema])
    for kind, values in _PRIMITIVES:
        if kind == schema:
            return values
    if isinstance(schema, str):
        return values_of(names[schema], names)
    names[schema.get("name", "")] = schema
    match schema["type"]:
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed" | "bytes" if schema.get("logicalType") == "decimal":
            return decimals(schema["precision"], schema["scale"])
        case "fixed" if schema.get("logicalType") == "uuid":
            return st.uuids()
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "array":
            return st.lists(values_of(schema["items"], names), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=5), values_of(schema["values"], names), max_size=3)
        case "record":
            return st.fixed_dictionaries({each["name"]: values_of(each["type"], names) for each in schema["fields"]})
    raise AssertionError(schema)


EVERY_TYPE: dict[str, tuple[Any, list[Any]]] = {
    "an_int": ("int", [0, -(2**31), 2**31 - 1]),
    "a_long": ("long", [0, -(2**63), 2**63 - 1]),
    "a_boolean": ("boolean", [True, False, True]),
    "a_double": ("double", [0.5, -1e300, 3.0]),
    "a_float": ("float", [0.5, -2.0, 3.0]),
    "a_text": ("string", ["", "Größe", "日本 😀"]),
    "some_bytes": ("bytes", [b"", b"\x00\xff", b"abc"]),
    "a_decimal": (
        logical("bytes", "decimal", precision=12, scale=3),
        [Decimal("0.000"), Decimal("-999999999.999"), Decimal("1.5")],
    ),
    "a_fixed_decimal": (
        {"type": "fixed", "name": "Money", "size": 6, "logicalType": "decimal", "precision": 12, "scale": 2},
        [Decimal("0.01"), Decimal("-9999999999.99"), Decimal("7")],
    ),
    "a_date": (logical("int", "date"), [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)]),
    "a_time": (logical("int", "time-millis"), [time(0, 0), time(23, 59, 59, 999000), time(12, 30)]),
    "an_exact_time": (logical("long", "time-micros"), [time(0, 0), time(23, 59, 59, 999999), time(12, 30)]),
    "at_millis": (
        logical("long", "timestamp-millis"),
        [datetime(1970, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 1, 2, 3, 4000, tzinfo=UTC), None],
    ),
    "at_micros": (
        logical("long", "timestamp-micros"),
        [datetime(1980, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 1, 2, 3, 4567, tzinfo=UTC), None],
    ),
    "local": (logical("long", "local-timestamp-micros"), [datetime(2024, 2, 29, 1, 2, 3), datetime(1980, 1, 1), None]),
    "a_uuid": (logical("string", "uuid"), ["00000000-0000-0000-0000-000000000001"] * 3),
    "an_enum": ({"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}, ["RED", "GREEN", None]),
    "a_fixed": ({"type": "fixed", "name": "Four", "size": 4}, [b"abcd", b"\x00\x01\x02\xff", None]),
    "a_list": ({"type": "array", "items": ["null", "int"]}, [[], [1, None, 3], None]),
    "a_map": ({"type": "map", "values": "string"}, [{}, {"a": "b"}, None]),
    "nested": (
        {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]},
        [{"city": "Köln"}, {"city": ""}, None],
    ),
    "either": (["null", "long", "string"], [1, "one", None]),
}
"""A type and three values of each field; a field with a null among them is nullable."""


def every_type() -> dict[str, Any]:
    """The schema of a record with a field of every type."""
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
    for name, (kind, values) in EVERY_TYPE.items():
        is_nullable = None in values and not isinstance(kind, list)
        fields.append({"name": name, "type": ["null", kind] if is_nullable else kind})
    return {"type": "record", "name": "Everything", "namespace": "tests", "fields": fields}


def rows_of_every_type() -> list[dict[str, Any]]:
    return [{"id": number, **{name: values[number] for name, (_, values) in EVERY_TYPE.items()}} for number in range(3)]
