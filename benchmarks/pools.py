"""What a pool of workers, or of coroutines, gains when the handler waits for something."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import create_engine, text

from benchmarks.report import Report
from benchmarks.topics import fill
from tidegate import App, Record, open_ledger
from tidegate.observe.events import Committed, Event
from tidegate.sandbox import Kafka, Postgres

KEYS = 2000
INSERT = text("INSERT INTO pooled (partition, record_offset) VALUES (:partition, :offset)")


class Run(NamedTuple):
    """A handler that waits, how many of its records wait at once, and how many there are: either takes some seconds."""

    wait: float
    at_once: dict[str, int]
    records: int

    @property
    def label(self) -> str:
        return " ".join(f"{count} at once" for count in self.at_once.values())


WORKERS = (Run(0.005, {"workers": 1}, 600), Run(0.005, {"workers": 16}, 8_000), 10.0)
COROUTINES = (Run(0.05, {"concurrency": 1}, 100), Run(0.05, {"concurrency": 200}, 20_000), 100.0)


def handler(run: Run, begin: Callable[[], None]) -> Callable[[Record], Any]:
    def row(record: Record) -> Any:
        return INSERT, {"partition": record.partition, "offset": record.offset}

    def sleeping(record: Record) -> Any:
        begin()
        time.sleep(run.wait)
        return row(record)

    async def awaiting(record: Record) -> Any:
        begin()
        await asyncio.sleep(run.wait)
        return row(record)

    return awaiting if "concurrency" in run.at_once else sleeping


def rate(kafka: Kafka, postgres: Postgres, run: Run) -> float:
    """Records per second from the first record that is handled to the last that is committed."""
    topic = "-".join(str(part) for pair in run.at_once.items() for part in pair)
    fill(kafka.bootstrap, topic, run.records, keys=KEYS)
    began, ended = [], 0.0

    def heard(event: Event) -> None:
        nonlocal ended
        if isinstance(event, Committed):
            ended = time.perf_counter()

    def begin() -> None:
        if not began:
            began.append(time.perf_counter())

    ledger = open_ledger(postgres.url)
    app = App(kafka.bootstrap, ledger, observers=[heard])
    app.listener(topic, group=topic, ordering="key", **run.at_once)(handler(run, begin))
    app.run(until_caught_up=True)
    ledger.close()
    return run.records / (ended - began[0])


def run(report: Report) -> None:
    with Kafka() as kafka, Postgres() as postgres:
        engine = create_engine(postgres.url)
        with engine.begin() as conn:
            conn.execute(text("CREATE TABLE pooled (partition INT, record_offset BIGINT)"))
        report.heading("Pools")
        for one, many, bar in (WORKERS, COROUTINES):
            alone, together = rate(kafka, postgres, one), rate(kafka, postgres, many)
            report.figure(
                f"PostgreSQL: a handler of {one.wait * 1000:g} ms, {many.label} / one, {KEYS} keys",
                together / alone,
                "x",
                at_least=bar,
                detail=f"{together:,.0f} records/s / {alone:,.0f} records/s",
            )
        with engine.connect() as conn:
            landed = conn.execute(text("SELECT count(*) FROM pooled")).scalar()
        assert landed == sum(each.records for pair in (WORKERS, COROUTINES) for each in pair[:2])
        engine.dispose()
