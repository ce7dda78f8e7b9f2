"""Every way from a topic to a table: the rows, the letters, the positions and the journal have to add up."""

from __future__ import annotations

import secrets
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.orders import Orders, Place

from tidegate import Table
from tidegate.sandbox import Kafka, Postgres
from tidegate.spark import Pipeline, Report
from tidegate.tables import CsvFormat

COLUMNS = {"id": "integer", "user": "text", "total": "decimal(12,2)"}
GROUP = "etl"
ALL_ON_EXECUTORS = 0
WAYS = pytest.mark.parametrize(
    ("place", "collect"),
    [
        ("sqlite", 0),
        ("mariadb", ALL_ON_EXECUTORS),
        ("mysql", ALL_ON_EXECUTORS),
        ("postgres", ALL_ON_EXECUTORS),
        ("postgres", 100_000),
    ],
    indirect=["place"],
)
SOME = pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)


def run(orders: Orders, place: Place, spark: SparkSession, table: Table, **options: Any) -> Report:
    pipeline = Pipeline(
        orders.name, table, group=GROUP, kafka=orders.bootstrap, ledger=place.ledger, spark=spark, **options
    )
    return pipeline.run(available_now=True)


def check(orders: Orders, place: Place, report: Report) -> None:
    """What holds however the rows were made."""
    assert (report.lag, report.fenced, report.stopped) == (0, 0, "caught up")
    assert report.records == orders.count
    assert report.positions == orders.ends
    state = place.ledger.read(GROUP)
    assert {tp: row.next_offset for tp, row in state.positions.items()} == orders.ends
    assert not any(row.owner for row in state.positions.values())
    assert place.ledger.verify(GROUP).ok
    assert sum(entry.records for entry in place.ledger.journal(GROUP)) == orders.count
    assert place.letters(GROUP) == orders.bad
    assert report.dead_letters == sum(orders.bad.values())


def sorted_rows(place: Place) -> list[tuple[Any, ...]]:
    found = [(number, user, Decimal(str(total))) for number, user, total in place.rows("id, user_name, total")]
    return sorted(found)


@WAYS
def test_plain_columns(collect: int, place: Place, orders: Orders, spark: SparkSession) -> None:
    types = {"id": "integer", "user_name": "text", "total": "decimal(12,2)"}
    table = Table(place.name, create=True, columns=types)
    columns = {"id": "value.id", "user_name": "value.user", "total": "value.total"}
    report = run(orders, place, spark, table, columns=columns, collect=collect, max_records=2000)
    check(orders, place, report)
    assert report.batches == 2
    assert sorted_rows(place) == orders.good


@WAYS
def test_expressions_and_a_condition(collect: int, place: Place, orders: Orders, spark: SparkSession) -> None:
    table = Table(place.name, create=True, columns={"id": "integer", "user_name": "text", "total": "decimal(14,2)"})
    columns = {"id": "value.id", "user_name": "upper(value.user)", "total": "cast(value.total * 2 as decimal(14,2))"}
    report = run(
        orders, place, spark, table, columns=columns, where="value.total >= 500", schema=COLUMNS, collect=collect
    )
    check(orders, place, report)
    wanted = [(number, user.upper(), total * 2) for number, user, total in orders.good if total >= 500]
    assert sorted_rows(place) == wanted
    assert report.rows == len(wanted)


@WAYS
def test_an_aggregation_that_accumulates(collect: int, place: Place, orders: Orders, spark: SparkSession) -> None:
    types = {"user_name": "text", "total": "decimal(14,2)", "orders": "integer"}
    table = Table(place.name, key="user_name", mode="accumulate", create=True, columns=types)
    sql = "select user as user_name, sum(total) as total, count(*) as orders from records group by user"
    report = run(orders, place, spark, table, transform=sql, schema=COLUMNS, collect=collect, max_records=1000)
    check(orders, place, report)
    found = {user: (Decimal(str(total)), count) for user, total, count in place.rows("user_name, total, orders")}
    assert found == orders.totals
    assert [name for name in place.tables() if "stage" in name] == []


