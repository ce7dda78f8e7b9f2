"""One Spark for all tests of a process: it can have one only, and it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.orders import Orders, Place

from tidegate.sandbox import Kafka
from tidegate.sandbox.ports import free_port
from tidegate.spark.session import SparkOptions, open_session

OPEN_SOCKETS = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark does not close the sockets that results come through, but leaves them to the garbage collector."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings(OPEN_SOCKETS))


@pytest.fixture(scope="session")
def event_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared session writes down everything that happens."""
    return tmp_path_factory.mktemp("event-logs")


@pytest.fixture(scope="session")
def spark(event_logs: Path) -> Iterator[SparkSession]:
    """Two tasks at once; pages and event log are on, so that tests can look for secrets there."""
    shown = {"spark.ui.enabled": True, "spark.ui.port": free_port()}
    written = {"spark.eventLog.enabled": True, "spark.eventLog.dir": str(event_logs), "spark.eventLog.compress": False}
    hidden = {"spark.shop.credential": "planted-5ecret"}
    session = open_session(SparkOptions(master="local[2]", conf={**shown, **written, **hidden}, name="tests"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def orders(kafka: Kafka) -> Orders:
    """A topic that tests only read."""
    return Orders.create(kafka.bootstrap)


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each database that has tables."""
    opened = Place(
        f"sqlite:///{tmp_path / 'shop.db'}"
        if request.param == "sqlite"
        else str(request.getfixturevalue(request.param).url)
    )
    yield opened
    opened.close()


@pytest.fixture(params=["mariadb", "mysql", "postgres"])
def server_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each database that executors can reach."""
    opened = Place(str(request.getfixturevalue(request.param).url))
    yield opened
    opened.close()
