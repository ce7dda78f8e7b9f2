"""`Producer.safe`: which settings and which topics it takes. What it is for is shown in test_cluster.py."""

from __future__ import annotations

import logging

import pytest
from tests.kafka.producer import topics

from tidegate import ConfigurationError, Producer
from tidegate.errors import RecordRejected, SendAgain
from tidegate.kafka import WeakTopic
from tidegate.kafka import producer as producers
from tidegate.kafka.config import producer_config, safe_config
from tidegate.kafka.producer import weaknesses
from tidegate.sandbox import Kafka


def test_it_is_idempotent_and_acknowledged_by_all_and_tries_again() -> None:
    config = safe_config(producer_config("localhost:9092"))
    assert config["enable.idempotence"] is True
    assert config["acks"] == "all"
    assert config["retries"] == 2**31 - 1
    assert config["max.in.flight.requests.per.connection"] == 5


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("acks", 1),
        ("acks", "0"),
        ("request.required.acks", 1),
        ("topic.acks", 1),
        ("enable.idempotence", False),
        ("enable.idempotence", "false"),
        ("retries", 0),
        ("message.send.max.retries", 0),
        ("max.in.flight", 6),
        ("max.in.flight.requests.per.connection", 100),
    ],
)
def test_settings_that_lose_records_are_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match="refuses settings that lose records: '[a-z.]+' has to be"):
        Producer.safe({"bootstrap.servers": "localhost:9092", setting: value})


def test_settings_that_lose_nothing_stay() -> None:
    given = {"acks": -1, "retries": 9, "max.in.flight": 1, "linger.ms": 50, "delivery.timeout.ms": 9000}
    config = safe_config(producer_config({"bootstrap.servers": "b", **given}))
    assert config["retries"] == 9
    assert config["max.in.flight.requests.per.connection"] == 1
    assert config["linger.ms"] == 50
    assert config["message.timeout.ms"] == 9000


@pytest.mark.parametrize(
    ("replicas", "in_sync", "unclean", "weak"),
    [
        (3, 2, False, []),
        (4, 3, False, []),
        (3, 1, False, ["min.insync.replicas"]),
        (2, 2, False, ["replication factor"]),
        (3, 3, False, ["replication factor"]),
        (1, 1, False, ["min.insync.replicas", "replication factor"]),
        (2, 1, True, ["min.insync.replicas", "unclean.leader.election.enable"]),
        (3, 2, True, ["unclean.leader.election.enable"]),
    ],
)
def test_each_weak_setting_of_a_topic_is_found(replicas: int, in_sync: int, unclean: bool, weak: list[str]) -> None:
    assert [each.setting for each in weaknesses(replicas, in_sync, unclean=unclean)] == weak


def test_a_weak_topic_is_refused_before_anything_is_sent_to_it(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap, config={"unclean.leader.election.enable": "true"})
    with pytest.raises(
        WeakTopic, match="can lose records: min.insync.replicas is 1: .*; replication factor is 1"
    ) as caught:
        Producer.safe(kafka.bootstrap, topics=[topic])
    assert [each.setting for each in caught.value.weaknesses] == [
        "min.insync.replicas",
        "replication factor",
        "unclean.leader.election.enable",
    ]
    with Producer.safe(kafka.bootstrap) as producer, pytest.raises(WeakTopic):
        producer.send(topic, b"v")
    assert topics.values(kafka.bootstrap, topic) == []


def test_a_weak_topic_is_warned_of_once_if_told_so(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    topic = topics.create(kafka.bootstrap)
    with caplog.at_level(logging.WARNING, "tidegate"), Producer.safe(kafka.bootstrap, on_weak_topic="warn") as producer:
        for _ in range(3):
            producer.send(topic, b"v", headers={"h": b"w"}).result(10)
    assert [record.getMessage()[: len(topic) + 24] for record in caplog.records] == [f"topic {topic} can lose records:"]
    assert len(topics.values(kafka.bootstrap, topic)) == 3


def test_a_topic_that_is_not_there_cannot_be_checked(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecordRejected, match="whether it is safe is not known.*create the topic"):
        Producer.safe(kafka.bootstrap, topics=["no-such-topic"])
    monkeypatch.setattr(producers, "_SECONDS", 0.5)
    with pytest.raises(SendAgain, match="whether it is safe is not known"):
        Producer.safe({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, topics=["orders"])
