"""Operating a ledger that has grown: a thousand groups of a hundred partitions each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.report import Report
from tidegate import Ledger, Span, TopicPartition, open_ledger
from tidegate.kafka.survey import Survey
from tidegate.operate import Operator, Overview, To
from tidegate.sandbox import Kafka, MariaDB, Postgres, Redis

GROUPS, PARTITIONS, TOPICS, COMMITS = 1_000, 100, 10, 2_000
BUSY = "group-0500"


def run(report: Report) -> None:
    report.heading(f"Operating: {GROUPS:,} groups of {PARTITIONS} partitions")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        kafka = stack.enter_context(Kafka())
        topics = [f"topic-{number}" for number in range(TOPICS)]
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
            future.result(60)
        urls = {
            "SQLite": f"sqlite:///{Path(folder) / 'ledger.db'}",
            "MariaDB": stack.enter_context(MariaDB()).url,
            "PostgreSQL": stack.enter_context(Postgres()).url,
            "Redis": stack.enter_context(Redis()).url,
        }
        for name, url in urls.items():
            with open_ledger(url) as ledger:
                fill(ledger)
                measure(report, name, ledger, url, kafka.bootstrap)


def fill(ledger: Ledger[Any]) -> None:
    """Positions of every group, and a journal that was busy lately for one of them."""
    for number in range(GROUPS):
        topic = f"topic-{number % TOPICS}"
        ledger.claim(f"group-{number:04}", [TopicPartition(topic, each) for each in range(PARTITIONS)], number)
    partitions = [TopicPartition("topic-0", each) for each in range(PARTITIONS)]
    claims = ledger.claim(BUSY, partitions)
    for number in range(COMMITS):
        tp = partitions[number % PARTITIONS]
        start = 500 + number // PARTITIONS
        ledger.transact(claims, [Span(tp, start, start + 1, 1)])


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