def test_staged_rows_are_appended_once(server_place: Place, orders: Orders, spark: SparkSession) -> None:
    table = Table(
        server_place.name, create=True, columns={"id": "integer", "user_name": "text", "total": "decimal(12,2)"}
    )

    def spread(records: DataFrame) -> DataFrame:
        return records.select("id", F.col("user").alias("user_name"), "total").repartition(5)

    modes = []
    report = run(
        *(orders, server_place, spark, table),
        transform=spread,
        schema=COLUMNS,
        collect=0,
        max_records=1000,
        on_batch=lambda batch: modes.append(batch.mode),
    )
    check(orders, server_place, report)
    assert set(modes) == {"staged"}
    assert sorted_rows(server_place) == orders.good


def test_staged_rows_of_one_key_add_up(server_place: Place, orders: Orders, spark: SparkSession) -> None:
    types = {"user_name": "text", "total": "decimal(14,2)", "orders": "integer"}
    table = Table(server_place.name, key="user_name", mode="accumulate", create=True, columns=types)
    sql = "select user as user_name, total, 1L as orders from records"
    report = run(orders, server_place, spark, table, transform=sql, schema=COLUMNS, collect=0, max_records=1000)
    check(orders, server_place, report)
    found = {user: (total, count) for user, total, count in server_place.rows("user_name, total, orders")}
    assert found == orders.totals


@SOME
def test_a_join_with_a_static_table_and_an_upsert(place: Place, orders: Orders, spark: SparkSession) -> None:
    names = spark.createDataFrame(
        [(f"u{number}", f"User {number}") for number in range(50)], "user string, name string"
    )
    table = Table(place.name, key="name", mode="upsert", create=True, columns={"name": "text", "orders": "integer"})

    def transform(records: DataFrame) -> DataFrame:
        return records.join(names, "user").groupBy("name").agg(F.count("*").alias("orders"))

    report = run(orders, place, spark, table, transform=transform, schema=COLUMNS, per_batch=True)
    check(orders, place, report)
    found = dict(place.rows("name, orders"))
    assert found == {f"User {user[1:]}": n for user, (_, n) in orders.totals.items() if int(user[1:]) < 50}


