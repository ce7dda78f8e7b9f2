"""From topic to topic exactly once: a listener that returns records, killed at every step."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.kafka.producer import topics
from tests.kafka.producer.copying import Copy, copy
from tests.patience import wait_until
from tests.processes import killed, running

from tidegate import (
    App,
    BatchBounds,
    ConfigurationError,
    Delivery,
    GroupProtocol,
    Outgoing,
    Producer,
    Record,
    Retry,
    Skip,
    TopicPartition,
)
from tidegate.app import HandlerFailed
from tidegate.errors import RecordRejected
from tidegate.sandbox import Kafka

PARTITIONS, RECORDS = 2, 150
# Each chain is one copy, killed again and again: at the step, for the turn-th time, some seconds later.
CHAINS: list[list[tuple[str, int, float]]] = [
    [
        ("claiming", 1, 0),
        ("begun", 2, 0),
        ("sent", 1, 0),
        ("committing", 3, 0),
        ("acknowledged", 1, 0),
        ("handling", 7, 0),
    ],
    [
        ("claimed", 1, 0),
        ("offsets", 1, 0),
        ("committing", 2, 0.001),
        ("polled", 3, 0),
        ("sent", 2, 0),
        ("committed", 2, 0),
    ],
    [("assigned", 1, 0), ("beginning", 2, 0), ("flushing", 2, 0), ("committing", 2, 0.003), ("releasing", 1, 0)],
    [("handling", 2, 0), ("offsets", 2, 0), ("committing", 2, 0.006), ("acknowledged", 2, 0), ("revoked", 1, 0)],
]


def filled(kafka: Kafka, records: int) -> str:
    topic = topics.create(kafka.bootstrap, PARTITIONS)
    fill(kafka, topic, range(records))
    return topic


def fill(kafka: Kafka, topic: str, numbers: range) -> None:
    """Put numbers into each partition."""
    with Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True}) as producer:
        for number in numbers:
            for partition in range(PARTITIONS):
                producer.send(topic, b"%d" % number, key=b"%d" % partition, partition=partition)


def by_partition(kafka: Kafka, topic: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for message in topics.read(kafka.bootstrap, topic):
        found[message.partition()].append(int(message.value() or -1))
    return found


def test_a_copy_that_is_killed_at_every_step_has_every_record_once(kafka: Kafka) -> None:
    assert sum(map(len, CHAINS)) >= 20

    def run(chain: list[tuple[str, int, float]]) -> dict[int, list[int]]:
        order = Copy(kafka.bootstrap, filled(kafka, RECORDS), topics.create(kafka.bootstrap, PARTITIONS))
        for step, turn, delay in chain:
            leave_after = 2 if step in {"releasing", "revoked"} else None
            killed(copy, replace(order, step=step, turn=turn, delay=delay, leave_after=leave_after))
        with running(copy, order):
            wait_until(lambda: order.positions() == dict.fromkeys(range(PARTITIONS), RECORDS), "all is copied")
        return by_partition(kafka, order.target)

    with ThreadPoolExecutor(len(CHAINS)) as pool:
        copies = list(pool.map(run, CHAINS))
    assert copies == [{number: list(range(RECORDS)) for number in range(PARTITIONS)}] * len(CHAINS)


def test_a_copy_that_freezes_and_wakes_up_again_writes_nothing_twice(kafka: Kafka) -> None:
    def run(protocol: GroupProtocol, step: str) -> dict[int, list[int]]:
        source, target = filled(kafka, RECORDS), topics.create(kafka.bootstrap, PARTITIONS)
        order = Copy(kafka.bootstrap, source, target, protocol=protocol)
        with running(copy, replace(order, step=step, turn=3, freezes=True)) as frozen:
            wait_until(lambda: is_stopped(frozen.pid), "it froze")
            with running(copy, order):
                everything = dict.fromkeys(range(PARTITIONS), RECORDS)
                wait_until(lambda: order.positions() == everything, "the other one has copied all")
                os.kill(frozen.pid or 0, signal.SIGCONT)
                fill(kafka, source, range(RECORDS, RECORDS + 50))
                more = dict.fromkeys(range(PARTITIONS), RECORDS + 50)
                wait_until(lambda: order.positions() == more, "both together have copied the rest")
        return by_partition(kafka, target)

    protocols = [GroupProtocol.COOPERATIVE, GroupProtocol.COOPERATIVE, GroupProtocol.RANGE, GroupProtocol.CONSUMER]
    with ThreadPoolExecutor(4) as pool:
        copies = list(pool.map(run, protocols, ["offsets", "beginning", "offsets", "beginning"]))
    assert copies == [{number: list(range(RECORDS + 50)) for number in range(PARTITIONS)}] * 4


def is_stopped(pid: int | None) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_handler_returns_one_record_or_several_or_none(kafka: Kafka) -> None:
    source, target = filled(kafka, 6), topics.create(kafka.bootstrap)
    app = App(kafka.bootstrap, None)

    @app.listener(source, group=f"g-{source}")
    def double(value: str) -> list[Outgoing] | None:
        return None if int(value) % 2 else [Outgoing(target, value), Outgoing(target, {"value": value}, key="k")]

    app.run(until_caught_up=True)
    found = topics.values(kafka.bootstrap, target)
    assert sorted(filter(None, found)) == sorted(
        2 * [b"0", b"2", b"4", b'{"value":"0"}', b'{"value":"2"}', b'{"value":"4"}']
    )


def test_what_a_handler_returned_for_a_record_that_is_skipped_is_not_sent(kafka: Kafka) -> None:
    source, target = filled(kafka, 10), topics.create(kafka.bootstrap)
    app = App(kafka.bootstrap, None)

    @app.listener(source, group=f"g-{source}", on_error=Skip(), batch=BatchBounds(count=4))
    def pass_on(records: list[Record]) -> list[Outgoing]:
        if any(record.value == b"5" for record in records):
            raise ValueError
        return [Outgoing(target, record.value) for record in records]

    app.run(until_caught_up=True)
    wanted = sorted(2 * [b"%d" % number for number in range(10) if number != 5])
    assert sorted(filter(None, topics.values(kafka.bootstrap, target))) == wanted


def test_a_handler_that_fails_or_whose_records_are_rejected_stops_the_listener(kafka: Kafka) -> None:
    source = filled(kafka, 3)
    small = topics.create(kafka.bootstrap, config={"max.message.bytes": "1000"})
    app = App(kafka.bootstrap, None)
    answers: list[object] = [Outgoing(small, b"x" * 2000), "no record"]

    @app.listener(source, group=f"g-{source}")
    def answer(record: Record) -> Outgoing:
        return answers[-1]  # type: ignore[return-value]

    with pytest.raises(HandlerFailed, match="NotSendable.*returns Outgoing"):
        app.run()
    answers.pop()
    other = App(kafka.bootstrap, None)
    other.listener(source, group=f"g-{source}")(answer)
    with pytest.raises(RecordRejected, match="max.message.bytes"):
        other.run()
    assert topics.values(kafka.bootstrap, small) == []


@pytest.mark.parametrize("answer", [b"", b"bytes", [None], {}])
def test_a_handler_that_returns_no_records_stops_the_listener_whatever_the_policy(kafka: Kafka, answer: object) -> None:
    source = filled(kafka, 1)
    app = App(kafka.bootstrap, None)

    @app.listener(source, group=f"g-{source}", on_error=Retry(5, then=Skip()))
    def wrong(record: Record) -> Outgoing:
        return answer  # type: ignore[return-value]

    with pytest.raises(HandlerFailed, match="failed with NotSendable: a handler from topic to topic returns") as failed:
        app.run(until_caught_up=True)
    assert "let on_error" not in str(failed.value)


@pytest.mark.parametrize(
    "annotation",
    [list[Outgoing | None], Iterator[Outgoing], dict[str, Outgoing], Outgoing | bytes, list[list[Outgoing]]],
)
def test_an_annotation_that_no_transaction_can_send_is_refused_where_it_is_declared(annotation: Any) -> None:
    def wrong(record: Record): ...  # type: ignore[no-untyped-def]

    wrong.__annotations__ = {"record": Record, "return": annotation}
    with pytest.raises(ConfigurationError, match=r"wrong: the annotation of what it returns.*-> list\[Outgoing\]"):
        App("localhost:9092", None).listener("orders", group="g")(wrong)


@pytest.mark.parametrize(
    "annotation",
    [Outgoing, Outgoing | None, list[Outgoing], list[Outgoing] | None, Sequence[Outgoing], tuple[Outgoing, ...]],
)
def test_records_are_returned_one_by_one_or_in_a_list(annotation: Any) -> None:
    def right(record: Record): ...  # type: ignore[no-untyped-def]

    right.__annotations__ = {"record": Record, "return": annotation}
    App("localhost:9092", None).listener("orders", group="g")(right)


def test_what_cannot_be_exactly_once_is_refused_with_the_reason() -> None:
    def pass_on(record: Record) -> Outgoing: ...

    app = App("localhost:9092", None)
    with pytest.raises(ConfigurationError, match="which is for delivery=Delivery.EXACTLY_ONCE"):
        app.listener("orders", group="g", delivery=Delivery.AT_LEAST_ONCE)(pass_on)
    with pytest.raises(ConfigurationError, match="Kafka cannot fence one of two consumers"):
        app.listener(partitions=[TopicPartition("orders", 0)], group="g")(pass_on)
    with pytest.raises(ConfigurationError, match="without workers"):
        app.listener("orders", group="g", workers=2)(pass_on)
    with pytest.raises(ConfigurationError, match="which cannot include a database"):
        App("localhost:9092", "sqlite:///shop.db").listener("orders", group="g")(pass_on)
    with pytest.raises(ConfigurationError, match=r"annotated as -> Outgoing or -> list\[Outgoing\]"):

        @app.listener("orders", group="g")
        def unsaid(record: Record): ...  # type: ignore[no-untyped-def]


def test_listeners_send_with_the_producer_of_the_app(kafka: Kafka) -> None:
    source, target = filled(kafka, 5), topics.create(kafka.bootstrap)
    app = App(kafka.bootstrap, None)

    @app.listener(source, group=f"g-{source}", delivery=Delivery.AT_LEAST_ONCE)
    def tell(record: Record) -> None:
        app.producer.send(target, record.value)

    app.run(until_caught_up=True)
    wanted = sorted(2 * [b"%d" % number for number in range(5)])
    assert sorted(filter(None, topics.values(kafka.bootstrap, target))) == wanted
