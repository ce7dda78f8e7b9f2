"""A corpus of JSON values in types of every kind: what each becomes, and that no error quotes one."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.app.corpus import CORPUS, NOT_FROM_JSON, REFUSED, Box, Limit, Money, Order, Pair

from tidegate.app.conversion import Conversion, _may_name_no_number, shown
from tidegate.app.decoder import Decoding, DecodingError
from tidegate.core.records import Record
from tidegate.errors import ConfigurationError

KINDS = [kind for kind, _ in CORPUS]
CELLS = [(kind, value, becomes) for kind, values in CORPUS for value, becomes in values.items()]
SECRET, NUMBER = "hunter2", 31337


@cache
def decoding(place: int) -> Decoding:
    return Decoding(KINDS[place], optional=False, decoder="json")


@cache
def conversion(place: int) -> Conversion:
    return Conversion(KINDS[place])


def record(value: bytes) -> Record:
    return Record("orders", 0, 7, b"key", value)


def spelled(value: Any) -> str:
    """The value with its types: 1, 1.0, True and Decimal("1.0") are equal. The order of a set is left to chance."""
    return f"{type(value)} {sorted(map(repr, value))}" if isinstance(value, set | frozenset) else repr(value)


def outcome(decode: Any, value: Any) -> str:
    try:
        return spelled(decode(value))
    except Exception:
        return "refused"


@pytest.mark.parametrize(
    ("kind", "value", "becomes"), CELLS, ids=[f"{shown(kind)}-{value[:40]!r}-{len(value)}" for kind, value, _ in CELLS]
)
def test_a_value_becomes_what_its_annotation_names_or_is_refused(kind: Any, value: bytes, becomes: Any) -> None:
    decode = Decoding(kind, optional=False, decoder="json")
    if becomes is REFUSED:
        with pytest.raises(DecodingError):
            decode(record(value))
    else:
        assert spelled(decode(record(value))) == spelled(becomes)


@pytest.mark.parametrize("kind", NOT_FROM_JSON, ids=shown)
def test_a_type_that_json_cannot_make_is_refused_before_the_first_record(kind: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"cannot be made from JSON|keys of JSON objects|contains itself|Can only set"
    ):
        Decoding(kind, optional=False, decoder="json")


names = st.sampled_from(
    [
        "x",
        "y",
        "z",
        "amount",
        "currency",
        "id",
        "lines",
        "placed",
        "colour",
        "tags",
        "note",
        "value",
        "children",
        "next",
        "content",
        "most",
        "name",
        "total",
        "first",
        "second",
        "third",
        "factor",
        "start",
        "street",
        "number",
        "more",
        "left",
        "right",
    ]
)
words = st.sampled_from(["a", "red", "no", "yes", "1", "1.10", "EUR", "2026-01-02T03:04:05Z", "2026-01-02", "info"])
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats(-1e300, 1e300) | words | st.text()
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=8
)
values = documents.map(lambda document: json.dumps(document).encode()) | st.sampled_from(
    [value for _, value, _ in CELLS if len(value) < 100]
)


@given(place=st.integers(0, len(KINDS) - 1), value=values)
def test_the_fast_decoder_makes_what_the_careful_one_makes(place: int, value: bytes) -> None:
    convert = conversion(place)
    careful = outcome(convert._careful, value)
    assert outcome(convert, value) == careful
    if not (convert._has_decimals and _may_name_no_number(value)):
        assert outcome(convert._fast, value) == careful


@given(
    place=st.integers(0, len(KINDS) - 1),
    document=st.recursive(
        st.just(SECRET) | st.just(NUMBER) | st.just(NUMBER + 0.5) | st.just(f"2026-01-02T03:04:05{SECRET}"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.just(SECRET), inner, max_size=4),
        max_leaves=8,
    ),
    cut=st.none() | st.integers(0, 40),
)
def test_no_error_quotes_a_value(place: int, document: Any, cut: int | None) -> None:
    try:
        decoding(place)(record(json.dumps(document).encode()[:cut]))
    except DecodingError as error:
        assert SECRET not in str(error)
        assert str(NUMBER) not in str(error)
        assert "the decoder failed" not in str(error)


spaces = st.text(st.sampled_from(" \t\n\r\x0b\x1c_\u00a0\u2003\u3000"), max_size=2)
letters = st.sampled_from(["nan", "snan", "inf", "infinity", "nan12"]).flatmap(
    lambda word: st.tuples(*[st.sampled_from([each, each.upper(), f"{each}_"]) for each in word]).map("".join)
)


def is_no_number(text: str) -> bool:
    try:
        return not Decimal(text).is_finite()
    except ArithmeticError:
        return False


@st.composite
def no_numbers(draw: st.DrawFn) -> bytes:
    """A string in JSON that a decimal takes for infinity or NaN, with any of its characters escaped."""
    text = draw(spaces) + draw(st.sampled_from(["", "+", "-"])) + draw(letters) + draw(spaces)
    assume(is_no_number(text))  # two of the spaces may not follow one another
    written = (draw(st.sampled_from([json.dumps(each)[1:-1], f"\\u{ord(each):04x}", each])) for each in text)
    return '"{}"'.format("".join(new if new >= " " else json.dumps(new)[1:-1] for new in written)).encode()


@given(no_numbers())
def test_a_decimal_is_never_infinite_however_it_is_written(value: bytes) -> None:
    for kind in (
        Decimal,
        Decimal | None,
        list[Decimal],
        dict[Decimal, int],
        dict[str, Money],
        Limit,
        Box[Decimal],
        Pair,
    ):
        parts = {
            "list[decimal.Decimal]": b"[1, %b]",
            "dict[decimal.Decimal, int]": b"{%b: 1}",
            "dict[str, tests.app.corpus.Money]": b'{"a": {"amount": %b}}',
            "Limit": b'{"name": "info", "most": %b}',
            "tests.app.corpus.Box[decimal.Decimal]": b'{"content": 1, "more": [%b]}',
            "Pair": b"[1, %b]",
        }
        with pytest.raises(DecodingError):
            Decoding(kind, optional=False)(record(parts.get(shown(kind), b"%b") % value))


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_a_decimal_keeps_every_digit_as_a_number_and_as_text(number: Decimal) -> None:
    decode = Decoding(Order, optional=False)
    for written in (str(number), f'"{number}"'):
        found = decode(record(b'{"id": 1, "lines": [{"amount": %b}]}' % written.encode()))
        assert found.lines[0].amount.as_tuple() == number.as_tuple() or number == 0
