from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.place import Place

SERVERS = {"mariadb": "mariadb", "postgres": "postgres", "redis": "redis_server"}


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], Place]]:
    """Makes places, and closes what was opened there."""
    with ExitStack() as places:

        def make(url: str) -> Place:
            place = Place.fresh(url)
            places.callback(place.close)
            return place

        yield make


@pytest.fixture(params=["sqlite", "mariadb", "postgres", "redis"])
def place(request: pytest.FixtureRequest, fresh: Callable[[str], Place], tmp_path: Path) -> Place:
    """Each store."""
    if request.param == "sqlite":
        return fresh(f"sqlite:///{tmp_path / 'ledger.db'}")
    return fresh(request.getfixturevalue(SERVERS[request.param]).url)


@pytest.fixture
def sql_place(place: Place) -> Place:
    """Each store that knows SQL."""
    if place.is_redis:
        pytest.skip("Redis knows no SQL")
    return place


@pytest.fixture(params=["mariadb", "postgres", "redis"])
def server(request: pytest.FixtureRequest) -> object:
    """Each store that is a server, so that a network lies between."""
    return request.getfixturevalue(SERVERS[request.param])
