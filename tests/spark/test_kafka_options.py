"""librdkafka's settings as the Java client of Spark takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import ConfigurationError
from tidegate.spark.kafka_options import client_settings, kafka_options

PEM = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"
LOGIN = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "shop", "sasl.password": "s"}


def options(**more: Any) -> dict[str, str]:
    return kafka_options({"bootstrap.servers": "one:9092", **more}, "billing")


def test_an_address_is_enough() -> None:
    made = kafka_options("one:9092,two:9092", "billing")
    assert made["kafka.bootstrap.servers"] == "one:9092,two:9092"
    assert made["kafka.isolation.level"] == "read_committed"
    assert made["failOnDataLoss"] == "true"
    assert int(made["kafka.max.poll.records"]) > 500


def test_settings_are_renamed_and_those_without_meaning_left_out() -> None:
    made = options(
        **{
            "socket.timeout.ms": 5000,
            "fetch.wait.max.ms": 7,
            "fetch.message.max.bytes": 1000,
            "check.crcs": True,
            "debug": "all",
            "linger.ms": 5,
            "queued.max.messages.kbytes": 10,
            "java.max.poll.records": 3,
        }
    )
    assert made["kafka.request.timeout.ms"] == "5000"
    assert made["kafka.fetch.max.wait.ms"] == "7"
    assert made["kafka.max.partition.fetch.bytes"] == "1000"
    assert made["kafka.check.crcs"] == "true"
    assert made["kafka.max.poll.records"] == "3"
    assert not [key for key in made if "debug" in key or "linger" in key or "queued" in key]


@pytest.mark.parametrize(
    "key",
    [
        *("ssl.crl.location", "ssl.cipher.suites", "sasl.kerberos.keytab", "oauth_cb", "group.id", "auto.offset.reset"),
        *(
            "enable.auto.commit",
            "java.group.id",
            "java.enable.auto.commit",
            "java.interceptor.classes",
            "no.such.thing",
        ),
    ],
)
def test_what_cannot_be_translated_or_would_break_the_guarantee_is_named(key: str) -> None:
    with pytest.raises(ConfigurationError, match=key.replace(".", r"\.")):
        options(**{key: "x"})


@pytest.mark.parametrize("key", ["isolation.level", "java.isolation.level"])
def test_aborted_records_cannot_be_asked_for(key: str) -> None:
    with pytest.raises(ConfigurationError, match="aborted"):
        options(**{key: "read_uncommitted"})


def test_a_password_with_quotes_and_backslashes_is_quoted() -> None:
    made = options(**{**LOGIN, "sasl.password": 'a"b\\c'})
    assert made["kafka.security.protocol"] == "SASL_SSL"
    assert made["kafka.sasl.jaas.config"].endswith(r'PlainLoginModule required username="shop" password="a\"b\\c";')


@pytest.mark.parametrize(
    ("mechanism", "module"), [("SCRAM-SHA-256", "ScramLoginModule"), ("plain", "PlainLoginModule")]
)
def test_each_mechanism_has_its_module(mechanism: str, module: str) -> None:
    made = options(**{**LOGIN, "sasl.mechanism": mechanism})
    assert made["kafka.sasl.mechanism"] == mechanism.upper()
    assert f".{module} required" in made["kafka.sasl.jaas.config"]


def test_other_mechanisms_need_the_connectors_own_settings() -> None:
    with pytest.raises(ConfigurationError, match="OAUTHBEARER, which is not translated"):
        options(**{**LOGIN, "sasl.mechanism": "OAUTHBEARER"})
    own = {"java.sasl.jaas.config": "mine;", "java.sasl.login.callback.handler.class": "org.shop.Login"}
    own["sasl.oauthbearer.method"] = "oidc"
    made = options(**{**LOGIN, "sasl.mechanism": "OAUTHBEARER", **own})
    assert made["kafka.sasl.jaas.config"] == "mine;"
    assert made["kafka.sasl.login.callback.handler.class"] == "org.shop.Login"


def test_certificates_go_along_as_text_because_executors_share_no_files(tmp_path: Path) -> None:
    for name, text in (("ca.pem", PEM), ("own.pem", PEM), ("own.key", KEY)):
        (tmp_path / name).write_text(text)
    made = options(
        **{
            "security.protocol": "SSL",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "ssl.certificate.location": str(tmp_path / "own.pem"),
            "ssl.key.location": str(tmp_path / "own.key"),
            "ssl.key.password": "k",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert made["kafka.ssl.truststore.certificates"] == PEM and made["kafka.ssl.truststore.type"] == "PEM"
    assert made["kafka.ssl.keystore.certificate.chain"] == PEM and made["kafka.ssl.keystore.key"] == KEY
    assert made["kafka.ssl.key.password"] == "k"
    assert made["kafka.ssl.endpoint.identification.algorithm"] == ""
    assert str(tmp_path) not in "".join(made.values())


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"ssl.ca.location": "/nowhere/ca.pem"}, "'ssl.ca.location': /nowhere/ca.pem cannot be read"),
        ({"ssl.key.pem": KEY}, "one is given without the other"),
        ({"ssl.certificate.pem": PEM, "ssl.key.pem": KEY.replace("PRIVATE", "RSA PRIVATE")}, "PKCS #8"),
        ({"enable.ssl.certificate.verification": False}, "always verifies"),
    ],
)
def test_encryption_that_java_cannot_do_is_refused(setting: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        options(**{"security.protocol": "ssl", **setting})


def test_the_group_id_stays_and_changes_with_settings_and_topics() -> None:
    def group(kafka: str, name: str, *topic_ids: str) -> str:
        return kafka_options(kafka, name, topic_ids)["kafka.group.id"]

    assert group("one:9092", "billing", "A", "B") == group("one:9092", "billing", "B", "A")
    ids = {
        group("one:9092", "billing"),
        group("two:9092", "billing"),
        group("one:9092", "b"),
        group("one:9092", "b", "A"),
    }
    assert len(ids) == 4


def test_the_clients_settings_are_those_without_the_connectors() -> None:
    assert client_settings("one:9092") == {"bootstrap.servers": "one:9092"}
    assert client_settings({"a": 1, "java.b": 2}) == {"a": 1}


def test_settings_without_an_address_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no 'bootstrap.servers'"):
        kafka_options({"client.id": "x"}, "billing")
