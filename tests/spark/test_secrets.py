"""Passwords reach executors, and no page, log, event log or list of processes."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidegate import Producer
from tidegate.kafka.admin import Admin
from tidegate.kafka.config import admin_config
from tidegate.sandbox import Kafka
from tidegate.sandbox.ports import free_port
from tidegate.spark.kafka_options import kafka_options

PLANTED = "5ecret"
PASSWORD = f'pl"an\\ted-{PLANTED}= ;'
LINK = re.compile(r'href="(/[^"#]*)"')


@contextmanager
def broker_with_login() -> Iterator[dict[str, Any]]:
    """A broker that lets in whoever knows the password; the settings of a client that does."""
    port, controllers, login = free_port(), free_port(), free_port()
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="broker" password="b" user_shop="{quoted}";'
    here = "://127.0.0.1:"
    settings = {
        "listeners": f"CLIENT{here}{port},CONTROLLER{here}{controllers},LOGIN{here}{login}",
        "advertised.listeners": f"CLIENT{here}{port},LOGIN{here}{login}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": jaas.replace("\\", "\\\\"),
        "auto.create.topics.enable": True,
    }
    with Kafka(port=port, voters={1: controllers}, settings=settings):
        yield {
            "bootstrap.servers": f"127.0.0.1:{login}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "shop",
            "sasl.password": PASSWORD,
        }


def pages(spark: SparkSession) -> str:
    """All pages of the session, as far as links lead, and what its REST interface tells."""
    base, app = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    told = (
        "environment",
        "sql?details=true&planDescription=true&length=1000",
        "jobs",
        "stages?details=true",
        "executors",
    )
    waiting = [f"/api/v1/applications/{app}/{what}" for what in told] + ["/", "/environment/", "/SQL/", "/executors/"]
    seen: dict[str, str] = {}
    while waiting:
        path = waiting.pop(0)
        if path in seen or "/static/" in path or "/kill/" in path or len(seen) > 60:
            continue
        with urllib.request.urlopen(f"{base}{path}", timeout=60) as answer:
            seen[path] = answer.read().decode(errors="replace")
        waiting += [link.replace("&amp;", "&") for link in LINK.findall(seen[path])]
    assert len(seen) > 10
    return "\n".join(seen.values())


def processes() -> str:
    """The arguments of every process below this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_text(errors="replace"))
            except OSError:
                continue
    assert any("PythonGatewayServer" in line or "pyspark-shell" in line for line in found)
    return "\n".join(found)


def test_no_password_is_shown_anywhere(
    spark: SparkSession, event_logs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = f"secret-{os.urandom(6).hex()}"
    url = f"postgresql://shop:{PASSWORD}@127.0.0.1/shop"
    with broker_with_login() as kafka:
        assert not Admin(admin_config({**kafka, "sasl.password": "wrong"})).answers(2)
        with Producer(kafka) as producer:
            producer.send(topic, b"one").result(30)
        options = kafka_options(kafka, "secrets")
        spark.sparkContext.setLogLevel("INFO")
        try:
            found = spark.read.format("kafka").options(**options).option("subscribe", topic).load()

            def passes(batches: Iterator[Any]) -> Iterator[Any]:
                assert PLANTED in url  # it goes along, as the address of a ledger does
                yield from (batch.select(["value"]) for batch in batches)

            assert [bytes(row.value) for row in found.mapInArrow(passes, "value binary").collect()] == [b"one"]
        finally:
            spark.sparkContext.setLogLevel("ERROR")
    logged = capfd.readouterr()
    assert "ConsumerConfig" in logged.err or "TaskSetManager" in logged.err
    assert PLANTED not in logged.err + logged.out
    assert PLANTED not in pages(spark)
    assert PLANTED not in processes()
    written = [path.read_text(errors="replace") for path in event_logs.rglob("*") if path.is_file()]
    assert any("SparkListenerEnvironmentUpdate" in text for text in written)
    assert not [text for text in written if PLANTED in text]
    assert "spark.shop.credential" in json.dumps(written)
