"""Faults of pipelines into several tables: killed and repeated tasks, a second driver, and a change of hands."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from tests.spark.yard import GROUP, Side, Yard, create_family, family, halves, order

from tidegate import Table, TopicPartition
from tidegate.core.policies import Delivery
from tidegate.core.work import Span
from tidegate.errors import PipelineStopped
from tidegate.sandbox import Kafka
from tidegate.spark import driver, routes
from tidegate.spark.address import LedgerAddress
from tidegate.spark.executor import Ended, TaskResult
from tidegate.spark.records import RAW, RAW_TYPES
from tidegate.spark.rows import Plain
from tidegate.tables import Route
from tidegate.tables.target import Target

COUNT = 300
PARTS = frozenset({"value", "key", "topic"})


@pytest.fixture
def yard(request: pytest.FixtureRequest, kafka: Kafka) -> Iterator[Yard]:
    opened = Yard(str(request.getfixturevalue(request.param).url), kafka.bootstrap)
    yield opened
    opened.close()


def sprung(trap: Path) -> bool:
    """Whether this process is the first to come by."""
    try:
        trap.unlink()
    except FileNotFoundError:
        return False
    return True


@dataclass(frozen=True)
class StruckCommit(routes.RouteCommit):
    """A task that dies after it has written its second table, or after its commit."""

    folder: str = field(kw_only=True)

    def __call__(self, batches: Iterable[Any]) -> Iterable[Any]:
        genuine, written = Target.write, []

        def write(target: Target, *given: Any) -> None:
            genuine(target, *given)
            written.append(target.table.name)
            if len(set(written)) == 2 and sprung(Path(self.folder, "between")):
                os.kill(os.getpid(), signal.SIGKILL)

        with patch.object(Target, "write", write):
            results = list(super().__call__(batches))
        if results and sprung(Path(self.folder, "after")):
            os.kill(os.getpid(), signal.SIGKILL)
        yield from results


@contextmanager
def struck(folder: Path) -> Iterator[None]:
    """Tasks fall into the traps that lie in the folder."""

    def make(*given: Any) -> StruckCommit:
        return StruckCommit(*given, folder=str(folder))

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with patch.object(driver, "RouteCommit", make):
        yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Watch:
    """Looks at all tables and positions in one snapshot, again and again."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.seen: set[int] = set()
        self.odd: list[tuple[int, ...]] = []

    def look(self) -> None:
        names = [self._side.table(name) for name in ("orders", "lines", "lots")]
        ledger = f"SELECT COALESCE(SUM(next_offset), 0) FROM {self._side.name}t_positions"
        counts = ", ".join(f"(SELECT COUNT(*) FROM {name})" for name in names)
        with self._side.engine.connect() as conn:
            (found,) = conn.exec_driver_sql(f"SELECT ({ledger}), {counts}").all()  # one statement, one snapshot
        read, orders, lines, lots = map(int, found)
        self.seen.add(read)
        if not (orders == read and lines == lots == 2 * read):
            self.odd.append((read, orders, lines, lots))

    @contextmanager
    def on(self) -> Iterator[None]:
        enough = threading.Event()

        def go_on() -> None:
            while not enough.wait(0.02):
                self.look()

        watching = threading.Thread(target=go_on)
        watching.start()
        try:
            yield
        finally:
            enough.set()
            watching.join()


def filled(yard: Yard, partitions: int = 2) -> str:
    (topic,) = yard.topics("family", partitions=partitions)
    for number in range(COUNT):
        yard.send(topic, order(number, "tea", "cup"), partition=number % partitions)
    yard.flush()
    return topic


@pytest.mark.parametrize("yard", ["postgres", "mariadb"], indirect=True)
def test_a_task_that_is_killed_between_its_tables_or_after_its_commit_loses_and_repeats_nothing(
    yard: Yard, spark: SparkSession, tmp_path: Path
) -> None:
    topic = filled(yard)
    pipe, _ = yard.sides
    create_family(pipe)
    pipe.ledger.create()
    watch = Watch(pipe)
    for trap in ("between", "after"):
        (tmp_path / trap).touch()
    with struck(tmp_path), watch.on():
        report = pipe.pipe(spark, [topic], family(pipe), collect=0, max_records=100)
    assert not list(tmp_path.iterdir()), "both traps were sprung"
    watch.look()
    assert not watch.odd
    assert COUNT in watch.seen
    assert report.lag == 0
    assert not pipe.letters()
    assert pipe.ledger.verify(GROUP).ok


