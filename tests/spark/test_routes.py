"""Routes in pipelines: the rows and dead letters that a sink leaves, on each path, and what happens in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.yard import GROUP, Side, Yard, create_family, family, halves, order

from tidegate import ConfigurationError, Producer, Table
from tidegate.kafka import SchemaSerializer
from tidegate.sandbox import Kafka, Registry
from tidegate.settings import KafkaSettings, PartSettings, PipelineSettings, RouteSettings
from tidegate.spark.doctor import checked
from tidegate.tables import CsvFormat, Part, Route

PARTITION = {"collect": 0}
WAYS = [("postgres", "partition"), ("mariadb", "partition"), ("postgres", "driver"), ("mariadb", "driver")]


@pytest.fixture
def yard(request: pytest.FixtureRequest, kafka: Kafka, tmp_path: Path) -> Iterator[Yard]:
    """In the database that the test names."""
    database = request.param
    url = f"sqlite:///{tmp_path / 'yard.db'}" if database == "sqlite" else str(request.getfixturevalue(database).url)
    opened = Yard(url, kafka.bootstrap)
    yield opened
    opened.close()


def alike(sink: Side, pipe: Side) -> None:
    assert pipe.tables() == sink.tables()
    assert pipe.letters() == sink.letters()


# The rule of a sink


@pytest.mark.parametrize(("yard", "way"), [*WAYS, ("sqlite", "driver")], indirect=["yard"])
def test_a_pipeline_leaves_the_rows_and_dead_letters_of_a_sink(yard: Yard, way: str, spark: SparkSession) -> None:
    (topic,) = yard.topics("family", partitions=3)
    for number in range(60):
        for partition in range(3):
            at = number * 3 + partition
            yard.send(topic, order(at, "tea", "cup"), partition=partition, key=str(at), kind="good")
    for partition in range(3):
        one = 3 * 7 + partition
        yard.send(
            topic,
            b"no JSON",
            order(900 + partition, "pot", "bad"),  # a line that the database refuses
            {"id": 800 + partition, "customer": None, "lines": []},
            {"id": "x", "customer": "bob"},
            {"id": 700 + partition, "customer": "ann", "lines": 7},
            partition=partition,
            key=f"{900 + partition}",
        )
        yard.send(topic, order(one, "new"), partition=partition, key=str(one))
    for side in yard.sides:
        create_family(side)
    how = {**PARTITION, "max_records": 100} if way == "partition" else {}
    sink, pipe, report = yard.both(spark, [topic], family, **how)
    alike(sink, pipe)
    assert len(pipe.letters()) == 15
    assert pipe.modes == {way}
    assert (report.records, report.dead_letters, report.lag) == (198, 15, 0)
    assert report.rows == 183 + 363 * 2  # of all tables; a record that came twice counts twice


@pytest.mark.parametrize(("yard", "way"), [("postgres", "partition"), ("mariadb", "driver")], indirect=["yard"])
def test_tables_that_records_name_are_created_and_get_columns(yard: Yard, way: str, spark: SparkSession) -> None:
    topics = yard.topics("raw.a", "raw.b", partitions=2)
    for topic in topics:
        for number in range(6):
            value = {"id": number, "x": "one"} | ({"late": 1.5} if number > 3 else {})
            yard.send(topic, value, partition=number % 2, kind="order" if number % 3 else "refund")
        yard.send(topic, {"id": 9, "x": "no kind"})
        yard.send(topic, {"id": "x"}, [], kind="order")
        yard.send(topic, {"id": 10}, kind='"; drop')

    def into(side: Side) -> Route:
        columns = {"id": int, "x": str}
        created: dict[str, Any] = {"key": "id", "mode": "upsert", "create": True, "evolve": True, "columns": columns}
        return Route([Table(side.table("{topic}"), **created), Table(side.table("of_{headers.kind}"), **created)])

    how = {**PARTITION, "max_records": 6} if way == "partition" else {}
    sink, pipe, _ = yard.both(spark, topics, into, **how)
    alike(sink, pipe)
    assert len(pipe.tables()) == 4
    assert pipe.modes == ({"driver", "partition"} if way == "partition" else {"driver"})


@pytest.mark.parametrize("yard", ["postgres"], indirect=True)
def test_fifty_topics_go_into_fifty_tables(yard: Yard, spark: SparkSession) -> None:
    topics = yard.topics(*(f"t{number:02}" for number in range(50)))
    for number, topic in enumerate(topics):
        yard.send(topic, {"id": number, "total": 1}, {"id": number + 100, "total": 2}, b"no JSON", key="1")
    pipe, _ = yard.sides
    yard.flush()
    into = Table(pipe.table("{topic}"), key="id", mode="upsert", create=True)
    report = pipe.pipe(spark, topics, into, **PARTITION, max_records=100)
    assert (report.records, report.rows, report.dead_letters, report.lag) == (150, 100, 50, 0)
    expected = {t.replace(".", "_"): sorted([(n, 1), (n + 100, 2)], key=repr) for n, t in enumerate(topics)}
    assert pipe.tables() == expected


# Foreign keys between partitions


@pytest.mark.parametrize("yard", ["postgres", "mariadb"], indirect=True)
def test_a_child_waits_for_its_parent_in_another_partition_while_the_others_go_on(
    yard: Yard, spark: SparkSession
) -> None:
    orders, lines = topics = yard.topics("orders", "lines")
    yard.send(lines, *({"order_id": 1, "n": n, "sku": "tea"} for n in range(3)))
    yard.send(lines, *({"order_id": 500, "n": n, "sku": "cup"} for n in range(3)))
    yard.send(orders, *({"id": number, "customer": "ann"} for number in range(1000)))
    yard.flush()
    pipe, _ = yard.sides
    create_family(pipe)
    report = pipe.pipe(spark, topics, halves(pipe, topics), **PARTITION, max_records=300)
    assert len(pipe.rows("lines")) == 6
    assert (report.records, report.rows, report.dead_letters, report.lag) == (1006, 1006, 0, 0)
    assert "partition" in pipe.modes
    assert pipe.ledger.verify(GROUP).ok


@pytest.mark.parametrize(("yard", "way"), [("postgres", "driver"), ("mariadb", "partition")], indirect=["yard"])
def test_partitions_that_wait_for_each_other_get_on(yard: Yard, way: str, spark: SparkSession) -> None:
    (topic,) = yard.topics("both", partitions=2)
    for partition, child, own in ((0, 2, 1), (1, 1, 2)):
        yard.send(topic, {"n": 0, "order_id": child, "sku": "tea"}, partition=partition, part="line")
        yard.send(topic, {"id": own, "customer": "ann"}, partition=partition, part="order")

    def into(side: Side) -> Route:
        created: dict[str, Any] = {"mode": "upsert"}
        return Route(
            [
                Part(Table(side.table("lines"), key=["order_id", "n"], **created), where={"headers.part": "line"}),
                Part(Table(side.table("orders"), key="id", **created), where={"headers.part": "order"}),
            ]
        )

    yard.flush()
    pipe, _ = yard.sides
    create_family(pipe)
    report = pipe.pipe(spark, [topic], into(pipe), **(PARTITION if way == "partition" else {}))
    assert pipe.rows("lines") == [(1, 0, "tea"), (2, 0, "tea")]
    assert (report.records, report.rows, report.dead_letters, report.lag) == (4, 4, 0, 0)
    assert pipe.ledger.verify(GROUP).ok


@pytest.mark.parametrize("yard", ["sqlite"], indirect=True)
def test_one_micro_batch_waits_for_the_parents_of_its_records(yard: Yard, spark: SparkSession) -> None:
    _orders, lines = topics = yard.topics("orders", "lines")
    yard.send(lines, {"order_id": 1, "n": 0, "sku": "tea"}, {"order_id": 2, "n": 0, "sku": "tea"})
    yard.flush()
    pipe, _ = yard.sides
    create_family(pipe)
    report = pipe.pipeline(spark, topics, halves(pipe, topics, parent_wait=0.5)).run(once=True)
    assert (report.lag, report.dead_letters, report.stopped) == (0, 2, "one micro-batch")


@pytest.mark.parametrize(("yard", "way"), [("postgres", "partition"), ("mariadb", "driver")], indirect=["yard"])
def test_a_parent_that_never_comes_parks_its_children_and_nothing_else(
    yard: Yard, way: str, spark: SparkSession
) -> None:
    orders, lines = topics = yard.topics("orders", "lines", partitions=2)
    for partition in (0, 1):
        own = 10 + partition
        yard.send(orders, {"id": own, "customer": "ann"}, partition=partition)
        for n in range(4):
            yard.send(lines, {"order_id": own if n % 2 else 99, "n": n, "sku": "tea"}, partition=partition)
    for side in yard.sides:
        create_family(side)
    how = PARTITION if way == "partition" else {}
    sink, pipe, report = yard.both(spark, topics, lambda side: halves(side, topics, parent_wait=1), **how)
    assert pipe.tables() == sink.tables()
    assert [letter[:5] for letter in pipe.letters()] == [letter[:5] for letter in sink.letters()]
    assert [letter[:3] for letter in pipe.letters()] == [(lines, part, n) for part in (0, 1) for n in (0, 2)]
    assert (report.records, report.rows, report.dead_letters, report.lag) == (10, 6, 4, 0)


# Formats


def change(op: str, after: Any = None, before: Any = None) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"connector": "postgresql"}, "ts_ms": 1}


def enveloped(event: Any, place: str | None, **types: str) -> dict[str, Any]:
    row = [{"field": name, "type": kind, "optional": name != "id"} for name, kind in types.items()]
    fields = row if place is None else [{"field": place, "type": "struct", "fields": row}]
    return {"schema": {"type": "struct", "fields": fields}, "payload": event}


@pytest.mark.parametrize(("yard", "way"), [("postgres", "partition"), ("mariadb", "driver")], indirect=["yard"])
def test_the_change_events_of_all_tables_of_a_source_leave_what_a_sink_leaves(
    yard: Yard, way: str, spark: SparkSession
) -> None:
    topics = yard.topics("shop.orders", "shop.customers", partitions=2)
    types = {"id": "int32", "total": "int64"}
    for topic in topics:
        for number in range(20):
            rows = {"id": number, "total": number}
            key = json.dumps({"id": number})
            for event in (change("c", rows), change("u", rows | {"total": -1}), change("d", None, rows))[: number % 4]:
                yard.send(topic, enveloped(event, "after", **types), partition=number % 2, key=key)
            if number % 5 == 0:
                yard.send(topic, None, partition=number % 2, key=key)
        yard.send(topic, change("t"), b"no JSON", change("m"), key=json.dumps({"id": 1}))
        yard.send(topic, change("c", {"id": 1}))

    def into(side: Side) -> Table:
        return Table(side.table("{topic}"), key="{key}", mode="upsert", create=True, evolve=True)

    how = {**PARTITION, "max_records": 40} if way == "partition" else {}
    sink, pipe, report = yard.both(spark, topics, into, form="debezium", **how)
    alike(sink, pipe)
    assert [len(rows) for rows in pipe.tables().values()] == [10, 10]
    assert report.dead_letters == len(pipe.letters()) >= 4
    assert pipe.modes == ({"driver", "partition"} if way == "partition" else {"driver"})


@pytest.mark.parametrize(("yard", "form"), [("postgres", "connect-json"), ("mariadb", "csv")], indirect=["yard"])
def test_other_formats_choose_tables_as_in_a_sink(yard: Yard, form: str, spark: SparkSession) -> None:
    (topic,) = yard.topics("all", partitions=2)
    for number in range(30):
        kind, at = ("order", "refund", "gift")[number % 3], {"partition": number % 2, "key": str(number)}
        if form == "csv":
            yard.send(topic, f"{number},{kind},{number * 2}".encode(), **at)
        else:
            value = {"id": number, "kind": kind, "total": number * 2}
            yard.send(topic, enveloped(value, None, id="int32", kind="string", total="int64"), **at)
    yard.send(topic, b"\xff", b"{")

    def into(side: Side) -> Route:
        types = {"id": int, "total": int}
        made: dict[str, Any] = {"key": "id", "mode": "upsert", "create": True, "columns": types, "tombstones": "ignore"}
        columns = {"id": "value.id", "total": "value.total"}
        return Route(
            [
                Part(Table(side.table("orders"), **made), columns, where={"value.kind": "order"}),
                Part(Table(side.table("late"), **made), columns, where={"value.kind": ["refund"], "key": ["1", "4"]}),
            ],
            unmatched="ignore",
        )

    chosen = CsvFormat(["id", "kind", "total"]) if form == "csv" else form
    sink, pipe, _ = yard.both(spark, [topic], into, form=chosen, **PARTITION, max_records=10)
    alike(sink, pipe)
    assert (len(pipe.rows("orders")), len(pipe.rows("late")), len(pipe.letters())) == (10, 2, 2)


@pytest.mark.parametrize("yard", ["postgres"], indirect=True)
def test_records_that_name_a_schema_go_into_the_tables_of_a_route(yard: Yard, spark: SparkSession) -> None:
    topics = yard.topics("avro.a", "avro.b", partitions=2)
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "string"}],
    }
    with Registry() as server:
        with Producer(
            {"bootstrap.servers": yard.bootstrap}, registry=server.url, value_serializer=SchemaSerializer(schema)
        ) as producer:
            for number in range(20):
                producer.send(topics[number % 2], {"id": number, "n": "x"}, partition=number % 4 // 2)
        yard.send(topics[0], b"\x00\x00\x00\x00\x63odd", b"odd")
        yard.flush()
        pipe, _ = yard.sides
        into = Table(pipe.table("{topic}"), key="id", mode="upsert", create=True)
        report = pipe.pipe(spark, topics, into, format="avro", registry=server.url, **PARTITION, max_records=8)
    assert [len(rows) for rows in pipe.tables().values()] == [10, 10]
    assert (report.rows, report.dead_letters, report.lag) == (20, 2, 0)
    assert pipe.modes == {"driver", "partition"}


@pytest.mark.parametrize("yard", ["postgres"], indirect=True)
def test_the_check_of_a_pipeline_looks_at_each_table_of_the_route(yard: Yard) -> None:
    (topic,) = yard.topics("all")
    side, _ = yard.sides
    create_family(side)
    file = {"topics": (topic,), "group": GROUP, "kafka": KafkaSettings(yard.bootstrap)}
    parts = {"orders": PartSettings(side.table("orders")), "all": PartSettings("raw_{topic}")}
    settings = PipelineSettings(**file, route=RouteSettings(parts))  # type: ignore[arg-type]
    *_, first, second = checked(settings, settings.target(), side.ledger)
    assert first == f"table {side.table('orders')}: 2 columns"
    assert second == "table raw_{topic}: records name it"
    parts["orders"] = PartSettings(side.table("none"))
    settings = PipelineSettings(**file, route=RouteSettings(parts))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=f"there is no table {side.table('none')}"):
        list(checked(settings, settings.target(), side.ledger))
