"""A database that answers and takes no writes for a while: it is read-only, or its disk is full."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, text
from tests.app.member.stage import GROUP, Running, Stage, numbered, wait_until
from tests.kafka.loops import Loop

from tidegate.core.records import Record, TopicPartition
from tidegate.errors import WritesRefused
from tidegate.ledger import Ledger, Limits, open_ledger
from tidegate.observe.events import StoreBack, StoreLost
from tidegate.sandbox import Kafka, MariaDB, Postgres, Redis
from tidegate.sandbox.account import Account
from tidegate.sandbox.database import Database

LIMITS = Limits(hold=1.0, lock_wait=2.0)
LONG = 3.0  # seconds in which a loop without a pause would try a hundred times


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


def run(url: str, *statements: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        for statement in statements:
            conn.execute(text(statement))
    engine.dispose()


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A file system of its own, which a ballast fills."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-disk-"))
    folder.chmod(0o755)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False)
    try:
        if mounted.returncode:
            pytest.skip("a file system cannot be mounted here")
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return ballast


def is_waited_for(
    stage: Stage,
    stop_writes: Callable[[], object],
    take_writes: Callable[[], object],
    says: str,
    **settings: Any,
) -> Running:
    """A listener meets a store that takes no writes, tells of it once, and goes on when it takes them again."""
    topic = stage.topic(2)
    attempts: list[int] = []
    payload = secrets.token_hex(900)  # which no server stores in less

    def handle(records: list[Record], tx: Any) -> None:
        attempts.append(records[0].offset)
        stage.write(records, tx)

    running = stage.start(topic, handle=handle, **settings)
    for number in range(2):
        stage.send(topic, numbered(5), partition=number)
    wait_until(lambda: len(stage.rows()) == 10)

    stop_writes()
    try:
        for number in range(2):
            stage.send(topic, [payload] * 20, partition=number)
        assert says in running.wait_for(StoreLost).reason.lower()
        before, until = len(attempts), time.monotonic() + LONG
        wait_until(lambda: time.monotonic() > until)
        assert len(attempts) - before < 20, "it is asked again without a pause"
    finally:
        take_writes()

    wait_until(lambda: len(stage.rows()) == 50)
    running.wait_for(StoreBack)
    running.stop()
    assert len(running.told(StoreLost)) == len(running.told(StoreBack)) == 1
    assert stage.offsets(topic, 0) == stage.offsets(topic, 1) == list(range(25))
    stage.verify()
    return running


def test_a_read_only_postgres_is_waited_for(kafka: Kafka, own_postgres: Postgres, stages: Callable[..., Stage]) -> None:
    def set_to(value: str) -> None:
        change = f"ALTER SYSTEM SET default_transaction_read_only = {value}"
        run(own_postgres.url, change, "SELECT pg_reload_conf()")

    stage = stages(kafka.bootstrap, own_postgres.url, LIMITS)
    is_waited_for(stage, lambda: set_to("on"), lambda: set_to("off"), "read-only")


def restricted(server: Database, stage: Stage) -> str:
    """The URL of a login that is not exempt from what is set for all."""
    user = f"{stage.name}_user"
    grant = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {server.database}.* TO {user}"
    run(server.url, f"CREATE USER {user} IDENTIFIED BY '{user}'", grant)
    return server.url_for(user, user)


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_a_read_only_mysql_is_waited_for(
    name: str, kafka: Kafka, stages: Callable[..., Stage], request: pytest.FixtureRequest
) -> None:
    server: Database = request.getfixturevalue(name)
    stage = stages(kafka.bootstrap, server.url, LIMITS)
    ledger: Ledger[Any]
    with open_ledger(restricted(server, stage), prefix=f"{stage.name}_", limits=LIMITS) as ledger:
        is_waited_for(
            stage,
            lambda: run(server.url, "SET GLOBAL read_only = ON"),
            lambda: run(server.url, "SET GLOBAL read_only = OFF"),
            "read",
            ledger=ledger,
        )


def test_a_full_disk_under_sqlite_is_waited_for(kafka: Kafka, stages: Callable[..., Stage]) -> None:
    with small_disk("1m") as disk:
        stage = stages(kafka.bootstrap, f"sqlite:///{disk / 'ledger.db'}", LIMITS)
        is_waited_for(stage, lambda: fill(disk), (disk / "ballast").unlink, "disk is full")
        stage.close()


def test_a_full_disk_under_postgres_is_waited_for(
    kafka: Kafka, own_postgres: Postgres, stages: Callable[..., Stage]
) -> None:
    with small_disk("2m") as disk:
        folder = disk / "space"
        folder.mkdir()
        if account := Account.to_drop_to(("postgres",)):
            os.chown(folder, account.uid, account.gid)
        run(own_postgres.url, f"CREATE TABLESPACE small LOCATION '{folder}'")
        stage = stages(kafka.bootstrap, own_postgres.url, LIMITS)
        run(own_postgres.url, f"ALTER TABLE {stage.name}_data SET TABLESPACE small")
        try:
            is_waited_for(stage, lambda: fill(disk), (disk / "ballast").unlink, "no space left")
        finally:
            stage.close()
            run(own_postgres.url, f"DROP TABLE {stage.name}_data", "DROP TABLESPACE small")


def test_a_full_table_is_waited_for(kafka: Kafka, mariadb: MariaDB, stages: Callable[..., Stage]) -> None:
    """A table of the engine MEMORY says it as a full disk does. MySQL lets none into a transaction."""
    stage = stages(kafka.bootstrap, mariadb.url, LIMITS)
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    full = f"{stage.name}_full"
    smallest = "SET SESSION max_heap_table_size = 16384"
    run(mariadb.url, smallest, f"CREATE TABLE {full} (t CHAR(255)) ENGINE=MEMORY")
    fills = f"INSERT INTO {full} SELECT 'x' FROM information_schema.columns"
    with pytest.raises(Exception, match="is full"):
        run(mariadb.url, fills)

    def handle(records: list[Record], tx: Any) -> None:
        stage.write(records, tx)
        tx.execute(text(f"INSERT INTO {full} VALUES ('x')"))

    stage.send(topic, numbered(5))
    running = stage.start(topic, handle=handle)
    assert "is full" in running.wait_for(StoreLost).reason
    assert stage.rows() == []
    run(mariadb.url, f"DELETE FROM {full}")
    wait_until(lambda: stage.position(tp).next_offset == 5)
    running.stop()
    assert stage.offsets() == list(range(5))
    stage.verify()


def test_a_full_redis_is_waited_for(kafka: Kafka, redis_server: Redis, stage: Stage) -> None:
    topic = stage.topic()
    client: Any = redis.Redis.from_url(redis_server.url)
    key = f"{{{stage.name}}}:data"

    def handle(records: list[Record], tx: Any) -> None:
        tx.redis.rpush(key, *(record.offset for record in records))

    ledger: Ledger[Any]
    with open_ledger(redis_server.url, prefix=f"{{{stage.name}}}:", limits=LIMITS) as ledger:
        running = stage.start(topic, handle=handle, ledger=ledger)
        stage.send(topic, numbered(5))
        wait_until(lambda: client.llen(key) == 5)
        try:
            client.config_set("maxmemory", "1mb")
            stage.send(topic, numbered(5))
            assert "maxmemory" in running.wait_for(StoreLost).reason
        finally:
            client.config_set("maxmemory", "0")
        wait_until(lambda: client.llen(key) == 10)
        running.wait_for(StoreBack)
        running.stop()
        assert len(running.told(StoreLost)) == 1
        assert [int(offset) for offset in client.lrange(key, 0, -1)] == list(range(10))
        assert ledger.verify(GROUP).ok
    client.close()


def test_a_loop_of_ones_own_waits_for_a_read_only_database(
    kafka: Kafka, mariadb: MariaDB, stages: Callable[..., Stage]
) -> None:
    stage = stages(kafka.bootstrap, mariadb.url, LIMITS)
    topic = stage.topic()
    ledger: Ledger[Any]
    with open_ledger(restricted(mariadb, stage), prefix=f"{stage.name}_", limits=LIMITS) as ledger:
        loop = Loop(stage, topic, ledger=ledger)
        try:
            stage.send(topic, numbered(5))
            loop.until(lambda: len(stage.rows()) == 5)
            run(mariadb.url, "SET GLOBAL read_only = ON")
            try:
                stage.send(topic, numbered(5))
                loop.until(lambda: loop.told(StoreLost), "an outage")
                before, until = len(loop.handed), time.monotonic() + LONG
                loop.until(lambda: time.monotonic() > until)
                assert len(loop.handed) - before < 20, "it is asked again without a pause"
            finally:
                run(mariadb.url, "SET GLOBAL read_only = OFF")
            loop.until(lambda: len(stage.rows()) == 10)
        finally:
            loop.stop()
    assert stage.offsets() == list(range(10))
    assert len(loop.told(StoreLost)) == len(loop.told(StoreBack)) == 1
    assert {type(error) for error in loop.ledger_errors} == {WritesRefused}
    stage.verify()
