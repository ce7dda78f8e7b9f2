"""Records that wait for another try, while somebody alters their table so that they no longer fit it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text

from tidegate import Backoff, DeadLetter, Ledger, Record, Retry, Table, TopicPartition, open_ledger
from tidegate.app.commit import Commit
from tidegate.app.handler import Handler, Postponed
from tidegate.app.sink import Sink
from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.batches import Batch
from tidegate.core.policies import FailurePolicy
from tidegate.core.records import Records
from tidegate.core.work import Span
from tidegate.tables import Part, Route

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger[Any]]:
    with open_ledger(f"sqlite:///{tmp_path}/shop.db") as ledger:
        assert ledger.engine is not None
        event.listen(ledger.engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
        yield ledger


@pytest.fixture
def engine(ledger: Ledger[Any], tmp_path: Path) -> Iterator[Engine]:
    """Of somebody else."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    yield engine
    engine.dispose()


def run(engine: Engine, *statements: str) -> list[Any]:
    with engine.begin() as connection:
        *_, last = [connection.execute(text(statement)) for statement in statements]
        return [tuple(row) for row in last] if last.returns_rows else []


class Committed:
    """Values that a sink commits: once, so that some are held, and again."""

    def __init__(self, ledger: Ledger[Any], sink: Sink, policy: FailurePolicy, *values: dict[str, Any]) -> None:
        self._ledger = ledger
        self._claims = ledger.claim("g", [ORDERS])
        self._handler: Handler = sink.open(ledger, "g", policy)
        sent = [Record(*ORDERS, place, None, json.dumps(value).encode()) for place, value in enumerate(values)]
        self._batches = [Batch(1, Span(ORDERS, 0, len(sent), len(sent)), Records.of(sent))]

    def hold(self) -> None:
        commit = self._commit()
        with pytest.raises(Postponed):
            commit.run()
        self._batches = list(commit.rest())

    def again(self) -> list[int]:
        """The offsets of the dead letters."""
        self._commit().run()
        return [letter.letter.record.offset for letter in self._ledger.dead_letters("g")]

    def _commit(self) -> Commit:
        spec = ListenerSpec(topics=Topics((ORDERS.topic,)), group="g")
        return Commit(spec, self._ledger, self._claims, self._batches, handler=self._handler, hurry=threading.Event())


def test_a_record_that_no_longer_fits_is_parked_and_no_other_is_written_twice(
    ledger: Ledger[Any], engine: Engine
) -> None:
    run(engine, "CREATE TABLE orders (total INTEGER CHECK (total > 0), note TEXT)")
    policy = Retry(1, Backoff(1, 1, 1), then=DeadLetter())
    committed = Committed(ledger, Sink(Table("orders")), policy, {"total": 1, "note": "a"}, {"total": -1})
    committed.hold()
    run(engine, "DROP TABLE orders", "CREATE TABLE orders (total INTEGER, note TEXT NOT NULL)")
    assert committed.again() == [1]
    assert run(engine, "SELECT * FROM orders") == [(1, "a")]


def test_a_record_that_waits_for_its_parent_and_no_longer_fits_is_parked(ledger: Ledger[Any], engine: Engine) -> None:
    lines = "CREATE TABLE lines (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents (id)"
    run(engine, "CREATE TABLE parents (id INTEGER PRIMARY KEY)", f"{lines})")
    route = Route([Part(Table("lines", key="id", mode="upsert")), Part(Table("parents"), where={"value.is": "parent"})])
    committed = Committed(ledger, Sink(route), DeadLetter(), {"id": 1, "parent": 5})
    committed.hold()
    run(engine, "DROP TABLE lines", f"{lines}, price INTEGER NOT NULL)")
    assert committed.again() == [0]
    assert run(engine, "SELECT * FROM lines") == []
