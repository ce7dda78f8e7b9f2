"""Structured Streaming: each batch of a query is written once, or refused with the reason."""

from __future__ import annotations

import itertools
import json
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlalchemy import inspect
from tests.spark.orders import Place
from tests.spark.queries import NAME, Query, orders

from tidegate import Table
from tidegate.errors import ConfigurationError
from tidegate.observe.events import Event, Paused
from tidegate.spark import ExactlyOnce

TYPES = {"id": "integer", "user": "text", "total": "decimal(12,2)"}
BY_EXECUTORS, BY_DRIVER = 0, 1000
SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
SOME = pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    (tmp_path / "files").mkdir()
    return Query(spark, tmp_path / "files", tmp_path / "checkpoint")


def into(place: Place, *, mode: str = "append", name: str = NAME, **options: Any) -> ExactlyOnce:
    key = () if mode == "append" else "id"
    table = Table(place.name, key=key, mode=mode, create=True, columns=TYPES)
    return ExactlyOnce(table, ledger=place.ledger, name=name, **options)


def check(place: Place, query: Query, batches: int) -> None:
    """The rows of so many batches are in the table, each once."""
    wanted = [(row["id"], row["user"], Decimal(row["total"])) for number in range(batches) for row in orders(number)]
    assert rows_of(place) == wanted
    state = place.ledger.read(NAME)
    assert state.positions[query.source].next_offset == batches
    assert place.ledger.verify(NAME).ok


def rows_of(place: Place) -> list[tuple[Any, ...]]:
    found = place.rows("*") if inspect(place.engine).has_table(place.name) else []
    return sorted((number, user, Decimal(str(total))) for number, user, total in found)


