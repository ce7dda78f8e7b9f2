"""Processor time of a sink per record, over all processes and printed by step: this tree, an older commit, a bare loop.

    python -m benchmarks.steps <commit> [store ...]

The sides take turns on the same servers, each as a process of its own. Times are processor time, so that other work on
the machine matters little; the records per second beside them are of the clock.
"""

from __future__ import annotations

import gc
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

import pymysql
from sqlalchemy import create_engine, text

from benchmarks.bare_loops import consume, into_mariadb, into_postgres, into_sqlite
from benchmarks.pairs import ROOT, sources
from benchmarks.report import Report
from benchmarks.topics import fill
from tidegate.sandbox import Kafka, MariaDB, MySQL, Postgres

RECORDS, ROUNDS = 400_000, int(os.environ.get("ROUNDS", "5"))
BASE = "8b8bc35"
CPU, RATE = 0.7, {"PostgreSQL": 1.3, "SQLite": 1.3, "MariaDB": 1.2, "MySQL": 1.2}
SERVERS: dict[str, type[MariaDB | MySQL | Postgres]] = {"PostgreSQL": Postgres, "MariaDB": MariaDB, "MySQL": MySQL}
COLUMNS = "id BIGINT NOT NULL, customer VARCHAR(40) NOT NULL, amount BIGINT NOT NULL, note VARCHAR(60) NOT NULL"
IN_PYTHON = ("fetch", "buffers", "rows", "write", "transaction", "collector", "rest")
STEPS = ("client library", *IN_PYTHON, "database", "broker")


# One side


