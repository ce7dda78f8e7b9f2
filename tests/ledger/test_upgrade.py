"""A ledger of the version before is brought up to date while members of that version run on it: their own code, taken
from the repository's history."""

from __future__ import annotations

import io
import os
import secrets
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, text

from tidegate import Fenced, Span, TopicPartition, open_ledger

# The last commits whose ledgers have schema version 2 and 3, or 1 and 2 on Redis.
BEFORE = ["82589a2dd6bf4e9a17e6cb8f033a5895d148901e", "223ab7c7cc5ac5fd1d78e027c887f669a71fe87f"]
ORDERS = TopicPartition("orders", 0)
GROUP = "billing"


@pytest.fixture(scope="module", params=BEFORE, ids=["schema 2", "schema 3"])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of an older version."""
    folder = tmp_path_factory.mktemp(f"{request.param[:8]}-")
    root = Path(__file__).parent.parent.parent
    archive = subprocess.run(["git", "archive", request.param, "src"], cwd=root, capture_output=True)
    assert archive.returncode == 0, "the older version comes from the repository's history: clone it with its history"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder / "src"


class Place:
    """A ledger and a list of what was done, in one store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_redis = url.startswith("redis")
        tag = f"t{secrets.token_hex(4)}"
        self.prefix = f"{{{tag}}}:" if self.is_redis else f"{tag}_"
        self._table = f"{tag}_done"
        if self.is_redis:
            self._client = redis.Redis.from_url(url)
        else:
            self._engine = create_engine(url)
            with self._engine.begin() as conn:
                conn.execute(text(f"CREATE TABLE {self._table} (o BIGINT)"))

    def write(self, tx: Any, offset: int) -> None:
        if self.is_redis:
            tx.redis.rpush(f"{self.prefix}done", offset)
        else:
            tx.execute(text(f"INSERT INTO {self._table} VALUES (:o)"), {"o": offset})

    def close(self) -> None:
        if self.is_redis:
            self._client.close()
        else:
            self._engine.dispose()

    def done(self) -> list[int]:
        if self.is_redis:
            stored: Any = self._client.lrange(f"{self.prefix}done", 0, -1)
            return [int(each) for each in stored]
        with self._engine.connect() as conn:
            return list(conn.execute(text(f"SELECT o FROM {self._table} ORDER BY o")).scalars())


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres", "redis_server"])
def place(request: pytest.FixtureRequest, older: Path, tmp_path: Path) -> Iterator[Place]:
    if request.param == "mysql" and older.parent.name.startswith(BEFORE[0][:8]):
        pytest.skip("that version could not claim on MySQL")
    is_file = request.param == "sqlite"
    made = Place(f"sqlite:///{tmp_path / 'ledger.db'}" if is_file else request.getfixturevalue(request.param).url)
    yield made
    made.close()


@pytest.fixture
def start(older: Path, place: Place) -> Iterator[Callable[[], Callable[[str], str]]]:
    """Starts members of the older version; each is asked by a line, and answers by one."""
    running: list[subprocess.Popen[str]] = []

    def member() -> Callable[[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("older_member.py")), place.url, place.prefix],
            env={**os.environ, "PYTHONPATH": str(older)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)

        def ask(line: str) -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            print(line, file=process.stdin, flush=True)
            return process.stdout.readline().strip()

        return ask

    yield member
    for process in running:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def test_a_member_of_the_version_before_goes_on_while_its_ledger_is_brought_up_to_date(
    place: Place, start: Callable[[], Callable[[str], str]]
) -> None:
    old = start()
    assert old("claim v1") == "0"
    assert old("advance 0") == "done"

    with open_ledger(place.url, prefix=place.prefix) as new:
        new.create()
        assert old("advance 1") == "done", "it goes on"

        claims = new.claim(GROUP, [ORDERS], 0, deployment="v1")
        assert claims[ORDERS].position == 2, "the name was used before the upgrade, and forces nothing"
        assert old("advance 2").startswith("Fenced")
        new.transact(claims, [Span(ORDERS, 2, 3, 1)], lambda tx: place.write(tx, 2))
        new.release(claims)

        assert old("reclaim") == "3"
        assert old("advance 3") == "done"

        forced = new.claim(GROUP, [ORDERS], 4, deployment="v2")
        assert forced[ORDERS].position == 4, "v2 begins at 4, where the group is"
        assert old("claim v1") == "4", "the older version takes its own name for used as well"
        assert old("advance 4") == "done"
        assert new.claim(GROUP, [ORDERS], 0, deployment="v2")[ORDERS].position == 5
        assert new.claim(GROUP, [ORDERS], 0, deployment="v1")[ORDERS].position == 5
        assert new.verify(GROUP).ok
    assert place.done() == [0, 1, 2, 3, 4]


def test_a_member_of_the_version_before_takes_over_while_an_entry_is_open(
    place: Place, start: Callable[[], Callable[[str], str]]
) -> None:
    old = start()
    assert old("claim") == "0"
    assert old("advance 0") == "done"
    with open_ledger(place.url, prefix=place.prefix) as new:
        new.create()
        claims = new.claim(GROUP, [ORDERS])
        for at in (1, 2):
            new.transact(claims, [Span(ORDERS, at, at + 1, 1)], partial(place.write, offset=at))
        assert old("claim") == "3", "it knows of no open entry"
        assert old("advance 3") == "done"
        assert new.verify(GROUP) == (1, 7, ())
        entries = [(entry.seq, str(entry.kind), entry.start, entry.end) for entry in new.journal(GROUP, ORDERS)]
        assert entries[3:] == [(4, "claim", 1, 1), (5, "advance", 1, 3), (6, "claim", 3, 3), (7, "advance", 3, 4)]
        assert sorted(new.newest(GROUP)) == sorted(new.journal(GROUP))
        with pytest.raises(Fenced):
            new.transact(claims, [Span(ORDERS, 3, 4, 1)])

        claims = new.claim(GROUP, [ORDERS])
        new.transact(claims, [Span(ORDERS, 4, 5, 1)], partial(place.write, offset=4))
        assert new.verify(GROUP) == (1, 9, ())
        assert [entry.seq for entry in new.journal(GROUP, ORDERS)] == list(range(1, 10))
        time.sleep(0.01)  # an entry has to be older than the moment of pruning
        new.prune(timedelta(0))
        assert new.verify(GROUP).ok
    assert place.done() == [0, 1, 2, 3, 4]


def test_a_member_of_the_version_before_that_starts_after_the_upgrade_is_told_to_upgrade(
    place: Place, start: Callable[[], Callable[[str], str]]
) -> None:
    with open_ledger(place.url, prefix=place.prefix) as new:
        new.create()
        assert start()("claim").startswith("SchemaError: the ledger at")
