"""What a sink costs beside loops without a guarantee, and what others take for the same."""

from __future__ import annotations

import resource
import secrets
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql
from sqlalchemy import Engine, create_engine, text

from benchmarks.bare_loops import BATCH, Write, consume, into_mariadb, into_postgres, into_sqlite, one_by_one
from benchmarks.quix import VERSION, quix
from benchmarks.report import Report
from benchmarks.topics import fill
from tidegate import App, BatchBounds, Table, open_ledger
from tidegate.observe.events import Committed, Event, Observer, Polled
from tidegate.sandbox import Kafka, MariaDB, Postgres

RECORDS, PARTITIONS, ROUNDS = 400_000, 4, 5
FEW = 2_000  # for one transaction a record
SOME = 100_000  # for Quix Streams
MANY = 2_000_000
TOPICS = tuple(f"bench_{number}" for number in range(10))
COLUMNS = "id BIGINT NOT NULL, customer VARCHAR(40) NOT NULL, amount BIGINT NOT NULL, note VARCHAR(60) NOT NULL"
BOUNDS = BatchBounds(count=BATCH, bytes=64 << 20, age=0.0)  # of each partition: what has come in, so about as many


@dataclass
class Place:
    """A database, and a connection for the loop that is written by hand."""

    name: str
    url: str
    connect: Callable[[], Write]
    engine: Engine

    def empty(self) -> None:
        with self.engine.begin() as conn:
            conn.execute(text("DELETE FROM bench" if self.name == "SQLite" else "TRUNCATE TABLE bench"))

    def check(self, count: int) -> None:
        with self.engine.connect() as conn:
            found = conn.execute(text("SELECT count(*), count(DISTINCT id), sum(amount) FROM bench")).one()
        assert tuple(map(int, found)) == (count, count, sum(n * 31 % 100_000 for n in range(count))), found


class Watch:
    """Times a sink from its first records to the end of its last commit, and counts.

    Not from the first commit: until then, a part of all records has been fetched.
    """

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.commits = self.records = 0
        self.first_ended = 0.0
        self.first_records = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Polled):
            self.began = self.began or time.perf_counter()
        if isinstance(event, Committed):
            self.ended = time.perf_counter()
            self.commits += 1
            self.records += sum(span.records for span in event.spans)
            if self.commits == 1:
                self.first_ended, self.first_records = self.ended, self.records

    @property
    def took(self) -> float:
        return self.ended - self.began

    @property
    def each(self) -> float:
        """The seconds of a record after the first commit, before which a route opens the tables that records name."""
        return (self.ended - self.first_ended) / (self.records - self.first_records)


def sink(bootstrap: str, url: str, topics: str | list[str], group: str, observe: Observer, into: str = "bench") -> None:
    with open_ledger(url) as ledger:
        app = App(bootstrap, ledger, observers=[observe])
        app.sink(topics, into=Table(into), group=group, batch=BOUNDS)
        app.run(until_caught_up=True)


def against_the_bare_loop(kafka: Kafka, place: Place, report: Report, bar: float = 0.75) -> float:
    """In turns; the sink's records per second."""
    ratios, rates, sizes = [], [], []
    for number in range(ROUNDS + 1):
        place.empty()
        without = consume(kafka.bootstrap, "bench", _new("bare"), RECORDS, place.connect())
        place.check(RECORDS)
        place.empty()
        watch = Watch()
        sink(kafka.bootstrap, place.url, "bench", _new("sink"), watch)
        place.check(RECORDS)
        if number:  # the first round warms up
            ratios.append(without / watch.took)
            rates.append(RECORDS / watch.took)
            sizes.append(watch.records / watch.commits)
    report.figure(
        f"{place.name}: sink / bare loop, records per second",
        statistics.median(ratios),
        "x",
        at_least=bar,
        detail=f"median of {ROUNDS} rounds of {RECORDS:,}; sink: {statistics.median(rates):,.0f} records/s, "
        f"{statistics.mean(sizes):,.0f} records a transaction",
    )
    return statistics.median(rates)


def several_tables(kafka: Kafka, place: Place, report: Report) -> None:
    """The same records of ten topics into ten tables and into one, in turns."""
    ratios, costs = [], []
    each = RECORDS // len(TOPICS)
    with place.engine.begin() as conn:
        for topic in TOPICS:
            conn.execute(text(f"CREATE TABLE {topic} ({COLUMNS})"))
    for number in range(ROUNDS + 1):
        took, spent = {}, {}
        for into in ("bench", "{topic}"):
            place.empty()
            watch, began = Watch(), time.process_time()
            sink(kafka.bootstrap, place.url, list(TOPICS), _new("several"), watch, into)
            took[into], spent[into] = watch.took, time.process_time() - began
        with place.engine.begin() as conn:
            for topic in TOPICS:
                assert conn.execute(text(f"SELECT count(*) FROM {topic}")).scalar_one() == each
                conn.execute(text(f"DELETE FROM {topic}"))
        if number:
            ratios.append(took["bench"] / took["{topic}"])
            costs.append(spent["{topic}"] / spent["bench"])
    report.figure(
        f"{place.name}: ten tables / one, records per second",
        statistics.median(ratios),
        "x",
        at_least=0.8,
        detail=f"median of {ROUNDS} rounds of {RECORDS:,}; processor time: {statistics.median(costs):.2f} x",
    )