class Steps:
    """Processor time of this process by step; each step without the steps within it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._local = threading.local()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._enter(name)
        try:
            yield
        finally:
            self._leave()

    def collect(self, phase: str, _: object) -> None:
        self._enter("collector") if phase == "start" else self._leave()

    def watch(self, owner: type, method: str, name: str) -> None:
        """Count a method as a step."""
        inner: Callable[..., Any] = getattr(owner, method)

        @wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.step(name):
                return inner(*args, **kwargs)

        setattr(owner, method, timed)

    def _enter(self, name: str) -> None:
        now, stack = time.thread_time(), self._stack
        if stack:
            self.seconds[stack[-1][0]] += now - stack[-1][1]
        stack.append([name, now])

    def _leave(self) -> None:
        now, stack = time.thread_time(), self._stack
        name, since = stack.pop()
        self.seconds[name] += now - since
        if stack:
            stack[-1][1] = now

    @property
    def _stack(self) -> list[list[Any]]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[list[Any]] = self._local.stack
        return stack


def sink_once(url: str, bootstrap: str, table: str, steps: Steps) -> tuple[float, float]:
    """Write the topic once; the seconds from the first commit to the last, and all processor time."""
    from tidegate import App, BatchBounds, Table, open_ledger
    from tidegate.observe import Committed, Event

    commits: list[tuple[float, float]] = []

    def observe(event: Event) -> None:
        if isinstance(event, Committed):
            commits.append((time.perf_counter(), event.seconds))

    with open_ledger(url) as ledger:
        app = App(bootstrap, ledger, observers=[observe])
        bounds = BatchBounds(count=20_000, bytes=64 << 20, age=0.0)
        app.sink("steps", into=Table(table), group=f"sink-{secrets.token_hex(4)}", batch=bounds)
        steps.seconds.clear()
        began = time.process_time()
        app.run(until_caught_up=True)
        used = time.process_time() - began
    return commits[-1][0] - commits[0][0] + commits[0][1], used


def side(url: str, bootstrap: str, kind: str) -> None:
    """Measure at each line from the parent."""
    steps = Steps()
    if kind == "sink":
        from tidegate.app.commit import Commit
        from tidegate.app.intake import Intake
        from tidegate.app.member import Member
        from tidegate.app.sink import SinkHandler
        from tidegate.kafka.consumer import GroupConsumer
        from tidegate.tables import Target

        steps.watch(GroupConsumer, "fetch", "fetch")
        steps.watch(Intake, "fetch", "buffers")
        steps.watch(SinkHandler, "prepare", "rows")
        steps.watch(Target, "write", "write")
        steps.watch(Commit, "run", "transaction")
        steps.watch(Member, "run", "rest")
        gc.callbacks.append(steps.collect)
    print("ready", flush=True)
    for _ in sys.stdin:
        if kind == "sink":
            wall, used = sink_once(url, bootstrap, "bench", steps)
            found = dict(steps.seconds)
            found["client library"] = used - sum(found.values())
        else:
            began = time.process_time()
            wall = consume(bootstrap, "steps", f"bare-{secrets.token_hex(4)}", RECORDS, _loop(url))
            found = {"rest": time.process_time() - began}
        print(json.dumps({"wall": wall, "steps": found}), flush=True)


def _loop(url: str) -> Any:
    if url.startswith("sqlite"):
        import sqlite3

        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.execute("PRAGMA journal_mode = WAL")
        return into_sqlite(connection)
    if url.startswith("postgresql"):
        import psycopg

        return into_postgres(psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://")))
    address = create_engine(url).url
    return into_mariadb(
        pymysql.connect(
            host=address.host,
            port=address.port or 3306,
            user=address.username,
            password=address.password or "",
            database=address.database,
            local_infile=True,
        )
    )


# All sides


def used_by(pid: int | None) -> float:
    """Processor seconds of a process and all below it, those that have ended included."""
    parents, seconds = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        seconds[int(stat.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    wanted = [pid]
    for each in wanted:
        wanted += [child for child, parent in parents.items() if parent == each]
    return sum(seconds.get(each, 0.0) for each in wanted if each is not None)


class Measured:
    """The rounds of one side."""

    def __init__(self, source: Path, url: str, bootstrap: str, kind: str) -> None:
        self.walls: list[float] = []
        self.steps: list[dict[str, float]] = []
        environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "benchmarks.steps", "--side", url, bootstrap, kind]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self._line()

    def round(self, database: int | None, broker: int | None) -> None:
        before = used_by(database), used_by(broker)
        assert self._process.stdin is not None
        print("go", file=self._process.stdin, flush=True)
        found = json.loads(self._line())
        after = used_by(database), used_by(broker)
        self.walls.append(found["wall"])
        self.steps.append(found["steps"] | {"database": after[0] - before[0], "broker": after[1] - before[1]})

    def step(self, name: str) -> float:
        """Microseconds per record, the median of the rounds after the first."""
        return statistics.median(each.get(name, 0.0) for each in self.steps[1:]) / RECORDS * 1e6

    @property
    def total(self) -> float:
        return statistics.median(sum(each.values()) for each in self.steps[1:]) / RECORDS * 1e6

    @property
    def rate(self) -> float:
        return RECORDS / statistics.median(self.walls[1:])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a side ended with {self._process.wait(30)}")
        return line


def measure(name: str, kafka: Kafka, url: str, database: int | None, trees: tuple[Path, Path], report: Report) -> None:
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE bench ({COLUMNS})"))
    older, newer = trees
    sides = {
        "older": Measured(older, url, kafka.bootstrap, "sink"),
        "newer": Measured(newer, url, kafka.bootstrap, "sink"),
        "bare loop": Measured(newer, url, kafka.bootstrap, "bare"),
    }
    order = list(sides)
    for number in range(ROUNDS + 1):
        for which in order[number % 3 :] + order[: number % 3]:
            sides[which].round(database, kafka.pid)
            with engine.begin() as conn:
                assert conn.execute(text("SELECT count(*) FROM bench")).scalar() == RECORDS, which
                conn.execute(text("DELETE FROM bench" if database is None else "TRUNCATE TABLE bench"))
    for each in sides.values():
        each.close()
    engine.dispose()
    print(f"{name}, microseconds of processor per record".ljust(58) + "".join(f"{which:>11}" for which in sides))
    for step in STEPS:
        print(f"  {step}".ljust(58) + "".join(f"{each.step(step):>11.3f}" for each in sides.values()))
    print("  all".ljust(58) + "".join(f"{each.total:>11.3f}" for each in sides.values()))
    print("  records per second of the clock".ljust(58) + "".join(f"{each.rate:>11,.0f}" for each in sides.values()))
    new, old, bare = sides["newer"], sides["older"], sides["bare loop"]
    pairs = zip(old.steps[1:], new.steps[1:], strict=True)
    ratio = statistics.median(sum(after.values()) / sum(before.values()) for before, after in pairs)
    report.figure(f"{name}: processor per record, newer / older", ratio, "x", at_most=CPU)
    walls = zip(bare.walls[1:], new.walls[1:], strict=True)
    faster = statistics.median(before / after for before, after in walls)
    report.figure(f"{name}: sink / bare loop, records per second", faster, "x", at_least=RATE[name])


def main(names: list[str]) -> int:
    commit = next((name for name in names if name not in RATE), BASE)
    stores = [name for name in RATE if name in names] or list(RATE)
    report = Report()
    with ExitStack() as stack:
        trees = stack.enter_context(sources(commit))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        kafka = stack.enter_context(Kafka())
        fill(kafka.bootstrap, "steps", RECORDS)
        for name in stores:
            with SERVERS[name]() if name in SERVERS else nullcontext() as server:
                url = f"sqlite:///{folder}/steps.db" if server is None else server.url
                measure(name, kafka, url, None if server is None else server.pid, trees, report)
    if report.missed:
        print("\nBars missed:", *report.missed, sep="\n  ")
    return bool(report.missed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        side(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
