"""JSON values, and what each becomes where an annotation names a type, or that it is refused."""

from collections import abc
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict, TypeVar
from uuid import UUID

import pydantic
from msgspec import Meta

REFUSED = object()
CET = timezone(timedelta(hours=1))

T = TypeVar("T")
Number = NewType("Number", int)
Price = NewType("Price", Decimal)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Word(StrEnum):
    YES = "yes"


class Size(IntEnum):
    SMALL = 1


class Bits(Flag):
    A = 1
    B = 2


class Ratio(Enum):
    HALF = 0.5
    ONE = 1


class Answer(Enum):
    YES = True
    NO = "no"


class Lenient(Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return cls.A if value == "A" else None


@dataclass
class Point:
    x: int
    y: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    amount: Decimal
    currency: Literal["EUR", "USD"] = "EUR"


@dataclass
class Order:
    id: Number
    lines: list[Money]
    placed: datetime | None = None
    colour: Colour = Colour.RED
    tags: dict[str, int] = field(default_factory=dict)
    note: Any = None


@dataclass
class Tree:
    value: int
    children: list["Tree"] = field(default_factory=list)


@dataclass
class Node:
    """Contains itself, and before that is known a union that msgspec refuses."""

    next: Optional["Node"] = None
    content: Point | Money | None = None


@dataclass
class Limit:
    """Has a default that no JSON value can have."""

    most: Decimal = Decimal("Infinity")
    name: str = ""


@dataclass
class Positive:
    total: int

    def __post_init__(self) -> None:
        if self.total < 0:
            raise ValueError(f"{self.total} is negative")
        if self.total == 0:
            raise LookupError(f"{self.total} is zero")


@dataclass
class Mixed:
    first: int
    _: KW_ONLY
    second: int = 2
    third: int = field(init=False, default=3)


@dataclass
class Initial:
    total: int
    factor: InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        self.total *= factor


@dataclass(init=False)
class Doubled:
    total: int

    def __init__(self, total: int) -> None:
        self.total = total * 2


class Inherited(Point):
    def __init__(self, x: int, y: float = 0.0) -> None:
        super().__init__(x + 1, y)


@dataclass
class Guarded:
    total: int

    def __setattr__(self, name: str, value: int) -> None:
        super().__setattr__(name, value * 2)


@dataclass
class Box(Generic[T]):
    content: T
    more: list[T] = field(default_factory=list)


@dataclass
class Shift:
    start: time


class Address(TypedDict):
    street: str
    number: NotRequired[Decimal]


class Endless(TypedDict):
    inner: NotRequired["Endless"]


class Pair(NamedTuple):
    left: int
    right: Decimal = Decimal(0)


class Model(pydantic.BaseModel):
    id: int
    total: Decimal = Decimal(0)


Positives = Annotated[list[int], Meta(min_length=1)]


CORPUS: list[tuple[Any, dict[bytes, Any]]] = [
    (
        int,
        {
            b"1": 1,
            b"1.0": REFUSED,
            b"1e3": REFUSED,
            b'"1"': REFUSED,
            b"true": REFUSED,
            b"null": REFUSED,
            b"-0": 0,
            b"-0.0": REFUSED,
            b"1.5": REFUSED,
            b"9007199254740993": 9007199254740993,
            b"9007199254740993.0": REFUSED,
            b"111111111111111111111111111111": 111111111111111111111111111111,
            b"1" * 400: int("1" * 400),
            b"1" * 5000: REFUSED,
            b"1e400": REFUSED,
            b"1e-400": REFUSED,
            b"NaN": REFUSED,
            b"Infinity": REFUSED,
            b"-Infinity": REFUSED,
            b"01": REFUSED,
            b"+1": REFUSED,
            b"1.": REFUSED,
            b".5": REFUSED,
            b"0x10": REFUSED,
            b"[]": REFUSED,
            b"{}": REFUSED,
            b'"NaN"': REFUSED,
            b"12345678901234567890.123456789012345678": REFUSED,
        },
    ),
    (
        float,
        {
            b"1": 1.0,
            b"1.0": 1.0,
            b"1e3": 1000.0,
            b'"1"': REFUSED,
            b"true": REFUSED,
            b"null": REFUSED,
            b"-0": 0.0,
            b"-0.0": -0.0,
            b"1.5": 1.5,
            b"9007199254740993": 9007199254740992.0,
            b"9007199254740993.0": 9007199254740992.0,
            b"111111111111111111111111111111": 1.111111111111111e29,
            b"1" * 400: REFUSED,
            b"1" * 5000: REFUSED,
            b"1e400": REFUSED,
            b"1e-400": 0.0,
            b"NaN": REFUSED,
            b"Infinity": REFUSED,
            b"-Infinity": REFUSED,
            b"01": REFUSED,
            b"+1": REFUSED,
            b"1.": REFUSED,
            b".5": REFUSED,
            b"0x10": REFUSED,
            b"[]": REFUSED,
            b"{}": REFUSED,
            b'"NaN"': REFUSED,
            b"12345678901234567890.123456789012345678": 1.2345678901234567e19,
        },
    ),
    (
        Decimal,
        {
            b"1": Decimal("1"),
            b"1.0": Decimal("1.0"),
            b"1e3": Decimal("1E+3"),
            b'"1"': Decimal("1"),
            b"true": REFUSED,
            b"null": REFUSED,
            b"-0": Decimal("0"),
            b"-0.0": Decimal("-0.0"),
            b"1.5": Decimal("1.5"),
            b"9007199254740993": Decimal("9007199254740993"),
            b"9007199254740993.0": Decimal("9007199254740993.0"),
            b"111111111111111111111111111111": Decimal("111111111111111111111111111111"),
            b"1" * 400: Decimal("1" * 400),
            b"1" * 5000: Decimal("1" * 5000),
            b"1e400": Decimal("1E+400"),
            b"1e-400": Decimal("1E-400"),
            b"NaN": REFUSED,
            b"Infinity": REFUSED,
            b"-Infinity": REFUSED,
            b"01": REFUSED,
            b"+1": REFUSED,
            b"1.": REFUSED,
            b".5": REFUSED,
            b"0x10": REFUSED,
            b"[]": REFUSED,
            b"{}": REFUSED,
            b'"NaN"': REFUSED,
            b"12345678901234567890.123456789012345678": Decimal("12345678901234567890.123456789012345678"),
            b'" 1 "': Decimal("1"),
            b'"1_0"': Decimal("10"),
            b'"1e5"': Decimal("1E+5"),
            b'"sNaN"': REFUSED,
            b'"-Infinity"': REFUSED,
            b'"x"': REFUSED,
            b'""': REFUSED,
            b"1E+5": Decimal("1E+5"),
            b"1.10": Decimal("1.10"),
            b"1e999999999999999999999": REFUSED,
            b'"1e999999999999999999999"': REFUSED,
            b'"\\u004eaN"': REFUSED,
            b'"\xd9\xa1"': Decimal("1"),
        },
    ),
    (
        bool,
        {
            b"true": True,
            b"false": False,
            b"1": REFUSED,
            b"0": REFUSED,
            b'"true"': REFUSED,
            b"null": REFUSED,
        },
    ),
    (
        Any,
        {
            b"1": 1,
            b"1.0": 1.0,
            b"1e3": 1000.0,
            b'"1"': "1",
            b"true": True,
            b"null": None,
            b"-0": 0,
            b"-0.0": -0.0,
            b"1.5": 1.5,
            b"9007199254740993": 9007199254740993,
            b"9007199254740993.0": 9007199254740992.0,
            b"111111111111111111111111111111": 111111111111111111111111111111,
            b"1" * 400: int("1" * 400),
            b"1" * 5000: REFUSED,
            b"1e400": REFUSED,
            b"1e-400": 0.0,
            b"NaN": REFUSED,
            b"Infinity": REFUSED,
            b"-Infinity": REFUSED,
            b"01": REFUSED,
            b"+1": REFUSED,
            b"1.": REFUSED,
            b".5": REFUSED,
            b"0x10": REFUSED,
            b"[]": [],
            b"{}": {},
            b'"NaN"': "NaN",
            b"12345678901234567890.123456789012345678": 1.2345678901234567e19,
            b'"a"': "a",
            b'""': "",
            b'"\\u00e9"': "é",
            b'"\xc3\xa9"': "é",
            b'"\\ud83d\\ude00"': "😀",
            b'"\\ud800"': REFUSED,
            b'"\\ud800 and more"': REFUSED,
            b'"\xff"': REFUSED,
            b'"\xed\xa0\x80"': REFUSED,
            b'"a\nb"': REFUSED,
            b'"\\u0000"': "\x00",
            b'"\\x"': REFUSED,
            b"'a'": REFUSED,
        },
    ),
    (
        object,
        {
            b"1.5": 1.5,
            b"null": None,
        },
    ),
    (
        None,
        {
            b"null": None,
            b"0": REFUSED,
            b"1": REFUSED,
        },
    ),
    (
        datetime,
        {
            b'"2026-01-02T03:04:05Z"': datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            b'"2026-01-02T03:04:05"': datetime(2026, 1, 2, 3, 4, 5),
            b'"2026-01-02 03:04:05"': datetime(2026, 1, 2, 3, 4, 5),
            b'"2026-01-02t03:04:05z"': datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            b'"2026-01-02T03:04:05+01:00"': datetime(2026, 1, 2, 3, 4, 5, tzinfo=CET),
            b'"2026-01-02T03:04:05+0100"': datetime(2026, 1, 2, 3, 4, 5, tzinfo=CET),
            b'"2026-01-02T03:04:05+01"': REFUSED,
            b'"2026-01-02T03:04:05-00:00"': datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            b'"2026-01-02T03:04:05+01:00:30"': REFUSED,
            b'"2026-01-02T03:04:05.5Z"': datetime(2026, 1, 2, 3, 4, 5, 500000, tzinfo=UTC),
            b'"2026-01-02T03:04:05.123456Z"': datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC),
            b'"2026-01-02T03:04:05.123456789Z"': datetime(2026, 1, 2, 3, 4, 5, 123457, tzinfo=UTC),
            b'"2026-12-31T23:59:59.9999999Z"': datetime(2027, 1, 1, 0, 0, tzinfo=UTC),
            b'"9999-12-31T23:59:59.9999999Z"': REFUSED,
            b'"2026-01-02T03:04:05,5Z"': REFUSED,
            b'"2026-01-02T03:04Z"': REFUSED,
            b'"2026-01-02T03:04"': REFUSED,
            b'"2026-01-02"': REFUSED,
            b'"20260102T030405Z"': REFUSED,
            b'"2026-W01-5"': REFUSED,
            b'"2026-01-02T24:00:00Z"': REFUSED,
            b'"2026-01-02T03:04:60Z"': REFUSED,
            b'"2026-02-29T00:00:00Z"': REFUSED,
            b'"0000-01-01T00:00:00Z"': REFUSED,
            b'"x"': REFUSED,
            b'""': REFUSED,
            b"0": REFUSED,
            b"1.5": REFUSED,
            b"null": REFUSED,
            b'"2026-01-02T03:04:05 Z"': REFUSED,
        },
    ),
    (
        date,
        {
            b'"2026-01-02"': date(2026, 1, 2),
            b'"20260102"': REFUSED,
            b'"2026-W01-5"': REFUSED,
            b'"2026-1-2"': REFUSED,
            b'"2026-01-02T00:00:00"': REFUSED,
            b'"2026-02-29"': REFUSED,
            b'"x"': REFUSED,
            b"0": REFUSED,
            b"null": REFUSED,
        },
    ),
    (
        time,
        {
            b'"03:04:05"': time(3, 4, 5),
            b'"03:04:05Z"': time(3, 4, 5, tzinfo=UTC),
            b'"03:04:05+01:00"': time(3, 4, 5, tzinfo=CET),
            b'"03:04"': REFUSED,
            b'"03"': REFUSED,
            b'"03:04:05.5"': time(3, 4, 5, 500000),
            b'"03:04:05.1234567"': time(3, 4, 5, 123457),
            b'"23:59:59.999999"': time(23, 59, 59, 999999),
            b'"23:59:59.9999999"': REFUSED,
            b'"24:00:00"': REFUSED,
            b'"T03:04:05"': REFUSED,
            b'"x"': REFUSED,
            b"0": REFUSED,
            b"null": REFUSED,
        },
    ),
    (
        timedelta,
        {
            b'"PT1S"': timedelta(seconds=1),
            b'"P1DT2H"': timedelta(days=1, seconds=7200),
            b'"PT0.0000001S"': timedelta(0),
            b'"x"': REFUSED,
            b"5": REFUSED,
            b"null": REFUSED,
        },
    ),
    (
        UUID,
        {
            b'"12345678-1234-5678-1234-567812345678"': UUID("12345678-1234-5678-1234-567812345678"),
            b'"12345678123456781234567812345678"': UUID("12345678-1234-5678-1234-567812345678"),
            b'"{12345678-1234-5678-1234-567812345678}"': REFUSED,
            b'"urn:uuid:12345678-1234-5678-1234-567812345678"': REFUSED,
            b'"1234-5678123456781234567812345678"': REFUSED,
            b'"x"': REFUSED,
            b"5": REFUSED,
            b"null": REFUSED,
        },
    ),
    (
        Colour,
        {
            b'"red"': Colour.RED,
            b'"x"': REFUSED,
            b'"RED"': REFUSED,
            b"1": REFUSED,
            b"null": REFUSED,
        },
    ),
    (
        Word,
        {
            b'"yes"': Word.YES,
            b'"no"': REFUSED,
        },
    ),
    (
        Size,
        {
            b"1": Size.SMALL,
            b"1.0": REFUSED,
            b"2": REFUSED,
            b"true": REFUSED,
            b'"1"': REFUSED,
        },
    ),
    (
        Bits,
        {
            b"1": Bits.A,
            b"3": Bits.A | Bits.B,
            b"4": REFUSED,
            b"true": REFUSED,
        },
    ),
    (
        Ratio,
        {
            b"0.5": Ratio.HALF,
            b"1": Ratio.ONE,
            b"1.0": Ratio.ONE,
            b"2": REFUSED,
            b"true": REFUSED,
        },
    ),
    (
        Answer,
        {
            b"true": Answer.YES,
            b'"no"': Answer.NO,
            b"1": Answer.YES,
            b"false": REFUSED,
        },
    ),
    (
        Lenient,
        {
            b'"a"': Lenient.A,
            b'"A"': Lenient.A,
            b'"b"': REFUSED,
        },
    ),
    (
        Literal["a", 1],
        {
            b'"a"': "a",
            b"1": 1,
            b"1.0": REFUSED,
            b"true": REFUSED,
            b'"b"': REFUSED,
            b"2": REFUSED,
            b"null": REFUSED,
        },
    ),
    (
        Literal[True, None],
        {
            b"true": True,
            b"1": REFUSED,
            b"null": None,
            b"false": REFUSED,
        },
    ),
    (
        int | None,
        {
            b"1": 1,
            b"null": None,
            b'"1"': REFUSED,
        },
    ),
    (
        int | str,
        {
            b"1": 1,
            b'"1"': "1",
            b"1.0": REFUSED,
            b"true": REFUSED,
            b"null": REFUSED,
        },
    ),
    (
        int | float,
        {
            b"1": 1,
            b"1.0": 1.0,
            b"1e400": REFUSED,
            b'"1"': REFUSED,
        },
    ),
    (
        float | int,
        {
            b"1": 1,
            b"1.0": 1.0,
            b"111111111111111111111111111111": 111111111111111111111111111111,
        },
    ),
    (
        int | Decimal,
        {
            b"1": 1,
            b"1.10": Decimal("1.10"),
            b'"1"': Decimal("1"),
            b'"NaN"': REFUSED,
        },
    ),
    (
        Decimal | int,
        {
            b"1": Decimal("1"),
            b"1.10": Decimal("1.10"),
            b'"1"': Decimal("1"),
        },
    ),
    (
        float | Decimal,
        {
            b"1.10": Decimal("1.10"),
            b"1": Decimal("1"),
            b'"1.10"': Decimal("1.10"),
            b"1e400": Decimal("1E+400"),
        },
    ),
    (
        Decimal | float,
        {
            b"1.10": Decimal("1.10"),
            b"1": Decimal("1"),
        },
    ),
    (
        Decimal | str,
        {
            b"1.10": Decimal("1.10"),
            b'"1.10"': Decimal("1.10"),
            b'"NaN"': "NaN",
            b"true": REFUSED,
        },
    ),
    (
        str | Decimal,
        {
            b"1.10": Decimal("1.10"),
            b'"1.10"': "1.10",
        },
    ),
    (
        datetime | str,
        {
            b'"2026-01-02T03:04:05Z"': datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            b'"x"': "x",
            b"5": REFUSED,
        },
    ),
    (
        date | datetime,
        {
            b'"2026-01-02"': date(2026, 1, 2),
            b'"2026-01-02T03:04:05Z"': datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            b'"x"': REFUSED,
        },
    ),
    (
        datetime | date,
        {
            b'"2026-01-02"': date(2026, 1, 2),
            b'"2026-01-02T03:04:05Z"': datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            b'"x"': REFUSED,
        },
    ),
    (
        Colour | str,
        {
            b'"red"': Colour.RED,
            b'"x"': "x",
            b"5": REFUSED,
        },
    ),
    (
        Colour | int,
        {
            b'"red"': Colour.RED,
            b"5": 5,
            b'"x"': REFUSED,
        },
    ),
    (
        Size | float,
        {
            b"1": Size.SMALL,
            b"2": REFUSED,
            b"0.5": 0.5,
        },
    ),
    (
        Point | Money,
        {
            b'{"x": 1}': Point(x=1, y=0.0),
            b'{"amount": 1.10}': Money(amount=Decimal("1.10"), currency="EUR"),
            b"{}": REFUSED,
            b"[]": REFUSED,
            b'{"x": 1, "amount": 2}': Point(x=1, y=0.0),
        },
    ),
    (
        Point | Money | None,
        {
            b"null": None,
            b'{"amount": "NaN"}': REFUSED,
        },
    ),
    (
        Point | str | int,
        {
            b'{"x": 1}': Point(x=1, y=0.0),
            b'"a"': "a",
            b"5": 5,
            b"true": REFUSED,
            b"{}": REFUSED,
        },
    ),
    (
        Point | dict[str, int],
        {
            b'{"x": 1}': Point(x=1, y=0.0),
            b'{"a": 1}': {"a": 1},
            b'{"a": "b"}': REFUSED,
        },
    ),
    (
        list[int] | set[str],
        {
            b"[1]": [1],
            b'["a"]': {"a"},
            b"[]": [],
            b"[1.5]": REFUSED,
        },
    ),
    (
        list[int] | int,
        {
            b"[1]": [1],
            b"1": 1,
        },
    ),
    (float | Price, {b"1.10": Decimal("1.10"), b"1": Decimal(1), b'"NaN"': REFUSED}),
    (Annotated[float, "x"] | int | Point, {b"1": 1, b"1.5": 1.5, b"true": REFUSED}),
    (dict[Price, Number], {b'{"1.10": 1}': {Decimal("1.10"): 1}, b'{"inf": 1}': REFUSED}),
    (float | int | Point, {b"1": 1, b"1.0": 1.0, b'{"x": 1}': Point(1), b'"a"': REFUSED}),
    (float | Size | Point, {b"1": Size.SMALL, b"2": 2.0, b"1.5": 1.5}),
    (
        Model | int,
        {
            b'{"id": 1}': Model(id=1, total=Decimal("0")),
            b"1": 1,
            b'"x"': REFUSED,
        },
    ),
    (
        Any | int,
        {
            b'"a"': "a",
        },
    ),
    (
        list,
        {
            b'[1, "a", null]': [1, "a", None],
            b"{}": REFUSED,
            b'"a"': REFUSED,
        },
    ),
    (
        list[int],
        {
            b"[]": [],
            b"[1, 2]": [1, 2],
            b'[1, "2"]': REFUSED,
            b'{"0": 1}': REFUSED,
            b"null": REFUSED,
        },
    ),
    (
        list[Decimal | None],
        {
            b"[1.10, null]": [Decimal("1.10"), None],
            b'["Infinity"]': REFUSED,
        },
    ),
    (
        tuple,
        {
            b'[1, "a"]': (1, "a"),
        },
    ),
    (
        tuple[int, ...],
        {
            b"[1, 2]": (1, 2),
            b"[]": (),
            b'["1"]': REFUSED,
        },
    ),
    (
        tuple[int, str],
        {
            b'[1, "a"]': (1, "a"),
            b"[1]": REFUSED,
            b'[1, "a", 2]': REFUSED,
            b'["a", 1]': REFUSED,
        },
    ),
    (
        tuple[()],
        {
            b"[]": (),
            b"[1]": REFUSED,
        },
    ),
    (
        set[int],
        {
            b"[1, 1]": {1},
            b'["1"]': REFUSED,
        },
    ),
    (
        frozenset[str],
        {
            b'["a", "a"]': frozenset({"a"}),
        },
    ),
    (
        set[Any],
        {
            b'[1, "a"]': {"a", 1},
            b"[{}]": REFUSED,
            b"[[1]]": REFUSED,
        },
    ),
    (
        set[Decimal],
        {
            b"[1.0, 1.00]": {Decimal("1.0")},
        },
    ),
    (
        abc.Sequence[int],
        {
            b"[1]": [1],
        },
    ),
    (
        abc.Set[int],
        {
            b"[1]": {1},
        },
    ),
    (
        abc.Mapping[str, int],
        {
            b'{"a": 1}': {"a": 1},
        },
    ),
    (
        dict,
        {
            b'{"a": 1.5}': {"a": 1.5},
            b'{"a": 1, "a": 2}': {"a": 2},
            b"[]": REFUSED,
        },
    ),
    (
        dict[str, int],
        {
            b'{"a": 1}': {"a": 1},
            b'{"a": "1"}': REFUSED,
            b'{"a": null}': REFUSED,
        },
    ),
    (
        dict[int, str],
        {
            b'{"1": "a"}': {1: "a"},
            b'{"-1": "a"}': {-1: "a"},
            b'{"01": "a"}': REFUSED,
            b'{"1.0": "a"}': REFUSED,
            b'{" 1": "a"}': REFUSED,
            b'{"x": "a"}': REFUSED,
            b'{"-0": "a", "0": "b"}': {0: "b"},
        },
    ),
    (
        dict[Decimal, int],
        {
            b'{"1.10": 1}': {Decimal("1.10"): 1},
            b'{"NaN": 1}': REFUSED,
        },
    ),
    (
        dict[date, int],
        {
            b'{"2026-01-02": 1}': {date(2026, 1, 2): 1},
            b'{"x": 1}': REFUSED,
        },
    ),
    (
        dict[UUID, int],
        {
            b'{"12345678-1234-5678-1234-567812345678": 1}': {UUID("12345678-1234-5678-1234-567812345678"): 1},
        },
    ),
    (
        dict[Colour, int],
        {
            b'{"red": 1}': {Colour.RED: 1},
            b'{"x": 1}': REFUSED,
        },
    ),
    (
        dict[Size, int],
        {
            b'{"1": 1}': {Size.SMALL: 1},
        },
    ),
    (
        dict[Literal["a"], int],
        {
            b'{"a": 1}': {"a": 1},
            b'{"b": 1}': REFUSED,
        },
    ),
    (
        dict[Any, Any],
        {
            b'{"a": 1}': {"a": 1},
        },
    ),
    (
        dict[str, Point | Money],
        {
            b'{"a": {"amount": 1.10}}': {"a": Money(amount=Decimal("1.10"), currency="EUR")},
            b'{"a": {}}': REFUSED,
        },
    ),
    (
        Point,
        {
            b'{"x": 1}': Point(x=1, y=0.0),
            b'{"x": 1, "y": 2}': Point(x=1, y=2.0),
            b'{"x": 1, "y": 2.5, "z": 3}': Point(x=1, y=2.5),
            b"{}": REFUSED,
            b'{"y": 1}': REFUSED,
            b'{"x": null}': REFUSED,
            b'{"x": 1, "y": null}': REFUSED,
            b'{"x": 1, "x": 2}': Point(x=2, y=0.0),
            b"[1]": REFUSED,
            b"null": REFUSED,
            b'""': REFUSED,
            b"": REFUSED,
            b" ": REFUSED,
            b'\n{"x": 1}\t': Point(x=1, y=0.0),
            b'{"x": 1} {"x": 2}': REFUSED,
            b'{"x": 1},': REFUSED,
            b'{"x": 1,}': REFUSED,
            b'{"x": 1': REFUSED,
            b"{x: 1}": REFUSED,
            b"{'x': 1}": REFUSED,
            b'\xef\xbb\xbf{"x": 1}': REFUSED,
            b"\xff\xfe{": REFUSED,
            b'{"x": 1, "z": "\xff"}': Point(x=1, y=0.0),
            b'{"x": 1, "\xff": 1}': Point(x=1, y=0.0),
            b'{"x": 1, "z": "\\ud800"}': REFUSED,
            b'{"x": 1, "z": 1e999}': Point(x=1, y=0.0),
            b'{"x": 1, "z": NaN}': REFUSED,
            b'{"x": 1, "z": [}': REFUSED,
            b'{"x": 1, "z": ' + b"[" * 100000: REFUSED,
            b'{"x": 1, "z": ' + b"1" * 5000 + b"}": Point(x=1, y=0.0),
            b'{"x": 1} // end': REFUSED,
            b"\x00": REFUSED,
            b'{"\\u0078": 1}': Point(x=1, y=0.0),
        },
    ),
    (
        Money,
        {
            b'{"amount": 1.10}': Money(amount=Decimal("1.10"), currency="EUR"),
            b'{"amount": "1.10", "currency": "USD"}': Money(amount=Decimal("1.10"), currency="USD"),
            b'{"amount": "NaN"}': REFUSED,
            b'{"amount": "-Infinity"}': REFUSED,
            b'{"amount": "\\u004eaN"}': REFUSED,
            b'{"amount": 1, "currency": "x"}': REFUSED,
            b'{"amount": 1e400}': Money(amount=Decimal("1E+400"), currency="EUR"),
        },
    ),
    (
        Order,
        {
            b'{"id": 1, "lines": []}': Order(id=1, lines=[], placed=None, colour=Colour.RED, tags={}, note=None),
            b'{"id": 1, "lines": [{"amount": 0.10}], "placed": "2026-01-02T03:04:05Z"}': Order(
                id=1, lines=[Money(amount=Decimal("0.10"))], placed=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
            ),
            b'{"id": 1, "lines": [], "colour": "blue", "tags": {"a": 1}, "note": 0.10}': Order(
                id=1, lines=[], colour=Colour.BLUE, tags={"a": 1}, note=Decimal("0.10")
            ),
            b'{"id": 1, "lines": [{"amount": 0.10}], "note": "information"}': Order(
                id=1,
                lines=[Money(amount=Decimal("0.10"), currency="EUR")],
                placed=None,
                colour=Colour.RED,
                tags={},
                note="information",
            ),
            b'{"id": 1, "lines": [{"amount": 1}, {}]}': REFUSED,
            b'{"id": 1, "lines": [], "colour": "x"}': REFUSED,
            b'{"id": 1, "lines": [], "tags": {"a": "b"}}': REFUSED,
            b'{"id": 1, "lines": [], "note": 1e400}': Order(
                id=1, lines=[], placed=None, colour=Colour.RED, tags={}, note=Decimal("1E+400")
            ),
            b'{"id": true, "lines": []}': REFUSED,
        },
    ),
    (
        Tree,
        {
            b'{"value": 1, "children": [{"value": 2}]}': Tree(value=1, children=[Tree(value=2, children=[])]),
            b'{"value": 1, "children": [{}]}': REFUSED,
            b'{"value": 1, "children": null}': REFUSED,
        },
    ),
    (
        Node,
        {
            b"{}": Node(next=None, content=None),
            b'{"next": {"content": {"amount": 1.10}}, "content": {"x": 1}}': Node(
                next=Node(next=None, content=Money(amount=Decimal("1.10"), currency="EUR")), content=Point(x=1, y=0.0)
            ),
            b'{"next": {"next": {"content": {}}}}': REFUSED,
        },
    ),
    (
        Limit,
        {
            b"{}": Limit(most=Decimal("Infinity"), name=""),
            b'{"name": "information"}': Limit(most=Decimal("Infinity"), name="information"),
            b'{"most": 5, "name": "nan"}': Limit(most=Decimal("5"), name="nan"),
            b'{"most": "inf"}': REFUSED,
        },
    ),
    (
        Positive,
        {
            b'{"total": 1}': Positive(total=1),
            b'{"total": -1}': REFUSED,
            b'{"total": 0}': REFUSED,
        },
    ),
    (
        list[Positive],
        {
            b'[{"total": 1}, {"total": -1}]': REFUSED,
            b'[{"total": 0}]': REFUSED,
        },
    ),
    (
        Mixed,
        {
            b'{"first": 1}': Mixed(1),
            b'{"first": 1, "second": 5, "third": 6}': Mixed(1, second=5),
        },
    ),
    (
        Initial,
        {
            b'{"total": 2}': Initial(2),
            b'{"total": 2, "factor": 5}': Initial(2),
        },
    ),
    (
        Doubled,
        {
            b'{"total": 2}': Doubled(2),
            b"{}": REFUSED,
        },
    ),
    (
        Inherited,
        {
            b'{"x": 1}': Inherited(1),
            b"{}": REFUSED,
        },
    ),
    (
        Guarded,
        {
            b'{"total": 2}': Guarded(2),
        },
    ),
    (
        list[Initial | int],
        {
            b'[{"total": 2}, 3]': [Initial(2), 3],
        },
    ),
    (
        Box[int],
        {
            b'{"content": 1, "more": [2]}': Box(content=1, more=[2]),
            b'{"content": "a"}': REFUSED,
        },
    ),
    (
        Box[Decimal],
        {
            b'{"content": 1.10}': Box(content=Decimal("1.10"), more=[]),
            b'{"content": "NaN"}': REFUSED,
        },
    ),
    (
        Box[Point | Money],
        {
            b'{"content": {"amount": 1}}': Box(content=Money(amount=Decimal("1"), currency="EUR"), more=[]),
        },
    ),
    (
        Shift,
        {
            b'{"start": "03:04:05"}': Shift(start=time(3, 4, 5)),
            b'{"start": "23:59:59.9999999"}': REFUSED,
            b'{"start": 5}': REFUSED,
        },
    ),
    (
        Address,
        {
            b'{"street": "a"}': {"street": "a"},
            b'{"street": "a", "number": 1.10, "more": 1}': {"street": "a", "number": Decimal("1.10")},
            b'{"number": 1}': REFUSED,
            b'{"street": "a", "number": "NaN"}': REFUSED,
        },
    ),
    (
        Pair,
        {
            b"[1]": Pair(left=1, right=Decimal("0")),
            b"[1, 1.10]": Pair(left=1, right=Decimal("1.10")),
            b"[]": REFUSED,
            b"[1, 2, 3]": REFUSED,
            b'{"left": 1}': REFUSED,
            b'[1, "NaN"]': REFUSED,
        },
    ),
    (
        Model,
        {
            b'{"id": "5", "total": 1.10}': Model(id=5, total=Decimal("1.1")),
            b'{"id": "x"}': REFUSED,
            b"null": REFUSED,
        },
    ),
    (
        list[Model],
        {
            b'[{"id": "5", "total": 1.10}]': [Model(id=5, total=Decimal("1.10"))],
            b"[{}]": REFUSED,
        },
    ),
    (
        Number,
        {
            b"1": 1,
            b'"1"': REFUSED,
        },
    ),
    (
        Annotated[int, "x"],
        {
            b"1": 1,
            b'"1"': REFUSED,
        },
    ),
    (
        Positives,
        {
            b"[1]": [1],
            b"[]": REFUSED,
        },
    ),
]


NOT_FROM_JSON: list[Any] = [
    Annotated[Decimal, Meta(ge=0)],
    bytes,
    str | bytes,
    bytearray,
    complex,
    type,
    Box,
    Literal[Colour.RED],
    abc.Iterable[int],
    dict[float, str],
    dict[bool, str],
    dict[Point, int],
    dict[int | str, int],
    Endless,
]
