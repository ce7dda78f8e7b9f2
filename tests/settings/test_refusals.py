"""Client settings that would break the guarantee are refused by name, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tidegate.errors import ConfigurationError
from tidegate.kafka.config import refuse_unsafe
from tidegate.settings import KafkaSettings, Settings

UNSAFE = [
    "enable.auto.commit",
    "auto.commit.enable",
    "enable.auto.offset.store",
    "offset.store.method",
    "auto.offset.reset",
    "topic.auto.offset.reset",
    "topic.auto.commit.enable",
    "enable.partition.eof",
    "group.id",
    "group.protocol",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "default.topic.config",
    "rebalance_cb",
    "on_commit",
]


@pytest.mark.parametrize("key", UNSAFE)
def test_an_unsafe_setting_is_refused_by_name_and_its_value_is_not_shown(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{key}' is refused: .+") as caught:
        refuse_unsafe({"client.id": "x", key: "planted"})
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("value", ["read_uncommitted", "READ_UNCOMMITTED"])
def test_records_of_aborted_transactions_are_not_to_be_had(value: str) -> None:
    with pytest.raises(ConfigurationError, match="aborted transactions"):
        refuse_unsafe({"isolation.level": value})
    refuse_unsafe({"isolation.level": "read_committed"})


def test_a_file_with_an_unsafe_setting_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text("[kafka.client]\nenable.auto.commit = true")
    with pytest.raises(ConfigurationError, match=r"tidegate.toml: kafka: the client setting 'enable.auto.commit' is"):
        Settings.load(file, {})
    with pytest.raises(ConfigurationError, match=r"the environment: kafka: the client setting 'group.id' is refused"):
        Settings.load(environ={"TIDEGATE_KAFKA__CLIENT__GROUP_ID": "x"})
    with pytest.raises(ConfigurationError, match="refused"):
        KafkaSettings("x:1", {"group.id": "x"})


def test_other_settings_of_librdkafka_pass() -> None:
    refuse_unsafe(
        {
            "bootstrap.servers": "x:1",
            "security.protocol": "SASL_SSL",
            "sasl.password": "p",
            "ssl.ca.location": "/ca",
            "max.poll.interval.ms": 1000,
            "fetch.min.bytes": 1,
        }
    )


def test_librdkafka_takes_what_is_passed_through_as_toml_gives_it() -> None:
    client = {"fetch.wait.max.ms": 50, "socket.keepalive.enable": True, "retry.backoff.ms": "100"}
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0, **client})
    consumer.close()
