from __future__ import annotations

import pytest

SERVERS = {"mariadb": "mariadb", "mysql": "mysql", "postgres": "postgres", "redis": "redis_server"}


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of each store."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'books.db'}"
    return str(request.getfixturevalue(SERVERS[request.param]).url)


@pytest.fixture(params=["mariadb", "mysql", "postgres", "redis"])
def server(request: pytest.FixtureRequest) -> object:
    """Each store that is a server, so that a network lies between."""
    return request.getfixturevalue(SERVERS[request.param])
