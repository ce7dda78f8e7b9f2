"""What the database refuses of a pipeline's records: parked where each row comes from one record."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.orders import Orders, Place

from tidegate import Table
from tidegate.errors import PipelineStopped
from tidegate.sandbox import Kafka
from tidegate.spark import Pipeline, Report

GROUP = "etl"
WAYS: dict[str, dict[str, Any]] = {
    "partition": {"collect": 0},
    "partition, at most once": {"collect": 0, "delivery": "at-most-once"},
    "expressions": {
        "collect": 0,
        "columns": {"id": "value.id", "user": "concat(value.user, '')", "total": "value.total"},
    },
    "driver": {"collect": 1 << 20},
}


@pytest.fixture(scope="module")
def few(kafka: Kafka) -> Orders:
    return Orders.create(kafka.bootstrap, partitions=2, count=60, every=20)


def run(orders: Orders, place: Place, spark: SparkSession, **options: Any) -> Report:
    return Pipeline(
        *(orders.name, Table(place.name)),
        group=GROUP,
        kafka=orders.bootstrap,
        ledger=place.ledger,
        spark=spark,
        schema={"id": "integer", "user": "text", "total": "decimal(12,2)"},
        **options,
    ).run(available_now=True)


def create(place: Place, *, trigger: str = "") -> None:
    mysql = place.engine.dialect.name != "postgresql"
    user = "`user`" if mysql else '"user"'
    place.run(
        f"CREATE TABLE {place.name} (id INTEGER PRIMARY KEY CHECK (id <> 7), {user} VARCHAR(20), "
        "total DECIMAL(12, 2) UNIQUE)"
    )
    place.run(f"INSERT INTO {place.name} VALUES (11, 'before', -1), (-1, 'before', 12.12)")
    if not trigger:
        return
    on = f"CREATE TRIGGER {place.name}_t BEFORE INSERT ON {place.name} FOR EACH ROW"
    if mysql:
        place.run(f"{on} BEGIN IF {trigger} THEN SIGNAL SQLSTATE 'ZZ001' SET MYSQL_ERRNO = 5001; END IF; END")
        return
    place.run(
        f"CREATE FUNCTION {place.name}_f() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {trigger} THEN RAISE EXCEPTION USING ERRCODE = 'ZZ001'; END IF; RETURN NEW; END $$"
    )
    place.run(f"{on} EXECUTE FUNCTION {place.name}_f()")


def parked(orders: Orders, place: Place) -> list[int]:
    """The numbers of the orders whose records are parked."""
    letters = [each.letter.record for each in place.ledger.dead_letters(GROUP, limit=1000)]
    assert all(record.value == orders.value(record.offset * 2 + record.partition) for record in letters)
    return sorted(record.offset * 2 + record.partition for record in letters)


@pytest.mark.parametrize(
    ("way", "server_place"),
    [*((way, "postgres") for way in WAYS), ("partition", "mariadb"), ("driver", "mysql")],
    indirect=["server_place"],
)
def test_records_that_the_database_refuses_are_parked_and_the_rest_commits(
    way: str, few: Orders, server_place: Place, spark: SparkSession
) -> None:
    create(server_place, trigger="NEW.id = 33")
    report = run(few, server_place, spark, **WAYS[way])
    refused = [7, 11, 12, 33]
    assert parked(few, server_place) == sorted([0, 20, 40, *refused])
    good = [number for number in range(60) if not few.is_rubbish(number) and number not in refused]
    assert [number for (number,) in server_place.rows("id", "ORDER BY id")] == sorted([-1, 11, *good])
    assert (report.lag, report.records, report.rows, report.dead_letters) == (0, 60, len(good), 7)


@pytest.mark.parametrize(
    ("way", "server_place"), [("partition", "postgres"), ("driver", "mariadb")], indirect=["server_place"]
)
def test_an_uncertain_error_of_all_records_stops_the_pipeline_and_parks_nothing(
    way: str, few: Orders, server_place: Place, spark: SparkSession
) -> None:
    create(server_place, trigger="NEW.id > 0")
    with pytest.raises(PipelineStopped):
        run(few, server_place, spark, **WAYS[way])
    assert not parked(few, server_place)
    assert len(server_place.rows("id")) == 2
