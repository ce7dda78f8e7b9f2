"""Quix Streams in an environment of its own, made once and kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.bare_loops import BATCH
from tidegate.sandbox import Postgres

__all__ = ["VERSION", "quix"]

VERSION = "3.28.1"
_SCRIPT = Path(__file__).with_name("quix_sink.py")


def quix(bootstrap: str, postgres: Postgres, topic: str, group: str, count: int) -> float:
    """The seconds that its PostgreSQL sink takes for so many records, from the first one to the last commit."""
    database = (postgres.host, str(postgres.port), postgres.database, postgres.user, str(BATCH))
    done = subprocess.run(
        [_python(), _SCRIPT, bootstrap, topic, group, str(count), *database],
        env={**os.environ, "PGPASSWORD": postgres.password},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    seconds, rows = done.stdout.split()[-2:]
    if int(rows) != count:
        raise RuntimeError(f"Quix Streams wrote {rows} of {count} records")
    return float(seconds)


def _python() -> Path:
    """Its interpreter."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "tidegate-benchmarks" / f"quixstreams-{VERSION}-py{sys.version_info.major}.{sys.version_info.minor}"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        wanted = f"quixstreams[postgresql]=={VERSION}"
        subprocess.run([python, "-m", "pip", "install", "--quiet", wanted], check=True)
        (home / "complete").touch()
    return python
