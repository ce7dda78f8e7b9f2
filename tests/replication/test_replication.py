"""Replication: random transactions on PostgreSQL, through real Debezium and Kafka, into PostgreSQL and MariaDB.

Sinks and pipelines on Spark write the same events into tables of their own, while all of them are killed.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError
from tests.chaos.schedule import seed
from tests.processes import ROOT, start
from tests.replication.driver import written
from tests.replication.log import Log, Replay
from tests.replication.member import Work, replicate
from tests.replication.source import TABLES, Source, rows_of

from tidegate import TopicPartition, open_ledger
from tidegate.sandbox import Database, Debezium, Kafka, MariaDB, Postgres

AWAY = (SQLAlchemyError, psycopg.Error, pymysql.Error)  # the drivers' errors come from setting the isolation level
EVERY = {"insert", "update", "many", "delete", "key", "truncate"}
KILLED = 0.02  # the chance that the driver is killed after a transaction
LONGEST = 120.0  # seconds until source and target are equal, on a busy machine


@dataclass
class Target:
    """The tables that the sinks or the pipelines write in a database, and the members of the sinks."""

    server: Database
    work: Work
    log: Log = field(repr=False)
    members: list[Any] = field(default_factory=list)
    engine: Engine = field(init=False)
    latest: dict[tuple[str, tuple[Any, ...]], int] = field(default_factory=dict)
    samples: int = 0
    kills: int = 0
    done: int = 0
    """How many offsets it has passed."""

    def __post_init__(self) -> None:
        self.engine = create_engine(self.server.url, pool_pre_ping=True)
        self._replays = {table.name: Replay(self.log) for table in TABLES}

    def rows(self) -> dict[str, dict[tuple[Any, ...], Any]]:
        return self.snapshot()[1]

    def snapshot(self) -> tuple[dict[str, dict[TopicPartition, int]], dict[str, dict[tuple[Any, ...], Any]]]:
        """All positions and all tables in one transaction; raises as long as one is not there."""
        with self.engine.connect().execution_options(isolation_level="REPEATABLE READ") as conn:
            statement = f"SELECT consumer_group, topic, partition_id, next_offset FROM {self.work.ledger}positions"
            positions: dict[str, dict[TopicPartition, int]] = {}
            for group, topic, number, position in conn.exec_driver_sql(statement):
                positions.setdefault(group, {})[TopicPartition(topic, number)] = position
            return positions, {table.name: rows_of(conn, table, self.work.name(table.name)) for table in TABLES}

    def check(self, source: Source) -> None:
        """In a snapshot, the rows are what the events below the positions leave, and none goes back to an older one."""
        try:
            positions, found = self.snapshot()
        except AWAY:  # killed, or a table is not there yet
            return
        self.samples += 1
        self.done = sum(position for each in positions.values() for position in each.values())
        for table in TABLES:
            group, topic = self.work.group(table.name), self.work.topic(table.name)
            own = {source: position for source, position in positions[group].items() if source.topic == topic}
            replayed = self._replays[table.name].versions(own)
            wanted = {key: source.version(table, key, number) for key, number in replayed.items()}
            assert found[table.name] == wanted, f"{self.work.name(table.name)}: not what its events leave"
            for key, row in found[table.name].items():
                version = dict(row)["version"]
                assert self.latest.get((table.name, key), 0) <= version, f"{table.name} {key}: went back"
                self.latest[table.name, key] = version

    def start(self) -> None:
        self.members.append(start(replicate, self.work))

    def renew(self) -> None:
        """Start those again that have ended, with their database or by a kill."""
        for member in [each for each in self.members if each.exitcode is not None]:
            self.members.remove(member)
            self.start()

    def kill_a_member(self, chance: random.Random) -> None:
        self.kills += 1
        chance.choice(self.members).kill()

    def kill_the_database(self) -> None:
        self.kills += 1
        self.server.kill()
        self.server.start()


@dataclass
class Driver:
    """The process with the pipelines into all of its targets."""

    targets: list[Target]
    output: Path
    process: Popen[bytes] | None = None
    kills: int = 0
    _begun: list[int] = field(default_factory=list)

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.replication.driver"]
        with self.output.open("ab") as output:
            self.process = Popen(command, cwd=ROOT, stdin=PIPE, stdout=output, stderr=output)
        assert self.process.stdin is not None
        self.process.stdin.write(written([target.work for target in self.targets]).encode() + b"\n")
        self.process.stdin.flush()
        self._begun = [target.done for target in self.targets]

    def check(self) -> None:
        """It ends by a kill only: databases that are away are waited for."""
        if self.process is not None and self.process.poll() is not None:
            pytest.fail(f"the driver ended: {self.output.read_text(errors='replace')[-5000:]}")

    @property
    def is_at_work(self) -> bool:
        """Whether the pipelines into each target have passed records since it started."""
        begun = zip(self.targets, self._begun, strict=True)
        return self.process is not None and all(target.done > done for target, done in begun)

    def kill(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process = None
            self.kills += 1


@contextmanager
def replicated(kafka: Kafka, number: int, folder: Path) -> Iterator[tuple[Source, list[Target], Driver]]:
    """The source, its connector, the targets of sinks with two members each, and those of pipelines, whose driver."""
    prefix = f"r{number}"
    with ExitStack() as stack:
        database = Postgres(settings={"wal_level": "logical"})
        servers: list[Database] = [Postgres(), MariaDB()]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda server: server.start(), (database, *servers)))
        for server in (database, *servers):
            stack.push(server)
            stack.callback(server.kill)
        source = Source(database.url, number)
        stack.callback(source.engine.dispose)
        source.create()
        single = {
            "topic.creation.groups": "single",
            "topic.creation.single.include": ".*staging",
            "topic.creation.single.replication.factor": 1,
            "topic.creation.single.partitions": 1,
        }
        stack.enter_context(Debezium(kafka, database, prefix=prefix, partitions=3, settings=single))
        log = Log(kafka.bootstrap, {f"{prefix}.public.{table.name}": table for table in TABLES})
        stack.callback(log.close)
        sunk, piped = (
            [
                Target(server, Work(kafka.bootstrap, prefix, server.url, own=own, routed=not own), log)
                for server in servers
            ]
            for own in ("", "piped_")
        )
        driver = Driver(piped, folder / "driver.log")
        stack.callback(driver.kill)
        for target in (*sunk, *piped):
            stack.callback(target.engine.dispose)
            stack.callback(lambda members=target.members: [member.kill() for member in members])
        yield source, sunk, driver


def run(source: Source, sunk: list[Target], driver: Driver, seconds: float, number: int, *, kills: int) -> None:
    """Change the source, kill members and databases, and the driver at least so often, while samples are taken."""
    targets = [*sunk, *driver.targets]
    chance = random.Random(number)
    wrong: list[BaseException] = []
    over = threading.Event()

    def sample() -> None:
        try:
            while not over.wait(0.2):
                for target in targets:
                    target.check(source)
        except BaseException as error:
            wrong.append(error)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        began, killed = time.monotonic(), 0
        while not wrong and (
            (passed := time.monotonic() - began) < seconds or not source.counts.keys() >= EVERY or driver.kills < kills
        ):
            source.transaction()
            driver.check()
            if driver.process is None:
                driver.start()
            elif driver.is_at_work and chance.random() < KILLED:
                driver.kill()
            if chance.random() < 0.01:
                source.add_column()
            if (killed + 1) * 2.0 < passed < seconds:
                killed += 1
                target = sunk[killed % 2]
                target.kill_the_database() if killed % 5 == 0 else target.kill_a_member(chance)
            for target in sunk:
                target.renew()
            time.sleep(0.005 if passed < seconds else 0.2)
        if not wrong:
            if driver.process is None:
                driver.start()
            wait_until_equal(source, targets)
    finally:
        over.set()
        sampler.join()
    if wrong:
        raise wrong[0]


def wait_until_equal(source: Source, targets: list[Target]) -> None:
    with source.engine.connect() as conn:
        wanted = {table.name: rows_of(conn, table) for table in TABLES}
    deadline = time.monotonic() + LONGEST
    for target in targets:
        while True:
            try:
                found = target.rows()
                why = ""
            except AWAY as error:
                found, why = {}, str(error)
            if found == wanted:
                break
            if time.monotonic() > deadline:
                letters = parked(target)
                differences = {
                    name: [key for key in rows.keys() | wanted[name].keys() if rows.get(key) != wanted[name].get(key)]
                    for name, rows in found.items()
                }
                pytest.fail(f"{target.server.title}: source and target differ: {differences} {why}; parked: {letters}")
            target.renew()
            time.sleep(0.2)


def parked(target: Target) -> list[str]:
    ledger = open_ledger(target.server.url, prefix=target.work.ledger)
    try:
        groups = [target.work.group(table.name) for table in TABLES]
        return [letter.error for group in groups for letter in ledger.dead_letters(group)]
    finally:
        ledger.close()


def audit(kafka: Kafka, folder: Path, seconds: float, number: int, *, kills: int) -> None:
    with replicated(kafka, number, folder) as (source, sunk, driver):
        for target in sunk:
            for _ in range(2):
                target.start()
        run(source, sunk, driver, seconds, number, kills=kills)
        for target in (*sunk, *driver.targets):
            assert parked(target) == []
            assert target.samples > 0
        assert driver.kills >= kills
        assert all(target.kills > 0 for target in sunk)
        print(source.counts, [(target.samples, target.kills) for target in sunk])
        print(driver.kills, [target.samples for target in driver.targets])


def test_source_and_targets_are_equal_after_kills(kafka: Kafka, tmp_path: Path) -> None:
    audit(kafka, tmp_path, 12.0, 7, kills=2)


@pytest.mark.chaos
def test_source_and_targets_are_equal_after_many_kills(kafka: Kafka, tmp_path: Path) -> None:
    audit(kafka, tmp_path, 300.0, seed(), kills=10)
