from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.crash.test_kill import commits
from tests.listeners.books import Books
from tests.listeners.child import Order, consume
from tests.listeners.patience import wait_until
from tests.listeners.processes import ended, finished, killed, running
from tests.listeners.topic import Topic

from tidegate.sandbox import Database, Kafka, Proxy

PARTITIONS, RECORDS = 3, 30


@pytest.mark.parametrize(
    ("step", "turn"),
    [
        ("claim", 1),
        ("assigned", 1),
        ("poll", 1),
        ("advance", 2),
        ("handle", 2),
        ("write", 2),
        ("commit", 2),
        ("acknowledge", 2),
        ("release", 1),
        ("revoked", 1),
    ],
)
def test_a_kill_at_any_step_of_the_loop_counts_every_record_once(
    kafka: Kafka, store: str, step: str, turn: int
) -> None:
    if step == "commit" and store.startswith("redis"):
        pytest.skip("Redis has no such step: the transaction is one script")
    topic = Topic.create(kafka.bootstrap, PARTITIONS)
    books = Books.open(store, PARTITIONS)
    sums = topic.fill(RECORDS)
    killed(consume, Order(topic, books, step, turn, leave_after=2 if step in {"release", "revoked"} else None))
    finished(consume, Order(topic, books))
    books.check(topic, sums)


def test_a_kill_while_the_commit_is_on_its_way_counts_every_record_once(kafka: Kafka, server: Database) -> None:
    topic = Topic.create(kafka.bootstrap, PARTITIONS)
    books = Books.open(server.url, PARTITIONS)
    sums = topic.fill(RECORDS)
    with Proxy(server.host, server.port) as proxy:
        victims: list[int] = []

        def kill_on_commit(seen: bytes) -> bool:
            sent = seen.count(b"INCRBY") > 0 if books.is_redis else b"_totals SET" in seen and commits(seen) > 0
            if sent:
                os.kill(victims[0], signal.SIGKILL)
            return sent

        trap = proxy.swallow_one_reply(kill_on_commit)
        order = Order(topic, books, url=server.url_for(port=proxy.port))
        with running(consume, order) as child:
            victims.append(child.pid or 0)
            assert ended(child) == -signal.SIGKILL
        assert trap.wait(60)
    finished(consume, Order(topic, books))
    books.check(topic, sums)


def test_a_kill_during_the_commit_of_sqlite_counts_every_record_once(kafka: Kafka, tmp_path: Path) -> None:
    topic = Topic.create(kafka.bootstrap, 1)
    books = Books.open(f"sqlite:///{tmp_path / 'books.db'}", 1)
    books.run(f"CREATE TABLE {books.prefix}ballast AS SELECT x'' AS content")
    sums = topic.fill(100)
    landed = []
    for delay in (0.0, 1e-4, 3e-4, 1e-3, 0.2):  # from when it has just begun to when it is long over
        before = sum(books.positions().values())
        killed(consume, Order(topic, books, "commit", 2, delay, ballast=1_500_000, until_caught_up=False))
        landed.append(sum(books.positions().values()) >= before + 10)
    finished(consume, Order(topic, books))
    assert set(landed) == {False, True}, "every kill came before the commit, or every one after it"
    books.check(topic, sums)


def test_three_consumers_in_one_process_count_every_record_once(kafka: Kafka, store: str) -> None:
    topic = Topic.create(kafka.bootstrap, 6)
    books = Books.open(store, 6)
    with running(consume, Order(topic, books, "write", 5, until_caught_up=False, threads=3)) as child:
        wait_until(lambda: len(books.claimants() - {None}) == 3, "each consumer has a share")
        sums = topic.fill(RECORDS)
        assert ended(child) == -signal.SIGKILL
    killed(consume, Order(topic, books, "acknowledge", 5, threads=3))
    finished(consume, Order(topic, books, threads=3))
    books.check(topic, sums)
