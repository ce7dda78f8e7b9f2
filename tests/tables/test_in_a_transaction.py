"""Inside the ledger's transaction: rows commit with the position, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from tidegate import Ledger, Span, TopicPartition, open_ledger
from tidegate.ledger import Outcome, SqlLedger
from tidegate.tables import Table, Target

from .places import DATABASES, Place, feed


@pytest.fixture(params=DATABASES)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = f"sqlite:///{tmp_path}/x.db" if request.param == "sqlite" else request.getfixturevalue(request.param).url
    prefix = f"{Place('sqlite', 'sqlite://').name()}_"
    with open_ledger(url, prefix=prefix) as opened:
        yield opened


@pytest.mark.parametrize("mode", ["append", "upsert", "accumulate"])
def test_rows_and_position_commit_together_or_not_at_all(ledger: Ledger[Any], mode: str) -> None:
    assert isinstance(ledger, SqlLedger)
    name = f"{ledger.prefix}rows"
    partition = TopicPartition("orders", 0)
    table = Table(name, key="id", mode=mode, create=True, columns={"id": int, "n": int, "t": str})
    target = Target(ledger.engine, table)
    target.prepare()
    claims = ledger.claim("g", [partition], start_at=0)

    def commit(start: int, values: list[Any], fail: bool = False) -> Any:
        rows = target.read(feed(values))

        def handle(tx: Any) -> None:
            target.write(tx.connection, rows)
            if fail:
                raise RuntimeError("on purpose")

        return ledger.transact(claims, [Span(partition, start, start + 10)], handle).outcome

    def stored() -> list[tuple[Any, ...]]:
        with ledger.engine.connect() as conn:
            return [tuple(row) for row in conn.exec_driver_sql(f"SELECT id, n, t FROM {name} ORDER BY id")]

    assert commit(0, [{"id": 1, "n": 1, "t": "a\tb"}, {"id": 2, "n": 2, "t": None}]) is Outcome.COMMITTED
    with pytest.raises(RuntimeError, match="on purpose"):
        commit(10, [{"id": 3, "n": 3, "t": "c"}], fail=True)
    assert stored() == [(1, 1, "a\tb"), (2, 2, None)]
    assert ledger.read("g").positions[partition].next_offset == 10
    assert commit(10, [{"id": 3, "n": 3, "t": "c"}]) is Outcome.COMMITTED
    assert stored() == [(1, 1, "a\tb"), (2, 2, None), (3, 3, "c")]
    assert ledger.read("g").positions[partition].next_offset == 20


def test_after_a_refused_batch_the_rest_goes_in_by_savepoints(ledger: Ledger[Any]) -> None:
    assert isinstance(ledger, SqlLedger)
    name = f"{ledger.prefix}rows"
    with ledger.engine.begin() as conn:
        conn.exec_driver_sql(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, t VARCHAR(20))")
    target = Target(ledger.engine, Table(name))
    partition = TopicPartition("orders", 0)
    claims = ledger.claim("g", [partition], start_at=0)
    rows = target.read(feed([{"id": number % 7, "t": str(number)} for number in range(10)]))
    refused = []

    def handle(tx: Any) -> None:
        for place in range(10):
            try:
                with tx.savepoint():
                    target.write(tx.connection, rows.between(place, place + 1))
            except DBAPIError:
                refused.append(place)

    ledger.transact(claims, [Span(partition, 0, 10)], handle)
    assert refused == [7, 8, 9]
    with ledger.engine.connect() as conn:
        assert conn.exec_driver_sql(f"SELECT COUNT(*) FROM {name}").scalar() == 7
