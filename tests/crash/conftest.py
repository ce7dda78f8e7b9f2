from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.crash.place import Place

SERVERS = {
    "mariadb": "mariadb",
    "mysql": "mysql",
    "postgres": "postgres",
    "pgbouncer": "pgbouncer",
    "redis": "redis_server",
}


@pytest.fixture
def fresh() -> Iterator[Callable[[str], Place]]:
    """Makes places, and closes what was opened there."""
    with ExitStack() as places:

        def make(url: str) -> Place:
            place = Place.fresh(url)
            places.callback(place.close)
            return place

        yield make


def place_in(store: str, request: pytest.FixtureRequest) -> Place:
    make, folder = request.getfixturevalue("fresh"), request.getfixturevalue("tmp_path")
    files = {"sqlite": f"sqlite:///{folder / 'ledger.db'}", "duckdb": f"duckdb:///{folder / 'ledger.duckdb'}"}
    made = make(files[store] if store in files else request.getfixturevalue(SERVERS[store]).url)
    assert isinstance(made, Place)
    return made


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres", "pgbouncer", "redis", "duckdb"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each store."""
    return place_in(request.param, request)


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres"])
def sql_place(request: pytest.FixtureRequest) -> Place:
    """Each store that knows SQL."""
    return place_in(request.param, request)


@pytest.fixture(params=["mariadb", "mysql", "postgres"])
def row_locks(request: pytest.FixtureRequest) -> Place:
    """Each store that locks rows, and so can run into deadlocks."""
    return place_in(request.param, request)


@pytest.fixture(params=["mariadb", "mysql", "postgres", "redis"])
def server(request: pytest.FixtureRequest) -> object:
    """Each store that is a server, so that a network lies between."""
    return request.getfixturevalue(SERVERS[request.param])
