"""What a pool of workers gains when the handler waits for something."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import create_engine, text

from benchmarks.report import Report
from benchmarks.topics import fill
from tidegate import App, Record, open_ledger
from tidegate.observe.events import Committed, Event
from tidegate.sandbox import Kafka, Postgres

WAIT = 0.005  # seconds that the handler takes
WORKERS = 16
RECORDS = {1: 600, WORKERS: 8_000}  # so that either takes some seconds
INSERT = text("INSERT INTO pooled (partition, record_offset) VALUES (:partition, :offset)")


def rate(kafka: Kafka, postgres: Postgres, workers: int) -> float:
    """Records per second from the first record that is handled to the last that is committed."""
    topic = f"pool-{workers}"
    fill(kafka.bootstrap, topic, RECORDS[workers])
    began, ended = [], 0.0

    def heard(event: Event) -> None:
        nonlocal ended
        if isinstance(event, Committed):
            ended = time.perf_counter()

    ledger = open_ledger(postgres.url)
    app = App(kafka.bootstrap, ledger, observers=[heard])

    @app.listener(topic, group=topic, workers=workers, ordering="key")
    def slowly(record: Record) -> Any:
        if not began:
            began.append(time.perf_counter())
        time.sleep(WAIT)
        return INSERT, {"partition": record.partition, "offset": record.offset}

    app.run(until_caught_up=True)
    ledger.close()
    return RECORDS[workers] / (ended - began[0])


def run(report: Report) -> None:
    with Kafka() as kafka, Postgres() as postgres:
        engine = create_engine(postgres.url)
        with engine.begin() as conn:
            conn.execute(text("CREATE TABLE pooled (partition INT, record_offset BIGINT)"))
        report.heading("Pools")
        alone = rate(kafka, postgres, 1)
        together = rate(kafka, postgres, WORKERS)
        with engine.connect() as conn:
            assert conn.execute(text("SELECT count(*) FROM pooled")).scalar() == sum(RECORDS.values())
        engine.dispose()
        report.figure(
            f"PostgreSQL: a handler of {WAIT * 1000:g} ms, {WORKERS} workers / 1 worker",
            together / alone,
            "x",
            at_least=10.0,
            detail=f"{together:,.0f} records/s / {alone:,.0f} records/s",
        )