@pytest.mark.parametrize("yard", ["postgres"], indirect=True)
def test_a_second_driver_stops_the_first_and_all_tables_stay_as_one(yard: Yard, spark: SparkSession) -> None:
    topic = filled(yard)
    pipe, _ = yard.sides
    create_family(pipe)
    pipe.ledger.create()
    watch = Watch(pipe)
    first = pipe.pipeline(spark, [topic], family(pipe), collect=0, max_records=20)
    errors: list[Exception] = []

    def run() -> None:
        try:
            first.run(every=0.01)
        except Exception as error:
            errors.append(error)

    running = threading.Thread(target=run)
    with watch.on():
        running.start()
        until(lambda: max(watch.seen, default=0) > 0)
        pipe.pipeline(spark, [topic], family(pipe), collect=0, max_records=50).run(available_now=True)
        for number in range(COUNT, COUNT + 40):
            yard.send(topic, order(number, "tea", "cup"), partition=number % 2)
        yard.flush()
        running.join(120)
    (error,) = errors
    assert isinstance(error, PipelineStopped)
    pipe.pipe(spark, [topic], family(pipe), collect=0)
    watch.look()
    assert not watch.odd
    assert COUNT + 40 in watch.seen
    assert pipe.ledger.verify(GROUP).ok


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("yard", ["mariadb"], indirect=True)
def test_a_route_goes_from_a_sink_to_a_pipeline_and_back(yard: Yard, spark: SparkSession) -> None:
    (topic,) = yard.topics("shop", partitions=2)
    side, _ = yard.sides
    into = Table(side.table("{topic}"), key="id", mode="upsert", create=True, columns={"id": int, "n": int})
    number = 0

    def send() -> None:
        nonlocal number
        for _ in range(30):
            yard.send(topic, {"id": number, "n": number}, partition=number % 2)
            number += 1
        yard.send(topic, b"no JSON")
        yard.flush()

    send()
    side.sink([topic], into)
    send()
    report = side.pipe(spark, [topic], into, collect=0, max_records=20)
    assert "partition" in side.modes
    assert (report.records, report.rows, report.dead_letters) == (31, 30, 1)
    send()
    side.sink([topic], into)
    assert side.tables() == {topic.replace(".", "_"): sorted([(each, each) for each in range(90)], key=repr)}
    assert len(side.letters()) == 3
    assert side.ledger.verify(GROUP).ok


class Bench:
    """Tasks of a route, run here; each attempt has the claims and spans of the first."""

    def __init__(
        self, side: Side, into: Route, topic: str, values: list[bytes], delivery: Delivery = Delivery.EXACTLY_ONCE
    ) -> None:
        address = LedgerAddress(side.engine.url.render_as_string(hide_password=False), {}, *_limits(side))
        self.source = TopicPartition(topic, 0)
        claims = side.ledger.claim(GROUP, [self.source])
        self._values = values
        fixed = routes.FixedRoute(address, into, "json", "json", PARTS)
        spans = {self.source: Span(self.source, 0, len(values))}
        self.task = routes.RouteCommit(fixed, Plain(PARTS), delivery, claims, spans, {})

    def run(self, over: Mapping[TopicPartition, int] | None = None) -> TaskResult:
        parts: dict[str, list[Any]] = {part: [None] * len(self._values) for part in RAW}
        parts |= {"value": self._values, "offset": list(range(len(self._values)))}
        parts |= {"topic": [self.source.topic] * len(self._values), "partition": [0] * len(self._values)}
        arrays = [pa.array(parts[part], RAW_TYPES[part]) for part in RAW]
        task = routes.RouteCommit(
            self.task.fixed, self.task.rowwise, self.task.delivery, self.task.claims, self.task.spans, over or {}
        )
        (result,) = task([pa.record_batch(arrays, list(RAW.values()))])
        (row,) = result.to_pylist()
        return TaskResult.of(row.values())


def _limits(side: Side) -> tuple[str, Any]:
    ledger: Any = side.ledger
    return ledger.prefix, ledger.limits


