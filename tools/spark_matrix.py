"""Runs the tests of pipelines on each version of Spark that Tidegate supports, each in an environment of its own.

`make matrix` calls this. What differs from `.venv` is PySpark alone: requirements/spark-*.txt overrides its line in
requirements/dev.txt. An environment is kept, and made anew if Python or a lock file changes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tidegate.errors import ConfigurationError
from tidegate.spark.versions import VERSIONS, SparkVersion

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "requirements"
READY = "ready"
TESTS = ("-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider", "tests/spark")

_ABOUT = "import platform, pyspark; print(pyspark.__version__, platform.python_version())"


class Outcome(NamedTuple):
    """What came of the tests on one version."""

    spark: str
    python: str
    connector: str
    passed: int
    skipped: int
    failed: int
    minutes: float

    @property
    def good(self) -> bool:
        """Whether tests ran, and none failed."""
        return self.passed > 0 and self.failed == 0


def environment(version: SparkVersion, python: str) -> Path:
    """Return the environment of a version. Make it, unless it is there."""
    folder = ROOT / f".venv-spark-{version.number}"
    locks = [LOCKS / name for name in ("build.txt", "dev.txt", f"spark-{version.number}.txt")]
    digest = hashlib.sha256(subprocess.check_output([python, "-VV"]))
    for lock in locks:
        digest.update(lock.read_bytes())
    mark = folder / READY
    if mark.exists() and mark.read_text() == digest.hexdigest():
        return folder
    say(f"making {folder.name}")
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
    build, dev, spark = map(str, locks)
    for command in (
        [*uv, "venv", "--quiet", "--clear", "--python", python, str(folder)],
        [*install, "--require-hashes", "--requirements", build],
        [*install, "--require-hashes", "--no-build-isolation", "--requirements", dev, "--overrides", spark],
        [*install, "--no-build-isolation", "--no-deps", "--editable", str(ROOT)],
    ):
        subprocess.run(command, check=True)
    mark.write_text(digest.hexdigest())
    return folder


def run(version: SparkVersion, python: str, arguments: Sequence[str]) -> Outcome:
    """Run the tests on a version."""
    folder = environment(version, python)
    own = str(folder / "bin" / "python")
    spark, running = subprocess.check_output([own, "-c", _ABOUT], text=True).split()
    say(f"Spark {spark} with Python {running}")
    began = time.monotonic()
    subprocess.run([own, "-m", "tools.spark_classes"], cwd=ROOT, check=False)  # or else each start takes longer
    results = folder / "results.xml"
    results.unlink(missing_ok=True)
    subprocess.run([own, "-m", "pytest", *TESTS, f"--junit-xml={results}", *arguments], cwd=ROOT, check=False)
    return Outcome(spark, running, version.coordinate, *counted(results), (time.monotonic() - began) / 60)


def counted(results: Path) -> tuple[int, int, int]:
    """Return how many tests passed, were skipped and failed. A run that wrote no results has failed."""
    if not results.exists():
        return 0, 0, 1
    found = ElementTree.parse(results).getroot().iter("testsuite")  # noqa: S314 - our own file
    every, skipped, failed = 0, 0, 0
    for suite in found:
        every += int(suite.attrib["tests"])
        skipped += int(suite.attrib["skipped"])
        failed += int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return every - skipped - failed, skipped, failed


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a table."""
    lines = [("Spark", "Python", "connector", "passed", "skipped", "failed", "minutes")]
    for each in outcomes:
        lines.append((*map(str, each[:-1]), f"{each.minutes:.0f}"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def wanted(names: Sequence[str]) -> list[SparkVersion]:
    """Return the versions of these names; all of them, if none is named."""
    if strange := [name for name in names if name not in VERSIONS]:
        raise ConfigurationError(f"MATRIX: there is no Spark {strange[0]!r} here, but {', '.join(VERSIONS)}")
    return [VERSIONS[name] for name in names or VERSIONS]


def say(line: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(f"matrix: {line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run the tests on the versions named in ``MATRIX``; the exit code."""
    try:
        versions = wanted(os.environ.get("MATRIX", "").split())
    except ConfigurationError as error:
        say(str(error))
        return 2
    python = os.environ.get("PYTHON") or sys._base_executable  # type: ignore[attr-defined]
    outcomes = []
    for version in versions:
        outcomes.append(run(version, python, arguments))
        sys.stdout.write(table(outcomes))
        sys.stdout.flush()
    return 0 if all(each.good for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
