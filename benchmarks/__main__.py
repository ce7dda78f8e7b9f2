"""Run the benchmarks: all of them, or those that are named."""

from __future__ import annotations

import os
import platform
import sys

from benchmarks import (
    connect_sink,
    contention,
    dashboard,
    formats,
    keys,
    ledger,
    listeners,
    operating,
    pools,
    producer,
    sandbox,
    sinks,
    spark,
    startup,
)
from benchmarks.report import Report

BENCHMARKS = {
    "connect": connect_sink.run,
    "contention": contention.run,
    "dashboard": dashboard.run,
    "formats": formats.run,
    "keys": keys.run,
    "ledger": ledger.run,
    "listeners": listeners.run,
    "operating": operating.run,
    "pools": pools.run,
    "producer": producer.run,
    "sandbox": sandbox.run,
    "sinks": sinks.run,
    "spark": spark.run,
    "startup": startup.run,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"there is no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
        return 2
    report = Report()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}")
    for name in names or BENCHMARKS:
        BENCHMARKS[name](report)
    if report.missed:
        print("\nBars missed:", *report.missed, sep="\n  ")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
