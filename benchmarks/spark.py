"""Pipelines beside Structured Streaming with JDBC: rows a second, tiny micro-batches, cores and memory."""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, text

from benchmarks.report import Report
from benchmarks.structured_streaming import BATCH_SIZE, DRIVERS, Run, driver_jars, jdbc_options, stream
from benchmarks.topics import fill
from tidegate import Table
from tidegate.sandbox import Kafka, MariaDB, Postgres
from tidegate.sandbox.database import Database
from tidegate.spark import BatchReport, Pipeline
from tidegate.spark.session import SparkOptions, open_session

SCALE = float(os.environ.get("SPARK_BENCH_SCALE", "1"))  # less than 1: for a look, not for figures
RECORDS, BATCH, PARTITIONS = int(800_000 * SCALE), int(200_000 * SCALE), 4
ROUNDS = int(os.environ.get("SPARK_BENCH_ROUNDS", "4"))
MEMORY = {"spark.driver.memory": "3g"}  # every round is a new group, whose consumers Spark keeps for some minutes
TINY, TINY_BATCHES = 400, 12
MANY = int(5_000_000 * SCALE)
COLUMNS = "id BIGINT NOT NULL, customer VARCHAR(40) NOT NULL, amount BIGINT NOT NULL, note VARCHAR(60) NOT NULL"
EXPRESSIONS = {
    "id": "value.id",
    "customer": "upper(value.customer)",
    "amount": "value.amount * 2 - value.amount",
    "note": "concat(value.note, '!')",
}
FIELDS = {"id": "integer", "customer": "text", "amount": "integer", "note": "text"}
STAGED = "SELECT value.id AS id, value.customer AS customer, value.amount AS amount, value.note AS note FROM records"


class Place:
    """A database with the table ``bench``."""

    def __init__(self, server: Database) -> None:
        self.server = server
        self.name = type(server).__name__.replace("Postgres", "PostgreSQL")
        self.engine = create_engine(server.url)
        with self.engine.begin() as conn:
            conn.execute(text(f"CREATE TABLE bench ({COLUMNS})"))

    def empty(self) -> None:
        with self.engine.begin() as conn:
            conn.execute(text("TRUNCATE TABLE bench"))

    def check(self, count: int) -> None:
        with self.engine.connect() as conn:
            found = conn.execute(text("SELECT count(*), count(DISTINCT id), sum(amount) FROM bench")).one()
        assert tuple(map(int, found)) == (count, count, sum(n * 31 % 100_000 for n in range(count))), found


def pipeline(
    spark: SparkSession, kafka: Kafka, topic: str, place: Place, most: int, heard: Any = None, **options: Any
) -> Run:
    """Everything in the topic into the table ``bench``, as a new group."""
    ended: list[float] = []

    def on_batch(batch: BatchReport) -> None:
        ended.append(time.perf_counter())
        if heard is not None:
            heard(batch)

    began = time.perf_counter()
    Pipeline(
        topic,
        Table("bench"),
        group=f"bench-{secrets.token_hex(6)}",
        kafka=kafka.bootstrap,
        ledger=place.server.url,
        max_records=most,
        spark=spark,
        on_batch=on_batch,
        **options,
    ).run(available_now=True)
    seconds = time.perf_counter() - began
    # From the end of one to the end of the next: the time in between, with its look at ledger and logs, counts as well.
    return Run(seconds, [after - before for before, after in zip([began, *ended], ended, strict=False)])


def in_turns(
    place: Place, count: int, ours: Callable[[], Run], theirs: Callable[[], Run], rounds: int = ROUNDS
) -> tuple[list[Run], list[Run]]:
    """Both by turns, after a round that warms both up; what they wrote is counted each time."""
    done: tuple[list[Run], list[Run]] = ([], [])
    for number in range(rounds + 1):
        for side, run in enumerate((theirs, ours) if number % 2 else (ours, theirs)):
            place.empty()
            result = run()
            place.check(count)
            if number:
                done[side if not number % 2 else 1 - side].append(result)
    return done


