"""What a listener costs beside a bare loop with the same statement and no guarantee."""

from __future__ import annotations

import resource
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import Engine, create_engine, text

from benchmarks.report import Report
from benchmarks.topics import fill
from tidegate import App, BatchBounds, Record, Transaction, open_ledger
from tidegate.observe.events import Committed, Event
from tidegate.sandbox import Kafka, Postgres

RECORDS = 300_000
BATCH = 10_000
ROUNDS = 5
RATE = 200
INSERT = text(
    "INSERT INTO bench (partition, record_offset, value) "
    "SELECT * FROM unnest(CAST(:p AS int[]), CAST(:o AS bigint[]), CAST(:v AS text[]))"
)


def columns(records: list[tuple[int, int, bytes | None]]) -> dict[str, Any]:
    return {
        "p": [each[0] for each in records],
        "o": [each[1] for each in records],
        "v": [(each[2] or b"").decode() for each in records],
    }


def bare(bootstrap: str, engine: Engine, topic: str, group: str, count: int) -> float:
    """Poll, insert, commit, for as many records as there are; positions are nobody's business."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 32 << 10,
            "fetch.queue.backoff.ms": 50,
        }
    )
    consumer.subscribe([topic])
    done, began = 0, 0.0
    while done < count:
        first = consumer.poll(1)
        if first is None or first.error():
            continue
        began = began or time.perf_counter()
        messages = [first, *consumer.consume(BATCH - 1, 0)]
        rows = [(m.partition(), m.offset(), m.value()) for m in messages if not m.error()]
        with engine.begin() as conn:
            conn.execute(INSERT, columns(rows))
        done += len(rows)
    took = time.perf_counter() - began
    consumer.close()
    return took


def listening(
    bootstrap: str, url: str, topic: str, group: str, observers: tuple[Callable[[Event], None], ...] = ()
) -> App:
    app = App(bootstrap, open_ledger(url), observers=observers)

    @app.listener(topic, group=group, batch=BatchBounds(count=BATCH // 4, bytes=64 << 20, age=0.0))
    def insert(records: list[Record], tx: Transaction) -> None:
        tx.execute(INSERT, columns([(r.partition, r.offset, r.value) for r in records]))  # type: ignore[attr-defined]

    return app


class Stopwatch:
    """Times a listener from its first commit's beginning to its last commit."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Committed):
            self.ended = time.perf_counter()
            self.began = self.began or self.ended - event.seconds


def throughput(kafka: Kafka, postgres: Postgres, engine: Engine, report: Report) -> None:
    fill(kafka.bootstrap, "bench", RECORDS)
    ratios, rates = [], []
    for number in range(ROUNDS + 1):
        _empty(engine)
        without = bare(kafka.bootstrap, engine, "bench", f"bare-{number}", RECORDS)
        _empty(engine)
        watch = Stopwatch()
        listening(kafka.bootstrap, postgres.url, "bench", f"listener-{number}", (watch,)).run(until_caught_up=True)
        took = watch.ended - watch.began
        with engine.connect() as conn:
            assert conn.execute(text("SELECT count(*) FROM bench")).scalar() == RECORDS
        if number:  # the first round warms up
            ratios.append(without / took)
            rates.append(RECORDS / took)
    report.figure(
        "PostgreSQL: batch listener / bare loop, records per second",
        statistics.median(ratios),
        "x",
        at_least=0.7,
        detail=f"median of {ROUNDS} rounds of {RECORDS:,} records; listener: {statistics.median(rates):,.0f} records/s",
    )


def latency(kafka: Kafka, postgres: Postgres, engine: Engine, report: Report) -> None:
    """From produce to committed row, at a steady trickle."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic("trickle", 1, 1)])["trickle"].result(30)

    def trickle(seconds: float) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
        for number in range(int(RATE * seconds)):
            producer.produce("trickle", str(time.time_ns()))
            producer.poll(0)
            time.sleep(1 / RATE)
            del number
        producer.flush(10)

    def bare_latencies() -> list[float]:
        consumer = Consumer(
            {"bootstrap.servers": kafka.bootstrap, "group.id": "bare-trickle", "auto.offset.reset": "latest",
             "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 100}
        )  # fmt: skip
        consumer.subscribe(["trickle"])
        while (first := consumer.poll(1)) is None or first.error().code() != KafkaError._PARTITION_EOF:
            pass
        feeding = threading.Thread(target=trickle, args=(8,))
        feeding.start()
        seen: list[float] = []
        while len(seen) < RATE * 7:
            message = consumer.poll(1)
            if message is None or message.error():
                continue
            with engine.begin() as conn:
                conn.execute(INSERT, columns([(message.partition(), message.offset(), message.value())]))
            seen.append((time.time_ns() - int(message.value())) / 1e6)
        feeding.join()
        consumer.close()
        return seen[RATE:]

    def listener_latencies() -> list[float]:
        seen: list[float] = []
        pending: list[int] = []

        def heard(event: Event) -> None:
            if isinstance(event, Committed):
                now = time.time_ns()
                seen.extend((now - sent) / 1e6 for sent in pending)
                pending.clear()

        app = App(kafka.bootstrap, open_ledger(postgres.url), observers=[heard])

        @app.listener("trickle", group="listener-trickle")
        def insert(records: list[Record], tx: Transaction) -> None:
            tx.execute(INSERT, columns([(r.partition, r.offset, r.value) for r in records]))  # type: ignore[attr-defined]
            pending.extend(int(record.value or 0) for record in records)

        running = threading.Thread(target=app.run)
        running.start()
        time.sleep(5)  # until it has caught up with what the bare loop left
        pending.clear()
        seen.clear()
        trickle(8)
        app.stop()
        running.join()
        return seen[RATE:]

    without = statistics.median(bare_latencies())
    through = statistics.median(listener_latencies())
    report.figure(
        f"PostgreSQL: latency at {RATE} records/s, listener / bare loop",
        through / without,
        "x",
        at_most=2.0,
        detail=f"p50 {through:.2f} ms / {without:.2f} ms",
    )


def memory(kafka: Kafka, postgres: Postgres, engine: Engine, report: Report) -> None:
    """Resident memory over two million records."""
    fill(kafka.bootstrap, "many", 2_000_000)
    seen: list[tuple[int, float]] = []
    done = 0

    def heard(event: Event) -> None:
        nonlocal done
        if isinstance(event, Committed):
            done += sum(span.records for span in event.spans)
            seen.append((done, _resident()))

    _empty(engine)
    listening(kafka.bootstrap, postgres.url, "many", "memory", (heard,)).run(until_caught_up=True)
    settled = next(size for count, size in seen if count >= 400_000)
    report.figure(
        "PostgreSQL: resident memory after 2,000,000 records / after 400,000",
        seen[-1][1] / settled,
        "x",
        at_most=1.15,
        detail=f"{seen[-1][1]:.0f} MiB / {settled:.0f} MiB",
    )


def run(report: Report) -> None:
    with Kafka() as kafka, Postgres() as postgres:
        engine = create_engine(postgres.url)
        with engine.begin() as conn:
            conn.execute(text("CREATE TABLE bench (partition INT, record_offset BIGINT, value TEXT)"))
        report.heading("Listeners")
        for measure in (throughput, latency, memory):
            measure(kafka, postgres, engine, report)
        engine.dispose()


def _empty(engine: Engine) -> None:
    with engine.begin() as conn:
        conn.execute(text("TRUNCATE TABLE bench"))


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)
