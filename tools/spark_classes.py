"""The classes of Spark, loaded once and kept in a file that Java machines map: each start of Spark takes five seconds
of a core less. `python -m tools.spark_classes` makes the file, in half a minute, unless it is there."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tidegate.java.cache import made_once

# Tests start dozens of drivers and do little with each: half of the time would go into code that is compiled too well.
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
ARCHIVE = "classes.jsa"

_TRAINING = """
from pyspark import SparkContext
from tidegate.spark.session import SparkOptions, open_session

session = open_session(SparkOptions(master="local[2]"))
session.range(9).selectExpr("id", "string(id) AS t").mapInArrow(lambda batches: batches, "id long, t string").count()
session.stop()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()  # the Java machine ends with it, and writes the archive then
gateway.proc.wait()
"""


def options() -> str:
    """What Spark's Java machines are given. A file that is not there would cost the archive that Java itself has."""
    archive = _folder() / ARCHIVE
    return f"{QUICK} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else QUICK


def make() -> None:
    """Make the archive, unless there is one for this Spark and this Java."""
    made_once(_folder(), _train)


def _train(folder: Path) -> Path:
    opts = f"{QUICK} -Xlog:disable -XX:ArchiveClassesAtExit={folder / ARCHIVE}"
    subprocess.run([sys.executable, "-c", _TRAINING], env=os.environ | {"SPARK_SUBMIT_OPTS": opts}, check=True)
    return folder


def _folder() -> Path:
    """In the virtual environment, with which it goes: it fits the Java and the jars that it was made with."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    home = os.environ.get("JAVA_HOME")
    java = Path(shutil.which("java", path=f"{home}/bin" if home else None) or "java").resolve()
    parts = [java, *sorted(Path(found.origin).parent.glob("jars/*.jar"))]
    made_of = [(str(part), part.stat().st_size, part.stat().st_mtime_ns) for part in parts if part.exists()]
    return Path(sys.prefix, f"spark-classes-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]}")


if __name__ == "__main__":
    make()
