"""The stores that the contract suite runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .stores import DuckdbStore, Kept, MemoryStore, RedisStore, SqlStore, Store, empty_store


@pytest.fixture(params=["memory", "sqlite", "mariadb", "mysql", "postgres", "pgbouncer", "redis", "duckdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path, kept_stores: Kept) -> Iterator[Store]:
    """A store with a fresh ledger and no data."""

    def make() -> Store:
        match request.param:
            case "memory":
                return MemoryStore()
            case "sqlite":
                return SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}")
            case "duckdb":
                return DuckdbStore(tmp_path / "ledger.duckdb")
            case "redis":
                return RedisStore(request.getfixturevalue("redis_server").url)
            case "pgbouncer":
                server = request.getfixturevalue("postgres")
                return SqlStore(server.url, through=request.getfixturevalue("pgbouncer").port)
            case server:
                return SqlStore(request.getfixturevalue(server).url)

    with empty_store(kept_stores, request.param, make) as made:
        yield made
