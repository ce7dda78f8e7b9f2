"""Each fault strikes where it is told to, and the right listener stands it."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from sqlalchemy import insert
from tests.testing.shop import KAFKA, VISITS, Order, Shop

from tidegate import App, ConfigurationError, Delivery, Record, TopicPartition
from tidegate.core.positions import Position
from tidegate.errors import ListenerStopped
from tidegate.ledger import Kind, SqlTransaction
from tidegate.observe.events import Committed
from tidegate.testing import (
    Crash,
    FaultImpossible,
    FaultMissed,
    Fence,
    LostAnswer,
    Rebalance,
    Step,
    TestKit,
    crash_everywhere,
    fault_everywhere,
)

NewShop = Callable[..., Shop]
ORDERS = TopicPartition("orders", 0)
BEFORE_COMMIT = {Step.CLAIMED, Step.POLLED, Step.ADVANCED, Step.WRITTEN}


def row(shop: Shop) -> Position:
    return shop.kit.ledger.read("billing").positions[ORDERS]


@pytest.mark.parametrize("step", Step)
def test_a_crash_ends_the_run_at_its_step_and_nothing_comes_after_it(new_shop: NewShop, step: Step) -> None:
    shop = new_shop(orders=3)
    crashed = shop.kit.run(Crash(step))
    assert crashed.crashed
    assert crashed.steps[-1] is step
    assert shop.visits() == ([] if step in BEFORE_COMMIT else [0, 1, 2])
    assert (row(shop).owner is None) == (step is Step.RELEASED), "a dead process releases nothing"
    recovered = shop.kit.run()
    assert not recovered.crashed
    assert shop.visits() == [0, 1, 2]
    shop.check(3)


def test_a_crash_strikes_at_its_turn(new_shop: NewShop) -> None:
    shop = new_shop(orders=3, batch=1)
    assert shop.kit.run(Crash(Step.WRITTEN, turn=2)).steps.count(Step.WRITTEN) == 2
    assert shop.visits() == [0]
    shop.kit.run(Crash(Step.COMMITTED))
    assert shop.visits() == [0, 1]
    shop.kit.run()
    shop.check(3)


def test_a_crash_takes_every_listener_of_the_process_with_it(new_shop: NewShop) -> None:
    shop = new_shop(orders=4, partitions=2, threads=2, batch=1)
    shop.kit.run(Crash(Step.ADVANCED))
    assert shop.visits() == []
    shop.kit.run()
    shop.check(4)


def test_a_fault_that_does_not_strike_is_an_error(new_shop: NewShop) -> None:
    shop = new_shop(orders=1)
    with pytest.raises(
        FaultMissed, match=r"Crash\(Step.WRITTEN, 2\) did not strike.*It reached CLAIMED, POLLED, ADVANCED"
    ):
        shop.kit.run(Crash(Step.WRITTEN, turn=2))
    shop.kit.run(Crash(Step.WRITTEN), may_miss=True)


def test_there_is_no_turn_before_the_first() -> None:
    with pytest.raises(ConfigurationError, match="turn: expected a whole number of at least 1, not 0"):
        Crash(Step.POLLED, turn=0)
    with pytest.raises(ConfigurationError, match="turn: expected a whole number of at least 1, not 0"):
        LostAnswer(committed=True, turn=0)


@pytest.mark.parametrize("step", [Step.CLAIMED, Step.POLLED, Step.ADVANCED, Step.WRITTEN, Step.ACKNOWLEDGED])
def test_a_fence_is_another_owners_claim_and_the_listener_claims_again(new_shop: NewShop, step: Step) -> None:
    shop = new_shop(orders=2, batch=1)
    shop.kit.run(Fence(step))
    owners = [entry.owner for entry in shop.kit.journal("billing", Kind.CLAIM)]
    assert len(set(owners)) == 3, "the listener, the other owner, and the listener again"
    assert shop.visits() == [0, 1]
    shop.check(2)


def test_a_fence_while_the_handler_runs_waits_for_its_transaction(new_shop: NewShop) -> None:
    """The row is locked from the first statement on, so that the other owner finds the record done."""
    shop = new_shop(orders=1)
    run = shop.kit.run(Fence(Step.ADVANCED))
    assert run.steps.count(Step.ADVANCED) == 1
    kinds = [entry.kind for entry in shop.kit.journal("billing")]
    assert kinds[:4] == [Kind.START, Kind.CLAIM, Kind.ADVANCE, Kind.CLAIM]
    shop.check(1)


def test_a_fence_stops_a_listener_of_named_partitions() -> None:
    app = App(KAFKA, "memory://")

    @app.listener(group="standalone", partitions=[ORDERS])
    def note(record: Record) -> None:
        pass

    kit = TestKit(app, broker="local")
    kit.send("orders", "a")
    with pytest.raises(ListenerStopped, match=r"orders\[0\] was claimed by"):
        kit.run(Fence(Step.POLLED))
    with pytest.raises(FaultImpossible, match="are named, and never rebalanced"):
        kit.run(Rebalance(Step.POLLED))


@pytest.mark.parametrize(("committed", "handled"), [(True, 1), (False, 2)])
def test_a_lost_answer_is_resolved_by_the_rows(new_shop: NewShop, committed: bool, handled: int) -> None:
    calls: list[int] = []

    def count(order: Order, tx: SqlTransaction) -> None:
        calls.append(order.id)

    shop = new_shop(handler=count, orders=1)
    run = shop.kit.run(LostAnswer(committed=committed))
    (told,) = [event for event in run.events if isinstance(event, Committed)]
    assert told.unknown_outcomes == 1
    assert len(calls) == handled
    shop.kit.check()


def test_the_right_listener_stands_every_fault_everywhere(new_shop: NewShop) -> None:
    shops: list[Shop] = []

    def make() -> TestKit:
        shops.append(new_shop(orders=2, batch=1))
        return shops[-1].kit

    tried = fault_everywhere(make, lambda _: shops[-1].check(2))
    steps = {fault.step for fault in tried}
    assert steps == set(Step)
    for kind in (Crash, Fence, Rebalance, LostAnswer):
        assert len([fault for fault in tried if isinstance(fault, kind)]) >= 4
    assert Crash(Step.COMMITTED, 2) in tried
    assert Rebalance(Step.WRITTEN, 2, to_another=True, lost=True) in tried


@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE])
def test_a_weaker_delivery_does_not_stand_it(new_shop: NewShop, delivery: Delivery) -> None:
    """The kit would be of no use if it let these through."""
    shops: list[Shop] = []

    def visit(order: Order, tx: SqlTransaction) -> None:
        tx.execute(insert(VISITS).values(order_id=order.id))

    def make() -> TestKit:
        shops.append(new_shop(handler=visit, orders=1, delivery=delivery))
        return shops[-1].kit

    with pytest.raises(AssertionError, match=r"Crash\(Step.COMMITTED\): AssertionError"):
        crash_everywhere(make, lambda _: shops[-1].check(1))


def test_without_a_ledger_a_crash_before_the_commit_repeats() -> None:
    app = App(KAFKA, None)
    seen: list[bytes | None] = []

    @app.listener("orders", group="tailing", delivery=Delivery.AT_LEAST_ONCE)
    def note(record: Record) -> None:
        seen.append(record.value)

    kit = TestKit(app, broker="local")
    kit.send("orders", "a")
    assert kit.run(Crash(Step.WRITTEN)).crashed
    kit.run()
    assert seen == [b"a", b"a"]
    for fault in (Fence(Step.POLLED), LostAnswer(committed=True), Crash(Step.ADVANCED)):
        with pytest.raises(FaultImpossible, match="the app has no ledger"):
            kit.run(fault)


@pytest.mark.parametrize("server", ["postgres", "mariadb", "mysql", "redis_server"])
def test_crashes_and_fences_are_stood_on_other_ledgers(request: pytest.FixtureRequest, server: str) -> None:
    url = request.getfixturevalue(server).url
    app = App(KAFKA, "memory://")
    group = f"kit-{uuid.uuid4()}"

    @app.listener("orders", group=group)
    def note(record: Record) -> None:
        pass

    with TestKit(app, ledger=url, broker="local", batch=1) as kit:
        for number in range(3):
            kit.send("orders", number)
        kit.run(Crash(Step.WRITTEN, turn=2))
        kit.run(Fence(Step.ADVANCED), LostAnswer(committed=True))
        kit.check()
        assert sum(entry.records for entry in kit.journal(group, Kind.ADVANCE)) == 3
