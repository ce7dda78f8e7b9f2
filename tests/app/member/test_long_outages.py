"""The database or the broker is away for a full minute, and the log says so once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.app.member.stage import Stage, numbered, wait_until

from tidegate.core.records import TopicPartition
from tidegate.ledger import Limits
from tidegate.observe import LoggingObserver
from tidegate.observe.events import StoreLost
from tidegate.sandbox import Database, Kafka, MariaDB, MySQL, Postgres

MINUTE = 60.0
LIMITS = Limits(hold=1.0, lock_wait=2.0)  # a ledger that gives up soon, so that it tries often

pytestmark = pytest.mark.chaos


@pytest.fixture(params=[Postgres, MariaDB, MySQL])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    with request.param() as server:
        yield server


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def alarms(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno >= logging.WARNING]


def said(log: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in log.records)


def feed(stage: Stage, topic: str, until: float) -> None:
    """Records keep coming, into the first partition."""
    while time.monotonic() < until:
        stage.send(topic, ["meanwhile"])
        time.sleep(0.5)


def test_a_database_that_is_away_for_a_minute_at_commit_and_at_assign_is_told_of_once_to_each(
    kafka: Kafka, database: Database, stages: Callable[..., Stage], log: pytest.LogCaptureFixture
) -> None:
    stage = stages(kafka.bootstrap, database.url, LIMITS)
    busy, fresh = stage.topic(2), stage.topic(2)
    working = stage.start(busy, observers=[LoggingObserver()])
    for topic in (busy, fresh):
        for partition in range(2):
            stage.send(topic, numbered(10), partition=partition)
    wait_until(lambda: len(stage.rows(busy)) == 20)

    database.kill()
    until = time.monotonic() + MINUTE
    assigned = stage.start(fresh, group="late", observers=[LoggingObserver()])
    feed(stage, busy, until)
    sent = stage.log_end(TopicPartition(busy, 0))
    assert working.is_alive and assigned.is_alive
    assert len(alarms(log)) == 2, alarms(log)
    database.restart()

    wait_until(lambda: len(stage.rows(busy)) == sent + 10 and len(stage.rows(fresh)) == 20)
    wait_until(lambda: said(log, "the ledger is back") == 2)
    for running in (working, assigned):
        running.stop()
    assert stage.offsets(busy, 0) == list(range(sent))
    assert stage.offsets(busy, 1) == stage.offsets(fresh, 0) == stage.offsets(fresh, 1) == list(range(10))
    assert said(log, "the ledger went away") == len(alarms(log)) == 2
    assert len(log.records) < 30, "whatever else there was to say"
    stage.verify()


def test_a_broker_that_is_away_for_a_minute_is_told_of_once(
    stages: Callable[..., Stage], tmp_path: Path, log: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with Kafka() as broker:
        stage = stages(broker.bootstrap, f"sqlite:///{tmp_path / 'ledger.db'}")
        del stage.kafka["log_level"]  # what the client says belongs to what is counted
        topic = stage.topic(2)
        for partition in range(2):
            stage.send(topic, numbered(10), partition=partition)
        running = stage.start(topic, observers=[LoggingObserver()])
        wait_until(lambda: len(stage.rows()) == 20)

        broker.kill()
        until = time.monotonic() + MINUTE
        running.wait_for(StoreLost)
        wait_until(lambda: time.monotonic() > until or not running.is_alive, "the end of the minute", MINUTE + 10)
        assert running.is_alive
        broker.restart()
        for partition in range(2):
            stage.send(topic, numbered(10, first=10), partition=partition)

        wait_until(lambda: len(stage.rows()) == 40, "the rest", 90)
        wait_until(lambda: said(log, "the broker is back") == 1)
        running.stop()
        assert stage.offsets(partition=0) == stage.offsets(partition=1) == list(range(20))
        assert said(log, "the broker went away") == len(alarms(log)) == 1
        assert len(log.records) < 30, "whatever else there was to say"
        assert capfd.readouterr().err == ""
        stage.verify()
