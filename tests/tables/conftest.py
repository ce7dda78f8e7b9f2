"""The places that tests of tables write to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.sandbox import Postgres

from .places import DATABASES, WAYS, Place


def _opened(way: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    database = way.partition("-")[0]
    url = f"sqlite:///{folder}/rows.db" if database == "sqlite" else request.getfixturevalue(database).url
    return Place(way, url)


@pytest.fixture(params=WAYS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every way of every database."""
    opened = _opened(request.param, request, tmp_path)
    yield opened
    opened.engine.dispose()


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each database once, by its fastest way."""
    opened = _opened(request.param, request, tmp_path)
    yield opened
    opened.engine.dispose()


@pytest.fixture
def on_postgres(postgres: Postgres) -> Iterator[Place]:
    opened = Place("postgres", postgres.url)
    yield opened
    opened.engine.dispose()


@pytest.fixture(params=["mariadb", "mysql"])
def on_mysql(request: pytest.FixtureRequest) -> Iterator[Place]:
    """MySQL and MariaDB."""
    opened = Place(request.param, request.getfixturevalue(request.param).url)
    yield opened
    opened.engine.dispose()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Place]:
    opened = Place("sqlite", f"sqlite:///{tmp_path}/rows.db")
    yield opened
    opened.engine.dispose()