@SOME
def test_text_and_what_kafka_knows_of_a_record(place: Place, orders: Orders, spark: SparkSession) -> None:
    types = {"line": "text", "at_offset": "integer", "part": "integer"}
    table = Table(place.name, create=True, columns=types)
    columns = {"line": "value", "at_offset": "offset", "part": "partition"}
    report = run(orders, place, spark, table, columns=columns, format="text", collect=0)
    no_text = [
        value for _, _, value in orders.bad if (value is not None and b"\xff" in value) or (value and b"\xc3(" in value)
    ]
    assert report.rows + report.dead_letters == orders.count
    assert {parked.letter.record.value for parked in place.ledger.dead_letters(GROUP)} == set(no_text)
    found = {(part, at): line for line, at, part in place.rows("line, at_offset, part")}
    number = orders.count - 1
    wanted = (orders.value(number) or b"").decode()
    assert found[number % orders.partitions, number // orders.partitions] == wanted


@SOME
def test_weaker_deliveries_commit_as_well(place: Place, orders: Orders, spark: SparkSession) -> None:
    types = {"id": "integer", "user": "text", "total": "decimal(12,2)"}
    for delivery in ("at-least-once", "at-most-once"):
        table = Table(f"{place.name}_{delivery[3]}", create=True, columns=types)
        pipeline = Pipeline(
            *(orders.name, table),
            group=delivery,
            kafka=orders.bootstrap,
            ledger=place.ledger,
            spark=spark,
            delivery=delivery,
            collect=0,
        )
        report = pipeline.run(available_now=True)
        assert (report.rows, report.dead_letters, report.lag) == (len(orders.good), sum(orders.bad.values()), 0)


@pytest.mark.parametrize(
    ("path", "collect"),
    [
        ("plain", ALL_ON_EXECUTORS),
        ("expressions", ALL_ON_EXECUTORS),
        ("transform", ALL_ON_EXECUTORS),
        ("plain", 100_000),
    ],
)
def test_keys_and_headers_get_everywhere(
    path: str, collect: int, kafka: Kafka, postgres: Postgres, spark: SparkSession
) -> None:
    topic, place = f"headers-{secrets.token_hex(6)}", Place(postgres.url)
    settings = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({**settings, "enable.idempotence": True})
    headers = [("trace", b"first"), ("trace", b"\xff"), ("trace", "späte".encode()), ("empty", None)]
    producer.produce(topic, b'{"id": 1}', b"one", headers=headers)
    producer.produce(topic, b"rubbish", b"\xfe", headers=headers)
    producer.produce(topic, b'{"id": 2}')
    assert producer.flush(30) == 0
    types = {"id": "integer", "trace": "text", "record_key": "text"}
    table = Table(place.name, create=True, columns=types)
    trace = "cast(element_at(filter(headers, h -> h.key = 'trace'), -1).value as string)"
    rows: dict[str, dict[str, Any]] = {
        "plain": {"columns": {"id": "value.id", "trace": "headers.trace", "record_key": "key"}},
        "expressions": {"columns": {"id": "value.id", "trace": trace, "record_key": "key"}, "schema": {"id": int}},
        "transform": {
            "transform": f"select id, {trace} as trace, cast(key as string) as record_key from records",
            "schema": {"id": int},
        },
    }
    pipeline = Pipeline(
        topic,
        table,
        group=GROUP,
        kafka=kafka.bootstrap,
        ledger=place.ledger,
        spark=spark,
        collect=collect,
        **rows[path],
    )
    report = pipeline.run(available_now=True)
    assert (report.records, report.rows, report.dead_letters) == (3, 2, 1)
    assert sorted(place.rows("id, trace, record_key")) == [(1, "späte", "one"), (2, None, None)]
    (parked,) = place.ledger.dead_letters(GROUP)
    assert parked.letter.record[2:6] == (1, b"\xfe", b"rubbish", tuple(headers))
    place.close()


@SOME
def test_a_table_that_no_record_describes_yet_waits_for_one_that_does(
    place: Place, kafka: Kafka, spark: SparkSession
) -> None:
    topic = Orders.create(kafka.bootstrap, partitions=1, count=0)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "log_level": 0})
    for rows, values in ((0, [b"rubbish", b"null"]), (2, [b'{"id": 1}', b'{"id": 2}'])):
        for value in values:
            producer.produce(topic.name, value)
        assert producer.flush(30) == 0
        report = run(topic, place, spark, Table(place.name, create=True))
        assert (report.rows, report.dead_letters, report.lag) == (rows, 2 - rows, 0)
    assert place.rows("id", "ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_header_of_csv_makes_no_row_and_numbers_may_be_times(place: Place, kafka: Kafka, spark: SparkSession) -> None:
    topic = Orders.create(kafka.bootstrap, partitions=1, count=0)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "log_level": 0})
    for value in (b"id;at", b"1;1700000000123", b"2;-", b"id;at\n3.0;0", b"4;soon"):
        producer.produce(topic.name, value)
    assert producer.flush(30) == 0
    schema = {"id": "integer", "at": "timestamp(ms)"}
    form = CsvFormat(["id", "at"], delimiter=";", header=True, nulls=["-"])
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "expressions": {"where": "id > 0", "schema": schema},
        "transform": {"transform": "select id, at from records", "schema": schema},
    }
    for group, options in ways.items():
        table = Table(f"{place.name}_{group}", create=True, columns=schema)
        pipeline = Pipeline(
            topic.name,
            table,
            group=group,
            kafka=kafka.bootstrap,
            ledger=place.ledger,
            spark=spark,
            format=form,
            **options,
        )
        report = pipeline.run(available_now=True)
        assert (report.records, report.rows, report.dead_letters) == (5, 3, 1), group
        with place.ledger.engine.connect() as conn:
            found = conn.exec_driver_sql(f"SELECT id, at FROM {table.name} ORDER BY id").all()
        assert [(number, at and at[:23]) for number, at in found] == [
            (1, "2023-11-14 22:13:20.123"),
            (2, None),
            (3, "1970-01-01 00:00:00.000"),
        ], group
