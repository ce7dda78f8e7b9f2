"""The tour: each way is run, and its functions are called in the order in which the page names them."""

from __future__ import annotations

import importlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import text
from tests.house.test_hands import arrow
from tests.tracing import code_of, watched

from tidegate import App, Delivery, Limits, Producer, Record, Span, Table, TopicPartition, Transaction, open_ledger
from tidegate.app.handler import RecordRun
from tidegate.ledger import SqlLedger
from tidegate.operate import Operator, target
from tidegate.sandbox import Kafka
from tidegate.spark.address import LedgerAddress
from tidegate.spark.executor import ExecutorCommit
from tidegate.spark.rows import FixedTable, Plain
from tidegate.spark.writer import Writing
from tidegate.tables import JsonFormat, Target
from tidegate.tables.shape import look_at_shape

PAGE = Path(__file__).parents[2] / "docs" / "tour.md"
STEP = re.compile(r"^(\d+)\. `([\w.]+)` in `src/(tidegate/[\w/]+)\.py`: .+$", re.MULTILINE)
MOST_STEPS = 12
PROTOCOLS = {"RowWise.make": Plain.make}
"""Where the page names an interface: what implements it in this test."""


@dataclass(frozen=True)
class Step:
    """A step of the page: a function, by its name and module."""

    name: str
    module: str

    def function(self) -> Any:
        """The function; raises if there is none of this name in its file."""
        found = reduce(getattr, self.name.split("."), importlib.import_module(self.module))
        assert getattr(found, "__module__", self.module) == self.module, f"{self.name} is not in {self.module}"
        return found

    def code(self) -> CodeType:
        return code_of(PROTOCOLS.get(self.name) or self.function())


