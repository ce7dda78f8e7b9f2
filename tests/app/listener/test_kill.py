from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
from tests.app.listener.books import Books
from tests.app.listener.consumer import Order, consume
from tests.app.listener.topic import Topic
from tests.crash.test_kill import commits
from tests.patience import wait_until
from tests.processes import ended, finished, killed, running

from tidegate.sandbox import Database, Kafka, Proxy

PARTITIONS, RECORDS = 3, 30
# Seconds. One who is to leave, or to share, must still be a member then: on a busy machine the broker misses heartbeats
# for longer than the usual session, and members that come and go never get to an end.
PATIENT = 3.0


STEPS = {
    "claim": 1,
    "assigned": 1,
    "poll": 1,
    "advance": 2,
    "handle": 2,
    "write": 2,
    "commit": 2,
    "acknowledge": 2,
    "release": 1,
    "revoked": 1,
}
# What a server sees of a kill is that the connection is gone: before, in, or after a transaction. Every step of the
# loop is tried on SQLite; every step of a transaction on every store is in tests/crash.
SEEN_BY_A_SERVER = {"claim", "write", "commit", "acknowledge", "release"}


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_of_the_loop_counts_every_record_once(kafka: Kafka, store: str, step: str) -> None:
    if step == "commit" and store.startswith("redis"):
        pytest.skip("Redis has no such step: the transaction is one script")
    if step not in SEEN_BY_A_SERVER and not store.startswith("sqlite"):
        pytest.skip("for a server it is the same as a step before or after")
    turn = STEPS[step]
    topic = Topic.create(kafka.bootstrap, PARTITIONS)
    books = Books.open(store, PARTITIONS)
    sums = topic.fill(RECORDS)
    order = Order(topic, books, step, turn)
    if step in {"release", "revoked"}:
        order = replace(order, leave_after=2, session_timeout=PATIENT)
    killed(consume, order)
    finished(consume, Order(topic, books))
    books.check(topic, sums)


def test_a_kill_while_the_commit_is_on_its_way_counts_every_record_once(kafka: Kafka, server: Database) -> None:
    topic = Topic.create(kafka.bootstrap, PARTITIONS)
    books = Books.open(server.url, PARTITIONS)
    sums = topic.fill(RECORDS)
    with Proxy(server.host, server.port) as proxy:
        victims: SimpleQueue[int] = SimpleQueue()

        def kill_on_commit(seen: bytes) -> bool:
            sent = seen.count(b"INCRBY") > 0 if books.is_redis else b"_totals SET" in seen and commits(seen) > 0
            if sent:
                os.kill(victims.get(), signal.SIGKILL)
            return sent

        trap = proxy.swallow_one_reply(kill_on_commit)
        order = Order(topic, books, url=server.url_for(port=proxy.port))
        with running(consume, order) as child:
            victims.put(child.pid or 0)
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
    for delay in (0.0, 1e-4, 3e-4, 1e-3, 0.2, 1.0, 5.0):  # from when it has just begun to when it is long over
        before = sum(books.positions().values())
        killed(consume, Order(topic, books, "commit", 2, delay, ballast=1_500_000, until_caught_up=False))
        landed.append(sum(books.positions().values()) >= before + 10)
        if delay >= 0.2 and landed[-1]:  # a busy machine takes longer
            break
    finished(consume, Order(topic, books))
    assert set(landed) == {False, True}, "every kill came before the commit, or every one after it"
    books.check(topic, sums)


def test_three_consumers_in_one_process_count_every_record_once(kafka: Kafka, store: str) -> None:
    topic = Topic.create(kafka.bootstrap, 6)
    books = Books.open(store, 6)
    order = Order(topic, books, threads=3, session_timeout=PATIENT)
    with running(consume, replace(order, step="write", turn=5, until_caught_up=False)) as child:
        wait_until(lambda: len(books.claimants() - {None}) == 3, "each consumer has a share")
        sums = topic.fill(RECORDS)
        assert ended(child) == -signal.SIGKILL
    killed(consume, replace(order, step="acknowledge", turn=5))
    finished(consume, order)
    books.check(topic, sums)
