from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.app.member.stage import Stage

from tidegate.ledger import Limits
from tidegate.sandbox import Kafka


@pytest.fixture
def stages() -> Iterator[Callable[..., Stage]]:
    """Makes stages, and clears them away."""
    with ExitStack() as open_stages:

        def make(bootstrap: str, url: str, limits: Limits | None = None) -> Stage:
            stage = Stage(bootstrap, url, limits)
            open_stages.callback(stage.close)
            return stage

        yield make


@pytest.fixture
def stage(kafka: Kafka, stages: Callable[..., Stage], tmp_path: Path) -> Stage:
    """The broker that all tests share, and a SQLite database."""
    return stages(kafka.bootstrap, f"sqlite:///{tmp_path / 'ledger.db'}")
