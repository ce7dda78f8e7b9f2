"""Passwords reach executors, and no page, log, event log or list of processes."""

from __future__ import annotations

import os
import re
import urllib.request
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.confidential.login import PLANTED, broker_with_login
from tests.spark.orders import Place

from tidegate import Producer, Table
from tidegate.kafka.cluster import Admin
from tidegate.kafka.config import admin_config
from tidegate.sandbox import Postgres
from tidegate.spark import Pipeline

LINK = re.compile(r'href="(/[^"#]*)"')


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
    spark: SparkSession, postgres: Postgres, event_logs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = f"secret-{os.urandom(6).hex()}"
    place = Place(postgres.url)
    hidden = [PLANTED, postgres.password]
    with broker_with_login() as kafka:
        refused = Admin(admin_config({**kafka, "sasl.password": "wrong"})).unanswered(5)
        assert refused is not None
        assert "refuses the login" in refused
        assert "'sasl.*'" in refused
        with Producer(kafka) as producer:
            producer.send(topic, b'{"id": 7}').result(30)
        spark.sparkContext.setLogLevel("INFO")
        try:
            for group, transform in {"by-partition": None, "staged": "SELECT value.id AS id FROM records"}.items():
                into = Table(place.name, columns={"id": "integer"}, create=True)
                pipeline = Pipeline(
                    *(topic, into),
                    group=group,
                    kafka=kafka,
                    ledger=place.ledger,
                    spark=spark,
                    transform=transform,
                    collect=0,
                )
                pipeline.run(available_now=True)
        finally:
            spark.sparkContext.setLogLevel("ERROR")
    assert place.rows("id") == [(7,), (7,)]
    place.close()
    logged = capfd.readouterr()
    assert "ConsumerConfig" in logged.err or "TaskSetManager" in logged.err
    written = "\n".join(path.read_text(errors="replace") for path in event_logs.rglob("*") if path.is_file())
    assert "SparkListenerEnvironmentUpdate" in written
    assert "spark.shop.credential" in written
    for told in (logged.err, logged.out, pages(spark), processes(), written):
        assert not [secret for secret in hidden if secret in told]
