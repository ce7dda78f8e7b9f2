"""Ten minutes of 400 records a second: the journal stays small, and proves every position while it is written."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate import App, Ledger, Record, Transaction, open_ledger
from tidegate.core.journal import Kind
from tidegate.sandbox import Kafka, MariaDB, MySQL, Postgres, Redis

TOPIC, PARTITIONS, RATE = "busy", 4, 400
MOST = 6
"""Entries of a partition in a minute."""


@pytest.fixture
def stores(
    postgres: Postgres, mariadb: MariaDB, mysql: MySQL, redis_server: Redis, tmp_path: Path
) -> Iterator[dict[str, Ledger[Any]]]:
    """A ledger on each store, by the name of the group that uses it."""
    servers = (postgres, mariadb, mysql, redis_server)
    urls = {f"busy-{type(server).__name__}-{secrets.token_hex(3)}": server.url for server in servers}
    urls["busy-SQLite"] = f"sqlite:///{tmp_path / 'busy.db'}"
    with ExitStack() as stack:
        yield {name: stack.enter_context(open_ledger(url)) for name, url in urls.items()}


def feed(kafka: Kafka, seconds: float) -> int:
    """As many records as there are to be in this time, at an even pace; how many."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        while sent < passed * RATE:
            producer.produce(TOPIC, b"x" * 100, partition=sent % PARTITIONS)
            sent += 1
        producer.poll(0)
        time.sleep(0.02)
    producer.flush(30)
    return sent


def listening(kafka: Kafka, name: str, ledger: Ledger[Any], over: threading.Event) -> threading.Thread:
    app = App(kafka.bootstrap, ledger)

    @app.listener(TOPIC, group=name)
    def handle(records: list[Record], tx: Transaction) -> None:
        """The position is all that there is to write."""

    def run() -> None:
        thread = threading.Thread(target=app.run, daemon=True)
        thread.start()
        over.wait()
        app.stop()
        thread.join(60)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("minutes", [pytest.param(10, marks=pytest.mark.chaos), 0.2])
def test_a_busy_group_writes_few_entries_that_prove_its_positions_all_the_time(
    kafka: Kafka, stores: dict[str, Ledger[Any]], minutes: float
) -> None:
    topics = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topics.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    over, began = threading.Event(), datetime.now(UTC)
    members = [listening(kafka, name, ledger, over) for name, ledger in stores.items()]
    verified: Counter[str] = Counter()

    def verify() -> None:
        while not over.wait(0.5):
            for name, ledger in stores.items():
                found = ledger.verify(name)
                assert found.ok, (name, found.breaks)
                verified[name] += 1

    with ThreadPoolExecutor(1) as pool:
        verifying = pool.submit(verify)
        try:
            sent = feed(kafka, minutes * 60)
            deadline = time.monotonic() + 60
            while any(done(name, ledger) < sent for name, ledger in stores.items()) and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            over.set()
        verifying.result(90)
    for thread in members:
        thread.join(90)
    for name, ledger in stores.items():
        assert ledger.verify(name).ok, name
        advances = [entry for entry in ledger.journal(name) if entry.kind is Kind.ADVANCE]
        each = Counter(entry.partition for entry in advances)
        history = sum(bucket.records for bucket in ledger.history(name, began - timedelta(minutes=10)))
        print(f"{name}: {sent} records, entries {sorted(each.values())}, verified {verified[name]} times")
        assert done(name, ledger) == sum(entry.records for entry in advances) == history == sent, name
        assert len(each) == PARTITIONS
        assert max(each.values()) <= max(1, minutes) * MOST, (name, each)
        assert verified[name] >= max(3, 5 * minutes), name


def done(group: str, ledger: Ledger[Any]) -> int:
    return sum(position.next_offset for position in ledger.read(group).positions.values())
