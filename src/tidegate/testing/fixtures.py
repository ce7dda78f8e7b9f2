"""Fixtures for pytest: ``pytest_plugins = ["tidegate.testing.fixtures"]`` in ``conftest.py`` turns them on."""

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
    """Makes kits, each on an empty SQLite database of its own unless it is given a ledger, and closes them.

    Takes what :class:`TestKit` takes.
    """
    numbers = itertools.count(1)
    with ExitStack() as kits:

        def make(app: App, **options: Any) -> TestKit:
            options.setdefault("ledger", f"sqlite:///{tmp_path / f'tidegate-{next(numbers)}.db'}")
            return kits.enter_context(TestKit(app, **options))

        yield make
