"""Operating a ledger that has grown: a thousand groups of a hundred partitions each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.grown import BUSY, GROUPS, PARTITIONS, grown
from benchmarks.report import Report
from tidegate import Ledger, open_ledger
from tidegate.kafka.cluster import Survey
from tidegate.operate import Operator, Overview, To


def run(report: Report) -> None:
    report.heading(f"Operating: {GROUPS:,} groups of {PARTITIONS} partitions")
    with grown() as (ledgers, bootstrap):
        for name, url in ledgers.items():
            with open_ledger(url) as ledger:
                measure(report, name, ledger, url, bootstrap)


def measure(report: Report, name: str, ledger: Ledger[Any], url: str, bootstrap: str) -> None:
    survey = Survey({"bootstrap.servers": bootstrap})
    figures: dict[str, tuple[Callable[[], object], float]] = {
        "all groups, ledger alone": (lambda: Overview(ledger).groups(), 2.0),
        "all groups": (lambda: Overview(ledger, survey).groups(), 2.0),
        "one busy group": (lambda: Overview(ledger, survey).group(BUSY), 1.0),
        "preview of a rewind": (
            lambda: Operator(ledger, survey).rewind(BUSY, "topic-0", To(0)),
            1.0,
        ),
        "`tidegate status`, the whole command": (lambda: command(url, bootstrap, "status", "--json"), 2.0),
        "`tidegate status GROUP`, the whole command": (lambda: command(url, bootstrap, "status", BUSY, "--json"), 1.0),
    }
    for what, (ask, bar) in figures.items():
        report.figure(f"{name}: {what}", best(ask), "s", at_most=bar)


def best(ask: Callable[[], object], times: int = 3) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - began)
    return min(taken)


def command(url: str, bootstrap: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.cli", *arguments],
        env={**os.environ, "TIDEGATE_LEDGER": url, "TIDEGATE_KAFKA": bootstrap},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)
