"""What a handler is called with, and which signatures are refused."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import pydantic
import pytest

from tidegate.app.binding import bind
from tidegate.app.decoder import DecodingError
from tidegate.core.records import Record
from tidegate.core.work import Work
from tidegate.errors import ConfigurationError
from tidegate.ledger import MemoryTransaction, SqlTransaction, Transaction
from tidegate.ledger.redis import RedisTransaction

if TYPE_CHECKING:
    from tidegate.core.records import FailedRecord

TX = MemoryTransaction(Work("billing", (), "", None, None))  # type: ignore[arg-type]
RECORD = Record("orders", 0, 7, b"key", b'{"id": 1}')


@dataclass
class Order:
    id: int


class Model(pydantic.BaseModel):
    id: int


class Spy:
    """Keeps what a handler was called with."""

    def __init__(self) -> None:
        self.seen: list[Any] = []


SPY = Spy()


def seen(function: Callable[..., Any], decoder: Any = None) -> list[Any]:
    """What a handler of one record is given."""
    binding = bind(function, decoder)
    assert not binding.is_batch
    SPY.seen = []
    binding.function(*binding.arguments((RECORD, binding.decode(RECORD), TX)))
    return SPY.seen


def test_a_record_is_given_as_it_is() -> None:
    def handle(record: Record) -> None:
        SPY.seen = [record]

    assert seen(handle) == [RECORD]
    assert bind(handle).decoding is None
    assert not bind(handle).wants_transaction


def test_a_value_is_decoded_into_the_class_of_its_annotation() -> None:
    def handle(order: Order) -> None:
        SPY.seen = [order]

    assert seen(handle) == [Order(1)]


def test_a_pydantic_model_is_a_value_too() -> None:
    def handle(order: Model) -> None:
        SPY.seen = [order]

    assert seen(handle) == [Model(id=1)]


@pytest.mark.parametrize(("kind", "value"), [(dict, {"id": 1}), (str, '{"id": 1}'), (bytes, b'{"id": 1}')])
def test_plain_types_are_values(kind: type, value: object) -> None:
    def handle(order: Any) -> None:
        SPY.seen = [order]

    handle.__annotations__["order"] = kind
    assert seen(handle) == [value]


def test_arguments_come_in_the_order_of_the_parameters() -> None:
    def handle(order: Order, tx: Transaction, record: Record) -> None:
        SPY.seen = [order, tx, record]

    assert seen(handle) == [Order(1), TX, RECORD]


def test_parameters_may_be_keyword_only_or_positional_only() -> None:
    def handle(tx: Transaction, /, order: Order, *, record: Record) -> None:
        SPY.seen = [tx, order, record]

    assert seen(handle) == [TX, Order(1), RECORD]


@pytest.mark.parametrize("kind", [Transaction, SqlTransaction, MemoryTransaction, RedisTransaction])
def test_the_transaction_may_be_asked_for_by_any_of_its_classes(kind: type[Transaction]) -> None:
    def handle(record: Record, tx: Any) -> None:
        pass

    handle.__annotations__["tx"] = kind
    assert bind(handle).transaction is kind
    assert bind(handle).wants_transaction


def test_lists_ask_for_batches_of_records_and_values() -> None:
    def handle(orders: list[Order], records: Sequence[Record], tx: Transaction) -> None:
        SPY.seen = [orders, records, tx]

    binding = bind(handle)
    assert binding.is_batch
    binding.function(*binding.arguments(([RECORD], [binding.decode(RECORD)], TX)))
    assert SPY.seen == [[Order(1)], [RECORD], TX]


def test_none_in_the_annotation_lets_tombstones_in() -> None:
    def one(order: Order | None) -> None: ...
    def old_style(order: Optional[Order]) -> None: ...  # noqa: UP045
    def raw(value: bytes | None) -> None: ...
    def many(orders: list[Order | None]) -> None: ...
    def strict(order: Order) -> None: ...

    tombstone = RECORD._replace(value=None)
    assert [bind(each).decode(tombstone) for each in (one, old_style, raw, many)] == [None] * 4
    assert bind(one).decode(RECORD) == Order(1)
    with pytest.raises(DecodingError, match="tombstone"):
        bind(strict).decode(tombstone)


def test_a_decoder_makes_values_of_any_class() -> None:
    def handle(value: complex) -> None:
        SPY.seen = [value]

    assert seen(handle, decoder=lambda record: complex(record.offset)) == [7 + 0j]


def test_methods_partials_and_objects_can_be_bound() -> None:
    class Handler:
        def method(self, order: Order) -> None:
            SPY.seen = [order]

        def __call__(self, order: Order) -> None:
            SPY.seen = [order]

    def handle(order: Order, rate: float) -> None:
        SPY.seen = [order, rate]

    assert seen(Handler().method) == [Order(1)]
    assert seen(Handler()) == [Order(1)]
    assert seen(functools.partial(handle, rate=0.5)) == [Order(1), 0.5]


def test_a_decorated_function_is_bound_by_the_annotations_of_the_inner_one() -> None:
    def handle(order: Order) -> None:
        SPY.seen = [order]

    @functools.wraps(handle)
    def wrapper(*args: Any) -> None:
        handle(*args)

    assert seen(wrapper) == [Order(1)]


def test_classes_of_the_enclosing_function_can_be_named() -> None:
    @dataclass
    class Local:
        id: int

    def handle(local: Local) -> None: ...

    with pytest.raises(ConfigurationError, match="'Local', which is not known at run time"):
        bind(handle)
    assert bind(handle, names=locals()).decode(RECORD) == Local(1)


def test_what_a_handler_returns_may_be_annotated_with_anything() -> None:
    def handle(record: Record) -> Unknown: ...  # type: ignore[name-defined]  # noqa: F821

    assert bind(handle).name.endswith("handle")


async def asynchronous_generator(record: Record) -> AsyncIterator[int]:
    yield 1


def generator(record: Record) -> Iterator[int]:
    yield 1


def variadic(*records: Record) -> None: ...
def keywords(record: Record, **rest: Any) -> None: ...
def bare(order) -> None: ...  # type: ignore[no-untyped-def]
def two_values(order: Order, other: Model) -> None: ...
def two_records(one: Record, two: Record) -> None: ...
def default(order: Order, rate: float = 0.5) -> None: ...
def mixed(order: Order, records: list[Record]) -> None: ...
def unknown(record: Record, connection: threading.Lock) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def impossible(value: complex) -> None: ...
def nothing(tx: Transaction) -> None: ...
def empty() -> None: ...
def unsaid(records: list) -> None: ...  # type: ignore[type-arg]
def transactions(record: Record, txs: list[Transaction]) -> None: ...
def no_batch(orders: list[Order] | None) -> None: ...
def only_for_types(letter: FailedRecord) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter", "why"),
    [
        (asynchronous_generator, None, "generator"),
        (generator, None, "generator"),
        (variadic, "records", "any number"),
        (keywords, "rest", "any number"),
        (bare, "order", "no annotation"),
        (two_values, "other", "the value, which 'order' does already"),
        (two_records, "two", "the record, which 'one' does already"),
        (default, "rate", "functools.partial"),
        (mixed, "records", "'order' takes one at a time"),
        (unknown, "connection", "'threading', which is not known at run time"),
        (impossible, "value", "complex cannot be made from JSON; give the listener a decoder"),
        (nothing, None, "neither a record nor a value"),
        (empty, None, "neither a record nor a value"),
        (unsaid, "records", "list\\[Record\\]"),
        (transactions, "txs", "one transaction"),
        (no_batch, "orders", "never None"),
        (only_for_types, "letter", "TYPE_CHECKING"),
        (Spy, None, "not a function"),
    ],
)
def test_a_signature_that_cannot_be_bound_is_refused_with_the_reason(
    function: Callable[..., Any], parameter: str | None, why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why) as raised:
        bind(function)
    said = str(raised.value)
    assert f"{__name__}.{function.__name__}" in said
    if parameter is not None:
        assert f"parameter {parameter!r}" in said
        assert "A handler takes" in said


def test_a_decoder_without_a_value_to_decode_is_refused() -> None:
    def handle(record: Record) -> None: ...

    with pytest.raises(ConfigurationError, match="no parameter that takes a value"):
        bind(handle, "json")
