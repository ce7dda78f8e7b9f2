"""Real servers for all tests: each is started when a test first asks for it, and lives until the end of the run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tidegate.sandbox import Kafka, MariaDB, MySQL, PgBouncer, Postgres, Redis

# A job in the background of a script is born with SIGINT ignored, and its children inherit that: those that tests
# interrupt would never hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start dozens of drivers and do little with each: half of the time would go into code that is compiled too well.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The simulation first: it is one long test, and the others can run beside it."""
    items.sort(key=lambda item: "simulation" not in item.path.parts)


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    with Kafka() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySQL]:
    with MySQL() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    """In front of ``postgres``; it lets go of sessions soon, because tests have a login each."""
    with PgBouncer(postgres, settings={"server_idle_timeout": 1}) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    with Redis() as server:
        yield server
