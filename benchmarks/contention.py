"""What members of a group lose to each other when they update the same rows, in any order."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from multiprocessing.queues import Queue
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, text

from benchmarks.report import Report
from tidegate import App, Record, open_ledger
from tidegate.ledger import SqlTransaction
from tidegate.observe.events import Committed, Conflicted, Event
from tidegate.sandbox import Database, Kafka, MariaDB, MySQL, Postgres

RECORDS = 9_000
PARTITIONS = 6
ROWS = 30
WORKERS = 3
ROUNDS = 3
UPDATE = text("UPDATE counters SET n = n + 1 WHERE id = :id")


class Commit(NamedTuple):
    """What one commit did, and when."""

    began: float
    ended: float
    records: dict[int, int]  # by partition
    conflicts: int


def work(bootstrap: str, url: str, topic: str, told: Queue[Commit]) -> None:
    """One worker, until it is killed."""

    def observe(event: Event) -> None:
        now = time.time()
        if isinstance(event, Committed):
            records = {span.partition.partition: span.records for span in event.spans}
            told.put(Commit(now - event.seconds, now, records, event.conflicts))
        elif isinstance(event, Conflicted):
            told.put(Commit(now, now, {}, event.conflicts))

    app = App(bootstrap, open_ledger(url), observers=[observe])

    @app.listener(topic, group=topic)
    def count(record: Record, tx: SqlTransaction) -> None:
        tx.execute(UPDATE, {"id": int(record.value or b"0")})

    app.run()


def backlog(bootstrap: str, topic: str) -> Counter[int]:
    """Fill the topic; how often each row is to be counted up."""
    chance, producer, expected = random.Random(topic), Producer({"bootstrap.servers": bootstrap}), Counter[int]()
    for number in range(RECORDS):
        row = chance.randrange(ROWS)
        expected[row] += 1
        producer.produce(topic, str(row), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0
    return expected


def consumed(kafka: Kafka, database: Database, topic: str, workers: int) -> list[Commit]:
    """Let workers share a topic, and give them the backlog once each has its partitions."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    engine, ledger = create_engine(database.url), open_ledger(database.url)
    with engine.begin() as conn:
        conn.execute(text("UPDATE counters SET n = 0"))
    spawn = multiprocessing.get_context("spawn")
    told: Any = spawn.Queue()
    running = [spawn.Process(target=work, args=(kafka.bootstrap, database.url, topic, told)) for _ in range(workers)]
    try:
        for process in running:
            process.start()
        shares = [PARTITIONS // workers] * workers
        while sorted(Counter(row.owner for row in ledger.read(topic).positions.values()).values()) != shares:
            assert all(process.is_alive() for process in running), "a worker has ended"
            time.sleep(0.1)
        expected = backlog(kafka.bootstrap, topic)
        commits, done = list[Commit](), 0
        while done < RECORDS:
            commits.append(told.get(timeout=120))
            done += sum(commits[-1].records.values())
    finally:
        for process in running:
            process.kill()
            process.join()
    with engine.connect() as conn:
        rows = conn.execute(text("SELECT id, n FROM counters")).all()
    assert {row: n for row, n in rows if n} == dict(expected), "a record has counted twice, or not at all"
    assert ledger.verify(topic).ok
    ledger.close()
    engine.dispose()
    return commits


def rate(commits: list[Commit]) -> float:
    return RECORDS / (max(each.ended for each in commits) - min(each.began for each in commits))


def longest_rest(commits: list[Commit]) -> float:
    """The longest time between two commits of a partition, from the first beginning on."""
    began = min(each.began for each in commits)
    rests = []
    for partition in range(PARTITIONS):
        ends = sorted(each.ended for each in commits if each.records.get(partition))
        rests += [after - before for before, after in pairwise([began, *ends])]
    return max(rests)


def run(report: Report) -> None:
    report.heading(f"Contention: {RECORDS:,} records, {ROWS} rows that all of them share")
    with ExitStack() as stack:
        kafka = stack.enter_context(Kafka())
        for kind in (Postgres, MariaDB, MySQL):
            database = stack.enter_context(kind())
            with create_engine(database.url).begin() as conn:
                conn.execute(text("CREATE TABLE counters (id INT PRIMARY KEY, n INT NOT NULL)"))
                conn.execute(text("INSERT INTO counters VALUES (:id, 0)"), [{"id": row} for row in range(ROWS)])
            measure(report, kafka, database, kind.__name__)


def measure(report: Report, kafka: Kafka, database: Database, name: str) -> None:
    alone, together, rests, conflicts = list[float](), list[float](), list[float](), 0
    for number in range(ROUNDS):
        alone.append(rate(consumed(kafka, database, f"{name}-1-{number}".lower(), 1)))
        commits = consumed(kafka, database, f"{name}-{WORKERS}-{number}".lower(), WORKERS)
        together.append(rate(commits))
        rests.append(longest_rest(commits))
        conflicts += sum(each.conflicts for each in commits)
    best = f"{max(together):,.0f} records/s / {max(alone):,.0f} records/s"
    ratio = sum(together) / sum(alone)
    detail = f"{best} at best; {conflicts} conflicts in {ROUNDS} rounds"
    report.figure(f"{name}: {WORKERS} workers / 1 worker", ratio, "x", at_least=0.8, detail=detail)
    report.figure(f"{name}: longest rest of a partition", max(rests), "s", at_most=5.0)
