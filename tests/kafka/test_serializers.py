"""What becomes of a value that is sent as JSON, and that a listener gets it back."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.app.decoder import Decoding
from tidegate.core.records import Record
from tidegate.kafka.serializers import NotSerializable, as_json


class Colour(Enum):
    RED = "red"


class Odd(Enum):
    PAIR = (1, 2)


class Size(IntEnum):
    SMALL = 1


class Word(str):
    __slots__ = ()


class Pair(NamedTuple):
    left: int
    right: int = 0


class Model(pydantic.BaseModel):
    total: Decimal


@dataclass
class Event:
    """Has a field that no constructor sets: it is in the class alone."""

    id: int
    kind: str = field(init=False, default="event")


@dataclass(frozen=True, slots=True)
class Order:
    total: Decimal
    placed: datetime
    day: date
    at: time
    name: str
    number: float
    colour: Colour | None = None
    id: UUID | None = None
    tags: frozenset[int] = frozenset()
    inner: Order | None = None


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ({"b": 1, "a": [True, None, 1.5]}, b'{"b":1,"a":[true,null,1.5]}'),
        (OrderedDict(b=1, a=2), b'{"b":1,"a":2}'),
        ({0: 1, 1.5: 2, True: 3, None: 4}, b'{"0":1,"1.5":2,"true":3,"null":4}'),
        ('\u00e9\u2028/<\x7f\x01\n"\\', b'"\xc3\xa9\xe2\x80\xa8/<\x7f\\u0001\\n\\"\\\\"'),
        (10**30, b"1" + b"0" * 30),
        (0.1, b"0.1"),
        (1e22, b"1e+22"),
        (-0.0, b"-0.0"),
        (Decimal("1.10"), b'"1.10"'),
        (Decimal("1E+5"), b'"1E+5"'),
        (datetime(2026, 1, 2, 3, 4, 5), b'"2026-01-02T03:04:05"'),
        (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), b'"2026-01-02T03:04:05.000006+00:00"'),
        (datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-1))), b'"2026-01-02T00:00:00-01:00"'),
        (datetime(2026, 1, 2, tzinfo=timezone(timedelta(seconds=90))), b'"2026-01-01T23:58:30+00:00"'),
        (date(2026, 1, 2), b'"2026-01-02"'),
        (time(1, 2), b'"01:02:00"'),
        (UUID(int=5), b'"00000000-0000-0000-0000-000000000005"'),
        (Colour.RED, b'"red"'),
        (Size.SMALL, b"1"),
        (Odd.PAIR, b"[1,2]"),
        (Word("a"), b'"a"'),
        ((1, 2), b"[1,2]"),
        (Pair(1), b"[1,0]"),
        ({1}, b"[1]"),
        (frozenset({1}), b"[1]"),
        (Event(1), b'{"id":1,"kind":"event"}'),
        ([Event(1)], b'[{"id":1,"kind":"event"}]'),
        (Model(total=Decimal("1.10")), b'{"total":"1.10"}'),
        ({"a": Model(total=Decimal("1.10"))}, b'{"a":{"total":"1.10"}}'),
        (None, None),
        ("", b'""'),
    ],
)
def test_a_value_is_sent_as_json(value: Any, sent: bytes | None) -> None:
    assert as_json(value) == sent


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [float("inf"), None],
        {"a": -float("inf")},
        {float("nan"): 1},
        b"abc",
        bytearray(b"abc"),
        timedelta(1),
        complex(1),
        deque([1]),
        {(1, 2): 1},
        {b"a": 1},
        Event,
        object(),
        "\ud800",
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_json_cannot_hold_is_refused_and_not_changed(value: Any) -> None:
    with pytest.raises((NotSerializable, TypeError, ValueError)):
        as_json(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="Circular"):
        as_json(value)


zones = st.none() | st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)
plain = st.text(st.characters(exclude_categories=["Cs"]))
orders = st.builds(
    Order,
    total=st.decimals(allow_nan=False, allow_infinity=False),
    placed=moments,
    day=st.dates(),
    at=st.times(),
    name=plain,
    number=st.floats(allow_nan=False, allow_infinity=False),
    colour=st.none() | st.just(Colour.RED),
    id=st.none() | st.uuids(),
    tags=st.frozensets(st.integers()),
)


@given(orders, orders)
def test_a_listener_gets_the_dataclass_that_was_sent(order: Order, inner: Order) -> None:
    sent = Order(order.total, order.placed, order.day, order.at, order.name, order.number, inner=inner)
    decode = Decoding(Order, optional=False)
    assert decode(Record("orders", 0, 7, b"key", as_json(sent))) == sent
    assert decode(Record("orders", 0, 7, b"key", as_json(order))) == order
