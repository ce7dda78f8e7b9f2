"""The same tests on a real broker."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.testing.shop import KAFKA, Order, Shop

from tidegate import App, Delivery, Record, TopicPartition
from tidegate.ledger import Kind
from tidegate.sandbox import Kafka
from tidegate.testing import Crash, FaultImpossible, Fence, LostAnswer, Rebalance, Step, TestKit

NewShop = Callable[..., Shop]


def topics_on(kafka: Kafka) -> set[str]:
    return set(AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=10).topics)


@pytest.fixture(params=["local", "real"])
def broker(request: pytest.FixtureRequest) -> str:
    return "local" if request.param == "local" else str(request.getfixturevalue("kafka").bootstrap)


def test_a_test_says_the_same_with_and_without_a_broker(new_shop: NewShop, broker: str) -> None:
    shop = new_shop(orders=4, batch=1, broker=broker)
    assert shop.kit.run(Crash(Step.CLAIMED)).crashed
    assert shop.kit.run(Crash(Step.WRITTEN, turn=2)).crashed
    assert shop.visits() == [0]
    assert shop.kit.run(Crash(Step.COMMITTED)).crashed
    assert shop.visits() == [0, 1]
    shop.kit.run(Fence(Step.CLAIMED), LostAnswer(committed=True), LostAnswer(committed=False, turn=2))
    assert shop.visits() == [0, 1, 2, 3]
    assert shop.kit.positions("billing") == {TopicPartition("orders", 0): 4}
    shop.check(4)


def test_another_member_really_joins(new_shop: NewShop, kafka: Kafka) -> None:
    shop = new_shop(broker=kafka.bootstrap, partitions=2, batch=1)
    for number in range(6):
        shop.kit.send("orders", Order(number), partition=number % 2)
    shop.kit.run(Rebalance(Step.ADVANCED, to_another=True))
    assert len({entry.owner for entry in shop.kit.journal("billing", Kind.CLAIM)}) >= 2
    shop.check(6)


@pytest.mark.parametrize(
    "fault", [Rebalance(Step.ADVANCED), Rebalance(Step.ADVANCED, to_another=True, lost=True)], ids=str
)
def test_what_a_broker_cannot_be_told_is_refused(new_shop: NewShop, kafka: Kafka, fault: Rebalance) -> None:
    shop = new_shop(orders=1, broker=kafka.bootstrap)
    with pytest.raises(FaultImpossible, match="cannot be made to take partitions away at an exact step"):
        shop.kit.run(fault)


def test_listeners_see_the_names_that_they_know(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_TEST_BROKER", kafka.bootstrap)
    before = topics_on(kafka)
    app = App(KAFKA, "memory://")
    seen: list[tuple[str, Any]] = []
    prefix = f"o{uuid.uuid4().hex}"

    @app.listener(re.compile(f"{prefix}-.*"), group="collecting")
    def note(record: Record) -> None:
        seen.append((record.topic, record.value))

    with TestKit(app) as kit:
        kit.send(f"{prefix}-a", "1", key="k", headers={"trace": "t"}, timestamp=1234)
        kit.send(f"{prefix}-b", None)
        kit.run()
        assert sorted(seen) == [(f"{prefix}-a", b"1"), (f"{prefix}-b", None)]
        assert set(kit.positions("collecting").values()) == {1}
        kit.check()
        assert len(topics_on(kafka) - before) == 2
        assert f"{prefix}-a" not in topics_on(kafka)
    assert topics_on(kafka) <= before


def test_without_a_ledger_positions_are_those_in_kafka(kafka: Kafka) -> None:
    app = App(KAFKA, None)
    seen: list[bytes | None] = []

    @app.listener("orders", group="tailing", delivery=Delivery.AT_LEAST_ONCE)
    def note(record: Record) -> None:
        seen.append(record.value)

    with TestKit(app, broker={"bootstrap.servers": kafka.bootstrap}) as kit:
        kit.topic("orders", 1)
        kit.topic("orders", 2)
        kit.send("orders", "a", partition=1)
        kit.run(Crash(Step.WRITTEN))
        kit.run()
        assert seen == [b"a", b"a"]
        assert kit.positions("tailing") == {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 1}
        kit.check()