def ways() -> dict[str, list[Step]]:
    """The steps below each heading."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {
        heading: [Step(name, path.replace("/", ".")) for _, name, path in STEP.findall(body)]
        for heading, body in zip(parts[::2], parts[1::2], strict=True)
    }


@contextmanager
def logged() -> Iterator[list[CodeType]]:
    """Every function of Tidegate that is called in the block, on any thread that begins in it, in order."""
    log: list[CodeType] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and str(frame.f_globals.get("__name__")).startswith("tidegate."):
            log.append(frame.f_code)

    with watched(profile):
        yield log


def check(heading: str, log: list[CodeType], pivot: Callable[..., Any], *, strictly: bool = True) -> None:
    """The steps around the first call of ``pivot``, which a run with one record calls once.

    A way begins with the last call of each step in front of the pivot, and goes on with the next call of each behind
    it. ``strictly``: on this way, no step is called before its turn. Another thread may do that, if it works meanwhile.
    """
    steps = ways()[heading]
    codes = [step.code() for step in steps]
    at = codes.index(code_of(pivot))
    begin = end = log.index(codes[at])
    for step, code in zip(steps[:at][::-1], codes[:at][::-1], strict=True):
        assert code in log[:begin], f"{step.name} is not called before what follows it"
        begin = max(found for found in range(begin) if log[found] is code)
    for step, code in zip(steps[at + 1 :], codes[at + 1 :], strict=True):
        assert code in log[end + 1 :], f"{step.name} is not called after what precedes it"
        end = log.index(code, end + 1)
    firsts = [log.index(code, begin) - begin for code in codes]
    if strictly:
        called = [(step.name, first) for step, first in zip(steps, firsts, strict=True)]
        assert called == sorted(called, key=lambda each: each[1]), "\n".join(map(str, called))


def test_every_step_is_a_function_and_no_way_is_long() -> None:
    found = ways()
    assert len(found) == 5
    for heading, steps in found.items():
        assert 0 < len(steps) <= MOST_STEPS, heading
        for step in steps:
            assert callable(step.function())
    assert sum(map(len, found.values())) == len(re.findall(r"^\d+\. ", PAGE.read_text(), re.MULTILINE))


def test_a_step_in_the_wrong_place_is_noticed() -> None:
    codes = [step.code() for step in ways()["A send"]]
    check("A send", codes, Producer.send)
    with pytest.raises(AssertionError):
        check("A send", [codes[0], codes[2], codes[1], *codes[3:]], Producer.send)
    with pytest.raises(AssertionError):
        check("A send", codes[:-1], Producer.send)


@pytest.fixture
def topic(kafka: Kafka) -> str:
    """A topic with one order in it."""
    name = f"tour-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    producer = Producer(kafka.bootstrap, value_serializer="json")
    producer.send(name, {"id": 1}).result(30)
    producer.close()
    return name


@pytest.fixture
def app(kafka: Kafka, tmp_path: Path) -> App:
    """An app with a table for bills. Nothing prunes the journal, which would commit on a thread of its own."""
    app = App(kafka.bootstrap, open_ledger(f"sqlite:///{tmp_path}/shop.db", limits=Limits(retention=0)))
    with ledger_of(app).engine.begin() as conn:
        conn.execute(text("CREATE TABLE bills (id INTEGER PRIMARY KEY)"))
    ledger_of(app).create()
    return app


def ledger_of(app: App) -> SqlLedger:
    assert isinstance(app.ledger, SqlLedger)
    return app.ledger


def test_a_record_through_a_listener(app: App, topic: str) -> None:
    seen: list[int] = []

    @app.listener(topic, group="billing")
    def bill(record: Record, tx: Transaction) -> None:
        seen.append(record.offset)

    with logged() as log:
        app.run(until_caught_up=True)
    assert seen == [0]
    check("A record through a listener", log, RecordRun.run)


def test_a_record_through_a_sink(app: App, topic: str) -> None:
    app.sink(topic, into=Table("bills", key=["id"]))
    with logged() as log:
        app.run(until_caught_up=True)
    check("A record through a sink", log, Target.write)


def test_a_record_through_a_spark_task(app: App) -> None:
    ledger, table, orders = ledger_of(app), Table("bills", key=["id"]), TopicPartition("orders", 0)
    layout = Target(ledger.engine, table).layout
    task = ExecutorCommit(
        LedgerAddress(str(ledger.engine.url), {}, ledger.prefix, Limits()),
        Writing(layout, look_at_shape(ledger.engine, table)),
        Plain(frozenset({"value"})),
        FixedTable(layout, JsonFormat(), None),
        Delivery.EXACTLY_ONCE,
        ledger.claim("etl", [orders]),
        {orders: Span(orders, 0, 1, 1)},
    )
    with logged() as log:
        (result,) = task([arrow([Record(*orders, 0, None, json.dumps({"id": 1}).encode())])])
    assert result.column("ended").to_pylist() == ["committed"]
    check("A record through a Spark task", log, ExecutorCommit._commit)


def test_an_operators_rewind(app: App, topic: str) -> None:
    handled = threading.Semaphore(0)
    committed = threading.Event()
    app.observers.add(lambda event: committed.set() if type(event).__name__ == "Committed" else None)

    @app.listener(topic, group="billing")
    def bill(record: Record, tx: Transaction) -> None:
        handled.release()

    with logged() as log:
        running = threading.Thread(target=app.run)
        running.start()
        try:
            assert handled.acquire(timeout=60)
            assert committed.wait(60)
            operator = Operator(ledger_of(app), None)
            operator.execute(operator.rewind("billing", topic, target("0"), force=True), user="ada")
            assert handled.acquire(timeout=60), "the listener has not read the record again"
        finally:
            app.stop()
            running.join(60)
    check("An operator's rewind", log, Operator.execute, strictly=False)


def test_a_send(kafka: Kafka, topic: str) -> None:
    with logged() as log:
        producer = Producer(kafka.bootstrap, value_serializer="json", partitioner=lambda key, value, count: 0)
        producer.send(topic, {"id": 2}).result(30)
        producer.close()
    check("A send", log, Producer.send)
