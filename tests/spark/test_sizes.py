"""Records that become large all of a sudden: micro-batches get shorter, and no task needs much memory."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from tests.spark.orders import Place

from tidegate import Table
from tidegate.core.records import TopicPartition
from tidegate.sandbox import Kafka, Postgres
from tidegate.spark import BatchReport, Pipeline, Report
from tidegate.spark.executor import Shelf
from tidegate.spark.loop import plan
from tidegate.spark.versions import installed

MEGABYTE = 900_000  # which is what fits into a message by Kafka's defaults
SMALL, LARGE = 200, 60
GROUP = "etl"
COLUMNS = {"id": "value.id", "note": "value.note"}
TYPES = {"id": "integer", "note": "text"}
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    """Many small records, and then as many megabytes as it takes to be noticed."""
    name = f"sizes-{secrets.token_hex(5)}"
    settings = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    producer = Producer({**settings, "enable.idempotence": True})
    for number in range(SMALL + LARGE):
        size = 20 if number < SMALL else MEGABYTE
        producer.produce(name, b'{"id": %d, "note": "%s"}' % (number, b"n" * size))
        producer.poll(0)
    assert producer.flush(60) == 0
    return name


@pytest.fixture
def place(postgres: Postgres) -> Iterator[Place]:
    opened = Place(postgres.url)
    yield opened
    opened.close()


def run(
    topic: str, kafka: Kafka, place: Place, spark: SparkSession, **options: Any
) -> tuple[Report, list[BatchReport]]:
    batches: list[BatchReport] = []
    pipeline = Pipeline(
        topic,
        Table(place.name, create=True, columns=TYPES),
        group=GROUP,
        kafka=kafka.bootstrap,
        ledger=place.ledger,
        spark=spark,
        on_batch=batches.append,
        **options,
    )
    report = pipeline.run(available_now=True)
    assert (report.lag, report.records, report.rows + report.dead_letters) == (0, SMALL + LARGE, SMALL + LARGE)
    if report.dead_letters:
        return report, batches
    assert place.rows("count(*), sum(length(note))") == [(SMALL + LARGE, SMALL * 20 + LARGE * MEGABYTE)]
    return report, batches


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("partition", {"columns": COLUMNS, "collect": 0}),
        ("partition", {"columns": COLUMNS, "where": "value.id >= 0", "schema": TYPES, "collect": 0}),
        ("driver", {"columns": COLUMNS}),
    ],
    ids=["plain", "expressions", "driver"],
)
def test_a_micro_batch_is_cut_by_bytes_once_records_have_shown_their_size(
    way: str, options: dict[str, Any], topic: str, kafka: Kafka, place: Place, spark: SparkSession
) -> None:
    _, batches = run(topic, kafka, place, spark, max_records=SMALL + 10, max_bytes=20 * MEGABYTE + 10_000, **options)
    assert batches[0].mode == way
    assert batches[0].records == SMALL + 10
    assert [batch.records for batch in batches[1:]] == [20, 20, 10]  # by the megabyte, where 60 were allowed
    assert {batch.mode for batch in batches[1:]} == {"partition"}  # too much for the driver's memory


def test_a_transform_learns_sizes_too(topic: str, kafka: Kafka, place: Place, spark: SparkSession) -> None:
    _, batches = run(
        *(topic, kafka, place, spark),
        transform="select id, note from records",
        schema=TYPES,
        max_records=SMALL + 30,
        max_bytes=3 * MEGABYTE,
        collect=0,
    )
    assert batches[0].records == SMALL + 30
    assert batches[1].records < 30  # by the mean of all records so far
    assert max(batch.records for batch in batches[2:]) <= 4


def workers() -> dict[int, int]:
    """The Python workers of Spark, and the most memory that each has had."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "spark.daemon" in (process / "cmdline").read_text():
                status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
                found[int(process.name)] = int(status["VmHWM"].split()[0]) * 1024
        except (OSError, KeyError):
            continue
    return found


@pytest.mark.parametrize("columns", [COLUMNS, {"id": "value.note"}], ids=["rows", "letters"])
def test_a_task_needs_no_more_memory_because_its_records_are_large(
    columns: dict[str, str], topic: str, kafka: Kafka, place: Place, spark: SparkSession
) -> None:
    if installed().number == "3.5":
        pytest.skip("Spark 3.5 has no limit for the bytes that a Python worker gets at once")
    for worker in workers():
        Path(f"/proc/{worker}/clear_refs").write_text("5")  # which sets the peak back to what it is now
    before = max(workers().values(), default=180_000_000)  # what one has after its imports
    report, batches = run(topic, kafka, place, spark, columns=columns, collect=0)
    assert len(batches) == 1
    assert report.dead_letters == (0 if columns == COLUMNS else SMALL + LARGE)
    assert max(workers().values()) - before < 150_000_000, workers()  # 65 to 80 million; without bounds 300 and more


def test_a_micro_batch_that_is_too_much_at_once_is_tried_again_with_fewer_records(
    topic: str, kafka: Kafka, place: Place, spark: SparkSession
) -> None:
    def easily_tired(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            if len(frame) > SMALL:
                raise MemoryError
            yield frame

    def transform(records: DataFrame) -> DataFrame:
        return records.select("id", "note").mapInPandas(easily_tired, "id long, note string")

    _, batches = run(topic, kafka, place, spark, transform=transform, schema={"id": "integer", "note": "text"})
    assert [batch.records for batch in batches] == [65, 130, 65]


def test_plans_keep_both_bounds() -> None:
    positions, ends = {A: 0, B: 100}, {A: 1000, B: 1100}
    lengths = {span.partition: span.end - span.start for span in plan(positions, ends, 500)}
    assert lengths == {A: 250, B: 250}
    sizes = {A: 100.0, B: 1000.0}
    spans = plan(positions, ends, 500, most_bytes=27_500, sizes=sizes)
    assert [(span.start, span.end) for span in spans] == [(0, 25), (100, 125)]
    assert [span.end - span.start for span in plan(positions, ends, 500, most_bytes=1, sizes=sizes)] == [1, 1]
    unknown = plan(positions, ends, 500, most_bytes=50_000, sizes={A: 100.0})  # B is taken for like A
    assert [span.end - span.start for span in unknown] == [250, 250]
    assert [span.end - span.start for span in plan(positions, ends, 500, most_bytes=102_400)] == [50, 50]


def test_a_shelf_hands_out_what_it_was_given_as_often_as_asked() -> None:
    shelf = Shelf(100)
    given = []
    for number in range(20):
        batch = pa.record_batch({"id": pa.array([number, number + 1]), "note": pa.array(["x" * number, None])})
        given.append((batch.to_pylist(), number % 4))
        shelf.add(batch, number % 4)
        shelf.add(batch.slice(0, 0))
    for _ in range(2):
        assert [(batch.to_pylist(), mark) for batch, mark in shelf] == given
    shelf.close()
