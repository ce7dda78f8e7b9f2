"""The examples run as they stand, and are as short as they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, text
from tests.producing.topics import values

from tidegate.sandbox import Database, Kafka, MySQL, Redis

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
AMOUNTS = range(1, 201)


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    """One of its own: examples name their topics as people do."""
    with Kafka() as server:
        yield server


@pytest.fixture(scope="module")
def orders(broker: Kafka) -> str:
    """A topic of orders, and one that only a pattern finds."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic("orders", 2, 1), NewTopic("orders.eu", 1, 1), NewTopic("amounts", 2, 1)]
    topics += [NewTopic("bills", 1, 1), NewTopic("new-orders", 1, 1)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in AMOUNTS:
        order = json.dumps({"id": number, "total": number})
        producer.produce("orders", key=str(number % 7), value=order)
        producer.produce("orders.eu", value=order)
        producer.produce("amounts", value=str(number))
    producer.flush(30)
    return broker.bootstrap


def run(example: str, kafka: str, ledger: str) -> None:
    """Run an app until it has caught up, twice: the second time there is nothing left to do."""
    script = f"from examples.{example} import app; raise SystemExit(app.run(until_caught_up=True))"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "KAFKA": kafka, "LEDGER": ledger},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("example", "table", "count"),
    [
        ("billing", "bills (id INTEGER, total INTEGER)", 200),
        ("batches", "reported (id INTEGER, total INTEGER)", 200),
        ("pool", "quotes (id INTEGER, total INTEGER)", 200),
        ("pattern", "archive (topic TEXT, record_offset INTEGER, value BLOB)", 200),
    ],
)
def test_an_example_on_sqlite_writes_every_record_once(
    example: str, table: str, count: int, orders: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE {table}"))
    run(example, orders, url)
    name = table.partition(" ")[0]
    with engine.connect() as conn:
        assert conn.execute(text(f"SELECT count(*) FROM {name}")).scalar() == count
        if "total" in table:
            assert conn.execute(text(f"SELECT sum(total) FROM {name}")).scalar() == sum(AMOUNTS)
    engine.dispose()


def test_a_sink_creates_its_table_and_writes_every_order_once(orders: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    run("sink", orders, url)
    engine = create_engine(url)
    with engine.connect() as conn:
        found = conn.execute(
            text("SELECT count(*), sum(total), count(DISTINCT customer), min(placed) FROM orders")
        ).one()
    engine.dispose()
    assert tuple(found[:3]) == (len(AMOUNTS), sum(AMOUNTS), 7)
    assert found[3] > "2020"


def test_named_partitions_are_read_without_a_group(orders: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE audited (record_offset INTEGER)"))
    run("standalone", orders, url)
    with engine.connect() as conn:
        offsets = conn.execute(text("SELECT record_offset FROM audited ORDER BY 1")).scalars().all()
    engine.dispose()
    assert offsets == list(range(len(offsets)))
    assert offsets


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_a_total_in_mysql_is_right(orders: str, name: str, request: pytest.FixtureRequest) -> None:
    server: Database = request.getfixturevalue(name)
    engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.execute(text("CREATE TABLE listened (total BIGINT NOT NULL)"))
        conn.execute(text("INSERT INTO listened VALUES (0)"))
        run("mysql_totals", orders, server.url)
        assert conn.execute(text("SELECT total FROM listened")).scalar() == sum(AMOUNTS)
    engine.dispose()


def test_the_counters_in_redis_count_every_record_once(orders: str, redis_server: Redis) -> None:
    run("counters", orders, redis_server.url)
    with redis.Redis.from_url(redis_server.url) as client:
        counted: Any = client.hgetall("{tidegate}:orders")
    assert sum(map(int, counted.values())) == len(AMOUNTS)


def test_bills_are_made_from_topic_to_topic_once(orders: str) -> None:
    run("topic_to_topic", orders, "none")
    bills = [json.loads(value or b"") for value in values(orders, "bills")]
    assert sorted(bill["order"] for bill in bills) == list(AMOUNTS)
    assert all(bill["amount"] == bill["order"] for bill in bills)


@pytest.mark.parametrize(
    ("on_weak_topic", "said", "sent"), [("refuse", "can lose records", 0), ("warn", "97 98 99", 100)]
)
def test_orders_are_sent_if_their_topic_can_hold_them(orders: str, on_weak_topic: str, said: str, sent: int) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "producing.py")],
        env={**os.environ, "KAFKA": orders, "WEAK": on_weak_topic},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, said in done.stdout) == (0, True), done.stderr
    assert len(values(orders, "new-orders")) == sent


def until(condition: Any, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.1)


def loop_killed_and_started_again(example: str, kafka: str, ledger: str, total: Any) -> None:
    """Own loops run for ever: kill one on its way, start another, and see that it stops at the right total."""
    env = {**os.environ, "KAFKA": kafka, "LEDGER": ledger}
    command = [sys.executable, str(ROOT / "examples" / f"{example}.py")]
    with subprocess.Popen(command, env=env) as first:
        until(lambda: total() > 0)
        first.kill()
    with subprocess.Popen(command, env=env) as second:
        until(lambda: total() >= sum(AMOUNTS))
        time.sleep(1)  # for whatever would be counted twice
        second.kill()
    assert total() == sum(AMOUNTS)


@pytest.fixture(scope="module")
def numbers() -> Any:
    """A broker of its own, whose orders are plain numbers."""
    with Kafka() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in AMOUNTS:
            producer.produce("orders", value=str(number))
        producer.flush(30)
        yield broker.bootstrap


def test_an_own_loop_on_mysql_adds_every_amount_once(numbers: str, mysql: MySQL) -> None:
    engine = create_engine(mysql.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.execute(text("CREATE TABLE totals (total BIGINT NOT NULL)"))
        conn.execute(text("INSERT INTO totals VALUES (0)"))
        loop_killed_and_started_again(
            "mysql_own_loop",
            numbers,
            mysql.url,
            lambda: int(conn.execute(text("SELECT total FROM totals")).scalar_one()),
        )
    engine.dispose()


def test_an_own_loop_on_redis_adds_every_amount_once(numbers: str, redis_server: Redis) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        loop_killed_and_started_again(
            "redis_own_loop", numbers, redis_server.url, lambda: int(client.get("{tidegate}:total") or 0)
        )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_at_most_twenty_lines(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= 20, len(lines)


def test_the_pipeline_writes_large_orders_once(orders: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "examples/pipeline.py"],
            cwd=ROOT,
            env={**os.environ, "KAFKA": orders, "LEDGER": url},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
    with create_engine(url).connect() as conn:
        found = conn.execute(text("SELECT count(*), sum(cents) FROM large_orders")).one()
    assert tuple(found) == (100, 100 * sum(range(101, 201)))
