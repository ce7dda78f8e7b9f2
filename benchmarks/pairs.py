"""This tree against an older commit: both run in turns on the same servers, so that noise hits them alike.

    make pairs BASE=<commit>                  everything
    make pairs BASE=<commit> WHAT="one sink"  some of it; names of stores choose among those

Each side is a process of its own that has one version of the package loaded. A pair is one measurement of each, in
changing order; the figure is the older side's time over the newer one's, so that less than 1 is slower than before.
Pairs come in rounds. Each round has new processes and new tables, and the other side starts first: one process can be
faster than another of the same code for as long as it lives. ``make pairs BASE=HEAD`` in a clean tree shows what is
left of that.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from benchmarks.one_side import KAFKA, LEDGER
from benchmarks.report import Report
from benchmarks.topics import fill
from tidegate.sandbox import Kafka, MariaDB, MySQL, Postgres, Redis

WARM = 2
ROUNDS = {
    **dict.fromkeys(LEDGER, 24),
    **dict.fromkeys(KAFKA, 6),
}  # what takes under a second varies from process to process
PAIRS = {**dict.fromkeys(LEDGER, 6), **dict.fromkeys(KAFKA, 4)}  # in each round, after those that warm up
BAR = 0.95
RECORDS = 200_000
ROOT = Path(__file__).parent.parent


class Place(NamedTuple):
    """A database for both sides; each has tables of its own in it."""

    name: str
    url: str


class Side:
    """One version of the package, ready to measure."""

    def __init__(self, source: Path, place: Place, name: str, bootstrap: str) -> None:
        environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
        url = place.url.replace("FILE", name)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.one_side", url, f"{name}_", bootstrap],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        loaded = self._line()
        if not loaded.startswith(str(source)):
            raise RuntimeError(f"{name} loaded {loaded}, not the package in {source}")

    def seconds(self, what: str) -> float:
        """Measure once."""
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the measuring process ended with {self._process.wait(30)}")
        return line


@contextmanager
def sources(commit: str) -> Iterator[tuple[Path, Path]]:
    """The package as it was then, and a copy of what it is now: both in folders of the same kind."""
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        older, newer = Path(folder) / "older", Path(folder) / "newer"
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(older, filter="data")
        shutil.copytree(ROOT / "src", newer / "src", ignore=shutil.ignore_patterns("__pycache__"))
        yield older / "src", newer / "src"


def lower_bound(ratios: list[float]) -> float:
    """The one-sided 95 % bound of the median ratio, by the sign test.

    It assumes nothing about the noise: a single slow pair, such as one with a stalled disk, moves it by one rank.
    """
    n, below, rank = len(ratios), 0.0, 0
    while (below := below + math.comb(n, rank) / 2**n) <= 0.05:
        rank += 1
    return sorted(ratios)[max(rank - 1, 0)]


Measured = dict[str, list[tuple[float, float]]]


def measure(older: Path, newer: Path, place: Place, bootstrap: str, wanted: list[str]) -> Measured:
    """The seconds of both sides, older and newer, in pairs of all rounds."""
    found: Measured = {what: [] for what in wanted}
    for number in range(max(ROUNDS[what] for what in wanted)):
        asked = [("older", older), ("newer", newer)]
        sides = {
            name: Side(source, place, f"{name}{number}", bootstrap)
            for name, source in (asked if number % 2 else reversed(asked))
        }
        for what in (what for what in wanted if number < ROUNDS[what]):
            for turn in range(PAIRS[what] + WARM):
                order = ("older", "newer") if (turn + number) % 2 else ("newer", "older")
                seconds = {name: sides[name].seconds(what) for name in order}
                if turn >= WARM:
                    found[what].append((seconds["older"], seconds["newer"]))
        for side in sides.values():
            side.close()
    return found


def tell(place: Place, found: Measured, report: Report) -> None:
    for what, pairs in found.items():
        ratios = [before / after for before, after in pairs]
        now = statistics.median(after for _, after in pairs) * 1000
        detail = f"median {statistics.median(ratios):.3f} of {len(ratios)} pairs; now {now:,.2f} ms"
        report.figure(f"{place.name}: {what}, 95 % bound", lower_bound(ratios), "x", at_least=BAR, detail=detail)


def main(commit: str, names: list[str]) -> int:
    report, asked = Report(), names or [*LEDGER, *KAFKA]
    servers: dict[str, type[MariaDB | MySQL | Postgres | Redis]] = {
        "MariaDB": MariaDB,
        "MySQL": MySQL,
        "PostgreSQL": Postgres,
        "Redis": Redis,
    }
    stores = [name for name in ("SQLite", *servers) if name in asked] or ["SQLite", *servers]
    asked = [name for name in asked if name in PAIRS] or [*LEDGER, *KAFKA]
    with ExitStack() as stack:
        older, newer = stack.enter_context(sources(commit))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        bootstrap = ""
        if set(asked) & set(KAFKA):
            bootstrap = stack.enter_context(Kafka()).bootstrap
            fill(bootstrap, "pairs", RECORDS)
        for name in stores:
            report.heading(name)
            wanted = [what for what in asked if not _is_impossible(name, what)]
            with servers[name]() if name in servers else nullcontext() as server:
                place = Place(name, f"sqlite:///{folder}/FILE.db" if server is None else server.url)
                tell(place, measure(older, newer, place, bootstrap, wanted), report)
    if report.missed:
        print("\nBars missed:", *report.missed, sep="\n  ")
    return bool(report.missed)


def _is_impossible(store: str, what: str) -> bool:
    """Whether there is no such thing: no sink on Redis, and on SQLite the driver alone writes."""
    return (store == "Redis" and what in KAFKA) or (store == "SQLite" and what == "pipeline")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m benchmarks.pairs <commit> [what …]; what is a store or one of " + ", ".join(PAIRS))
    sys.exit(main(sys.argv[1], sys.argv[2:]))
