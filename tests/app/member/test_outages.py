"""The database or the broker goes away, and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.app.member.stage import Running, Stage, numbered, wait_until

from tidegate.core.batches import BatchBounds
from tidegate.core.policies import Delivery, GroupProtocol
from tidegate.core.records import Record, TopicPartition
from tidegate.ledger import Limits
from tidegate.observe.events import StoreBack, StoreLost
from tidegate.sandbox import Kafka, Postgres

LIMITS = Limits(hold=1.0, lock_wait=2.0)  # a ledger that gives up soon, so that an outage shows
LONG = 12.0
SHORT = 1.0


@pytest.fixture(scope="module")
def mortal_postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def mortal_kafka() -> Iterator[Kafka]:
    # After a kill it is refused until its former session has ended.
    with Kafka(settings={"broker.session.timeout.ms": 1000, "broker.heartbeat.interval.ms": 200}) as server:
        yield server


@pytest.fixture
def on_postgres(kafka: Kafka, mortal_postgres: Postgres, stages: Callable[..., Stage]) -> Stage:
    mortal_postgres.start()
    return stages(kafka.bootstrap, mortal_postgres.url, LIMITS)


@pytest.fixture
def on_mortal_kafka(mortal_kafka: Kafka, stages: Callable[..., Stage], tmp_path: Path) -> Stage:
    mortal_kafka.start()
    return stages(mortal_kafka.bootstrap, f"sqlite:///{tmp_path / 'ledger.db'}")


def outages(running: Running) -> list[tuple[str, str]]:
    """What was told of things that went away and came back, in order."""
    told = [event for event in list(running.events) if isinstance(event, StoreLost | StoreBack)]
    return [("lost" if isinstance(event, StoreLost) else "back", event.what) for event in told]


ONE_OUTAGE = [("lost", "ledger"), ("back", "ledger")]


def test_a_database_that_is_away_at_assign_is_waited_for(on_postgres: Stage, mortal_postgres: Postgres) -> None:
    stage = on_postgres
    topic = stage.topic(2)
    for partition in range(2):
        stage.send(topic, numbered(10), partition=partition)
    mortal_postgres.kill()

    running = stage.start(topic)
    running.wait_for(StoreLost)
    mortal_postgres.restart()

    wait_until(lambda: len(stage.rows()) == 20)
    running.stop()
    assert stage.offsets(partition=0) == stage.offsets(partition=1) == list(range(10))
    assert outages(running) == ONE_OUTAGE
    stage.verify()


@pytest.mark.parametrize("protocol", [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE])
def test_a_database_that_dies_under_an_open_transaction_loses_and_repeats_nothing(
    on_postgres: Stage, mortal_postgres: Postgres, protocol: GroupProtocol
) -> None:
    stage = on_postgres
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(20))
    calls: list[int] = []

    def handle(records: list[Record], tx: Any) -> None:
        stage.write(records, tx)
        calls.append(records[0].offset)
        if calls.count(10) == 1:
            mortal_postgres.kill()

    running = stage.start(topic, handle=handle, batch=BatchBounds(count=5), protocol=protocol)
    running.wait_for(StoreLost)
    mortal_postgres.restart()

    wait_until(lambda: len(stage.rows()) == 20)
    stage.send(topic, numbered(5, first=20))
    wait_until(lambda: len(stage.rows()) == 25)
    running.stop()
    assert stage.offsets() == list(range(25))
    assert outages(running) == ONE_OUTAGE
    assert stage.position(tp).owner is None
    stage.verify()


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_connection_that_breaks_in_the_handler_stops_no_listener(
    kafka: Kafka, postgres: Postgres, stages: Callable[..., Stage], delivery: Delivery
) -> None:
    stage = stages(kafka.bootstrap, postgres.url, LIMITS)
    topic = stage.topic()
    stage.send(topic, numbered(5))
    broken: list[int] = []

    def handle(records: list[Record], tx: Any) -> None:
        stage.write(records, tx)
        if records[-1].offset >= 5 and not broken:
            broken.extend(record.offset for record in records)
            tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    running = stage.start(topic, handle=handle, delivery=delivery)
    wait_until(lambda: len(stage.rows()) == 5)
    stage.send(topic, numbered(5, first=5))
    wait_until(lambda: stage.position(TopicPartition(topic, 0)).next_offset == 10)
    running.stop()

    # What was rolled back is run again, unless its position had moved already.
    lost = broken if delivery is Delivery.AT_MOST_ONCE else []
    assert stage.offsets() == [offset for offset in range(10) if offset not in lost]
    assert broken
    stage.verify()


def test_a_long_outage_of_the_database_is_told_of_once(on_postgres: Stage, mortal_postgres: Postgres) -> None:
    stage = on_postgres
    topic = stage.topic(2)
    running = stage.start(topic)
    stage.send(topic, numbered(10))
    wait_until(lambda: len(stage.rows()) == 10)

    mortal_postgres.kill()
    until = time.monotonic() + LONG
    stage.send(topic, numbered(10, first=10))
    while time.monotonic() < until:
        stage.send(topic, ["meanwhile"], partition=1)
        time.sleep(0.5)
    sent = stage.log_end(TopicPartition(topic, 1))
    mortal_postgres.restart()

    wait_until(lambda: len(stage.rows()) == 20 + sent)
    wait_until(lambda: running.told(StoreBack))
    running.stop()
    assert stage.offsets(partition=0) == list(range(20))
    assert stage.offsets(partition=1) == list(range(sent))
    assert outages(running) == ONE_OUTAGE
    assert running.told(StoreBack)[0].seconds > LONG / 2
    stage.verify()


def test_an_outage_of_the_database_while_nothing_comes_in_is_told_of_once(
    on_postgres: Stage, mortal_postgres: Postgres
) -> None:
    stage = on_postgres
    topic = stage.topic()
    stage.send(topic, numbered(5))
    running = stage.start(topic)
    wait_until(lambda: len(stage.rows()) == 5)

    for count in (1, 2):
        mortal_postgres.kill()
        wait_until(lambda count=count: len(running.told(StoreLost)) == count, "that it is away")
        mortal_postgres.restart()
        wait_until(lambda count=count: len(running.told(StoreBack)) == count, "that it is back")

    running.stop()
    assert outages(running) == ONE_OUTAGE * 2
    assert stage.offsets() == list(range(5))


def test_a_database_that_is_away_at_the_stop_does_not_hold_it_up(on_postgres: Stage, mortal_postgres: Postgres) -> None:
    stage = on_postgres
    topic = stage.topic()
    stage.send(topic, numbered(5))
    running = stage.start(topic)
    wait_until(lambda: len(stage.rows()) == 5)
    mortal_postgres.kill()

    running.stop()

    mortal_postgres.restart()
    stage.send(topic, numbered(5, first=5))
    stage.catch_up(topic)
    assert stage.offsets() == list(range(10))
    stage.verify()


def test_a_broker_that_dies_and_comes_back_is_read_on(on_mortal_kafka: Stage, mortal_kafka: Kafka) -> None:
    stage = on_mortal_kafka
    topic = stage.topic(2)
    for partition in range(2):
        stage.send(topic, numbered(10), partition=partition)
    running = stage.start(topic, mirror=True)  # which the broker cannot take for a while
    wait_until(lambda: len(stage.rows()) == 20)

    mortal_kafka.kill()
    running.wait_for(StoreLost)
    until = time.monotonic() + SHORT
    wait_until(lambda: time.monotonic() > until)
    mortal_kafka.restart()
    for partition in range(2):
        stage.send(topic, numbered(10, first=10), partition=partition)

    wait_until(lambda: len(stage.rows()) == 40, "the rest", 90)
    wait_until(lambda: running.told(StoreBack))
    running.stop()
    assert stage.offsets(partition=0) == stage.offsets(partition=1) == list(range(20))
    assert outages(running) == [("lost", "broker"), ("back", "broker")]
    stage.verify()


def test_an_idle_member_tells_that_the_broker_is_back(on_mortal_kafka: Stage, mortal_kafka: Kafka) -> None:
    stage = on_mortal_kafka
    topic = stage.topic()
    running = stage.start(topic)
    wait_until(lambda: TopicPartition(topic, 0) in stage.ledger.read("billing").positions)

    mortal_kafka.kill()
    running.wait_for(StoreLost)
    mortal_kafka.restart()

    running.wait_for(StoreBack)
    running.stop()
    assert outages(running) == [("lost", "broker"), ("back", "broker")]


def test_a_broker_that_is_away_at_the_start_is_waited_for(on_mortal_kafka: Stage, mortal_kafka: Kafka) -> None:
    stage = on_mortal_kafka
    topic = stage.topic()
    stage.send(topic, numbered(5))
    mortal_kafka.kill()
    running = stage.start(topic)
    running.wait_for(StoreLost)

    mortal_kafka.restart()

    wait_until(lambda: stage.offsets() == list(range(5)))
    running.wait_for(StoreBack)
    running.stop()
    assert outages(running) == [("lost", "broker"), ("back", "broker")]
