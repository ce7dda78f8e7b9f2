"""Checkpoints that Spark has written: a query that is killed in a batch, one with state, one with two sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.app.member.stage import GROUP, Stage, numbered
from tests.operate.leading import led_topic

from tidegate import App
from tidegate.core.records import Record
from tidegate.errors import ChangeRefused
from tidegate.kafka.cluster import Survey
from tidegate.operate import Adoption, AdoptPreview, Checkpoint
from tidegate.sandbox import Kafka

PARTITIONS, RECORDS, EACH = 2, 20, 10


@pytest.fixture
def stage(kafka: Kafka, tmp_path: Path) -> Iterator[Stage]:
    opened = Stage(kafka.bootstrap, f"sqlite:///{tmp_path / 'ledger.db'}")
    yield opened
    opened.close()


@pytest.fixture
def survey(kafka: Kafka) -> Survey:
    return Survey({"bootstrap.servers": kafka.bootstrap}, seconds=20.0)


def filled(stage: Stage, survey: Survey) -> str:
    topic = led_topic(stage, survey, PARTITIONS)
    for number in range(PARTITIONS):
        stage.send(topic, numbered(RECORDS), partition=number)
    return topic


def age(checkpoint: Path) -> None:
    for file in checkpoint.rglob("*"):
        os.utime(file, (time.time() - 3600,) * 2)


def adopted(stage: Stage, survey: Survey, checkpoint: Path, **options: Any) -> AdoptPreview:
    source = Checkpoint(checkpoint, stopped=True)
    each = Adoption(stage.ledger, survey, source, options.pop("into", GROUP), **options)
    return each.execute(each.preview(), user="ada")


def read_on(stage: Stage, kafka: Kafka, topic: str, group: str) -> Counter[tuple[int, int]]:
    """Run the group to the end of the topic."""
    read: Counter[tuple[int, int]] = Counter()
    app = App(kafka.bootstrap, stage.ledger)

    @app.listener(topic, group=group)
    def note(record: Record) -> None:
        read[record.partition, record.offset] += 1

    assert app.run(until_caught_up=True, quiet=True) == 0
    return read


def test_what_a_killed_query_left_in_doubt_is_exactly_what_the_preview_names(
    stage: Stage, survey: Survey, kafka: Kafka, tmp_path: Path
) -> None:
    topic = filled(stage, survey)
    checkpoint, written = tmp_path / "checkpoint", tmp_path / "written"
    given = {"bootstrap": kafka.bootstrap, "topic": topic, "checkpoint": str(checkpoint), "written": str(written)}
    command = [
        sys.executable,
        "-m",
        "tests.spark.kafka_query_driver",
        json.dumps({**given, "each": EACH, "dies_in": 2}),
    ]
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    died = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240)
    assert died.returncode < 0, died.stderr
    age(checkpoint)

    ends = json.loads((checkpoint / "offsets" / "2").read_text().splitlines()[2])[topic]
    begins = json.loads((checkpoint / "offsets" / "1").read_text().splitlines()[2])[topic]
    preview = Adoption(stage.ledger, survey, Checkpoint(checkpoint), GROUP).preview()
    named = {(d.partition, offset) for d in preview.doubts for offset in range(d.start, d.end)}
    assert {(d.partition, d.start, d.end) for d in preview.doubts} == {
        (int(number), begins[number], end) for number, end in ends.items() if end > begins[number]
    }
    before = {tuple(json.loads(line)) for line in written.read_text().splitlines()}
    everything = {(number, offset) for number in range(PARTITIONS) for offset in range(RECORDS)}
    done = {(number, offset) for number, offset in everything if offset < begins[str(number)]}
    assert before == done | (before & named)
    assert 0 < len(before & named) < len(named) == EACH, "the batch is written in part"

    with pytest.raises(ChangeRefused, match="10 records are in doubt"):
        adopted(stage, survey, checkpoint)
    adopted(stage, survey, checkpoint, in_doubt="skip", into="skips")
    adopted(stage, survey, checkpoint, in_doubt="repeat", into="repeats")
    repeated = read_on(stage, kafka, topic, "repeats")
    assert set(repeated) | before == everything, "nothing is lost"
    assert set(repeated) & before == before & named, "and only what was named is repeated"
    skipped = read_on(stage, kafka, topic, "skips")
    assert set(skipped) & before == set(), "nothing is repeated"
    assert everything - set(skipped) - before == named - before, "and only what was named is lost"
    for group in ("skips", "repeats"):
        assert stage.ledger.verify(group).ok


def run(spark: SparkSession, kafka: Kafka, checkpoint: Path, topics: list[str], *, counted: bool) -> None:
    def rows(topic: str) -> DataFrame:
        options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        return spark.readStream.format("kafka").options(**options).load()

    found = rows(topics[0])
    for topic in topics[1:]:
        found = found.union(rows(topic))
    if counted:
        found = found.groupBy("partition").count()
    writer = found.writeStream.outputMode("update" if counted else "append").foreachBatch(lambda *_: None)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    age(checkpoint)


def test_state_and_several_sources_of_real_queries_are_seen(
    spark: SparkSession, stage: Stage, survey: Survey, kafka: Kafka, tmp_path: Path
) -> None:
    first, second = filled(stage, survey), filled(stage, survey)
    run(spark, kafka, tmp_path / "counts", [first], counted=True)
    with pytest.raises(ChangeRefused, match="has state: sums, windows, joins"):
        adopted(stage, survey, tmp_path / "counts")
    run(spark, kafka, tmp_path / "union", [first, second], counted=False)
    with pytest.raises(ChangeRefused, match=f"0: {first}; 1: {second}"):
        adopted(stage, survey, tmp_path / "union")
    for number, topic in enumerate((first, second)):
        source = Checkpoint(tmp_path / "union", stopped=True, source=number)
        each = Adoption(stage.ledger, survey, source, GROUP)
        preview = each.execute(each.preview(), user="ada")
        assert {(p.topic, p.new) for p in preview.positions} == {(topic, RECORDS)}
        assert preview.doubts == ()
    assert len(stage.ledger.read(GROUP).positions) == 2 * PARTITIONS