def staged(place: Place) -> int:
    """How many rows are in staging tables."""
    with place.engine.connect() as conn:
        names = [name for name in place.tables() if "_stage_" in name]
        return sum(conn.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one() for name in names)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def in_thread(work: Callable[[], object]) -> Callable[[], Exception | None]:
    """Run in another thread; the function returned waits for the end, and returns the error."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> Exception | None:
        thread.join(90)
        assert not thread.is_alive()
        return errors[0] if errors else None

    return wait


@pytest.mark.parametrize(
    ("place", "collect"),
    [("sqlite", 0), ("mariadb", 0), ("mysql", 0), ("postgres", 0), ("postgres", 1000)],
    indirect=["place"],
)
def test_a_batch_that_spark_repeats_is_not_written_again(collect: int, place: Place, query: Query) -> None:
    seen = []
    writer = into(place, collect=collect)

    def each(rows: DataFrame, number: int) -> None:
        writer(rows, number)
        seen.append((number, staged(place)))

    for number in range(2):
        query.put(number, orders(number))
    query.run(each)
    check(place, query, 2)
    by_executors = 0 if place.url.startswith("sqlite") or collect else 20
    assert seen == [(0, by_executors), (1, by_executors)]

    query.forget_commit(1)
    query.put(2, orders(2))
    query.run(each)
    check(place, query, 3)
    assert [number for number, _ in seen] == [0, 1, 1, 2]
    assert sum(entry.records for entry in place.ledger.journal(NAME)) == 60
    until(lambda: not [name for name in place.tables() if "_stage_" in name])
    until(lambda: place.ledger.read(NAME).positions[query.source].owner is None)


@pytest.mark.parametrize("place", ["sqlite", "mysql"], indirect=True)
def test_other_offsets_under_a_stored_number_are_refused(place: Place, query: Query) -> None:
    query.put(0, orders(0))
    query.run(into(place))
    older = query.copied("older")
    query.put(1, orders(1))
    query.run(into(place))

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="restored from an older copy"):
            older.run(into(place))
    check(place, query, 2)
    query.put(2, orders(2))
    query.run(into(place))
    check(place, query, 3)


@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
def test_a_database_that_is_older_than_the_checkpoint_is_refused(place: Place, query: Query) -> None:
    query.put(0, orders(0))
    query.run(into(place))
    older = query.copied("older")
    for number in (1, 2):
        query.put(number, orders(number))
    query.run(into(place))
    place.run(f"DELETE FROM {place.name} WHERE id >= 20")
    place.ledger.edit(NAME, {query.source: 1}, note="as a backup was")
    query.put(3, orders(3))
    with pytest.raises(StreamingQueryException, match="batch 3, and the ledger has position 1.*older than the checkp"):
        query.run(into(place))
    check(place, query, 1)

    older.run(into(place))  # the checkpoint of the same time
    check(place, older, 4)


@SQLITE
def test_a_query_that_wrote_elsewhere_goes_on_once_its_position_is_set(place: Place, query: Query) -> None:
    query.put(0, orders(0))
    query.run(lambda rows, number: None)
    query.put(1, orders(1))
    with pytest.raises(StreamingQueryException, match=r"batch 1, and the ledger has position 0.*wrote elsewhere"):
        query.run(into(place))
    assert place.ledger.read(NAME).positions == {}
    place.ledger.edit(NAME, {query.source: 1}, note="batch 0 is in another table")
    query.run(into(place))
    assert [number for number, _, _ in rows_of(place)] == list(range(20, 40))


@SQLITE
def test_a_deleted_checkpoint_and_a_second_query_are_refused(place: Place, query: Query) -> None:
    query.put(0, orders(0))
    query.run(into(place))
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="the name belongs to the query 'query:"):
            query.beside("another").run(into(place))
    check(place, query, 1)
    place.run(f"DELETE FROM {place.name}")
    another = query.beside("another")
    another.run(into(place, name="clicks-2"))  # the way out
    assert len(rows_of(place)) == 20


@SOME
def test_of_two_new_queries_of_one_name_one_writes_at_most(place: Place, query: Query) -> None:
    for number in range(2):
        query.put(number, orders(number))
    both = threading.Barrier(2)

    def start(name: str) -> Callable[[], Exception | None]:
        writer = into(place)

        def each(rows: DataFrame, number: int) -> None:
            if not number:
                both.wait(60)
            writer(rows, number)

        return in_thread(lambda: query.beside(name).run(each))

    errors = [wait() for wait in (start("one"), start("two"))]
    refused = [str(error) for error in errors if error]
    assert refused
    assert all("the name belongs to the query" in error for error in refused)
    assert len(rows_of(place)) == 40 * (2 - len(refused))


@contextmanager
def driver(
    place: Place, query: Query, *, statements: int = 0, waits: int = -1, collect: int = 0
) -> Iterator[Popen[str]]:
    """Run the query in a process of its own; see there."""
    given = {"url": place.url, "prefix": f"{place.name}_", "table": place.name, "collect": collect}
    paths = {"files": str(query.files), "checkpoint": str(query.checkpoint)}
    told = json.dumps({**given, **paths, "statements": statements, "waits": waits})
    command = [sys.executable, "-m", "tests.spark.query_driver", told]
    with Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_of_a_checkpoint_that_runs_twice_the_first_run_is_fenced(place: Place, query: Query) -> None:
    query.put(0, orders(0))
    query.run(into(place))
    copy = query.copied("copy")
    for number in (1, 2):
        query.put(number, orders(number))
    with driver(place, query, waits=1) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "written\n", first.communicate()
        # The copy is of the time at which batch 1 was planned; otherwise it would be refused as too old.
        for part in ("offsets", "sources/0"):
            for file in (query.checkpoint / part).glob("*1*"):
                (copy.checkpoint / part / file.name).write_bytes(file.read_bytes())
        copy.run(into(place))
        _, errors = first.communicate("\n", 60)
        assert first.returncode == 1
        assert "batch 2 is not written, because" in errors, errors
    check(place, copy, 3)


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_a_driver_that_is_killed_between_both_commits_repeats_nothing(place: Place, query: Query) -> None:
    for number in range(3):
        query.put(number, orders(number))
    with driver(place, query, statements=1_000_000) as killed:
        _, errors = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, errors
    assert place.ledger.read(NAME).positions[query.source].next_offset == 2
    assert not (query.checkpoint / "commits" / "1").exists()
    query.run(into(place))
    check(place, query, 3)


@pytest.mark.chaos
@pytest.mark.parametrize("collect", [BY_EXECUTORS, BY_DRIVER])
def test_a_driver_that_is_killed_at_any_statement_loses_and_repeats_nothing(
    collect: int, place: Place, query: Query, tmp_path: Path
) -> None:
    for number in range(3):
        query.put(number, orders(number))
    for statements in itertools.count(1, 3):  # now before a statement, now after one
        mine = query.beside(f"killed-at-{statements}")
        own = Place(place.url)
        with driver(own, mine, statements=statements, collect=collect) as killed:
            _, errors = killed.communicate(timeout=240)
        assert killed.returncode == -signal.SIGKILL, errors
        is_over = own.ledger.read(NAME).positions[mine.source].next_offset == 2
        mine.run(into(own, collect=collect))
        check(own, mine, 3)
        own.close()
        if is_over:  # the database has committed before the driver died
            assert statements > 5
            break


@SQLITE
def test_a_paused_query_waits(place: Place, query: Query) -> None:
    events: list[Event] = []
    query.put(0, orders(0))
    query.run(into(place))
    query.put(1, orders(1))
    place.ledger.pause(NAME)
    wait = in_thread(lambda: query.run(into(place, observers=[events.append])))
    until(lambda: Paused(NAME, True) in events)
    check(place, query, 1)
    place.ledger.resume(NAME)
    assert wait() is None
    check(place, query, 2)


@SQLITE
def test_what_spark_does_not_record_is_refused(place: Place, query: Query, spark: SparkSession) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = rows.writeStream.foreachBatch(into(place)).option("checkpointLocation", str(query.checkpoint))
    with pytest.raises(PySparkException, match="async progress tracking"):
        writer.option("asyncProgressTrackingEnabled", "true").start()
    with pytest.raises(PySparkException, match="continuous"):
        rows.writeStream.foreachBatch(into(place)).trigger(continuous="1 second").start()
    running = rows.writeStream.foreachBatch(into(place)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="no checkpointLocation"):
        running.awaitTermination(60)
    assert place.ledger.read(NAME).positions == {}


@SQLITE
def test_a_batch_by_hand_is_refused(place: Place, spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="give it to foreachBatch"):
        into(place)(spark.range(1).toDF("id"), 0)
    with pytest.raises(ConfigurationError, match="Spark Connect"):
        pickle.dumps(into(place))


def test_a_query_needs_a_ledger_in_a_sql_database() -> None:
    with pytest.raises(ConfigurationError, match="a ledger in a SQL database"):
        ExactlyOnce("orders", ledger="memory://", name=NAME)


@pytest.mark.parametrize(("place", "collect"), [("sqlite", 0), ("mysql", 0), ("postgres", 1000)], indirect=["place"])
def test_rows_that_do_not_fit_are_parked_with_their_batch(collect: int, place: Place, query: Query) -> None:
    place.run(f"CREATE TABLE {place.name} (id INTEGER NOT NULL, name VARCHAR(4))")
    query.put(0, [{"id": 1, "user": "good"}, {"id": 2, "user": "too long"}, {"user": "null"}])
    query.put(1, [{"id": 3, "user": "good"}])
    writer = ExactlyOnce(place.name, ledger=place.ledger, name=NAME, collect=collect)
    query.run(writer, lambda rows: rows.select("id", F.col("user").alias("name")))
    assert sorted(place.rows("*")) == [(1, "good"), (3, "good")]
    letters = [parked.letter for parked in place.ledger.dead_letters(NAME)]
    assert {letter.record.source for letter in letters} == {query.source}
    found = sorted((letter.record.offset, letter.record.value, letter.error) for letter in letters)
    assert [(offset, value) for offset, value, _ in found] == [
        (0, b'{"id":2,"name":"too long"}'),
        (0, b'{"id":null,"name":"null"}'),
    ]
    assert ["name" in found[0][2], "id" in found[1][2]] == [True, True]
    assert sum(entry.records for entry in place.ledger.journal(NAME)) == 4


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_a_row_that_the_database_refuses_ends_the_query(place: Place, query: Query) -> None:
    place.run(f'CREATE TABLE {place.name} (id INTEGER PRIMARY KEY, "user" VARCHAR(9), total DECIMAL(12, 2))')
    for number in range(2):
        query.put(number, orders(number))
    query.put(2, [{"id": 50, "user": "new", "total": "1.00"}, *orders(0)])
    for collect in (BY_EXECUTORS, BY_DRIVER):
        with pytest.raises(StreamingQueryException, match="the database refused the rows"):
            query.run(ExactlyOnce(place.name, ledger=place.ledger, name=NAME, collect=collect))
        check(place, query, 2)


@SQLITE
def test_a_column_that_the_table_lacks_is_refused_or_added(place: Place, query: Query) -> None:
    query.put(0, orders(0))
    query.run(into(place))

    def more(rows: DataFrame) -> DataFrame:
        return rows.withColumn("twice", F.col("total") * 2)

    query.put(1, orders(1))
    with pytest.raises(StreamingQueryException, match="no column 'twice'"):
        query.run(into(place), more)
    table = Table(place.name, evolve=True)
    query.run(ExactlyOnce(table, ledger=place.ledger, name=NAME), more)
    assert place.rows("count(*), count(twice)") == [(40, 20)]


@pytest.mark.parametrize(
    ("place", "mode"), [("mariadb", "upsert"), ("mysql", "ignore"), ("postgres", "upsert")], indirect=["place"]
)
def test_a_task_with_few_rows_keeps_its_place_among_staged_ones(mode: str, place: Place, query: Query) -> None:
    """One key is in both tasks of a batch; the first of them has one row, and the other has 20."""
    query.put(0, [{"id": number, "user": "many", "total": "2"} for number in range(20)])
    one = query.spark.createDataFrame([(0, "one", Decimal(1))], "id long, user string, total decimal(12,2)").coalesce(1)
    writer = into(place, mode=mode, collect=5)

    def each(rows: DataFrame, number: int) -> None:
        writer(one.union(rows.coalesce(1)), number)
        assert staged(place) == 21

    query.run(each)
    users = {number: user for number, user, _ in rows_of(place)}
    assert users == dict.fromkeys(range(20), "many") | ({0: "one"} if mode == "ignore" else {})


@SOME
def test_sums_are_applied_once(place: Place, query: Query) -> None:
    table = Table(place.name, key="user", mode="accumulate", create=True, columns={"user": "text", "n": "integer"})
    for collect in (BY_EXECUTORS, BY_DRIVER):
        for number in range(2):
            query.put(number, orders(number))
        writer = ExactlyOnce(table, ledger=place.ledger, name=f"{NAME}-{collect}", collect=collect)
        mine = query.beside(f"by-{collect}")
        made = lambda rows: rows.select("user", F.lit(1).alias("n"))  # noqa: E731
        mine.run(writer, made)
        mine.forget_commit(1)
        mine.run(writer, made)
    wanted = Counter(row["user"] for number in range(2) for row in orders(number))
    assert dict(place.rows("*")) == {user: 2 * count for user, count in wanted.items()}


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_a_stateful_aggregation_with_a_watermark_counts_what_python_counts(place: Place, query: Query) -> None:
    begin, delay = datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=10)
    batches = [
        [
            begin + timedelta(seconds=(batch * 400 + number * 37) % 5000 + (0 if number % 5 else -1500))
            for number in range(60)
        ]
        for batch in range(6)
    ]
    wanted: Counter[datetime] = Counter()
    latest = watermark = datetime(1970, 1, 1, tzinfo=UTC)
    for times in batches:
        for at in times:
            minute = at.replace(second=0)
            if minute + timedelta(minutes=1) > watermark:
                wanted[minute] += 1
        latest = max(latest, *times)
        watermark = max(watermark, latest - delay)
    assert sum(wanted.values()) < 360  # some are late

    def counted(rows: DataFrame) -> DataFrame:
        windows = rows.withWatermark("at", "10 minutes").groupBy(F.window("at", "1 minute")).count()
        return windows.select(F.unix_seconds("window.start").alias("id"), F.col("count").alias("n"))

    table = Table(place.name, key="id", mode="upsert", create=True, columns={"id": "integer", "n": "integer"})
    writer = ExactlyOnce(table, ledger=place.ledger, name=NAME)
    for number, times in enumerate(batches):
        query.put(number, [{"at": at.isoformat()} for at in times])
        query.run(writer, counted, schema="at timestamp", output="update")
        query.forget_commit(place.ledger.read(NAME).positions[query.source].next_offset - 1)
    query.run(writer, counted, schema="at timestamp", output="update")
    found = {datetime.fromtimestamp(seconds, UTC): count for seconds, count in place.rows("*")}
    assert found == wanted
