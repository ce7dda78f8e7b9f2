"""What becomes of a record's value, and what is said about one that does not fit."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import pydantic
import pytest
from msgspec import Meta

from tidegate.app.decoder import DecoderChoice, Decoding, DecodingError
from tidegate.core.records import Record
from tidegate.errors import ConfigurationError

SECRET = "hunter2"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


OrderId = NewType("OrderId", int)


@dataclass
class Item:
    name: str
    price: Decimal
    weight: float = 0.0


@dataclass(frozen=True)
class Order:
    id: OrderId
    items: list[Item]
    placed: datetime | None = None
    colour: Colour = Colour.RED
    note: str | None = None
    tags: dict[str, int] = field(default_factory=dict)
    where: Item | str = "home"
    kind: Literal["new", "old"] = "new"


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


@dataclass
class Positive:
    total: int

    def __post_init__(self) -> None:
        if self.total < 0:
            raise ValueError(f"{self.total} is negative, {SECRET}")


class Model(pydantic.BaseModel):
    id: int
    total: Decimal = Decimal(0)


def record(value: bytes | None) -> Record:
    return Record("orders", 0, 7, b"key", value)


def decode(kind: Any, value: bytes | None, decoder: DecoderChoice = None, *, optional: bool = False) -> Any:
    return Decoding(kind, optional=optional, decoder=decoder)(record(value))


def problem(kind: Any, value: bytes | None, decoder: DecoderChoice = None) -> str:
    with pytest.raises(DecodingError) as raised:
        decode(kind, value, decoder)
    assert SECRET not in str(raised.value)
    return str(raised.value)


def test_a_dataclass_is_made_with_everything_in_it() -> None:
    value = b"""{"id": 5, "items": [{"name": "nut", "price": 0.10, "weight": 2}], "placed": "2026-01-02T03:04:05Z",
        "colour": "blue", "tags": {"a": 1}, "where": {"name": "bolt", "price": "1.20"}, "kind": "old", "more": true}"""
    assert decode(Order, value) == Order(
        OrderId(5),
        [Item("nut", Decimal("0.10"), 2.0)],
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        Colour.BLUE,
        None,
        {"a": 1},
        Item("bolt", Decimal("1.20")),
        "old",
    )


def test_what_has_a_default_may_be_missing() -> None:
    assert decode(Order, b'{"id": 5, "items": []}') == Order(OrderId(5), [])


def test_a_decimal_keeps_every_digit() -> None:
    item = decode(Item, b'{"name": "", "price": 12345678901234567890.123456789012345678, "weight": 1.5}')
    assert item.price == Decimal("12345678901234567890.123456789012345678")
    assert type(item.weight) is float


def test_a_dataclass_may_contain_itself() -> None:
    assert decode(Tree, b'{"value": 1, "children": [{"value": 2}]}') == Tree(1, [Tree(2)])
    assert problem(Tree, b'{"value": 1, "children": [{"value": 2, "children": [{}]}]}').startswith(
        "children[0].children[0].value: missing"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b'{"items": []}', "id: missing"),
        (b'{"id": true, "items": []}', "id: expected a whole number, got a boolean"),
        (b'{"id": 1.5, "items": []}', "id: expected a whole number, got a number"),
        (b'{"id": "hunter2", "items": []}', "id: expected a whole number, got a string"),
        (b'{"id": null, "items": []}', "id: expected a whole number, got null"),
        (b'{"id": 1, "items": {}}', "items: expected an array, got an object"),
        (b'{"id": 1, "items": [{"name": "a", "price": 1}, {"name": "a"}]}', "items[1].price: missing"),
        (b'{"id": 1, "items": [{"name": "a", "price": "hunter2"}]}', "items[0].price: a string that is not a decimal"),
        (b'{"id": 1, "items": [{"name": "a", "price": "NaN"}]}', "items[0].price: a string that is not a decimal"),
        (b'{"id": 1, "items": [{"name": "a", "price": true}]}', "items[0].price: expected a number, got a boolean"),
        (b'{"id": 1, "items": [{"name": "a", "price": 1, "weight": 1e999}]}', "items[0].weight: a number too large"),
        (b'{"id": 1, "items": [], "placed": "hunter2"}', "placed: a string that is not a datetime"),
        (b'{"id": 1, "items": [], "placed": 5}', "placed: expected a string with a datetime, got a number"),
        (b'{"id": 1, "items": [], "colour": "hunter2"}', "colour: a string that is no value of Colour"),
        (b'{"id": 1, "items": [], "tags": {"hunter2": "a"}}', "tags[\u2026]: expected a whole number, got a string"),
        (b'{"id": 1, "items": [], "where": 5}', "where: a number that fits none of Item, str"),
        (b'{"id": 1, "items": [], "kind": "hunter2"}', "kind: a string that is none of 'new', 'old'"),
        (b"[]", "expected an object, got an array"),
        (b"null", "expected an object, got null"),
        (b"", "an empty value"),
        (b"hunter2", "not JSON: invalid character at byte 0 of 7"),
        (b'{"id": NaN}', "not JSON: NaN and Infinity"),
        (b"\xff\xfe", "not UTF-8: byte 0 of 2"),
        (b'{"more": ' + b"[" * 100_000, "nested too deep"),
        (b'{"id": 1, "items": [], "note": "\\ud800"}', "not JSON: it ends too early, or in half a surrogate pair"),
        (b'{"id": ' + b"1" * 5_000 + b"}", "id: a number that is out of all bounds"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path_and_without_its_value(value: bytes, said: str) -> None:
    assert said in problem(Order, value)


@pytest.mark.parametrize("kind", [dict, Any, dict[str, list[float]]])
@pytest.mark.parametrize("number", [b"1e999", b"-1E+400", b"1" * 400 + b".5", b"NaN", b"-Infinity"])
def test_a_number_that_python_would_take_for_infinity_is_refused_wherever_it_is(kind: Any, number: bytes) -> None:
    assert problem(kind, b'{"a": [1.5, %b]}' % number)


@pytest.mark.parametrize("number", ["1e308", "-1.5E-400", "1e+05", "123e10"])
def test_a_number_with_an_exponent_is_read(number: str) -> None:
    assert decode(dict, b'{"a": %b}' % number.encode()) == {"a": float(number)}


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        (dict, b'{"a": 1.5}', {"a": 1.5}),
        (dict[str, Decimal], b'{"a": 1.10}', {"a": Decimal("1.10")}),
        (Any, b"[1, null]", [1, None]),
        (int, b"5", 5),
        (float, b"5", 5.0),
        (bool, b"true", True),
        (date, b'"2026-01-02"', date(2026, 1, 2)),
        (UUID, b'"12345678123456781234567812345678"', UUID(int=0x12345678123456781234567812345678)),
        (Size, b"1", Size.SMALL),
        (tuple[int, ...], b"[1, 2]", (1, 2)),
        (set[str], b'["a", "a"]', {"a"}),
        (int | str, b'"a"', "a"),
        (dict[Colour, int], b'{"red": 1}', {Colour.RED: 1}),
        (dict[int, str], b'{"1": "a"}', {1: "a"}),
        (tuple[int, str], b'[1, "a"]', (1, "a")),
        (timedelta, b'"PT1.5S"', timedelta(seconds=1.5)),
        (bytes, b"\xff", b"\xff"),
        (bytes, b"", b""),
        (str, b"", ""),
        (str, "é".encode(), "é"),
    ],
)
def test_the_annotation_decides_how_a_value_is_read(kind: Any, value: bytes, result: Any) -> None:
    assert decode(kind, value) == result


def test_a_boolean_is_no_number_for_an_enum_either() -> None:
    assert problem(Size, b"true") == "a boolean that is no value of Size"


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (tuple[int, str], b"[1]", "expected an array of length 2"),
        (Annotated[int, Meta(ge=1)], b"0", "expected a whole number >= 1"),
        (int | str, b"true", "expected a whole number or a string, got a boolean"),
        (Colour | int, b'"hunter2"', "not one of the allowed values"),
        (dict[Colour, int], b'{"hunter2": 1}', "[\u2026]: not one of the allowed values"),
        (dict[str, Item | Positive], b'{"hunter2": {}}', "[\u2026]: an object that fits none of Item, Positive"),
        (list[Positive | int], b'[1, {"total": "hunter2"}]', "[1]: an object that fits none of Positive, int"),
        (UUID, b'"hunter2"', "a string that is not a UUID"),
        (timedelta, b'"hunter2"', "a string that is not a duration"),
        (time, b'"23:59:59.9999999"', "a time that would be rounded to the next day"),
        (list[Decimal], b"[1e9999999999999999999]", "JSON with a number that is out of all bounds"),
    ],
)
def test_a_message_of_msgspec_is_told_in_our_words(kind: Any, value: bytes, said: str) -> None:
    assert problem(kind, value) == said


def test_a_name_that_two_classes_have_is_the_one_that_the_annotation_means() -> None:
    @dataclass
    class Item:
        name: str

    @dataclass
    class Holder:
        item: Item

    decode = Decoding(Holder, optional=False, names={"Item": Item})
    assert decode(record(b'{"item": {"name": "nut", "price": 1}}')) == Holder(Item("nut"))


def test_a_set_of_what_cannot_be_in_one_does_not_fit() -> None:
    assert "a set cannot hold" in problem(set[Any], b"[{}]")


def test_a_refusal_of_the_dataclass_itself_is_told_without_its_text() -> None:
    assert problem(Positive, b'{"total": -1}') == "Positive refused its fields with ValueError"
    with pytest.raises(DecodingError, match=r"^\[1\]: Positive refused its fields with ValueError$") as raised:
        decode(list[Positive], b'[{"total": 1}, {"total": -1}]')
    assert isinstance(raised.value.__cause__, ValueError)  # with its text, for a debugger


def test_a_pydantic_model_reads_the_value_itself() -> None:
    assert decode(Model, b'{"id": "5", "total": 1.10}') == Model(id=5, total=Decimal("1.10"))


def test_an_error_of_pydantic_is_told_by_path_and_kind() -> None:
    assert problem(Model, b'{"id": "hunter2", "total": "hunter2"}') == "id: int_parsing, total: decimal_parsing"
    assert problem(Model, b"hunter2") == "json_invalid"


class Line(pydantic.BaseModel, extra="forbid"):
    number: int = pydantic.Field(alias="no")


class Basket(pydantic.BaseModel):
    lines: list[Line] = []
    by_card: dict[str, Line] = {}
    by_day: dict[int, int] = {}
    either: int | Line = 0


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b'{"by_card": {"hunter2": {"no": "x"}}}', "by_card.{…}.no: int_parsing"),
        (b'{"by_card": {"hunter2": {"no": 1, "hunter3": 2}}}', "by_card.{…}.{…}: extra_forbidden"),
        (b'{"by_day": {"4111": "x"}}', "by_day.{…}: int_parsing"),
        (b'{"by_day": {"hunter2": 1}}', "by_day.{…}.[key]: int_parsing"),
        (b'{"lines": [{"no": 1}, {}]}', "lines.1.no: missing"),
        (b'{"either": "x"}', "either.int: int_parsing, either.Line: model_type"),
    ],
)
def test_a_path_of_pydantic_has_no_keys_of_maps(value: bytes, why: str) -> None:
    assert problem(Basket, value) == why


def test_a_pydantic_model_may_stand_in_a_dataclass() -> None:
    @dataclass
    class Envelope:
        model: Model
        ratio: float

    kind = Decoding(Envelope, optional=False, names={"Model": Model})
    envelope = kind(record(b'{"model": {"id": 1, "total": 0.30}, "ratio": 0.5}'))
    assert envelope == Envelope(Model(id=1, total=Decimal("0.30")), 0.5)
    with pytest.raises(DecodingError, match="model: Model refused it with ValidationError"):
        kind(record(b'{"model": {}, "ratio": 0.5}'))


@pytest.mark.parametrize("kind", [Order, Model, str, bytes, dict, int])
def test_a_tombstone_is_none_only_where_the_annotation_allows_it(kind: Any) -> None:
    assert decode(kind, None, optional=True) is None
    said = problem(kind, None)
    assert "tombstone" in said
    assert f"{kind.__name__} | None" in said


@pytest.mark.parametrize("kind", [Order, Model, dict])
def test_a_null_is_none_where_the_annotation_allows_it(kind: Any) -> None:
    assert decode(kind, b"null", optional=True) is None


def test_any_allows_a_tombstone() -> None:
    assert decode(Any, None) is None
    assert decode(Any, None, "text") is None


def test_a_named_decoder_takes_the_place_of_what_the_annotation_suggests() -> None:
    assert decode(str, b'"a"', "json") == "a"
    assert decode(Any, b"1", "text") == "1"
    assert decode(Any, b"1", "bytes") == b"1"


def test_a_decoder_of_ones_own_sees_the_record_and_its_value_is_taken_as_it_is() -> None:
    assert decode(Order, b"x", lambda each: (each.offset, each.value)) == (7, b"x")


def test_an_error_of_a_decoder_is_a_decoding_error_without_its_text() -> None:
    def fails(each: Record) -> Any:
        raise LookupError(each.value)

    assert problem(Any, SECRET.encode(), fails) == "the decoder failed with LookupError"


def test_a_decoding_error_of_a_decoder_is_left_as_it_is() -> None:
    def fails(_: Record) -> Any:
        raise DecodingError("schema 7 is unknown")

    assert problem(Any, b"x", fails) == "schema 7 is unknown"


@pytest.mark.parametrize(
    ("kind", "decoder", "said"),
    [
        (object(), None, "cannot be made from JSON"),
        (complex, None, "complex cannot be made from JSON"),
        (bytes, "json", "bytes cannot be made from JSON"),
        (list[bytes], None, "bytes cannot be made from JSON"),
        (dict[float, str], None, "keys of JSON objects are strings, not float"),
        (abc.Iterable[int], None, "cannot be made from JSON"),
        (Order, "text", "'text' makes str, not Order"),
        (str, "bytes", "'bytes' makes bytes, not str"),
        (Any, "yaml", "decoder: expected 'json', .*, not 'yaml'"),
        (Any, 5, "decoder: expected 'json', .*, not 5"),
    ],
)
def test_what_cannot_be_decoded_at_all_is_refused_at_once(kind: Any, decoder: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Decoding(kind, optional=False, decoder=decoder)


def test_a_field_that_cannot_come_from_json_is_named() -> None:
    @dataclass
    class Bad:
        raw: bytes

    with pytest.raises(ConfigurationError, match=r"Bad\.raw: bytes cannot be made from JSON"):
        Decoding(Bad, optional=False)


def test_a_field_whose_type_is_not_known_at_run_time_is_refused() -> None:
    @dataclass
    class Bad:
        other: Unknown  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigurationError, match="'Unknown', which is not known at run time"):
        Decoding(Bad, optional=False)
