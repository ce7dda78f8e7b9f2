"""Servers that may be killed: nobody else's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.chaos.consumer import SESSION_TIMEOUT

from tidegate.sandbox import Database, Kafka, Postgres


@pytest.fixture(scope="package")
def broker() -> Iterator[Kafka]:
    settings = {
        "group.consumer.session.timeout.ms": int(SESSION_TIMEOUT * 1000),
        "group.consumer.heartbeat.interval.ms": 300,
    }
    with Kafka(settings=settings) as server:
        yield server


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """PostgreSQL, unless the test asks for another one."""
    with getattr(request, "param", Postgres)() as server:
        yield server
