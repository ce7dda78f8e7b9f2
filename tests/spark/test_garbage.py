"""Rubbish of every kind among many records: table and dead letters add up to the topic, row by row, on every path."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.orders import Orders, Place

from tidegate import Table
from tidegate.sandbox import Kafka
from tidegate.spark import Pipeline

TYPES = {"id": "integer", "user_name": "text", "total": "decimal(12,2)"}
SCHEMA = {"id": "integer", "user": "text", "total": "decimal(12,2)"}
SQL = "select id, user as user_name, total from records"
PATHS: dict[str, dict[str, Any]] = {
    "plain": {"columns": {"id": "value.id", "user_name": "value.user", "total": "value.total"}},
    "expressions": {
        "columns": {"id": "value.id + 0", "user_name": "value.user", "total": "value.total"},
        "where": "value.id >= 0",
        "schema": SCHEMA,
    },
    "staged": {"transform": SQL, "schema": SCHEMA},
    "collected": {"transform": SQL, "schema": SCHEMA, "collect": 1_000_000},
}


@pytest.mark.chaos
@pytest.mark.parametrize("path", PATHS)
def test_a_hundred_megabytes_add_up(path: str, kafka: Kafka, server_place: Place, spark: SparkSession) -> None:
    orders = Orders.create(kafka.bootstrap, partitions=4, count=500_000, padding=75)
    assert sum(len(orders.value(number) or b"") for number in range(orders.count)) > 100_000_000
    table = Table(server_place.name, create=True, columns=TYPES)
    pipeline = Pipeline(
        *(orders.name, table),
        group="etl",
        kafka=orders.bootstrap,
        ledger=server_place.ledger,
        spark=spark,
        **PATHS[path],
    )
    report = pipeline.run(available_now=True)
    assert (report.lag, report.records) == (0, orders.count)
    found = sorted((n, user, Decimal(total)) for n, user, total in server_place.rows("id, user_name, total"))
    assert found == orders.good
    assert server_place.letters("etl") == orders.bad
    assert server_place.ledger.verify("etl").ok
