"""Rebalances at exact steps, without a broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.testing.shop import Order, Shop

from tidegate import TopicPartition
from tidegate.app import HandlerFailed
from tidegate.ledger import Kind, SqlTransaction
from tidegate.observe.events import Rebalanced
from tidegate.testing import Crash, Rebalance, Run, Step

NewShop = Callable[..., Shop]
IN_A_BATCH = [Step.ADVANCED, Step.WRITTEN, Step.COMMITTED]


def told(run: Run) -> list[str]:
    return [event.kind for event in run.events if isinstance(event, Rebalanced)]


@pytest.mark.parametrize("step", IN_A_BATCH)
def test_partitions_that_are_revoked_in_a_batch_are_committed_and_come_back(new_shop: NewShop, step: Step) -> None:
    shop = new_shop(orders=3, batch=1)
    run = shop.kit.run(Rebalance(step, turn=2))
    assert told(run) == ["assigned", "revoked", "assigned", "revoked"]
    assert len(shop.kit.journal("billing", Kind.RELEASE)) == 2
    assert shop.visits() == [0, 1, 2]
    shop.check(3)


@pytest.mark.parametrize("step", IN_A_BATCH)
def test_partitions_that_are_lost_in_a_batch_are_not_released(new_shop: NewShop, step: Step) -> None:
    shop = new_shop(orders=3, batch=1)
    run = shop.kit.run(Rebalance(step, turn=2, lost=True))
    assert told(run) == ["assigned", "lost", "assigned", "revoked"]
    assert len(shop.kit.journal("billing", Kind.RELEASE)) == 1
    assert shop.visits() == [0, 1, 2]
    shop.check(3)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("step", [Step.CLAIMED, Step.POLLED, *IN_A_BATCH, Step.ACKNOWLEDGED])
def test_another_member_goes_on_where_the_first_one_was(new_shop: NewShop, step: Step, lost: bool) -> None:
    shop = new_shop(orders=3, batch=1)
    run = shop.kit.run(Rebalance(step, to_another=True, lost=lost))
    assert told(run).count("assigned") >= 2
    assert ("lost" in told(run)) == lost
    assert len({entry.owner for entry in shop.kit.journal("billing", Kind.CLAIM)}) >= 2
    assert shop.visits() == [0, 1, 2]
    shop.check(3)


def test_only_the_partitions_of_the_step_move(new_shop: NewShop) -> None:
    shop = new_shop(partitions=3, batch=1)
    for number in range(3):
        shop.kit.send("orders", Order(number), partition=1)
    run = shop.kit.run(Rebalance(Step.ADVANCED))
    revoked = [event.partitions for event in run.events if isinstance(event, Rebalanced) and event.kind == "revoked"]
    assert revoked[0] == (TopicPartition("orders", 1),)
    shop.check(3)


def test_a_member_may_die_after_the_other_has_joined(new_shop: NewShop) -> None:
    shop = new_shop(orders=3, batch=1)
    run = shop.kit.run(Rebalance(Step.ADVANCED, to_another=True), Crash(Step.WRITTEN))
    assert run.crashed
    assert shop.visits() == [0, 1, 2], "the other one has done it all"
    shop.check(3)


def test_what_another_member_fails_with_is_raised(new_shop: NewShop) -> None:
    calls: list[int] = []

    def fail_later(order: Order, tx: SqlTransaction) -> None:
        calls.append(order.id)
        if len(calls) > 1:
            raise ZeroDivisionError

    shop = new_shop(handler=fail_later, orders=3, batch=1)
    with pytest.raises(HandlerFailed, match="ZeroDivisionError"):
        shop.kit.run(Rebalance(Step.ADVANCED, to_another=True))
