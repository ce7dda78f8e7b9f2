from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.app.sink.shop import Shop
from tests.app.sink.till import Till

from tidegate.sandbox import Kafka, Postgres

DATABASES = ["sqlite", "mariadb", "mysql", "postgres"]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of each database that has tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    return str(request.getfixturevalue(request.param).url)


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    """On each database, with topics in the test's process."""
    opened = Shop(url)
    yield opened
    opened.close()


@pytest.fixture
def busy_shop(url: str, kafka: Kafka) -> Iterator[Shop]:
    """On each database, with topics of two partitions on a real broker."""
    opened = Shop(url, kafka.bootstrap, partitions=2)
    yield opened
    opened.close()


@pytest.fixture
def till(url: str) -> Iterator[Till]:
    """On each database."""
    opened = Till(url)
    yield opened
    opened.close()


@pytest.fixture
def on_postgres(postgres: Postgres) -> Iterator[Till]:
    opened = Till(postgres.url)
    yield opened
    opened.close()


@pytest.fixture(params=["mariadb", "mysql"])
def on_mysql(request: pytest.FixtureRequest) -> Iterator[Till]:
    opened = Till(request.getfixturevalue(request.param).url)
    yield opened
    opened.close()
