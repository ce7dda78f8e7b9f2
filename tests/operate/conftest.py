"""A broker and a SQLite database to operate on; other stores where a test asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.app.member.stage import Stage

from tidegate.kafka.cluster import Survey
from tidegate.sandbox import Kafka


@pytest.fixture
def stages() -> Iterator[Callable[[str, str], Stage]]:
    with ExitStack() as open_stages:

        def make(bootstrap: str, url: str) -> Stage:
            stage = Stage(bootstrap, url)
            open_stages.callback(stage.close)
            return stage

        yield make


@pytest.fixture
def stage(kafka: Kafka, stages: Callable[[str, str], Stage], tmp_path: Path) -> Stage:
    return stages(kafka.bootstrap, f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.fixture
def survey(kafka: Kafka) -> Survey:
    return Survey({"bootstrap.servers": kafka.bootstrap}, seconds=20.0)
