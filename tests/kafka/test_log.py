"""What the client logs."""

from __future__ import annotations

import logging

import pytest

from tidegate.core.policies import GroupProtocol
from tidegate.kafka.config import ClientLog, admin_config, consumer_config
from tidegate.kafka.consumer import GroupConsumer

FORM = "%s [%s] %s"
REFUSED = "[thrd:b1:9092/1]: b1:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "tidegate.kafka")
    return caplog


def levels(log: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in log.records]


def test_what_is_said_over_and_over_is_logged_once_an_hour(log: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    client = ClientLog(clock=lambda: now[0])
    for number in range(3):
        client.log(logging.WARNING, FORM, "MAXPOLL", "rdkafka#consumer-1", f"exceeded by {number} ms")
    client.log(logging.WARNING, FORM, "CONFWARN", "rdkafka#consumer-1", "no such thing")
    now[0] = 3601.0
    client.log(logging.WARNING, FORM, "MAXPOLL", "rdkafka#consumer-1", "exceeded by 7 ms")

    assert levels(log) == [logging.WARNING, logging.DEBUG, logging.DEBUG, logging.WARNING, logging.WARNING]
    assert log.messages[0] == "MAXPOLL [rdkafka#consumer-1] exceeded by 0 ms"


def test_a_connection_that_failed_is_no_alarm(log: pytest.LogCaptureFixture) -> None:
    client = ClientLog()
    client.log(logging.ERROR, FORM, "FAIL", "rdkafka#consumer-1", f"{REFUSED} (after 0ms in state CONNECT)")
    client.log(logging.ERROR, FORM, "FAIL", "rdkafka#consumer-1", f"{REFUSED} (after 2ms, 30 identical suppressed)")

    assert levels(log) == [logging.INFO, logging.DEBUG]


def test_a_consumer_without_a_broker_says_so_once_and_not_on_standard_error(
    log: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:1"}
    source = GroupConsumer(
        consumer_config(kafka, "billing", GroupProtocol.RANGE, 6.0), None, incremental=False, address="Kafka"
    )  # type: ignore[arg-type]
    source.subscribe(["orders"])
    while len(log.records) < 5:
        source.fetch(1, 0.1)
    source.close()

    assert sum(level > logging.DEBUG for level in levels(log)) == 1
    assert capfd.readouterr().err == ""


def test_an_administration_client_logs_only_what_it_is_told_to() -> None:
    assert admin_config({})["log_level"] == 0
    assert admin_config({"log_level": 6})["log_level"] == 6
    assert "log_level" not in admin_config({"debug": "broker"})
