"""Python workers of Spark: what makes a task begin without delay."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["ready_worker"]


def ready_worker() -> None:
    """Call this first in whatever runs on executors.

    Spark puts its own archives on the workers' ``sys.path`` and has Python forget, before every task, what it knows of
    all archives: each is then read again, and each of their packages on its own. So the finders of Spark's own archives
    are dropped: they do not change, and Python makes a new one, from what it has read, when something is imported from
    them. The user's own (``--py-files``) stay as they are.
    """
    home = _spark_home()
    sys.path[:] = [entry for entry in sys.path if not (entry.endswith(".jar") and entry.startswith(home))]
    for entry in [each for each in sys.path_importer_cache if _in_archive(each, home)]:
        sys.path_importer_cache.pop(entry, None)


def _spark_home() -> str:
    """The folder of Spark on this machine: the archives below it are Spark's own."""
    return str(Path(os.environ.get("SPARK_HOME") or _folder_of_pyspark())) + os.sep


def _folder_of_pyspark() -> Path:
    import pyspark  # noqa: PLC0415 - an extra, and there where this runs

    parts = Path(pyspark.__file__).parts
    archive = next((place for place, part in enumerate(parts) if part.endswith(".zip")), None)
    # Inside of an archive it is <home>/python/lib/pyspark.zip/pyspark/__init__.py, installed <home>/__init__.py.
    return Path(*parts[: archive - 2]) if archive is not None else Path(*parts[:-1])


def _in_archive(entry: str, home: str) -> bool:
    return entry.startswith(home) and (".zip" in entry[len(home) :] or ".jar" in entry[len(home) :])
