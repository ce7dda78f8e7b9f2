"""Fields that records lack, that the table lacks, and that are spelled otherwise, on every path of a pipeline."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from tests.spark.orders import Place

from tidegate import Table
from tidegate.sandbox import Kafka, Postgres
from tidegate.spark import Pipeline

VALUES = [
    b'{"id": 1, "note": "a"}',
    b'{"ID": 2}',
    b"{}",
    b'{"schema": {"type": "struct"}, "payload": {"id": 9}}',
    None,
    b'{"id": 3, "new": 1}',
    b'{"id": 4, "note": null}',
]
SCHEMA = {"id": "integer", "note": "text"}
PATHS: dict[str, dict[str, Any]] = {
    "by executors": {"collect": 0},
    "by the driver": {"collect": 1 << 20},
    "by batch": {"collect": 0, "commit": "batch"},
    "expressions": {"collect": 0, "schema": SCHEMA, "where": "id > 0"},
    "transform": {"collect": 0, "schema": SCHEMA, "transform": "select id, note from records where id is not null"},
}


@pytest.fixture
def place(postgres: Postgres) -> Iterator[Place]:
    opened = Place(postgres.url)
    yield opened
    opened.close()


def run(
    kafka: Kafka, place: Place, spark: SparkSession, values: list[bytes | None], into: Table, **options: Any
) -> None:
    topic = f"fields-{secrets.token_hex(6)}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "log_level": 0})
    for value in values:
        producer.produce(topic, value, key=b"1")
    assert producer.flush(60) == 0
    Pipeline(topic, into, group="etl", kafka=kafka.bootstrap, ledger=place.ledger, spark=spark, **options).run(
        available_now=True
    )


@pytest.mark.parametrize("path", PATHS)
def test_fields_are_matched_on_every_path(path: str, kafka: Kafka, place: Place, spark: SparkSession) -> None:
    place.run(f"CREATE TABLE {place.name} (id INTEGER, note TEXT DEFAULT 'x')")
    table = Table(place.name, unknown="refuse", tombstones="ignore")
    run(kafka, place, spark, VALUES, table, **PATHS[path])
    lacked = "x" if path.startswith("by") else None  # a DataFrame cannot lack a field
    assert place.rows("id, note", "ORDER BY id") == [(1, "a"), (2, lacked), (4, None)]
    letters = {each.letter.record.offset: each.letter.error for each in place.ledger.dead_letters("etl", limit=100)}
    assert sorted(letters) == ([3, 5] if path == "transform" else [2, 3, 5])
    assert "Kafka Connect's envelope" in letters[3]
    assert "'new': no column comes from it" in letters[5]


def test_executors_leave_odd_names_to_the_driver_which_parks_their_records(
    kafka: Kafka, place: Place, spark: SparkSession
) -> None:
    place.run(f"CREATE TABLE {place.name} (id INTEGER)")
    values = [b'{"id": 1, "": 1}', b'{"id": 2, "ctid": 1}', b'{"id": 3, "new": 1}', b'{"ID": 4, "New": 2}']
    run(kafka, place, spark, [*values], Table(place.name, evolve=True), collect=0)
    assert place.rows("id, new", "ORDER BY id") == [(3, 1), (4, 2)]
    assert sorted(each.letter.record.offset for each in place.ledger.dead_letters("etl", limit=100)) == [0, 1]


@pytest.mark.parametrize("collect", [0, 1 << 20])
@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_a_record_that_lacks_a_column_is_parked_whatever_commits_together(
    commit: str, collect: int, kafka: Kafka, place: Place, spark: SparkSession
) -> None:
    place.run(f"CREATE TABLE {place.name} (id INTEGER PRIMARY KEY, m INTEGER NOT NULL, n INTEGER NOT NULL DEFAULT 7)")
    values: list[bytes | None] = [
        b'{"id": 1, "m": 1}',
        b'{"id": 2}',
        b'{"id": 3, "m": 3, "n": null}',
        b'{"id": null, "m": 4}',
        b'{"id": 5, "m": 5, "n": 5}',
        None,
        b'{"id": 6, "m": 6, "n": 6}',
    ]
    table = Table(place.name, key="id", mode="upsert", tombstones="delete")
    run(kafka, place, spark, values, table, collect=collect, commit=commit)
    assert place.rows("id, m, n", "ORDER BY id") == [(5, 5, 5), (6, 6, 6)]  # the tombstone's key is 1
    assert sorted(each.letter.record.offset for each in place.ledger.dead_letters("etl", limit=100)) == [1, 2, 3]
