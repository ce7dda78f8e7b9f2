from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.sandbox import SparkCluster


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The database of a test, which names its fixture."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ordeal.db'}"
    return str(request.getfixturevalue(request.param).url)


@pytest.fixture(scope="package")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster(2, cores=4, memory="2g") as running:
        yield running
