"""Sending, running and looking, without a broker."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pydantic import BaseModel
from tests.testing.shop import KAFKA, Order, Shop

from tidegate import (
    App,
    BatchBounds,
    ConfigurationError,
    DeadLetter,
    Delivery,
    Latest,
    Record,
    StartStrategy,
    TopicPartition,
    Transaction,
)
from tidegate.app import HandlerFailed
from tidegate.errors import IdentityChanged
from tidegate.ledger import Kind
from tidegate.ledger.memory import MemoryLedger, MemoryTransaction
from tidegate.testing import NotCaughtUp, Step, TestKit

NewShop = Callable[..., Shop]
ORDERS = TopicPartition("orders", 0)


class Collected:
    """An app that keeps every record it is given, in a ledger in memory."""

    def __init__(self, topics: str | re.Pattern[str] = "orders", **settings: object) -> None:
        self.app = App(KAFKA, "memory://")

        @self.app.listener(topics, group="collecting", **settings)
        def collect(records: list[Record], tx: Transaction) -> None:
            assert isinstance(tx, MemoryTransaction)
            for record in records:
                tx.append("records", record)

        self.kit = TestKit(self.app, broker="local")

    @property
    def records(self) -> list[Record]:
        assert isinstance(self.kit.ledger, MemoryLedger)
        return [record for record in self.kit.ledger.data.get("records", []) if isinstance(record, Record)]


def test_records_are_handled_and_the_position_moves(new_shop: NewShop) -> None:
    shop = new_shop(orders=3)
    run = shop.kit.run()
    assert shop.visits() == [0, 1, 2]
    assert shop.kit.positions("billing") == {ORDERS: 3}
    assert not run.crashed
    shop.check(3)


def test_a_second_run_goes_on_where_the_first_one_ended(new_shop: NewShop) -> None:
    shop = new_shop(orders=2)
    shop.kit.run()
    assert Step.POLLED not in shop.kit.run().steps
    shop.kit.send("orders", Order(2))
    shop.kit.run()
    assert shop.visits() == [0, 1, 2]


def test_a_run_without_records_claims_and_ends(new_shop: NewShop) -> None:
    shop = new_shop()
    assert shop.kit.run().steps == (Step.CLAIMED, Step.RELEASED)
    assert shop.kit.positions("billing") == {ORDERS: 0}


def test_a_test_takes_less_than_a_tenth_of_a_second(new_shop: NewShop) -> None:
    def once() -> float:
        began = time.process_time()  # not what others on the machine take
        shop = new_shop(orders=3)
        shop.kit.run()
        shop.check(3)
        return time.process_time() - began

    assert min(once() for _ in range(5)) < 0.1


class Model(BaseModel):
    id: int
    at: datetime


@dataclass
class Priced:
    id: int
    price: Decimal
    at: datetime


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (b"\x00\xff", b"\x00\xff"),
        ("größer", "größer".encode()),
        (None, None),
        ({"id": 1}, b'{"id":1}'),
        ([1, 2], b"[1,2]"),
        (7, b"7"),
        (Priced(1, Decimal("0.10"), NOON), b'{"id":1,"price":"0.10","at":"2026-01-02T12:00:00+00:00"}'),
        ({"orders": [Order(1, 2)]}, b'{"orders":[{"id":1,"total":2}]}'),
        (Model(id=1, at=NOON), b'{"id":1,"at":"2026-01-02T12:00:00Z"}'),
    ],
)
def test_a_value_is_sent_as_what_it_is(value: object, sent: bytes | None) -> None:
    collected = Collected()
    assert collected.kit.send("orders", value).value == sent
    collected.kit.run()
    assert [record.value for record in collected.records] == [sent]


def test_what_has_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="JSON cannot represent a object"):
        Collected().kit.send("orders", {"id": object()})


def test_a_dataclass_comes_back_as_the_same_dataclass() -> None:
    app = App(KAFKA, "memory://")
    seen: list[Priced] = []

    @app.listener("orders", group="pricing")
    def price(priced: Priced) -> None:
        seen.append(priced)

    kit = TestKit(app, broker="local")
    kit.send("orders", Priced(1, Decimal("0.10"), NOON))
    kit.run()
    assert seen == [Priced(1, Decimal("0.10"), NOON)]


def test_key_headers_partition_and_timestamp_arrive() -> None:
    collected = Collected()
    collected.kit.topic("orders", partitions=3)
    sent = collected.kit.send(
        "orders", "x", key="k", headers={"trace": "a", "raw": b"\xff", "none": None}, partition=2, timestamp=1234
    )
    collected.kit.run()
    headers = (("trace", b"a"), ("raw", b"\xff"), ("none", None))
    assert collected.records == [sent] == [Record("orders", 2, 0, b"k", b"x", headers, 1234)]


def test_records_of_one_key_share_a_partition_and_those_without_one_go_round() -> None:
    kit = Collected().kit
    kit.topic("orders", partitions=3)
    assert len({kit.send("orders", "x", key="customer-7").partition for _ in range(5)}) == 1
    assert {kit.send("orders", "x").partition for _ in range(3)} == {0, 1, 2}


def test_a_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'orders' has 1 partitions, and no 1"):
        Collected().kit.send("orders", "x", partition=1)


def test_partitions_that_are_added_are_read_from_their_beginning() -> None:
    collected = Collected(start=StartStrategy(Latest()))
    collected.kit.send("orders", "before")
    collected.kit.run()
    collected.kit.topic("orders", partitions=2)
    collected.kit.send("orders", "new", partition=1)
    collected.kit.run()
    assert [record.value for record in collected.records] == [b"new"]


def test_a_pattern_finds_its_topics() -> None:
    collected = Collected(re.compile("orders-.*"))
    for topic in ("orders-a", "orders-b", "payments"):
        collected.kit.send(topic, "x")
    collected.kit.run()
    assert sorted(record.topic for record in collected.records) == ["orders-a", "orders-b"]
    collected.kit.check()


def test_the_error_of_a_handler_is_raised_with_its_cause(new_shop: NewShop) -> None:
    def fail(order: Order) -> None:
        raise ZeroDivisionError("of all things")

    shop = new_shop(handler=fail, orders=1)
    with pytest.raises(HandlerFailed, match=r"orders\[0\] offset 0") as failed:
        shop.kit.run()
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    assert shop.kit.positions("billing") == {ORDERS: 0}


def test_at_most_once_the_error_of_a_handler_says_that_the_position_has_moved(new_shop: NewShop) -> None:
    def fail(order: Order) -> None:
        raise ZeroDivisionError("of all things")

    shop = new_shop(handler=fail, orders=1, delivery=Delivery.AT_MOST_ONCE)
    with pytest.raises(HandlerFailed, match="At most once, the position has moved already: it is not handled again"):
        shop.kit.run()
    assert shop.kit.positions("billing") == {ORDERS: 1}


def test_a_handler_that_exits_is_heard_of(new_shop: NewShop) -> None:
    def leave(order: Order) -> None:
        raise SystemExit(3)

    shop = new_shop(handler=leave, orders=1)
    with pytest.raises(SystemExit, match="3"):
        shop.kit.run()
    assert shop.kit.positions("billing") == {ORDERS: 0}


def test_dead_letters_and_journal_can_be_looked_at(new_shop: NewShop) -> None:
    shop = new_shop(on_error=DeadLetter())
    shop.kit.send("orders", "no order")
    shop.kit.send("orders", Order(1))
    shop.kit.run()
    (parked,) = shop.kit.dead_letters("billing")
    assert parked.letter.record.value == b"no order"
    (advance,) = shop.kit.journal("billing", Kind.ADVANCE)
    assert (advance.start, advance.end) == (0, 2)
    assert shop.kit.verify("billing").ok


def test_check_says_which_group_is_behind_and_where(new_shop: NewShop) -> None:
    shop = new_shop(orders=2)
    shop.kit.run()
    shop.kit.send("orders", Order(2))
    with pytest.raises(
        AssertionError, match=r"group 'billing' is not at the end of its topics: orders\[0\] is at 2 of 3"
    ):
        shop.kit.check()


def test_a_paused_group_does_not_catch_up_and_that_is_said(new_shop: NewShop) -> None:
    shop = new_shop(orders=1)
    shop.kit.run()
    shop.kit.ledger.pause("billing")
    shop.kit.send("orders", Order(1))
    with pytest.raises(
        NotCaughtUp, match=r"within 0.1 s; group 'billing': orders\[0\] is at 1 of 2. Is the group paused"
    ):
        shop.kit.run(within=0.1)
    shop.kit.ledger.resume("billing")
    shop.kit.run()
    shop.check(2)


def test_one_group_can_be_run_alone(new_shop: NewShop) -> None:
    shop = new_shop(orders=1)
    seen: list[int] = []

    @shop.app.listener("orders", group="counting")
    def count(order: Order) -> None:
        seen.append(order.id)

    shop.kit.run(group="counting")
    assert seen == [0]
    assert shop.visits() == []
    shop.kit.run()
    assert seen == [0]
    shop.check(1)
    with pytest.raises(ConfigurationError, match="no listener of group 'nobody'"):
        shop.kit.run(group="nobody")


def test_several_threads_share_the_partitions(new_shop: NewShop) -> None:
    shop = new_shop(orders=9, partitions=3, threads=2, batch=1)
    shop.kit.run()
    shop.check(9)


def test_a_listener_of_named_partitions_reads_those_only() -> None:
    app = App(KAFKA, "memory://")
    seen: list[bytes | None] = []

    @app.listener(group="standalone", partitions=[TopicPartition("orders", 1)])
    def note(record: Record) -> None:
        seen.append(record.value)

    kit = TestKit(app, broker="local")
    kit.topic("orders", 2)
    kit.send("orders", "a", partition=0)
    kit.send("orders", "b", partition=1)
    kit.run()
    assert seen == [b"b"]
    kit.check()


def test_batches_do_not_wait_for_their_age(new_shop: NewShop) -> None:
    collected = Collected(batch=BatchBounds(count=2, age=60.0))
    for number in range(3):
        collected.kit.send("orders", number)
    run = collected.kit.run(within=5)
    assert len(collected.records) == 3
    assert run.steps.count(Step.COMMITTED) == 2


def test_a_kit_on_a_ledger_of_another_kits_topics_is_refused(new_shop: NewShop) -> None:
    shop = new_shop(orders=1)
    shop.kit.run()
    other = TestKit(shop.app, ledger=shop.kit.ledger, broker="local")
    other.send("orders", Order(5))
    with pytest.raises(IdentityChanged):
        other.run()


def test_without_a_ledger_positions_are_those_in_kafka() -> None:
    app = App(KAFKA, None)
    seen: list[bytes | None] = []

    @app.listener("orders", group="tailing", delivery=Delivery.AT_LEAST_ONCE)
    def note(record: Record) -> None:
        seen.append(record.value)

    kit = TestKit(app, broker="local")
    kit.send("orders", "a")
    kit.run()
    kit.send("orders", "b")
    kit.run()
    assert seen == [b"a", b"b"]
    assert kit.positions("tailing") == {ORDERS: 2}
    kit.check()
    with pytest.raises(ConfigurationError, match="no ledger"):
        kit.dead_letters("tailing")


def test_an_app_keeps_its_own_ledger_and_its_own_broker(new_shop: NewShop) -> None:
    shop = new_shop(orders=1)
    before = (shop.app.ledger, shop.app.broker, list(shop.app.listeners), list(shop.app.observers))
    shop.kit.run()
    assert before == (shop.app.ledger, shop.app.broker, list(shop.app.listeners), list(shop.app.observers))
    assert isinstance(shop.app.ledger, MemoryLedger)
    assert not shop.app.ledger.read_all()


def test_a_handler_that_does_not_return_does_not_hold_the_test_for_ever(
    new_shop: NewShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.testing.run._GRACE", 0.1)
    let_go = threading.Event()

    def wait(order: Order) -> None:
        let_go.wait()

    shop = new_shop(handler=wait, orders=1)
    try:
        with pytest.raises(NotCaughtUp, match=r"orders\[0\] is at 0 of 1.*does a handler wait for something"):
            shop.kit.run(within=0.1)
    finally:
        let_go.set()


def test_an_interrupted_test_is_interrupted(new_shop: NewShop) -> None:
    """Control-C belongs to whoever runs the tests: a listener would only stop, and the test go on."""

    def interrupt(order: Order) -> None:
        signal.raise_signal(signal.SIGINT)

    shop = new_shop(handler=interrupt, orders=1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background are born without it
    try:
        with pytest.raises(KeyboardInterrupt):
            shop.kit.run()
    finally:
        signal.signal(signal.SIGINT, before)
