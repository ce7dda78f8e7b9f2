"""A task plans its writes before its transaction: what planning needs and what it finds must not be lost on the way."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import create_engine, text
from tests.ports import refused_port

from tidegate.core.policies import Delivery
from tidegate.core.records import Record, TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.ledger import Limits, SqlLedger
from tidegate.sandbox import Postgres
from tidegate.spark.address import LedgerAddress
from tidegate.spark.executor import Ended, ExecutorCommit, TaskResult
from tidegate.spark.records import RAW, RAW_TYPES
from tidegate.spark.rows import FixedTable, Plain
from tidegate.spark.writer import Writing
from tidegate.tables import JsonFormat, Rows, Table, Target
from tidegate.tables.shape import look_at_shape
from tidegate.tables.writer import Writer

ORDERS = TopicPartition("orders", 0)
HUGE = 1 << 62


class Shop:
    """A ledger with a table of totals, and tasks that commit to it."""

    def __init__(self, url: str, key: str) -> None:
        self.name = f"t{uuid.uuid4().hex[:12]}"
        self.ledger = SqlLedger(create_engine(url), prefix=f"p{uuid.uuid4().hex[:8]}_", owned=True)
        self.url = url
        with self.ledger.engine.begin() as conn:
            conn.execute(text(f"CREATE TABLE {self.name} (id {key} PRIMARY KEY, total BIGINT)"))
        self.table = Table(self.name, key=["id"], mode="accumulate")
        self.claims: dict[TopicPartition, Claim] = self.ledger.claim("etl", [ORDERS])

    def task(self, count: int, *, parks: bool = False, url: str | None = None) -> ExecutorCommit:
        engine = self.ledger.engine
        layout = Target(engine, self.table).layout
        limits = Limits(lock_wait=0.5, hold=0.5) if url else Limits()
        return ExecutorCommit(
            LedgerAddress(url or self.url, {}, self.ledger.prefix, limits),
            Writing(layout, look_at_shape(engine, self.table)),
            Plain(frozenset({"value"})),
            FixedTable(layout, JsonFormat(), None),
            Delivery.EXACTLY_ONCE,
            self.claims,
            {ORDERS: Span(ORDERS, 0, count, count)},
            parks,
        )

    def rows(self) -> list[tuple[Any, ...]]:
        with self.ledger.engine.connect() as conn:
            return [tuple(row) for row in conn.execute(text(f"SELECT id, total FROM {self.name}"))]

    @property
    def position(self) -> int:
        return self.ledger.read("etl").positions[ORDERS].next_offset


def run(task: ExecutorCommit, values: Sequence[dict[str, Any]]) -> TaskResult:
    records = [Record(*ORDERS, offset, None, json.dumps(value).encode()) for offset, value in enumerate(values)]
    columns = {name: [getattr(record, part) for record in records] for part, name in RAW.items()}
    columns[RAW["headers"]] = [None] * len(records)
    arrays = [pa.array(columns[name], RAW_TYPES[part]) for part, name in RAW.items()]
    (result,) = task([pa.record_batch(arrays, list(RAW.values()))])
    (row,) = result.to_pylist()
    return TaskResult.of(row.values())


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}", "INTEGER")
    yield shop
    shop.ledger.close()


@pytest.fixture
def caseless(postgres: Postgres) -> Iterator[Shop]:
    """A table whose keys only the database can compare."""
    engine = create_engine(postgres.url)
    with engine.begin() as conn:
        conn.execute(text("CREATE EXTENSION IF NOT EXISTS citext"))
    engine.dispose()
    shop = Shop(postgres.url, "CITEXT")
    yield shop
    shop.ledger.close()


def test_a_sum_that_does_not_fit_is_refused_before_the_transaction_and_parked_in_the_next_one(local: Shop) -> None:
    values = [{"id": 1, "total": HUGE}, {"id": 1, "total": HUGE}]
    refused = run(local.task(2), values)
    assert refused.ended is Ended.REFUSED
    assert (local.rows(), local.position) == ([], 0)
    parked = run(local.task(2, parks=True), values)
    assert (parked.ended, parked.rows, parked.letters) == (Ended.COMMITTED, 1, 1)
    assert (local.rows(), local.position) == ([(1, HUGE)], 2)
    assert [letter.letter.record.offset for letter in local.ledger.dead_letters("etl")] == [1]


def test_no_transaction_is_open_while_a_task_plans(local: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, seen = Writer._plan, []

    def plan(writer: Writer, rows: Rows, ask: Any) -> Any:
        seen.append(local.position)  # would wait for the lock, if the task held it
        with local.ledger.engine.begin() as conn:
            conn.execute(text(f"DELETE FROM {local.name}"))  # SQLite has one writer at a time
        return genuine(writer, rows, ask)

    monkeypatch.setattr(Writer, "_plan", plan)
    assert run(local.task(1), [{"id": 1, "total": 1}]).ended is Ended.COMMITTED
    assert (seen, local.rows()) == ([0], [(1, 1)])


def test_the_database_compares_keys_before_the_transaction(caseless: Shop) -> None:
    result = run(caseless.task(3), [{"id": "a", "total": 1}, {"id": "A", "total": 2}, {"id": "b", "total": 4}])
    assert (result.ended, result.attempts) == (Ended.COMMITTED, 1)
    assert sorted(caseless.rows()) == [("a", 3), ("b", 4)]
    engine = caseless.task(1).target().ledger.engine
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_database_that_is_away_while_a_task_plans_is_an_outage(caseless: Shop) -> None:
    url = f"postgresql+psycopg://nobody@127.0.0.1:{refused_port()}/shop"
    result = run(caseless.task(2, url=url), [{"id": "a", "total": 1}, {"id": "A", "total": 2}])
    assert result.ended is Ended.UNAVAILABLE
    assert (caseless.rows(), caseless.position) == ([], 0)