@pytest.mark.parametrize("yard", ["postgres", "mariadb"], indirect=True)
def test_a_second_attempt_at_a_task_writes_nothing(yard: Yard) -> None:
    side, _ = yard.sides
    create_family(side)
    values = [b'{"id": 1, "customer": "ann"}', b'{"id": 2, "customer": "ann"}', b"no JSON"]
    bench = Bench(side, Route(Table(side.table("orders"), key="id", mode="upsert")), "orders", values)
    first, second = bench.run(), bench.run()
    assert (first.ended, first.records, first.rows, first.letters) == (Ended.COMMITTED, 3, 2, 1)
    assert second.ended is Ended.ALREADY_DONE
    assert len(side.rows("orders")) == 2
    assert len(side.letters()) == 1


@pytest.mark.parametrize("yard", ["postgres", "mariadb"], indirect=True)
def test_a_task_commits_what_is_before_a_waiting_record_once(yard: Yard) -> None:
    side, _ = yard.sides
    create_family(side)
    into = halves(side, ["orders", "lines"])
    side.sql(f"INSERT INTO {side.table('orders')} VALUES (1, 'ann')")
    line = b'{"order_id": %d, "n": %d, "sku": "tea"}'
    bench = Bench(side, into, "lines", [line % (1, 0), b"no JSON", line % (7, 0), line % (1, 1), b"{}"])
    first, second = bench.run(), bench.run()
    assert (first.ended, first.waiting, first.records, first.rows, first.letters) == (Ended.COMMITTED, 2, 2, 1, 1)
    assert second.ended is Ended.FENCED
    assert side.rows("lines") == [(1, 0, "tea")]
    assert side.parked() == [(0, 1)]
    assert side.ledger.read(GROUP).positions[bench.source].next_offset == 2


@pytest.mark.parametrize("yard", ["postgres"], indirect=True)
def test_a_task_creates_no_table_and_leaves_that_to_the_driver(yard: Yard) -> None:
    side, _ = yard.sides
    into = Route(Table(side.table("{topic}"), key="id", mode="upsert", create=True, columns={"id": int}))
    bench = Bench(side, into, "new", [b'{"id": 1}'])
    assert bench.run().ended is Ended.OUTDATED
    assert not side.tables()


@pytest.mark.parametrize("yard", ["postgres"], indirect=True)
def test_a_first_record_that_waits_commits_nothing(yard: Yard) -> None:
    side, _ = yard.sides
    create_family(side)
    bench = Bench(side, halves(side, ["orders", "lines"]), "lines", [b'{"order_id": 7, "n": 0, "sku": "tea"}'])
    assert bench.run()[2:4] == (Ended.WAITING, 0)
    done = bench.run({bench.source: 0})
    assert (done.ended, done.letters, done.waiting) == (Ended.COMMITTED, 1, -1)


@pytest.mark.parametrize("yard", ["postgres"], indirect=True)
def test_at_most_once_waits_for_no_parent_and_at_least_once_does(yard: Yard) -> None:
    line = b'{"order_id": %d, "n": 0, "sku": "tea"}'
    for side, delivery in zip(yard.sides, (Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE), strict=True):
        create_family(side)
        side.sql(f"INSERT INTO {side.table('orders')} VALUES (1, 'ann'), (2, 'bob')")
        values = [line % 1, line % 7, line % 2]
        done = Bench(side, halves(side, ["orders", "lines"]), "lines", values, delivery).run()
        waits = delivery is Delivery.AT_LEAST_ONCE
        assert (done.ended, done.waiting, done.records) == (Ended.COMMITTED, 1 if waits else -1, 1 if waits else 3)
        assert len(side.rows("lines")) == (1 if waits else 2)
        assert side.parked() == ([] if waits else [(0, 1)])


@pytest.mark.parametrize("yard", ["postgres"], indirect=True)
def test_a_task_makes_rows_that_it_cannot_keep_again_when_it_writes(yard: Yard) -> None:
    side, _ = yard.sides
    create_family(side)
    values = [b'{"id": %d, "customer": "ann"}' % number for number in range(40)] + [b"no JSON"]
    bench = Bench(side, Route(Table(side.table("orders"), key="id", mode="upsert")), "orders", values)
    with patch.object(routes, "_MOST", 0), patch.object(routes, "_AT_ONCE", 1):
        done = bench.run()
    assert (done.ended, done.records, done.rows, done.letters) == (Ended.COMMITTED, 41, 40, 1)
    assert len(side.rows("orders")) == 40
