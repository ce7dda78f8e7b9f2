"""After a run, the scrape, the spans and the dashboard say what the journal says; after a kill, never more than it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Column, Integer, MetaData, insert
from sqlalchemy import Table as SqlTable
from tests.ports import free_port

from tidegate import App, DeadLetter, Ledger, OwnLoop, Producer, Table, TopicPartition, open_ledger
from tidegate.ledger import Kind, SqlTransaction
from tidegate.observe import LagSeen, OpenTelemetryObserver, PrometheusObserver
from tidegate.sandbox import Kafka

from .expressions import Samples, panel, worth

PATIENCE = 60.0
PARTITIONS, RECORDS, BAD = 2, 90, 4
metadata = MetaData()
NOTED = SqlTable("noted", metadata, Column("number", Integer, primary_key=True), Column("at", Integer))


def until(ask: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ask():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def parsed(exposition: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


class Traces:
    def __init__(self) -> None:
        self.provider, self._kept = TracerProvider(), InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.producing = self.provider.get_tracer("shop")

    def of(self, group: str) -> list[ReadableSpan]:
        spans = self._kept.get_finished_spans()
        return [span for span in spans if (span.attributes or {}).get("messaging.consumer.group.name") == group]


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"orders-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    return name


def send(kafka: Kafka, topic: str, traces: Traces) -> set[int]:
    """Send each record in a span of its own; returns the ids of these spans."""
    ids: set[int] = set()
    with Producer(kafka.bootstrap, traces=True) as producer:
        for number in range(RECORDS):
            value = {"id": "none"} if number < BAD else {"id": number}
            with traces.producing.start_as_current_span("order") as span:
                producer.send(topic, value, partition=number % PARTITIONS, headers={"shop": "7"})
            ids.add(span.get_span_context().span_id)
    return ids


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger[SqlTransaction]]:
    with open_ledger(f"sqlite:///{tmp_path / 'shop.db'}") as opened:
        opened.create()
        assert opened.engine is not None
        metadata.create_all(opened.engine)
        yield opened


def is_at_end(ledger: Ledger[SqlTransaction], group: str) -> bool:
    return sum(row.next_offset for row in ledger.read(group).positions.values()) == RECORDS


def journalled(ledger: Ledger[SqlTransaction], group: str) -> Counter[str]:
    """The records of each partition that the journal says were advanced over."""
    found: Counter[str] = Counter()
    for entry in ledger.journal(group):
        if entry.kind is Kind.ADVANCE:
            assert entry.partition is not None
            found[str(entry.partition.partition)] += entry.records
    return found


@contextmanager
def running(app: App) -> Iterator[None]:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            app.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        app.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert failures == []


def add_groups(app: App, topic: str) -> list[str]:
    """A listener, a sink and a pool."""

    @app.listener(topic, group="listening", on_error=DeadLetter())
    def note(value: dict[str, int], tx: SqlTransaction) -> None:
        tx.execute(insert(NOTED).values(at=int(value["id"])))

    @app.listener(topic, group="pooling", workers=2, on_error=DeadLetter())
    def compute(value: dict[str, int]) -> object:
        return insert(NOTED).values(at=int(value["id"]))

    app.sink(topic, into=Table("sunk", columns={"id": int}, create=True), group="sinking")
    return ["listening", "pooling", "sinking"]


def test_after_a_run_without_kills_scrape_spans_and_dashboard_equal_the_journal(
    kafka: Kafka, topic: str, ledger: Ledger[SqlTransaction], traces: Traces
) -> None:
    registry = CollectorRegistry()
    ends: dict[tuple[str, TopicPartition], tuple[int, int]] = {}

    def seen(event: object) -> None:
        if isinstance(event, LagSeen):
            ends[event.group, event.partition] = event.position, event.end

    app = App(
        kafka.bootstrap,
        ledger,
        observers=[PrometheusObserver(registry), OpenTelemetryObserver(traces.provider), seen],
    )
    groups = add_groups(app, topic)
    sent = send(kafka, topic, traces)
    done = {(group, TopicPartition(topic, n)): (RECORDS // 2, RECORDS // 2) for group in groups for n in range(2)}
    with running(app):
        until(lambda: ends == done)
        scraped = parsed(generate_latest(registry).decode())
    total = letters = transactions = 0
    for group in groups:
        journal = journalled(ledger, group)
        total, letters = total + journal.total(), letters + len(ledger.dead_letters(group))
        assert journal.total() == RECORDS
        committed = scraped["tidegate_records_committed_total"]
        assert {key["partition"]: value for key, value in committed if key["group"] == group} == journal
        spans = traces.of(group)
        transactions += len(spans)
        assert {(span.attributes or {})["tidegate.outcome"] for span in spans} == {"committed"}
        assert sum(int((span.attributes or {})["messaging.batch.message_count"]) for span in spans) == RECORDS  # type: ignore[arg-type]
        assert {link.context.span_id for span in spans for link in span.links} == sent
    assert letters == BAD * len(groups)
    assert worth(panel("Records committed"), scraped) == {(): total}
    assert worth(panel("Transactions"), scraped) == {(): transactions}
    assert worth(panel("Dead letters"), scraped) == {(): letters}
    assert worth(panel("Lag"), scraped) == {(): 0}
    positions = {
        (group, tp.topic, str(tp.partition)): row.next_offset
        for group in groups
        for tp, row in ledger.read(group).positions.items()
    }
    assert worth(panel("Position by partition"), scraped) == positions
    assert worth(panel("Lag by partition"), scraped) == dict.fromkeys(positions, 0)


def test_a_loop_of_ones_own_makes_the_same_spans(
    kafka: Kafka, topic: str, ledger: Ledger[SqlTransaction], traces: Traces
) -> None:
    sent = send(kafka, topic, traces)
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": "looping",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
    }
    consumer = Consumer(settings)
    observers = [OpenTelemetryObserver(traces.provider)]
    loop = OwnLoop(consumer, ledger, [topic], kafka=settings, observers=observers)

    def handled() -> bool:
        record = loop.accept(consumer.poll(0.1))
        if record is not None:
            with loop.transaction(record) as tx:
                tx.execute(insert(NOTED).values(at=record.offset))
        return is_at_end(ledger, "looping")

    try:
        until(handled)
    finally:
        loop.close()
    spans = traces.of("looping")
    assert len(spans) == journalled(ledger, "looping").total() == RECORDS
    assert {link.context.span_id for span in spans for link in span.links} == sent


PROGRAM = """
import os, sys, time
from pathlib import Path
from sqlalchemy import text
from tidegate import App, BatchBounds, Record, TopicPartition
from tidegate.ledger import SqlTransaction

