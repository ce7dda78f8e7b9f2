"""Fixtures for pytest. Enable them with ``pytest_plugins = ["tidegate.testing.fixtures"]`` in ``conftest.py``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tidegate.app import App
from tidegate.testing.kit import TestKit

__all__ = ["make_kit"]


@pytest.fixture
def make_kit(tmp_path: Path) -> Iterator[Callable[..., TestKit]]:
    """Return a function that creates kits, with the arguments of :class:`TestKit`, and close the kits after the test.

    Without a ``ledger``, each kit gets its own empty SQLite database.
    """
    numbers = itertools.count(1)
    with ExitStack() as kits:

        def make(app: App, **options: Any) -> TestKit:
            options.setdefault("ledger", f"sqlite:///{tmp_path / f'tidegate-{next(numbers)}.db'}")
            return kits.enter_context(TestKit(app, **options))

        yield make
