"""`tidegate run` without a program: the sinks of tidegate.toml."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Producer
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
    """With the code of docs/coming-from-connect.md, which stores the positions before the first run."""
    topic = f"orders-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(100):
        producer.produce(topic, f'{{"id": {number}}}', partition=number % 2)
    assert producer.flush(30) == 0
    set_up(directory, kafka, topic)
    page = (Path(__file__).parents[2] / "docs" / "coming-from-connect.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    here = {
        '"orders"': f'"{topic}"',
        "1234": "30",
        "1190": "45",
        "sqlite:///connect-docs.db": f"sqlite:///{directory}/shop.db",
    }
    for shown, meant in here.items():
        assert shown in code
        code = code.replace(shown, meant)
    exec(compile(code, "coming-from-connect.md", "exec"), {})
    done = run("run", "--until-caught-up")
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
