"""Pipelines whose tables follow their records: executors leave alterations to the driver, on every path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.orders import Place
from tests.spark.test_fields import run

from tidegate import Table
from tidegate.sandbox import Kafka, Postgres
from tidegate.tables import Evolution

VALUES: list[bytes | None] = [
    b'{"id": 1, "n": 1, "note": "a"}',
    b'{"id": 1099511627776, "n": 70000, "note": "abcdef"}',
    b'{"id": 3, "n": 3, "note": "c"}',
    b'{"id": 4, "n": "oops", "note": "d"}',
    b'{"id": 5, "n": 5, "note": null}',
]
SCHEMA = {"id": "integer", "n": "integer", "note": "text"}
PATHS: dict[str, dict[str, Any]] = {
    "by executors": {"collect": 0},
    "by the driver": {"collect": 1 << 20},
    "expressions": {"collect": 0, "schema": SCHEMA, "where": "id > 0"},
    "transform": {"collect": 0, "schema": SCHEMA, "transform": "select id, n, note from records where id is not null"},
}


@pytest.fixture
def place(postgres: Postgres) -> Iterator[Place]:
    opened = Place(postgres.url)
    yield opened
    opened.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_table_follows_its_records_on_every_path(path: str, kafka: Kafka, place: Place, spark: SparkSession) -> None:
    place.run(f"CREATE TABLE {place.name} (id INTEGER PRIMARY KEY, n SMALLINT, note VARCHAR(3) NOT NULL)")
    table = Table(place.name, key="id", mode="upsert", evolve=Evolution(widen="widen", nullable="drop"))
    run(kafka, place, spark, VALUES, table, **PATHS[path])
    found = [(1, 1, "a"), (3, 3, "c"), (5, 5, None), (2**40, 70_000, "abcdef")]
    rows = place.rows("id, n, note", "ORDER BY id")
    assert [row for row in rows if row[0] != 4] == found
    assert [each.letter.record.offset for each in place.ledger.dead_letters("etl", limit=100)] == [3]
    run(kafka, place, spark, [b'{"id": 7, "n": 281474976710656, "note": "after"}'], table, **PATHS[path])
    assert (7, 2**48, "after") in place.rows("id, n, note")


@pytest.mark.parametrize("database", ["mariadb", "mysql", "sqlite"])
def test_a_table_of_each_database_follows_its_records(
    database: str, kafka: Kafka, spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    is_file = database == "sqlite"
    place = Place(f"sqlite:///{tmp_path}/one.db" if is_file else request.getfixturevalue(database).url)
    place.run(f"CREATE TABLE {place.name} (id INTEGER PRIMARY KEY, n SMALLINT, note VARCHAR(3) NOT NULL)")
    policy = Evolution(widen="widen") if is_file else Evolution(widen="widen", nullable="drop")
    run(kafka, place, spark, VALUES, Table(place.name, key="id", mode="upsert", evolve=policy), collect=0)
    kept = [] if is_file else [(5, 5, None)]
    found = [(1, 1, "a"), (3, 3, "c"), *kept, (2**40, 70_000, "abcdef")]
    assert place.rows("id, n, note", "ORDER BY id") == found
    letters = [each.letter.record.offset for each in place.ledger.dead_letters("etl", limit=100)]
    assert letters == ([3, 4] if is_file else [3])
    place.close()
