"""An error of a cluster that does not answer names its address, and no secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.ports import refused_port

from tidegate.core.records import TopicPartition
from tidegate.errors import BrokerUnavailable, ConfigurationError
from tidegate.kafka.cluster import Admin, Survey
from tidegate.kafka.reader import TopicReader

TP = TopicPartition("orders", 0)
SECRET = "pl4nted"


@pytest.fixture
def nowhere() -> dict[str, Any]:
    return {"bootstrap.servers": f"127.0.0.1:{refused_port()}", "sasl.password": SECRET, "log_level": 0}


ASK = pytest.mark.parametrize(
    "ask",
    [
        lambda kafka: Admin(kafka).identities(["orders"]),
        lambda kafka: Admin(kafka).partitions(["orders"]),
        lambda kafka: Admin(kafka).logs([TP]),
        lambda kafka: Admin(kafka).group_offsets("billing", [TP]),
        lambda kafka: TopicReader(kafka, "orders"),
        lambda kafka: Survey(kafka, seconds=0.5).groups(),
        lambda kafka: Survey(kafka, seconds=0.5).partitions(["orders"]),
    ],
    ids=["identities", "partitions", "logs", "offsets of a group", "a reader", "groups", "a survey"],
)


@ASK
def test_a_setting_that_librdkafka_does_not_know_is_told_as_such(
    nowhere: dict[str, Any], ask: Callable[[dict[str, Any]], object]
) -> None:
    """And not as a cluster that does not answer."""
    with pytest.raises(ConfigurationError, match="socket.time.ms"):
        ask({**nowhere, "socket.time.ms": 5})


@ASK
def test_a_cluster_that_does_not_answer_is_named(
    nowhere: dict[str, Any], ask: Callable[[dict[str, Any]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.kafka.cluster._SECONDS", 0.5)
    with pytest.raises(BrokerUnavailable) as error:
        ask(nowhere)
    assert f"Kafka at {nowhere['bootstrap.servers']}" in str(error.value)
    assert SECRET not in str(error.value)
