"""`tidegate run` without a program: the sinks of tidegate.toml."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate.cli import ExitCode
from tidegate.sandbox import Kafka

from .conftest import Run


def set_up(directory: Path, kafka: Kafka, topic: str) -> None:
    (directory / "tidegate.toml").write_text(
        f"""
        kafka = "{kafka.bootstrap}"
        ledger = "sqlite:///shop.db"

        [sink.orders]
        topics = "{topic}"

        [sink.orders.into]
        table = "orders"
        key = ["id"]
        mode = "upsert"
        create = true
        """
    )


def test_a_sink_in_the_settings_needs_no_program(run: Run, directory: Path, kafka: Kafka) -> None:
    topic = f"orders-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(100):
        producer.produce(topic, f'{{"id": {number}, "total": 1.5}}')
    producer.produce(topic, "no JSON")
    assert producer.flush(30) == 0
    set_up(directory, kafka, topic)
    done = run("run", "--until-caught-up", "--workers", "2")
    assert done.returncode == ExitCode.OK, done.stderr
    with sqlite3.connect(directory / "shop.db") as database:
        assert database.execute("SELECT count(*), min(id), max(id) FROM orders").fetchone() == (100, 0, 99)
        assert database.execute("SELECT count(*) FROM tidegate_dead_letters").fetchone() == (1,)


def test_a_sink_goes_on_where_a_connector_stopped(run: Run, directory: Path, kafka: Kafka) -> None:
    """From the connector's configuration to rows, with nothing but two commands."""
    topic, name = f"orders-{uuid4().hex}", f"orders-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(100):
        producer.produce(topic, f'{{"id": {number}}}', partition=number % 2)
    assert producer.flush(30) == 0
    connect = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"connect-{name}"})
    connect.commit(offsets=[TopicPartition(topic, 0, 30), TopicPartition(topic, 1, 45)], asynchronous=False)
    connect.close()
    config = {
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "topics": topic,
        "connection.url": f"jdbc:sqlite:{directory}/shop.db",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "table.name.format": "orders",
        "insert.mode": "upsert",
        "pk.mode": "record_value",
        "pk.fields": "id",
        "auto.create": "true",
    }
    (directory / "orders.json").write_text(json.dumps({"name": name, "config": config}))
    environ = {"TIDEGATE_KAFKA": kafka.bootstrap, "TIDEGATE_LEDGER": f"sqlite:///{directory}/shop.db"}
    done = run("adopt", "connect", "orders.json", "--toml", "tidegate.toml", "--execute", **environ)
    assert done.returncode == ExitCode.OK, done.stderr
    done = run("run", "--until-caught-up", TIDEGATE_KAFKA=kafka.bootstrap)
    assert done.returncode == ExitCode.OK, done.stderr
    with sqlite3.connect(directory / "shop.db") as database:
        found = {number for (number,) in database.execute("SELECT id FROM orders")}
    assert found == {number for number in range(100) if number // 2 >= (30, 45)[number % 2]}


def test_without_an_app_and_without_a_sink_there_is_nothing_to_run(run: Run) -> None:
    done = run("run")
    assert done.returncode == ExitCode.CONFIGURATION
    assert "nothing to run" in done.stderr


def test_a_table_that_cannot_be_is_told_with_the_name_of_its_sink(run: Run, directory: Path) -> None:
    (directory / "tidegate.toml").write_text(
        'kafka = "localhost:1"\nledger = "sqlite:///shop.db"\n'
        '[sink.orders]\ntopics = "orders"\n[sink.orders.into]\ntable = "orders"\nmode = "upsert"\n'
    )
    done = run("run")
    assert done.returncode == ExitCode.CONFIGURATION
    assert "sink.orders.into: mode = \"upsert\" needs 'key'" in done.stderr
