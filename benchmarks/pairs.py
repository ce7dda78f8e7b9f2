"""This tree against an older commit: both run in turns on the same servers, so that noise hits them alike.

    make pairs BASE=<commit>                  everything
    make pairs BASE=<commit> WHAT="one sink"  some of it; names of stores choose among those

Each side is a process of its own that has one version of the package loaded. A pair is one measurement of each, in
changing order; the figure is the older side's time over the newer one's, so that less than 1 is slower than before.
Pairs come in rounds. Each round has new processes and new tables, and the other side starts first: one process can be
faster than another of the same code for as long as it lives. So a round gives one ratio, and the bound is that of the
rounds. ``make pairs BASE=HEAD`` in a clean tree shows what is left of that.

There are two figures: the time by the clock, and the processor's time, that of the measuring process and of the server
together. The work of a ledger goes to and fro between the two, one of them waiting for the other. Where the system puts
them, on one processor or on two that fall asleep in between, decides more about the clock than the code does. So both
sides and the server are kept on one processor while ledgers are measured, and both sides hash alike.
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
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from benchmarks.one_side import KAFKA, LEDGER
from benchmarks.report import Report
from benchmarks.topics import fill
from tidegate.sandbox import Kafka, MariaDB, MySQL, Postgres, Redis

WARM = 2
ROUNDS = {
    **dict.fromkeys(LEDGER, 40),
    **dict.fromkeys(KAFKA, 6),
}  # what takes under a second varies from process to process
PAIRS = {**dict.fromkeys(LEDGER, 4), **dict.fromkeys(KAFKA, 4)}  # in each round, after those that warm up
BAR = 0.95
RECORDS = 200_000
ROOT = Path(__file__).parent.parent


class Place(NamedTuple):
    """A database for both sides; each has tables of its own in it."""

    name: str
    url: str
    server: int | None
    """The process of the server, if there is one."""


class Seconds(NamedTuple):
    """How long a measurement took by the clock, and how long processors worked for it, the server's included.

    The latter is for all commits of the measurement, the former may be for one of them.
    """

    clock: float
    processor: float


class Side:
    """One version of the package, ready to measure."""

    def __init__(self, source: Path, place: Place, name: str, bootstrap: str, seed: int) -> None:
        environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONHASHSEED": str(seed)}
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

    @property
    def pid(self) -> int:
        return self._process.pid

    def measured(self, what: str, server: int | None) -> Seconds:
        """Measure once."""
        assert self._process.stdin is not None
        before = processor_seconds(server)
        print(what, file=self._process.stdin, flush=True)
        clock, own = map(float, self._line().split())
        return Seconds(clock, own + processor_seconds(server) - before)

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


def family(pid: int | None) -> set[int]:
    """The process and all its descendants; none without a process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
    found = set() if pid is None else {pid}
    while more := {child for child, parent in parents.items() if parent in found and child not in found}:
        found |= more
    return found


def threads(pid: int | None) -> Iterator[Path]:
    """The folders in ``/proc`` of all threads of a process and its descendants."""
    for each in family(pid):
        with suppress(OSError):
            yield from list(Path(f"/proc/{each}/task").iterdir())


def processor_seconds(pid: int | None) -> float:
    """How long the threads of a server have run so far."""
    total = 0
    for thread in threads(pid):
        with suppress(OSError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def keep_on(processors: Iterable[int], pids: Iterable[int | None]) -> None:
    """Let the threads of processes, and those that they start from now on, run on these processors only."""
    for thread in (thread for pid in pids for thread in threads(pid)):
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), processors)


def lower_bound(ratios: list[float]) -> tuple[float, float]:
    """The one-sided 95 % bound of the ratio and its estimate, by the signed-rank test (Hodges and Lehmann).

    The ratios are those of the rounds, which depend on each other only through the code. Of all means of two of them,
    taken as logarithms, the middle one is the estimate. The test assumes that the noise favours neither side, and
    nothing about its size: a single slow round, such as one with a stalled disk, moves the bound by a few ranks.
    """
    n = len(ratios)
    logs = [math.log(ratio) for ratio in ratios]
    means = sorted((logs[i] + logs[j]) / 2 for i in range(n) for j in range(i + 1))
    ways = [1] + [0] * len(means)  # in how many ways signs give each sum of ranks
    for rank in range(1, n + 1):
        for total in range(len(means), rank - 1, -1):
            ways[total] += ways[total - rank]
    below, place = 0, 0
    while (below := below + ways[place]) <= 0.05 * 2**n:
        place += 1
    return math.exp(means[max(place - 1, 0)]), math.exp(statistics.median(means))


Pair: TypeAlias = tuple[Seconds, Seconds]
Measured: TypeAlias = dict[str, list[list[Pair]]]


def measure(older: Path, newer: Path, place: Place, bootstrap: str, wanted: list[str]) -> Measured:
    """The seconds of both sides, older and newer: a list of pairs for each round."""
    everywhere, one = os.sched_getaffinity(0), {max(os.sched_getaffinity(0))}
    found: Measured = {what: [] for what in wanted}
    for number in range(max(ROUNDS[what] for what in wanted)):
        asked = [("older", older), ("newer", newer)]
        sides = {
            name: Side(source, place, f"{name}{number}", bootstrap, number)
            for name, source in (asked if number % 2 else reversed(asked))
        }
        for what in (what for what in wanted if number < ROUNDS[what]):
            keep_on(one if what in LEDGER else everywhere, [place.server, *(side.pid for side in sides.values())])
            pairs = list[Pair]()
            for turn in range(PAIRS[what] + WARM):
                order = ("older", "newer") if (turn + number) % 2 else ("newer", "older")
                seconds = {name: sides[name].measured(what, place.server) for name in order}
                if turn >= WARM:
                    pairs.append((seconds["older"], seconds["newer"]))
            found[what].append(pairs)
        for side in sides.values():
            side.close()
    return found


def tell(place: Place, found: Measured, report: Report) -> None:
    for what, rounds in found.items():
        for number, name in enumerate(Seconds._fields):
            ratios = [statistics.median(before[number] / after[number] for before, after in pairs) for pairs in rounds]
            bound, middle = lower_bound(ratios)
            now = statistics.median(after[number] for pairs in rounds for _, after in pairs) * 1000
            detail = f"estimate {middle:.3f}, rounds {min(ratios):.2f} to {max(ratios):.2f}; now {now:,.2f} ms"
            report.figure(f"{place.name}: {what}, {name}, 95 % bound", bound, "x", at_least=BAR, detail=detail)


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
                url = f"sqlite:///{folder}/FILE.db" if server is None else server.url
                place = Place(name, url, None if server is None else server.pid)
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
