"""The three deliveries under the same kill, and positions that are kept in Kafka."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, text

from tidegate import App, ConfigurationError, DeadLetter, Record, Transaction
from tidegate.core.delivery import CommitStrategy, Delivery
from tidegate.sandbox import Kafka

ROOT = Path(__file__).parents[2]
COUNT = 300


@pytest.fixture(scope="module")
def amounts(kafka: Kafka) -> Iterator[str]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic("amounts", 1, 1)])["amounts"].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(COUNT):
        producer.produce("amounts", str(number))
    producer.flush(30)
    yield kafka.bootstrap


def written_under_a_kill(kafka: str, delivery: str, tmp_path: Path) -> list[int]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE amounts (amount INTEGER)"))
    command = [sys.executable, "-m", "tests.delivery.child", kafka, url, delivery, str(tmp_path / "died")]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == -signal.SIGKILL
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == 0
    with engine.connect() as conn:
        found = conn.execute(text("SELECT amount FROM amounts ORDER BY amount")).scalars().all()
    engine.dispose()
    return list(found)


def test_exactly_once_neither_loses_nor_repeats(amounts: str, tmp_path: Path) -> None:
    assert written_under_a_kill(amounts, "exactly-once", tmp_path) == list(range(COUNT))


def test_at_least_once_repeats_what_the_kill_came_between(amounts: str, tmp_path: Path) -> None:
    found = written_under_a_kill(amounts, "at-least-once", tmp_path)
    assert set(found) == set(range(COUNT))
    assert len(found) == COUNT + 50


def test_at_most_once_loses_what_the_kill_came_between(amounts: str, tmp_path: Path) -> None:
    found = written_under_a_kill(amounts, "at-most-once", tmp_path)
    assert len(found) == len(set(found)) == COUNT - 50


@pytest.mark.parametrize("strategy", list(CommitStrategy))
def test_positions_kept_in_kafka_are_found_again(amounts: str, strategy: CommitStrategy) -> None:
    seen: list[int] = []

    def consume(most: int | None) -> None:
        app = App(amounts, None)

        @app.listener("amounts", group=f"in-kafka-{strategy}", delivery=Delivery.AT_LEAST_ONCE, commit=strategy)
        def take(record: Record) -> None:
            seen.append(int(record.value or 0))

        app.run(until_caught_up=True)

    consume(None)
    assert seen == list(range(COUNT))
    consume(None)
    assert len(seen) == COUNT, "the second run has nothing left to do"


def test_exactly_once_without_a_ledger_is_refused_with_the_reason(amounts: str) -> None:
    app = App(amounts, None)
    with pytest.raises(ConfigurationError, match="cannot commit together"):

        @app.listener("amounts", group="g")
        def take(record: Record) -> None: ...


def test_transactions_and_dead_letters_need_a_ledger(amounts: str) -> None:
    app = App(amounts, None)
    with pytest.raises(ConfigurationError, match="without a ledger there is none"):

        @app.listener("amounts", group="g", delivery=Delivery.AT_LEAST_ONCE)
        def write(record: Record, tx: Transaction) -> None: ...

    with pytest.raises(ConfigurationError, match="dead letters are kept in the ledger"):

        @app.listener("amounts", group="g", delivery=Delivery.AT_LEAST_ONCE, on_error=DeadLetter())
        def take(record: Record) -> None: ...