def against_one_by_one(kafka: Kafka, place: Place, postgres: Postgres, rate: float, report: Report) -> None:
    place.empty()
    write = one_by_one(psycopg.connect(_dsn(postgres)))
    consume(kafka.bootstrap, "bench", _new("warm"), FEW // 4, write, batch=1)
    took = consume(kafka.bootstrap, "bench", _new("one-by-one"), FEW, write, batch=1)
    report.figure(
        "PostgreSQL: sink / one transaction for each record",
        rate / (FEW / took),
        "x",
        at_least=10,
        detail=f"one by one: {FEW / took:,.0f} records/s",
    )


def against_quix(kafka: Kafka, place: Place, postgres: Postgres, rate: float, report: Report) -> None:
    name = f"PostgreSQL: sink / Quix Streams {VERSION}"
    rates = []
    try:
        for _ in range(3):
            place.empty()
            rates.append(SOME / quix(kafka.bootstrap, postgres, "bench", _new("quix"), SOME))
    except (subprocess.SubprocessError, OSError) as error:
        report.missed.append(f"{name}: not measured, because {error}")
        return
    best = max(rates)
    report.figure(
        name, rate / best, "x", at_least=8, detail=f"commit_every={BATCH:,}; its best of 3: {best:,.0f} records/s"
    )


def memory(kafka: Kafka, place: Place, report: Report) -> None:
    """Resident memory over two million records."""
    fill(kafka.bootstrap, "many", MANY)
    seen: list[tuple[int, float]] = []
    watch = Watch()

    def heard(event: Event) -> None:
        watch(event)
        seen.append((watch.records, _resident()))

    place.empty()
    sink(kafka.bootstrap, place.url, "many", "memory", heard)
    settled = next(size for count, size in seen if count >= MANY // 5)
    report.figure(
        f"PostgreSQL: resident memory after {MANY:,} records / after {MANY // 5:,}",
        seen[-1][1] / settled,
        "x",
        at_most=1.15,
        detail=f"start {seen[0][1]:.0f} MiB, then {settled:.0f} MiB, end {seen[-1][1]:.0f} MiB",
    )


def run(report: Report) -> None:
    with Kafka() as kafka, Postgres() as postgres, MariaDB() as mariadb, tempfile.TemporaryDirectory() as folder:
        report.heading("Sinks")
        print(
            f"100-byte JSON, {PARTITIONS} partitions, {BATCH:,} records a transaction ({BOUNDS}), databases and broker "
            "on this machine with their default settings, every commit on disk"
        )
        fill(kafka.bootstrap, "bench", RECORDS, PARTITIONS)
        places = _places(postgres, mariadb, Path(folder))
        for place in places:
            rate = against_the_bare_loop(kafka, place, report)
            if place.name == "PostgreSQL":
                against_one_by_one(kafka, place, postgres, rate, report)
                against_quix(kafka, place, postgres, rate, report)
        for topic in TOPICS:
            fill(kafka.bootstrap, topic, RECORDS // len(TOPICS), 1)
        for place in places:
            several_tables(kafka, place, report)
        memory(kafka, places[0], report)
        for place in places:
            place.engine.dispose()


def _places(postgres: Postgres, mariadb: MariaDB, folder: Path) -> list[Place]:
    file = folder / "bench.db"
    places = [
        Place(
            "PostgreSQL", postgres.url, lambda: into_postgres(psycopg.connect(_dsn(postgres))), _engine(postgres.url)
        ),
        Place("MariaDB", mariadb.url, lambda: into_mariadb(_pymysql(mariadb)), _engine(mariadb.url)),
        Place("SQLite", f"sqlite:///{file}", lambda: into_sqlite(_sqlite(file)), _engine(f"sqlite:///{file}")),
    ]
    for place in places:
        with place.engine.begin() as conn:
            conn.execute(text(f"CREATE TABLE bench ({COLUMNS})"))
    return places


def _new(group: str) -> str:
    """A group that has read nothing yet."""
    return f"{group}-{secrets.token_hex(6)}"


def _engine(url: str) -> Engine:
    return create_engine(url)


def _dsn(postgres: Postgres) -> str:
    return postgres.url.replace("postgresql+psycopg://", "postgresql://")


def _pymysql(mariadb: MariaDB) -> Any:
    return pymysql.connect(
        host=mariadb.host,
        port=mariadb.port,
        user=mariadb.user,
        password=mariadb.password,
        database=mariadb.database,
        local_infile=True,
    )


def _sqlite(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA journal_mode = WAL")  # as the ledger has it
    return connection


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)
