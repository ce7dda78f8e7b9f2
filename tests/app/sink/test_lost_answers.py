"""A sink whose connection breaks under any request, before or after its transaction or in it."""

from __future__ import annotations

import itertools
import json
import secrets
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from tests.ledger.cutting import Cut, Moment, Wire

from tidegate import Record, Span, Table, TopicPartition, open_ledger
from tidegate.app.sink import Sink
from tidegate.core.policies import DeadLetter
from tidegate.errors import LedgerUnavailable

ORDERS = TopicPartition("orders", 0)


@pytest.mark.filterwarnings("ignore:nested transaction already deassociated")
@pytest.mark.parametrize("name", ["mariadb", "mysql", "postgres"])
def test_a_break_under_any_request_of_a_sink_is_an_outage_and_no_row_is_lost_or_twice(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Every batch brings a new column and a record that does not fit, so that the table is looked at and altered."""
    server = request.getfixturevalue(name)
    wire = Wire(server.host, server.port)
    table = f"s{secrets.token_hex(6)}"
    url = wire.url(server.url)
    engine = create_engine(server.url)
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE {table} (n INTEGER PRIMARY KEY)"))
    sink = Sink(Table(table, evolve=True, key=["n"]))
    with open_ledger(url, prefix=table) as ledger:
        claims = ledger.claim("etl", [ORDERS])
        opened = sink.open(ledger, "etl", DeadLetter())
        for number in itertools.count():
            good, bad = {"n": number, f"c{number}": number}, {"n": "none"}
            records = [_record(2 * number, good), _record(2 * number + 1, bad)]

            def deliver(records: list[Record] = records, number: int = number) -> Any:
                prepared = opened.prepare(records)
                span = Span(ORDERS, 2 * number, 2 * number + 2, 2)
                return ledger.transact(claims, [span], prepared.run)

            wire.cut = cut = Cut(number + 1, Moment.AFTER)
            try:
                deliver()
            except LedgerUnavailable:  # which a listener waits for
                deliver()
            wire.cut = None
            if not cut.fired:
                break
        assert len(ledger.dead_letters("etl")) == number + 1
        assert ledger.verify("etl").ok
    with engine.connect() as conn:
        assert conn.execute(text(f"SELECT n FROM {table} ORDER BY n")).scalars().all() == list(range(number + 1))
        assert conn.execute(text(f"SELECT c{number} FROM {table} WHERE n = {number}")).scalar() == number
    engine.dispose()
    wire.close()


def _record(offset: int, value: dict[str, Any]) -> Record:
    return Record(*ORDERS, offset, None, json.dumps(value).encode())
