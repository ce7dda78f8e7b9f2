"""One side of :mod:`benchmarks.pairs`: measures what it is told, with whichever version of the package is loaded.

It uses only what both versions have in common.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import text

import tidegate
from tidegate import App, BatchBounds, Claim, Span, Table, TopicPartition, open_ledger
from tidegate.observe import Committed, Event

COLUMNS = "id BIGINT NOT NULL, customer VARCHAR(40) NOT NULL, amount BIGINT NOT NULL, note VARCHAR(60) NOT NULL"
LEDGER = ("one", "four", "many", "claim-one", "claim-many")
KAFKA = ("sink", "upsert", "accumulate", "pipeline")


class Bench:
    """A ledger and a table of its own, under a prefix."""

    def __init__(self, url: str, prefix: str, bootstrap: str) -> None:
        self._is_redis = url.startswith("redis")
        self._ledger: Any = open_ledger(url, prefix=f"{{{prefix}}}:" if self._is_redis else prefix)
        self._bootstrap = bootstrap
        self._table = f"{prefix}bench"
        self._claims: dict[int, dict[TopicPartition, Claim]] = {}
        self._position = 0
        self._spark: Any = None
        if url.startswith("sqlite"):
            self._lengthen_the_log()
        if not self._is_redis:
            with self._ledger.engine.begin() as conn:
                conn.execute(text(f"CREATE TABLE {self._table} ({COLUMNS})"))
                conn.execute(text(f"CREATE TABLE {self._table}_upsert ({COLUMNS}, PRIMARY KEY (id))"))
                sums = "customer VARCHAR(40) NOT NULL PRIMARY KEY, amount BIGINT NOT NULL"
                conn.execute(text(f"CREATE TABLE {self._table}_accumulate ({sums})"))
        self.measures: dict[str, Callable[[], float]] = {
            "one": partial(self._advance, 1, 200),
            "four": partial(self._advance, 4, 100),
            "many": partial(self._advance, 500, 2),
            "claim-one": partial(self._claim, 1, 50),
            "claim-many": partial(self._claim, 1000, 2),
            "sink": lambda: self._sink(Table(self._table)),
            "upsert": lambda: self._sink(Table(f"{self._table}_upsert", key="id", mode="upsert")),
            "accumulate": lambda: self._sink(
                Table(f"{self._table}_accumulate", key="customer", mode="accumulate", add="amount"),
                {"customer": "value.customer", "amount": "value.amount"},
            ),
            "pipeline": self._pipeline,
        }

    def _lengthen_the_log(self) -> None:
        """Make SQLite's write-ahead log as long as it will be.

        A commit that lengthens the file waits longer for the disk. The version that writes less would do so for longer.
        """
        self._ledger.create()
        for statement in ("CREATE TABLE filler AS SELECT zeroblob(8000000) AS bytes", "DROP TABLE filler"):
            with self._ledger.engine.begin() as conn:
                conn.execute(text(statement))

    def _advance(self, partitions: int, times: int) -> float:
        if partitions not in self._claims:
            self._claims[partitions] = self._ledger.claim(f"advance-{partitions}", _partitions(partitions))
        claims = self._claims[partitions]
        began = time.perf_counter()
        for _ in range(times):
            position = next(iter(claims.values())).position
            self._ledger.transact(claims, [Span(tp, position, position + 100, 100) for tp in claims])
            claims = {tp: claim._replace(position=position + 100) for tp, claim in claims.items()}
        self._claims[partitions] = claims
        return (time.perf_counter() - began) / times

    def _claim(self, partitions: int, times: int) -> float:
        wanted = _partitions(partitions)
        began = time.perf_counter()
        for _ in range(times):
            self._ledger.claim(f"claim-{partitions}", wanted)
        return (time.perf_counter() - began) / times

    def _sink(self, table: Table, columns: dict[str, str] | None = None) -> float:
        """From the beginning of the first commit to the end of the last."""
        commits: list[tuple[float, float]] = []

        def observe(event: Event) -> None:
            if isinstance(event, Committed):
                commits.append((time.perf_counter(), event.seconds))

        app = App(self._bootstrap, self._ledger, observers=[observe])
        app.sink(
            "pairs",
            into=table,
            columns=columns,
            group=f"sink-{secrets.token_hex(4)}",
            batch=BatchBounds(count=20_000, bytes=64 << 20, age=0.0),
        )
        app.run(until_caught_up=True)
        self._empty(table.name)
        first, seconds = commits[0]
        return commits[-1][0] - first + seconds

    def _empty(self, table: str) -> None:
        """Leave no dead rows either: they would be cleared away while the other side is measured."""
        with self._ledger.engine.begin() as conn:
            how = "DELETE FROM" if conn.dialect.name == "sqlite" else "TRUNCATE TABLE"
            conn.execute(text(f"{how} {table}"))

    def _pipeline(self) -> float:
        """From the end of the first micro-batch to the end of the last."""
        from tidegate.spark import BatchReport, Pipeline
        from tidegate.spark.session import SparkOptions, open_session

        if self._spark is None:
            self._spark = open_session(SparkOptions("local[2]", conf={"spark.driver.memory": "2g"}))
        ended: list[float] = []

        def on_batch(_: BatchReport) -> None:
            ended.append(time.perf_counter())

        group = f"pipeline-{secrets.token_hex(4)}"
        options: dict[str, Any] = {"spark": self._spark, "max_records": 50_000, "collect": 0, "on_batch": on_batch}
        pipeline = Pipeline(
            "pairs", Table(self._table), group=group, kafka=self._bootstrap, ledger=self._ledger, **options
        )
        pipeline.run(available_now=True)
        self._empty(self._table)
        return ended[-1] - ended[0]


def _partitions(count: int) -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in range(count)]


def main(url: str, prefix: str, bootstrap: str) -> None:
    print(tidegate.__file__, flush=True)
    bench = Bench(url, prefix, bootstrap)
    for line in sys.stdin:
        began = time.process_time()
        seconds = bench.measures[line.strip()]()
        print(seconds, time.process_time() - began, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
