"""What cannot work is one clear error, soon, with nothing claimed and nothing written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.ports import refused_port
from tests.spark.orders import Orders, Place

from tidegate import ConfigurationError, Table
from tidegate.errors import BrokerUnavailable, LedgerUnavailable
from tidegate.spark import ExactlyOnce, Pipeline
from tidegate.spark.spec import PipelineSpec
from tidegate.tables import Part, Route

COLUMNS = {"id": "integer", "user": "text", "total": "decimal(12,2)"}
GROUP = "etl"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Place]:
    opened = Place(f"sqlite:///{tmp_path / 'shop.db'}")
    opened.run(f"CREATE TABLE {opened.name} (id INTEGER, user TEXT, total DECIMAL(12,2))")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"columns": {"id": "value.id"}}, "give each Part of the route its columns"),
        ({"schema": {"id": "integer"}}, "and each Table its types"),
        ({"where": "value.id > 1"}, "give each Part of the route its where"),
        ({"transform": "select 1"}, "a transform makes the rows of one table"),
        ({"format": "text"}, "has no fields that a route could write"),
        ({"format": "debezium"}, "change events need mode='upsert'"),
    ],
)
@pytest.mark.parametrize(
    "into", [Route(Table("a")), Part(Table("a")), [Table("a"), Table("b")], "{topic}", Table("raw_{headers.type}")]
)
def test_what_belongs_to_one_table_is_refused_with_a_route_by_its_name(into: Any, given: Any, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        PipelineSpec(("orders",), into, GROUP, **given)


def test_topics_that_would_end_in_one_table_are_refused_before_they_are_read() -> None:
    with pytest.raises(ConfigurationError, match="topics a.b and a_b would both end in table 'a_b'"):
        PipelineSpec(("a.b", "a_b"), "{topic}", GROUP)


def test_a_query_of_structured_streaming_writes_into_one_table(shop: Place) -> None:
    with pytest.raises(ConfigurationError, match="several tables are for sinks and pipelines"):
        ExactlyOnce(Table("{topic}"), ledger=shop.ledger, name="q")


def refused(
    kind: type[Exception], match: str, orders: Orders, shop: Place, spark: SparkSession, **options: Any
) -> None:
    given: dict[str, Any] = {"topics": orders.name, "kafka": orders.bootstrap, "into": Table(shop.name)} | options
    began = time.monotonic()
    with pytest.raises(kind, match=match):
        Pipeline(group=GROUP, ledger=shop.ledger, spark=spark, **given).run(once=True)
    assert time.monotonic() - began < 30
    assert shop.rows("count(*)") == [(0,)]
    assert not shop.ledger.read(GROUP).positions


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"topics": "no-such-topic"}, "no topic 'no-such-topic'"),
        ({"schema": {"id": "integr"}}, "field 'id': there is no column type 'integr'"),
        ({"into": Table("no_such_table")}, "there is no table no_such_table"),
        ({"columns": {"id": "value.id", "amount": "value.total"}}, "no column 'amount'"),
        ({"columns": {"id": "value.id", "amount": "value.total * 2"}, "schema": COLUMNS}, "no column 'amount'"),
        ({"columns": {"id": "upper(value.user)"}, "schema": COLUMNS}, "column 'id' is integer, the rows have string"),
        ({"columns": {"id": "value.nothing + 1"}, "schema": COLUMNS}, "nothing"),
        ({"where": "value.total >", "schema": COLUMNS}, "(?i)syntax error"),
        ({"transform": "select frobnicate(id) as id from records", "schema": COLUMNS}, "frobnicate"),
        ({"transform": "select id, total as sum from records", "schema": COLUMNS}, "no column 'sum'"),
        pytest.param({"transform": lambda df: None, "schema": COLUMNS}, "returned NoneType", id="transform to None"),
        ({"transform": "select 1", "where": "true"}, "leave out columns and where"),
        ({"transform": "select 1", "commit": "partition"}, "no one position stands for them"),
        ({"commit": "partition"}, "SQLite's file"),
        ({"format": "yaml"}, "format: expected 'json', .*, not 'yaml'"),
        ({"format": "text"}, "columns="),
        ({"columns": {}}, "columns is empty"),
        ({"max_records": 0}, "max_records"),
        ({"topics": []}, "topics is empty"),
    ],
    ids=lambda given: str(given)[:40] if isinstance(given, dict) else None,
)
def test_a_mistake_is_named(
    options: dict[str, Any], match: str, orders: Orders, shop: Place, spark: SparkSession
) -> None:
    refused(ConfigurationError, match, orders, shop, spark, **options)


def test_a_wrong_broker_is_named(orders: Orders, shop: Place, spark: SparkSession) -> None:
    refused(BrokerUnavailable, "did not list", orders, shop, spark, kafka=f"127.0.0.1:{refused_port()}")


def test_a_ledger_that_is_away_is_named_without_its_password(orders: Orders, spark: SparkSession) -> None:
    url = f"postgresql+psycopg://shop:s3cret@127.0.0.1:{refused_port()}/shop"
    pipeline = Pipeline(orders.name, Table("t"), group=GROUP, kafka=orders.bootstrap, ledger=url, spark=spark)
    with pytest.raises(LedgerUnavailable) as caught:
        pipeline.run(once=True)
    assert "s3cret" not in str(caught.value)


def test_a_ledger_without_tables_is_refused(orders: Orders, spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="needs a ledger in a SQL database"):
        Pipeline(orders.name, Table("t"), group=GROUP, kafka=orders.bootstrap, ledger="memory://", spark=spark)


def test_every_and_the_kinds_of_runs_are_checked(orders: Orders, shop: Place, spark: SparkSession) -> None:
    pipeline = Pipeline(
        orders.name, Table(shop.name), group=GROUP, kafka=orders.bootstrap, ledger=shop.ledger, spark=spark
    )
    with pytest.raises(ConfigurationError, match="every: expected a number of seconds, .* not '1 fortnight'"):
        pipeline.run("1 fortnight")
    with pytest.raises(ConfigurationError, match="not both"):
        pipeline.run(available_now=True, once=True)
