"""What several tests of the sandbox need."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can pass through, which pytest's own is not."""
    path = Path(tempfile.mkdtemp(prefix="tidegate-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)