def rates(
    spark: SparkSession,
    kafka: Kafka,
    place: Place,
    report: Report,
    name: str,
    bar: float,
    expressions: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Rows a second of a pipeline, over those of the stream that does the same."""
    options.setdefault("collect", 0)  # at a small scale, too, the executors write
    ours, theirs = in_turns(
        place,
        RECORDS,
        lambda: pipeline(spark, kafka, "bench", place, BATCH, columns=expressions, **options),
        lambda: stream(spark, kafka.bootstrap, "bench", place.server, BATCH, expressions),
    )
    ratios = [its.seconds / mine.seconds for mine, its in zip(ours, theirs, strict=True)]
    mine, its = (statistics.median(RECORDS / run.seconds for run in runs) for runs in (ours, theirs))
    warm = [BATCH / statistics.median(t for run in runs for t in run.batches[1:]) for runs in (ours, theirs)]
    report.figure(
        f"{place.name}: {name} / JDBC, rows per second",
        statistics.median(ratios),
        "x",
        at_least=bar,
        detail=f"median of {ROUNDS} ({min(ratios):.2f}-{max(ratios):.2f}); runs {mine:,.0f} and {its:,.0f} rows/s, "
        f"batches after the first {warm[0]:,.0f} and {warm[1]:,.0f}",
    )


def tiny(spark: SparkSession, kafka: Kafka, place: Place, report: Report) -> None:
    """How long a micro-batch of few records takes."""
    fill(kafka.bootstrap, "tiny", TINY * TINY_BATCHES, PARTITIONS)
    ours, theirs = in_turns(
        place,
        TINY * TINY_BATCHES,
        lambda: pipeline(spark, kafka, "tiny", place, TINY),
        lambda: stream(spark, kafka.bootstrap, "tiny", place.server, TINY),
        rounds=2,
    )
    mine, its = (statistics.median(t for run in runs for t in run.batches[1:]) for runs in (ours, theirs))
    report.figure(
        f"{place.name}: {TINY} records, pipeline / JDBC, seconds a batch",
        mine / its,
        "x",
        at_most=0.8,
        detail=f"medians {mine * 1000:,.0f} and {its * 1000:,.0f} ms",
    )


def cores(kafka: Kafka, place: Place, report: Report) -> None:
    """A pipeline on one core and on two."""
    found = {}
    for count in (1, 2):
        with session(count) as spark:
            seconds = []
            for number in range(3):
                place.empty()
                result = pipeline(spark, kafka, "bench", place, BATCH)
                seconds += [result.seconds] if number else []
            found[count] = RECORDS / min(seconds)
    report.figure(
        "PostgreSQL: pipeline on local[2] / on local[1]",
        found[2] / found[1],
        "x",
        detail=f"{found[2]:,.0f} and {found[1]:,.0f} rows/s; broker and database share the {os.cpu_count()} cores",
    )


def memory(spark: SparkSession, kafka: Kafka, place: Place, report: Report) -> None:
    """What the driver holds, in Python and in Java, while many records go by."""
    fill(kafka.bootstrap, "many", MANY, PARTITIONS)
    place.empty()
    java: Any = SparkContext._gateway.proc.pid  # type: ignore[union-attr]
    seen: list[tuple[int, float, float]] = []

    def heard(batch: BatchReport) -> None:
        total = (seen[-1][0] if seen else 0) + batch.records
        seen.append((total, _resident(os.getpid()), _resident(java)))

    result = pipeline(spark, kafka, "many", place, BATCH, heard)
    settled = next(each for each in seen if each[0] >= MANY // 5)
    for place_in, whose in ((1, "Python"), (2, "Java")):
        report.figure(
            f"PostgreSQL: driver's {whose}, memory after {MANY:,} / {MANY // 5:,}",
            seen[-1][place_in] / settled[place_in],
            "x",
            at_most=1.15,
            detail=f"{seen[0][place_in]:.0f} MiB, then {settled[place_in]:.0f}, at the end {seen[-1][place_in]:.0f}; "
            f"{MANY / result.seconds:,.0f} rows/s",
        )


@contextmanager
def session(count: int) -> Iterator[SparkSession]:
    """Spark as a pipeline opens it, and the drivers of JDBC beside it."""
    spark = open_session(
        SparkOptions(f"local[{count}]", conf={"spark.jars": driver_jars(), **MEMORY}, name="benchmarks")
    )
    yield spark
    spark.stop()


def run(report: Report) -> None:
    with Kafka(jvm=("-Xmx1g",)) as kafka, Postgres() as postgres, MariaDB() as mariadb:
        report.heading("Pipelines")
        places = Place(postgres), Place(mariadb)
        _print_settings(places)
        fill(kafka.bootstrap, "bench", RECORDS, PARTITIONS)
        with session(os.cpu_count() or 2) as spark:
            rates(spark, kafka, places[0], report, "partition mode", 1.3)
            rates(spark, kafka, places[0], report, "partition mode, expressions", 0.8, EXPRESSIONS, schema=FIELDS)
            rates(spark, kafka, places[0], report, "staged batch", 0.6, transform=STAGED, schema=FIELDS, collect=0)
            rates(spark, kafka, places[1], report, "partition mode", 1.0)
            tiny(spark, kafka, places[0], report)
            memory(spark, kafka, places[0], report)
        cores(kafka, places[0], report)
        for place in places:
            place.engine.dispose()


def _print_settings(places: tuple[Place, ...]) -> None:
    print(
        f"{RECORDS:,} records of 100-byte JSON, {PARTITIONS} partitions, {BATCH:,} records a micro-batch on both "
        f"sides, local[{os.cpu_count()}] in one session with 3 GiB, by turns, after a warm-up round of each; broker "
        "and databases on this machine with their default settings, every commit on disk"
    )
    print(
        "JDBC: foreachBatch, append, from_json with a schema, availableNow, checkpoint on disk, the consumer settings "
        f"of the pipeline; batchsize={BATCH_SIZE:,}; {', '.join(DRIVERS)}"
    )
    for place in places:
        shown = {key: value for key, value in jdbc_options(place.server).items() if key in ("url", "isolationLevel")}
        print(f"  {place.name}: {shown}")


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024
