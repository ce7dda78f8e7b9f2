"""Real servers for all tests: each is started when a test first asks for it, and lives until the end of the run."""

from __future__ import annotations

import gc
import os
import signal
import ssl
from collections.abc import Generator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pymysql.connections
import pytest
from hypothesis import settings
from tests.costs import Costs, Measured
from tests.ledger.stores import Kept
from tests.running import Running, Watched
from tools import spark_classes

from tidegate.sandbox import Kafka, MariaDB, MySQL, PgBouncer, Postgres, Redis, Registry, Server

# A job in the background of a script is born with SIGINT ignored, and its children inherit that: those that tests
# interrupt would never hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is. `make test` tries the same examples each time, `make chaos`
# others, and prints how to repeat what failed.
settings.register_profile("tests", deadline=None, derandomize=True)
settings.register_profile("chaos", deadline=None, print_blob=True)
settings.load_profile("tests")

os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_classes.options())


# `make test` gives each of its six workers a sixth of all tests, and whoever has finished takes from the end of
# another's. So each share begins with what takes long, those that share a server, a Spark or a browser together, and
# ends with what takes no time. One that takes a minute and comes last would leave the others idle.
SHARES = (
    ("sandbox/test_spark", "demo", "chaos/spark", "spark", "app/member/test_starts", "web"),
    ("simulation", "model", "kafka/producer", "chaos", "app/sink", "docs"),
    ("sandbox", "examples", "cli", "deploy", "app"),
    ("app/listener", "crash", "operate", "kafka", "confidential"),
    ("app/member", "testing", "tables"),
    ("ledger",),
)
RANKS = {folder: (number, rank) for number, folders in enumerate(SHARES) for rank, folder in enumerate(folders)}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of these tests."""
    parser.addoption("--costs", action="store_true", help="show which tests take the most processor time")


def pytest_configure(config: pytest.Config) -> None:
    """Each process is watched, and one tells what all do."""
    is_worker = hasattr(config, "workerinput")
    config.pluginmanager.register(Watched(ends=is_worker))
    pymysql.connections.Connection._create_ssl_ctx = _context_for  # type: ignore[attr-defined]
    if config.getoption("costs"):
        config.pluginmanager.register(Measured())
    if not is_worker:
        if config.getoption("costs"):
            config.pluginmanager.register(Costs())
        config.pluginmanager.register(Running(ends=bool(config.getoption("numprocesses", None))))


_new_context = pymysql.connections.Connection._create_ssl_ctx  # type: ignore[attr-defined]


def _context_for(connection: Any, given: Mapping[str, Any] | ssl.SSLContext) -> ssl.SSLContext:
    """PyMySQL reads the system's certificates for each connection, although it checks none unless asked to. That takes
    16 ms of a core, and the tests open thousands of connections."""
    return _context_for_all() if given == {} else _new_context(connection, given)


@cache
def _context_for_all() -> ssl.SSLContext:
    context = _new_context(None, {})
    assert isinstance(context, ssl.SSLContext)
    return context


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thirteen thousand tests are made, and stay to the end: what looks for garbage need not go through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@cache
def _share(file: Path) -> tuple[int, int] | None:
    path = file.relative_to(Path(__file__).parent).with_suffix("")
    for part in (path, *path.parents):
        if found := RANKS.get(part.as_posix()):
            return found
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, in shares that are filled up with short ones."""
    if unstable := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"an address in the name of a test differs from worker to worker: {unstable}")
    shares: list[list[tuple[int, pytest.Item]]] = [[] for _ in SHARES]
    short: list[pytest.Item] = []
    for item in items:
        if (found := _share(item.path)) is None:
            short.append(item)
        else:
            shares[found[0]].append((found[1], item))
    size = len(items) // len(SHARES)
    ordered: list[pytest.Item] = []
    for share in shares:
        missing = max(0, size - len(share))
        ordered += [item for _, item in sorted(share, key=lambda ranked: ranked[0])] + short[:missing]
        del short[:missing]
    items[:] = ordered + short


S = TypeVar("S", bound=Server)


def _until_the_end(server: S) -> Iterator[S]:
    """Nobody needs what the server would write down before it stops by itself: that takes seconds."""
    with server:
        yield server
        server.kill()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    # By default an idle controller writes to its log twice a second, and each worker has a broker for the whole run.
    yield from _until_the_end(Kafka(settings={"metadata.max.idle.interval.ms": 0}))


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    yield from _until_the_end(MariaDB())


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySQL]:
    yield from _until_the_end(MySQL())


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    yield from _until_the_end(Postgres())


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    """In front of ``postgres``; it lets go of sessions soon, because tests have a login each."""
    yield from _until_the_end(PgBouncer(postgres, settings={"server_idle_timeout": 1}))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    yield from _until_the_end(Redis())


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    yield from _until_the_end(Registry())


@pytest.fixture(scope="session")
def kept_stores() -> Iterator[Kept]:
    """Stores that a test has left, as good as new."""
    kept: Kept = {}
    yield kept
    for store in kept.values():
        store.close()
