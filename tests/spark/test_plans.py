"""What a pipeline's SQL does with the records as a whole: a task has its whole span, or nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.orders import Orders, Place

from tidegate import ConfigurationError, Table
from tidegate.core.records import TopicPartition
from tidegate.core.work import Span
from tidegate.errors import PipelineStopped
from tidegate.sandbox import Kafka, Postgres
from tidegate.spark import Pipeline, Report
from tidegate.spark.kafka_options import kafka_options
from tidegate.spark.plans import refuse_partial
from tidegate.spark.records import raw_records
from tidegate.spark.spec import PipelineSpec
from tidegate.spark.transforms import Transforming, parsing_of, view_of

GROUP = "etl"
SCHEMA = {"id": "integer", "user": "text", "total": "decimal(12,2)"}
RANK = "row_number() over (partition by value.user order by offset)"
PARTS_IN_ORDER = "row_number() over (partition by greatest(offset, 100) order by offset)"
BACKWARDS = "row_number() over (partition by partition order by offset desc)"


@pytest.fixture(scope="module")
def few(kafka: Kafka) -> Orders:
    """Two partitions, and one record that does not parse: the first."""
    return Orders.create(kafka.bootstrap, partitions=2, count=400, every=1_000_000)


@pytest.fixture(scope="module")
def single(kafka: Kafka) -> Orders:
    """One partition."""
    return Orders.create(kafka.bootstrap, partitions=1, count=200, every=1_000_000)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Place]:
    opened = Place(f"sqlite:///{tmp_path / 'shop.db'}")
    yield opened
    opened.close()


@pytest.fixture
def server(postgres: Postgres) -> Iterator[Place]:
    opened = Place(postgres.url)
    yield opened
    opened.close()


def run(orders: Orders, place: Place, spark: SparkSession, table: Table, **options: Any) -> Report:
    pipeline = Pipeline(
        *(orders.name, table),
        group=GROUP,
        kafka=orders.bootstrap,
        ledger=place.ledger,
        spark=spark,
        **{"schema": SCHEMA, "collect": 0, **options},
    )
    return pipeline.run(available_now=True)


def ranked(place: Place) -> Table:
    return Table(place.name, create=True, columns={"id": "integer", "rank": "integer"})


@pytest.fixture(scope="module")
def known_users(spark: SparkSession) -> None:
    """Two views of the same users: one that Spark knows to be small, and one of which it knows nothing."""
    users = [(f"u{number}",) for number in range(10)]
    spark.sql(
        "select * from values " + ", ".join(f"('{user}')" for (user,) in users) + " as t(name)"
    ).createOrReplaceTempView("few_users")
    spark.createDataFrame(spark.sparkContext.parallelize(users), "name string").createOrReplaceTempView("users")


SHUFFLES: list[dict[str, Any]] = [
    {"columns": {"id": "value.id", "rank": RANK}},
    {"columns": {"id": "value.id", "rank": BACKWARDS}},
    {"columns": {"id": "value.id", "rank": "row_number() over (order by offset)"}},
    {"columns": {"id": "value.id", "rank": "0"}, "where": "value.user in (select name from users)"},
    {"columns": {"id": "value.id", "rank": "(select count(*) from users where name = value.user)"}},
]


@pytest.mark.usefixtures("known_users")
@pytest.mark.parametrize(
    ("options", "topic", "adaptive"),
    [
        *((options, "few", "true") for options in SHUFFLES),
        (SHUFFLES[0], "few", "false"),
        (SHUFFLES[0], "single", "true"),
        (SHUFFLES[2], "single", "true"),
    ],
    ids=repr,
)
def test_what_moves_records_between_tasks_is_refused_before_anything_is_read(
    options: dict[str, Any],
    adaptive: str,
    topic: str,
    request: pytest.FixtureRequest,
    server: Place,
    spark: SparkSession,
) -> None:
    orders: Orders = request.getfixturevalue(topic)
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        with pytest.raises(ConfigurationError, match="commit='batch'.*transform"):
            run(orders, server, spark, ranked(server), **options)
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
    assert server.rows("count(*)") == [(0,)]
    assert not server.ledger.read(GROUP).positions


@pytest.mark.parametrize(
    ("topic", "rank", "why"),
    [
        ("few", RANK, "of several partitions"),
        ("single", BACKWARDS, "not in the order of their offsets"),
        ("single", PARTS_IN_ORDER, r"there are \d+ of"),
    ],
)
def test_a_task_that_was_not_given_its_whole_span_writes_nothing(
    topic: str,
    rank: str,
    why: str,
    request: pytest.FixtureRequest,
    server: Place,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders: Orders = request.getfixturevalue(topic)
    for module in ("loop", "jobs"):
        monkeypatch.setattr(f"tidegate.spark.{module}.refuse_exchange", lambda *_: None)
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    try:
        with pytest.raises(PipelineStopped, match=why):
            run(orders, server, spark, ranked(server), columns={"id": "value.id", "rank": rank}, per_batch=True)
    finally:
        spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")
    assert server.rows("count(*)") == [(0,)]
    assert {row.next_offset for row in server.ledger.read(GROUP).positions.values()} == {0}


@pytest.mark.usefixtures("known_users")
def test_the_ways_out_that_the_error_names_lead_out(few: Orders, server: Place, spark: SparkSession) -> None:
    """What a subquery shuffles, and what a window function does, with every record in the table once."""
    looked_up = SHUFFLES[-1]["columns"]
    run(few, server, spark, ranked(server), columns=looked_up, commit="batch")
    assert sorted(server.rows("id, rank")) == [(n, int(int(user[1:]) < 10)) for n, user, _ in few.good]
    server.ledger.edit(GROUP, dict.fromkeys(few.ends, 0))
    server.run(f"DELETE FROM {server.name}")
    run(few, server, spark, ranked(server), columns={"id": "value.id", "rank": RANK}, commit="batch", per_batch=True)
    assert [number for number, _ in sorted(server.rows("id, rank"))] == [number for number, _, _ in few.good]
    assert server.ledger.verify(GROUP).ok


@pytest.mark.usefixtures("known_users")
@pytest.mark.parametrize("collect", [0, 100_000])
def test_what_leaves_records_in_their_tasks_is_allowed(
    collect: int, few: Orders, server: Place, spark: SparkSession
) -> None:
    spark.udf.register("last_digit", lambda number: number and number % 10, "long")
    columns = {
        "id": "value.id",
        "rank": "last_digit(value.id) + cast(rand() as int)",
    }
    where = (
        "value.user in (select name from few_users) and value.id < (select 10 * count(*) from users) "
        "and value.user not in (select upper(name) from users)"
    )
    report = run(few, server, spark, ranked(server), columns=columns, where=where, collect=collect)
    wanted = [(number, number % 10) for number, user, _ in few.good if int(user[1:]) < 10 and number < 100]
    assert sorted(server.rows("id, rank")) == wanted
    assert (report.lag, report.records) == (0, few.count)


def test_generators_are_refused_and_work_where_the_error_says(single: Orders, shop: Place, spark: SparkSession) -> None:
    columns = {"id": "value.id", "rank": "explode(array(1, 2))"}
    with pytest.raises(ConfigurationError, match="several rows of one record.*transform") as refused:
        run(single, shop, spark, ranked(shop), columns=columns)
    assert "tidegate_" not in str(refused.value)
    assert not shop.ledger.read(GROUP).positions
    run(single, shop, spark, ranked(shop), columns=columns, commit="batch")
    assert sorted(shop.rows("id, rank")) == [(number, rank) for number, _, _ in single.good for rank in (1, 2)]


PARTIAL: dict[str, Any] = {
    "sums": "select user as name, sum(total) as value from records group by user",
    "distinct": "select distinct user as name, 1 as value from records",
    "rank": "select name, value from (select user as name, total as value, "
    "row_number() over (partition by user order by offset desc) as n from records) where n = 1",
    "limit": "select user as name, total as value from records limit 10",
    "with": "with sums as (select user as name, sum(total) as value from records group by user) select * from sums",
    "subquery": "select user as name, total as value from records where total = (select max(total) from records)",
    "itself": "select a.user as name, b.total as value from records a join records b on a.id = b.id",
    "static rows": "select u.name, r.total as value from records r right join few_users u on r.user = u.name",
    "union": "select user as name, total as value from records union all select name, 0 from few_users",
    "except": "select user as name, total as value from records except select name, 0 from few_users",
    "duplicates": lambda records: records.dropDuplicates(["user"]).selectExpr("user as name", "total as value"),
    "pandas": lambda records: records.groupBy("user").applyInPandas(
        lambda frame: frame[["user", "total"]].head(1), "name string, value decimal(12,2)"
    ),
    "rdd": lambda records: records.select("user", "total").rdd.toDF("name string, value decimal(12,2)"),
}
ROW_BY_ROW: dict[str, Any] = {
    "select": "select user as name, total as value from records where total > 1 order by total",
    "static": "select u.name, r.total as value from records r left join few_users u on r.user = u.name",
    "semi": "select user as name, total as value from records where user in (select name from few_users)",
    "scalar": "select user as name, (select count(*) from few_users f where f.name = user) as value from records",
    "explode": "select user as name, x as value from records lateral view explode(array(1, 2)) t as x",
    "with": "with some as (select user as name, total as value from records) select * from some",
    "twice": "select user as name, total as value from records union all select user, total from records",
    "spread": lambda records: (
        records.selectExpr("user as name", "total as value").repartition(3).sortWithinPartitions("name")
    ),
    "map": lambda records: records.selectExpr("user as name", "total as value").mapInPandas(
        lambda frames: frames, "name string, value decimal(12,2)"
    ),
}
SUMS = "(select user, sum(total) as s, count(*) as n from records group by user)"
ADDS_UP: dict[str, Any] = {
    "sums": "select user as name, sum(case when total > 2 then total * 2 - 1 end) as value from records group by user",
    "counts": "select user as name, count_if(total > 2) as value from records group by user",
    "filtered": "select user as name, count(total) filter (where total > 2) as value from records group by user",
    "rows": "select user as name, total + 1 as value from records",
    "whole": "select 'all' as name, sum(total) as value from records",
    "wider": "select user as name, cast(cast(n as decimal(20,0)) as decimal(24,2)) as value "
    "from (select user, cast(count(*) as bigint) as n from records group by user)",
    "double": "select user as name, cast(sum(cast(id as double)) as double) as value from records group by user",
    "above": f"with sums as {SUMS} select upper(t.user) as name, t.s as value from sums as t order by n",
    "rollup": "select coalesce(user, 'all') as name, sum(total) as value from records group by rollup (user)",
    "union": "select user as name, sum(total) as value from records group by user "
    "union all select 'all', count(*) from records union all select user, 1 from records",
    "joined before": "select user as name, count(*) as value from records join few_users on user = name group by user",
    "spread": lambda records: (
        records.groupBy("user").count().toDF("name", "value").repartition(3).sortWithinPartitions("name")
    ),
}
ADDS_NOT_UP: dict[str, Any] = {
    "mean": "select user as name, sum(total) / count(*) as value from records group by user",
    "most": "select user as name, max(total) as value from records group by user",
    "kinds": "select user as name, count(distinct total) as value from records group by user",
    "having": "select user as name, sum(total) as value from records group by user having sum(total) > 100",
    "nested": "select user as name, count(*) as value from (select distinct user, total from records) group by user",
    "square": f"select user as name, n * n as value from {SUMS}",
    "key": f"select cast(s as string) as name, n as value from {SUMS}",
    "key below": "select cast(sum(total) as string) as name, count(*) as value from records group by user",
    "case": f"select user as name, case when n > 5 then 1 else 0 end as value from {SUMS}",
    "constant": "select user as name, 1 as value from records group by user",
    "constant above": f"select user as name, 1 as value from {SUMS}",
    "group": "select user as name, id as value from records group by user, id",
    "plus": "select user as name, sum(total) + 1 as value from records group by user",
    "difference": "select user as name, sum(total) - sum(id) as value from records group by user",
    "coalesce": "select user as name, coalesce(sum(total), 7) as value from records group by user",
    "explode": f"select user as name, n as value from {SUMS} lateral view explode(sequence(1, 2)) t as x",
    "exploded sum": f"select user as name, x as value from {SUMS} lateral view explode(sequence(1, n)) t as x",
    "joined": f"select s.user as name, s.n as value from {SUMS} s join few_users f on cast(s.n as string) = f.name",
    "whole numbers": "select user as name, cast(sum(id / 3.0) as long) as value from records group by user",
    "of doubles": "select user as name, cast(sum(id / 3e0) as long) as value from records group by user",
    "fewer digits": "select user as name, cast(sum(total) as decimal(14,1)) as value from records group by user",
    "narrower": "select user as name, cast(count(*) as int) as value from records group by user",
    "inexact double": "select user as name, cast(count(*) as double) as value from records group by user",
    "overflow": "select user as name, try_sum(id) as value from records group by user",
    "mapped": lambda records: (
        records.groupBy("user")
        .count()
        .toDF("name", "value")
        .mapInPandas(lambda frames: frames, "name string, value long")
    ),
    "twice": f"select user as name, sum(n) as value from {SUMS} group by user",
    "union": "select user as name, count(*) as value from records group by user "
    "union all select user, 1 from records group by user",
}
UNSTEADY: list[tuple[str, Any]] = [
    *(
        (mode, f"select user as name, {written} as value from records")
        for mode in ("append", "upsert")
        for written in ("monotonically_increasing_id()", "spark_partition_id() + 1", "length(input_file_name())")
    ),
    ("append", "select name, value from (select user as name, monotonically_increasing_id() as value from records)"),
    ("upsert", "select cast(monotonically_increasing_id() as string) as name, total as value from records"),
    ("append", lambda records: records.sample(0.5, seed=1).selectExpr("user as name", "total as value")),
    ("append", "select user as name, total as value from records tablesample (50 percent)"),
    ("append", "select user as name, total as value from records where rand() < 0.5"),
    ("append", "select name, value from (select user as name, total as value, rand() as r from records) where r < 1"),
    ("upsert", "select uuid() as name, total as value from records"),
    ("upsert", "select upper(name) as name, value from (select uuid() as name, total as value from records)"),
    ("upsert", "select user as name, total as value from records union all select uuid(), total from records"),
    ("upsert", "with made as (select uuid() as name, total as value from records) select m.* from made m"),
    ("upsert", "select cast(current_timestamp() as string) as name, total as value from records"),
    ("upsert", "select x as name, total as value from records lateral view explode(array(uuid(), 'a')) t as x"),
    ("accumulate", "select cast(cast(rand() * 3 as int) as string) as name, count(*) as value from records group by 1"),
    ("accumulate", "select uuid() as name, total as value from records"),
]
STEADY: list[tuple[str, Any]] = [
    ("append", "select uuid() as name, total as value from records"),
    ("upsert", "select user as name, rand() as value from records"),
    (
        "upsert",
        "select user as name, total as value from records where timestamp > current_timestamp() - interval 1 day",
    ),
    ("accumulate", "select user as name, sum(r) as value from (select user, rand() as r from records) group by user"),
]


def aggregate(orders: Orders, place: Place, spark: SparkSession, mode: str, transform: Any, **options: Any) -> Report:
    types = {"name": "text", "value": "decimal(14,2)"}
    table = Table(place.name, key=() if mode == "append" else "name", mode=mode, create=True, columns=types)
    return run(orders, place, spark, table, transform=transform, max_records=150, **options)


@pytest.fixture
def look(few: Orders, spark: SparkSession, known_users: None) -> Callable[..., None]:
    """Looks at the plan of a transform."""
    spec = PipelineSpec((few.name,), Table("t"), GROUP, schema=SCHEMA, transform="select 1")
    parsing = parsing_of(spec, None)
    span = Span(TopicPartition(few.name, 0), 0, 0)
    raw = raw_records(spark, [span], kafka_options(few.bootstrap, GROUP))

    def of(mode: str, transform: Any, **options: Any) -> None:
        table = Table("t", key=() if mode == "append" else "name", mode=mode, **options)
        refuse_partial(Transforming(parsing, view_of(parsing), transform).rows(raw), "it", table)

    return of


@pytest.mark.parametrize(
    ("mode", "transform"),
    [pytest.param("upsert", transform, id=name) for name, transform in PARTIAL.items()]
    + [pytest.param("append", PARTIAL["sums"], id="append")]
    + [pytest.param("accumulate", transform, id=f"accumulate {name}") for name, transform in ADDS_NOT_UP.items()],
)
def test_rows_that_depend_on_where_micro_batches_end_are_refused(
    mode: str, transform: Any, look: Callable[..., None]
) -> None:
    with pytest.raises(ConfigurationError, match="accumulate.*per_batch=True"):
        look(mode, transform)


@pytest.mark.parametrize(
    ("mode", "transform"),
    [pytest.param("append", transform, id=name) for name, transform in ROW_BY_ROW.items()]
    + [pytest.param("accumulate", transform, id=f"accumulate {name}") for name, transform in ADDS_UP.items()],
)
def test_rows_that_do_not_are_allowed(mode: str, transform: Any, look: Callable[..., None]) -> None:
    look(mode, transform)


@pytest.mark.parametrize(("mode", "transform"), UNSTEADY)
def test_what_is_another_each_time_neither_tells_rows_apart_nor_chooses_them(
    mode: str, transform: Any, look: Callable[..., None]
) -> None:
    with pytest.raises(ConfigurationError, match="offset.*per_batch=True"):
        look(mode, transform)


@pytest.mark.parametrize(("mode", "transform"), STEADY)
def test_what_is_another_each_time_may_be_a_value(mode: str, transform: Any, look: Callable[..., None]) -> None:
    look(mode, transform)


def test_a_column_that_is_not_added_to_has_to_be_one_of_the_group(look: Callable[..., None]) -> None:
    grouped = "select user as name, id as number, count(*) as value from records group by user, id"
    summed = "select user as name, sum(id) as number, count(*) as value from records group by user"
    look("accumulate", grouped, add="value")
    look("accumulate", summed)
    for transform, options in ((grouped, {}), (summed, {"add": "value"})):
        with pytest.raises(ConfigurationError, match="'number'.*per_batch=True"):
            look("accumulate", transform, **options)


def test_columns_that_begin_anew_in_each_micro_batch_are_refused_before_anything_is_read(
    few: Orders, shop: Place, spark: SparkSession
) -> None:
    columns = {"id": "monotonically_increasing_id()", "rank": "0"}
    with pytest.raises(ConfigurationError, match="monotonically_increasing_id.*per_batch=True"):
        run(few, shop, spark, ranked(shop), columns=columns)
    assert not shop.ledger.read(GROUP).positions


@pytest.mark.parametrize(
    "options",
    [{"transform": PARTIAL["sums"]}, {"columns": {"name": "'all'", "value": "count(*)"}, "commit": "batch"}],
    ids=["transform", "columns"],
)
def test_an_aggregation_is_refused_before_anything_is_read(
    options: dict[str, Any], few: Orders, shop: Place, spark: SparkSession
) -> None:
    with pytest.raises(ConfigurationError, match="an aggregation"):
        aggregate(few, shop, spark, "upsert", **{"transform": None, **options})
    assert shop.rows("count(*)") == [(0,)]
    assert not shop.ledger.read(GROUP).positions


def test_what_is_declared_as_meant_per_batch_is_done_per_batch(few: Orders, shop: Place, spark: SparkSession) -> None:
    report = aggregate(few, shop, spark, "append", PARTIAL["sums"], per_batch=True)
    assert report.batches == 3
    assert len(shop.rows("name")) > len(few.totals)
    total = sum(total for total, _ in few.totals.values())
    assert float(shop.rows("sum(value)")[0][0]) == pytest.approx(float(total))


def test_a_transform_that_begins_to_aggregate_later_is_stopped_then(
    few: Orders, shop: Place, spark: SparkSession
) -> None:
    def fickle(records: DataFrame) -> DataFrame:
        rows = records.selectExpr("user as name", "total as value")
        positions = shop.ledger.read(GROUP).positions.values()
        return rows.dropDuplicates() if any(row.next_offset for row in positions) else rows

    with pytest.raises(ConfigurationError, match="dropDuplicates"):
        aggregate(few, shop, spark, "append", fickle)
    assert {row.next_offset for row in shop.ledger.read(GROUP).positions.values()} == {75}
