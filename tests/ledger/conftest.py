"""The stores that the contract suite runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .stores import MemoryStore, RedisStore, SqlStore, Store


@pytest.fixture(params=["memory", "sqlite", "mariadb", "mysql", "postgres", "pgbouncer", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with a fresh ledger and no data."""
    made: Store
    match request.param:
        case "memory":
            made = MemoryStore()
        case "sqlite":
            made = SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}")
        case "redis":
            made = RedisStore(request.getfixturevalue("redis_server").url)
        case "pgbouncer":
            server = request.getfixturevalue("postgres")
            made = SqlStore(server.url, through=request.getfixturevalue("pgbouncer").port)
        case server:
            made = SqlStore(request.getfixturevalue(server).url)
    made.ledger.create()
    yield made
    made.close()
