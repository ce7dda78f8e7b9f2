"""Faster start of tasks in Spark's Python workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["ready_worker"]


def ready_worker() -> None:
    """Make a task start fast. Call it first in every function that runs on executors.

    Spark puts its own archives on ``sys.path`` and invalidates Python's import caches before every task. Each cached
    finder then reads its archive again, and there is one finder for each package in an archive. This function drops the
    finders of Spark's own archives: the archives do not change, and Python creates a finder again, from what it has
    read, when something is imported from them. The finders of the user's archives (``--py-files``) stay.
    """
    home = _spark_home()
    sys.path[:] = [entry for entry in sys.path if not (entry.endswith(".jar") and entry.startswith(home))]
    for entry in [each for each in sys.path_importer_cache if _in_archive(each, home)]:
        sys.path_importer_cache.pop(entry, None)


def _spark_home() -> str:
    """Return the folder of Spark on this machine. The archives below it are Spark's own."""
    return str(Path(os.environ.get("SPARK_HOME") or _folder_of_pyspark())) + os.sep


def _folder_of_pyspark() -> Path:
    import pyspark  # noqa: PLC0415 - an extra; executors have it

    parts = Path(pyspark.__file__).parts
    archive = next((place for place, part in enumerate(parts) if part.endswith(".zip")), None)
    # In an archive the path is <home>/python/lib/pyspark.zip/pyspark/__init__.py; installed, <home>/__init__.py.
    return Path(*parts[: archive - 2]) if archive is not None else Path(*parts[:-1])


def _in_archive(entry: str, home: str) -> bool:
    return entry.startswith(home) and (".zip" in entry[len(home) :] or ".jar" in entry[len(home) :])
