"""What a text key costs whose index takes several texts for the same, beside one that compares bytes."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

from sqlalchemy import Engine, create_engine, text

from benchmarks.report import Report
from tidegate import Record, Table
from tidegate.sandbox import Database, MariaDB, MySQL, Postgres
from tidegate.tables import Target

ROWS, BATCHES, ROUNDS = 20_000, 2, 9
COLUMNS = "amount BIGINT NOT NULL, note VARCHAR(60) NOT NULL"
_FOLDING = "CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"

# Each bar is for keys of which each comes once in a batch, and for keys that come three times.
PLACES: list[tuple[type[Database], str, str, float]] = [
    (MariaDB, "VARCHAR(40) COLLATE utf8mb4_bin", "VARCHAR(40)", 0.9),
    (MySQL, "VARCHAR(40) COLLATE utf8mb4_bin", "VARCHAR(40)", 0.9),
    (Postgres, "VARCHAR(40)", "VARCHAR(40) COLLATE folding", 0.5),
]


def measure(engine: Engine, table: str, keys: int) -> Callable[[], float]:
    target = Target(engine, Table(table, key="id", mode="upsert"))
    batches = [
        [
            Record(
                "t", 0, at, None, json.dumps({"id": f"customer-{at % keys}", "amount": at, "note": "n" * 30}).encode()
            )
            for at in range(ROWS)
        ]
        for _ in range(BATCHES)
    ]

    def once() -> float:
        began = time.perf_counter()
        for batch in batches:
            rows = target.read(batch)
            with engine.begin() as conn:
                target.write(conn, rows)
        return time.perf_counter() - began

    return once


def run(report: Report) -> None:
    report.heading("Keys")
    print(f"upserts of {ROWS:,} rows a batch by a text key, in turns; median of {ROUNDS} pairs")
    for kind, exact, folding, bar in PLACES:
        with kind() as server:
            engine = create_engine(server.url)
            with engine.begin() as conn:
                if kind is Postgres:
                    conn.execute(text(_FOLDING))
                for name, column in (("exact", exact), ("folding", folding)):
                    conn.execute(text(f"CREATE TABLE {name} (id {column} PRIMARY KEY, {COLUMNS})"))
            for keys, often in ((ROWS, "once"), (ROWS // 3, "three times")):
                first, second = (measure(engine, name, keys) for name in ("exact", "folding"))
                pairs = [
                    (first(), second()) if number % 2 else (second(), first())[::-1] for number in range(ROUNDS + 1)
                ]
                ratios = [one / other for one, other in pairs[1:]]
                rate = ROWS * BATCHES / statistics.median(other for _, other in pairs[1:])
                report.figure(
                    f"{kind.title}: folding key / exact key, each {often}",
                    statistics.median(ratios),
                    "x",
                    at_least=bar,
                    detail=f"folding: {rate:,.0f} rows/s",
                )
            engine.dispose()
