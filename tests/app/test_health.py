"""The health of an app that runs, on a real broker and a real database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate import App, Limits, Record, open_ledger
from tidegate.app import health as module
from tidegate.app.health import AppHealth, Pulse
from tidegate.core.assignment import Assignment
from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim
from tidegate.observe import ReadPosition
from tidegate.sandbox import Kafka, Postgres, Proxy

PATIENCE = 60.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"health-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for _ in range(20):
        producer.produce(name, b"x")
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    with Proxy(postgres.host, postgres.port) as between:
        yield between


def test_an_app_is_ready_while_its_ledger_answers(kafka: Kafka, postgres: Postgres, proxy: Proxy, topic: str) -> None:
    limits = Limits(hold=10, lock_wait=10)
    prefix = f"h{uuid4().hex[:10]}_"
    busy, go_on = threading.Event(), threading.Event()
    with open_ledger(postgres.url_for(port=proxy.port), prefix=prefix, limits=limits) as ledger:
        app = App(kafka.bootstrap, ledger)
        tp = TopicPartition(topic, 0)

        @app.listener(topic, group="billing")
        def bill(record: Record) -> None:
            if record.offset == 19:
                busy.set()
                go_on.wait(PATIENCE)

        health = app.health
        assert health.unready() == ["no listener is running yet"]
        thread = threading.Thread(target=app.run)
        thread.start()
        try:
            assert busy.wait(PATIENCE)
            until(lambda: health.positions() == [ReadPosition("billing", *tp, 20, 0)])  # read, and not committed
            go_on.set()
            until(lambda: health.positions() == [ReadPosition("billing", *tp, 20, 20)])
            until(lambda: health.unready() == [])
            proxy.cut()
            until(lambda: any("the ledger" in reason for reason in health.unready()))
            assert health.failing() == []
            proxy.restore()
            until(lambda: health.unready() == [])
        finally:
            go_on.set()
            app.stop()
            thread.join(PATIENCE)


def test_a_broker_that_does_not_answer_is_told(tmp_path: object) -> None:
    app = App("127.0.0.1:1", f"sqlite:///{tmp_path}/shop.db")
    app.listener("orders", group="billing")(handle)
    app._members = [Member()]  # type: ignore[list-item]
    assert "the broker is not available: Kafka at 127.0.0.1:1 does not answer" in str(app.health.unready())


def handle(record: Record) -> None:
    """Take anything."""


class Member:
    """As far as health goes."""

    def __init__(self, assignment: Assignment | None = None) -> None:
        import random

        self.assignment = assignment or Assignment(45, random.Random(1))
        self.pulse = Pulse("billing", self.assignment, lambda tp: 12)


def test_a_partition_without_a_claim_is_a_reason() -> None:
    member = Member()
    tps = [TopicPartition("orders", number) for number in range(7)]
    member.assignment.assigned(tps)
    member.assignment.claimed({tps[0]: Claim("billing", tps[0], 9, 1, "me")})
    member.pulse._next = 0.0
    member.pulse.beat({"topic": "orders is gone"})
    health = AppHealth(lambda: [member, member], {})
    assert health.unready() == [
        "group 'billing': the topic is away: orders is gone",
        "group 'billing': not claimed yet: orders[1], orders[2], orders[3], orders[4], orders[5] and 1 more",
    ]
    assert health.positions()[0] == ReadPosition("billing", "orders", 0, 12, 9)


def test_a_loop_that_does_not_go_round_is_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member()
    health = AppHealth(lambda: [member], {})
    assert health.failing() == []
    member.pulse._at -= module._STUCK + 5
    assert health.failing() == ["group 'billing': its loop has not run for 65 s"]
    assert health.unready() == health.failing()


def test_a_question_without_an_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    answer, asked = threading.Event(), list[int]()

    def ask() -> None:
        asked.append(1)
        answer.wait(PATIENCE)

    health = AppHealth(lambda: [Member()], {"ledger": ask})
    for _ in range(3):
        assert health.unready() == ["the ledger is not available: no answer within 0.05 s"]
    assert len(asked) == 1
    answer.set()
    until(lambda: health.unready() == [])
