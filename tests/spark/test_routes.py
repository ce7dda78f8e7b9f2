"""Routes in pipelines: the rows and dead letters that a sink leaves, on each path, and what happens in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.yard import GROUP, Side, Yard, create_family, family, halves, order

from tidegate import Table
from tidegate.sandbox import Kafka
from tidegate.tables import Part, Route

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


@pytest.mark.parametrize(("yard", "way"), WAYS, indirect=["yard"])
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


@pytest.mark.parametrize("yard", ["postgres", "mariadb"], indirect=True)
@pytest.mark.parametrize("way", ["partition", "driver"])
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
