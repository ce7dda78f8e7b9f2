"""The examples run as they stand, and are as short as they say."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from tests.kafka.producer.topics import values

from tidegate import TidegateError, open_ledger
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
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in AMOUNTS:
        order = json.dumps({"id": number, "total": number})
        producer.produce("orders", key=str(number % 7), value=order)
        producer.produce("orders.eu", value=order)
        producer.produce("amounts", value=str(number))
    producer.flush(30)
    return broker.bootstrap


def until(condition: Any, timeout: float = 150) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.1)


def run(example: str, kafka: str, ledger: str, works: Callable[[], object] | None = None) -> None:
    """Run an app as a program until it works, and end it as it says; then by ``tidegate run`` until it has caught up.

    The first may have handled any part of the records: the second handles the others.
    """
    env = {**os.environ, "KAFKA": kafka, "LEDGER": ledger}
    path = ROOT / "examples" / f"{example}.py"
    first = [sys.executable, str(path)]
    with subprocess.Popen(
        first, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            until(works or (lambda: has_owner(ledger, group_of(path))))
            program.send_signal(signal.SIGINT)
            said, errors = program.communicate(timeout=60)
        finally:
            program.kill()
    assert program.returncode == 0, errors
    assert said.splitlines()[0] == ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]
    assert "Ctrl-C ends it." in said
    second = [sys.executable, "-m", "tidegate.cli", "run", f"examples.{example}:app", "--until-caught-up"]
    done = subprocess.run(second, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def group_of(path: Path) -> str | None:
    """The group that an example names, if it does."""
    found = re.search(r'group="([\w-]+)"', path.read_text())
    return found[1] if found else None


def has_owner(url: str, group: str | None) -> bool:
    """Whether a listener of the group, or of any, has claimed a partition."""
    with suppress(TidegateError, SQLAlchemyError), open_ledger(url) as ledger:
        return any(total.owned for total in ledger.totals() if group in (None, total.group))
    return False


@pytest.mark.parametrize(
    ("example", "table"),
    [("billing", "bills"), ("batches", "reported"), ("pool", "quotes"), ("pattern", "archive")],
)
def test_an_example_on_sqlite_writes_every_record_once(example: str, table: str, orders: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    run(example, orders, url)
    engine = create_engine(url)
    with engine.connect() as conn:
        assert conn.execute(text(f"SELECT count(*) FROM {table}")).scalar() == len(AMOUNTS)
        if table != "archive":
            assert conn.execute(text(f"SELECT sum(total) FROM {table}")).scalar() == sum(AMOUNTS)
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
    run("standalone", orders, url)
    engine = create_engine(url)
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
        run("mysql_totals", orders, server.url)
        assert conn.execute(text("SELECT total FROM listened")).scalar() == sum(AMOUNTS)
    engine.dispose()


def test_the_counters_in_redis_count_every_record_once(orders: str, redis_server: Redis) -> None:
    run("counters", orders, redis_server.url)
    with redis.Redis.from_url(redis_server.url) as client:
        counted: Any = client.hgetall("{tidegate}:orders")
    assert sum(map(int, counted.values())) == len(AMOUNTS)


def test_bills_are_made_from_topic_to_topic_once(orders: str) -> None:
    run("topic_to_topic", orders, "none", lambda: values(orders, "bills"))
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


def loop_killed_and_started_again(example: str, kafka: str, ledger: str, total: Any) -> None:
    """Own loops run for ever: kill one on its way, start another, and see that it stops at the right total."""
    env = {**os.environ, "KAFKA": kafka, "LEDGER": ledger}
    command = [sys.executable, str(ROOT / "examples" / f"{example}.py")]
    with subprocess.Popen(command, env=env) as first:
        until(lambda: total() > 0)
        first.kill()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as second:
        until(lambda: total() >= sum(AMOUNTS))
        time.sleep(1)  # for whatever would be counted twice
        second.send_signal(signal.SIGINT)
        assert "Ctrl-C ends it" in second.communicate(timeout=30)[0]
        assert second.returncode == -signal.SIGINT
    assert total() == sum(AMOUNTS)


@pytest.fixture(scope="module")
def numbers() -> Any:
    """A broker of its own, whose orders are plain numbers."""
    with Kafka() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        for number in AMOUNTS:
            producer.produce("orders", value=str(number))
        producer.flush(30)
        yield broker.bootstrap


def test_own_loops_on_mysql_and_on_redis_add_every_amount_once(numbers: str, mysql: MySQL, redis_server: Redis) -> None:
    """Both at once: most of the time goes by until the broker misses the loops that were killed."""
    engine = create_engine(mysql.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn, redis.Redis.from_url(redis_server.url) as client, ThreadPoolExecutor() as pool:
        conn.execute(text("CREATE TABLE totals (total BIGINT NOT NULL)"))
        conn.execute(text("INSERT INTO totals VALUES (0)"))
        loops = [
            ("mysql_own_loop", mysql.url, lambda: int(conn.execute(text("SELECT total FROM totals")).scalar_one())),
            ("redis_own_loop", redis_server.url, lambda: int(client.get("{tidegate}:total") or 0)),
        ]
        ends = [pool.submit(loop_killed_and_started_again, name, numbers, url, total) for name, url, total in loops]
        for end in ends:
            end.result()
    engine.dispose()


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


def test_the_query_of_structured_streaming_counts_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    command = [sys.executable, "examples/structured_streaming.py"]
    env = {**os.environ, "LEDGER": url, "CHECKPOINT": str(tmp_path / "checkpoint")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    with create_engine(url).connect() as conn:
        found = dict(map(tuple, conn.execute(text("SELECT kind, numbers FROM kinds"))))
        batches = conn.execute(text("SELECT next_offset FROM tidegate_positions")).scalar_one()
    assert batches > 1
    assert found == dict.fromkeys(range(3), 30 * batches)
