"""How long the sandbox's servers take until they answer."""

from __future__ import annotations

import statistics
import time

from benchmarks.report import Report
from tidegate.sandbox import Kafka, MariaDB, MySQL, Postgres, Redis
from tidegate.sandbox.jars import kafka_jars
from tidegate.sandbox.mysql import mysqld

TIMES = 5


def run(report: Report) -> None:
    kafka_jars()
    mysqld()
    report.heading("Servers of the sandbox, from nothing until they answer")
    for kind, bar in ((Kafka, 10.0), (MariaDB, None), (MySQL, None), (Postgres, None), (Redis, None)):
        took = []
        for _ in range(TIMES):
            began = time.perf_counter()
            with kind():
                took.append(time.perf_counter() - began)
        report.figure(kind.__name__, statistics.median(took), "s", at_most=bar, detail=f"longest {max(took):.1f} s")
