"""A real JDBC sink on Kafka Connect is killed, and a sink of Tidegate goes on: nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.connect_sink import COLUMNS, JdbcSink, enveloped
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, text
from tests.app.member.stage import wait_until

from tidegate.kafka.cluster import Survey
from tidegate.sandbox import Kafka, Postgres
from tidegate.sandbox.server import Setting

PARTITIONS, HALF = 2, 2000
JSON: dict[str, Setting] = {
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": True,
    "batch.size": 50,
    "consumer.override.session.timeout.ms": 6000,
}

pytestmark = pytest.mark.chaos


def send(kafka: Kafka, topic: str, ids: range) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in ids:
        producer.produce(topic, enveloped(number), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def tidegate(directory: Path, *arguments: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.cli", *arguments],
        cwd=directory,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_sink_goes_on_where_a_killed_connector_stopped(broker: Kafka, tmp_path: Path) -> None:
    topic, table = "connect-orders", "connect_orders"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    survey = Survey({"bootstrap.servers": broker.bootstrap}, seconds=20.0)
    with Postgres() as postgres:
        engine = create_engine(postgres.url)
        with engine.begin() as conn:
            conn.execute(text(f"CREATE TABLE {table} ({COLUMNS})"))

        def written() -> list[int]:
            with engine.connect() as conn:
                return list(conn.execute(text(f"SELECT id FROM {table}")).scalars())

        send(broker, topic, range(HALF))
        with JdbcSink(broker, postgres, topic, table, 1, JSON) as connect:
            wait_until(lambda: len(written()) == HALF, "the first rows", 120)
            ends = survey.stable_ends([topic])
            group = f"connect-{connect.connector}"
            wait_until(lambda: survey.committed(group, list(ends)) == ends, "the offsets of the connector", 120)
            send(broker, topic, range(HALF, 2 * HALF))
            wait_until(lambda: len(written()) > HALF, "more rows", 120)
            connect.kill()
            config = connect._connector()
        (tmp_path / "orders.json").write_text(json.dumps({"name": connect.connector, "config": config}))
        wait_until(lambda: (found := survey.group(group)) is not None and found.state == "empty", "its session", 120)

        before = Counter(written())
        environ = {"TIDEGATE_KAFKA": broker.bootstrap, "TIDEGATE_LEDGER": postgres.url}
        adopt = ["adopt", "connect", "orders.json", "--toml", "tidegate.toml", "--json"]
        shown = json.loads(tidegate(tmp_path, *adopt, "--execute", **environ))
        assert not postgres.password or postgres.password not in json.dumps(shown)
        named = {
            offset * PARTITIONS + doubt["partition"]
            for doubt in shown["doubts"]
            for offset in range(doubt["start"], doubt["end"])
        }
        assert named == set(range(HALF, 2 * HALF)), "the offsets are those of before the kill"
        tidegate(
            tmp_path, "run", "--until-caught-up", TIDEGATE_KAFKA=broker.bootstrap, DB_PASSWORD=postgres.password or "x"
        )
        after = Counter(written())
        engine.dispose()
    assert set(after) == set(range(2 * HALF)), "nothing is lost"
    repeated = {number for number, count in after.items() if count > 1}
    assert repeated == {number for number in before if number >= HALF}
    assert repeated
    assert repeated <= named
