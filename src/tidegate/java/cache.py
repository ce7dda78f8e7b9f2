"""A cache for downloads: each is made once per machine and kept outside the project."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_directory", "made_once"]


def cache_directory() -> Path:
    """Return the cache's folder: ``$TIDEGATE_CACHE``, else ``tidegate`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if chosen := os.environ.get("TIDEGATE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"


def made_once(target: Path, make: Callable[[Path], Path]) -> Path:
    """Return the folder ``target``; create it with ``make`` if it does not exist.

    ``make`` gets an empty staging folder, and returns the folder inside it that is renamed to ``target``. So ``target``
    exists only when it is complete. A file lock lets one process create it while others wait.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{target.name}.lock")):
        if not target.is_dir():
            for abandoned in target.parent.glob(f"{target.name}.partial-*"):
                shutil.rmtree(abandoned, ignore_errors=True)
            staging = Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=target.parent))
            try:
                make(staging).rename(target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