app = App()
places = [TopicPartition(os.environ["TOPIC"], number) for number in range(2)]

@app.listener(group="killed", partitions=places, batch=BatchBounds(count=5))
def bill(record: Record, tx: SqlTransaction) -> None:
    while record.offset == 20 and not Path("go").exists():
        Path("waiting").touch()
        time.sleep(0.01)
    tx.execute(text("INSERT INTO noted (at) VALUES (:at)"), {"at": record.offset})
"""


@contextmanager
def process(folder: Path, port: int, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tidegate.cli", "run", "shop:app", "--metrics-port", str(port)]
    started = subprocess.Popen([*command, "--metrics-host", "127.0.0.1"], cwd=folder, env=os.environ | environ)
    try:
        yield started
    finally:
        started.kill()
        started.wait(PATIENCE)


def scrape(port: int) -> Samples:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return parsed(answer.read().decode())
    except OSError:  # nobody listens there yet
        return {}


def test_after_kills_counters_are_at_most_the_journals_and_gauges_equal_the_ledger(
    kafka: Kafka, topic: str, ledger: Ledger[SqlTransaction], traces: Traces, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    send(kafka, topic, traces)
    environ = {
        "TIDEGATE_KAFKA": kafka.bootstrap,
        "TIDEGATE_LEDGER": f"sqlite:///{tmp_path / 'shop.db'}",
        "TOPIC": topic,
    }
    counted = 0.0
    records = panel("Records committed")
    with process(tmp_path, first := free_port(), **environ) as killed:
        until((tmp_path / "waiting").exists)
        until(lambda: bool(worth(records, scrape(first))))
        counted = worth(records, scrape(first))[()]
        killed.send_signal(signal.SIGKILL)
        killed.wait(PATIENCE)
    assert 0 < counted <= journalled(ledger, "killed").total() < RECORDS
    (tmp_path / "go").touch()
    with process(tmp_path, port := free_port(), **environ) as second:
        until(lambda: is_at_end(ledger, "killed"))
        until(lambda: set(worth(panel("Lag by partition"), scrape(port)).values()) == {0})
        scraped = scrape(port)
        second.terminate()
        assert second.wait(PATIENCE) == 0
    total = journalled(ledger, "killed").total()
    assert total == RECORDS
    assert worth(records, scraped)[()] < total, "what the first process had counted is gone"
    assert worth(records, scraped)[()] + counted <= total
    assert worth(panel("Position by partition"), scraped) == {
        ("killed", tp.topic, str(tp.partition)): row.next_offset for tp, row in ledger.read("killed").positions.items()
    }
