"""A handler that leaves its transaction idle for longer than the database allows, twice: an error, no more tries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text

from tidegate import Ledger, Limits, Record, Span, TopicPartition, open_ledger
from tidegate.errors import HeldTooLong
from tidegate.ledger import FailedRecord
from tidegate.ledger.sql import sessions
from tidegate.ledger.transaction import HeldIdle

from .stores import fresh_name

GROUP = "billing"
ORDERS = TopicPartition("orders", 0)
SPAN = Span(ORDERS, 0, 1, 1)
HOLD = 1.0  # less than a second is no limit on MySQL and MariaDB
PAUSE = 1.3 * HOLD


@pytest.fixture(params=["mariadb", "mysql", "postgres", "pgbouncer"])
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger[Any]]:
    """A ledger on each database that ends idle transactions."""
    url = request.getfixturevalue(request.param).url
    with open_ledger(url, prefix=f"{fresh_name()}_", limits=Limits(hold=HOLD, lock_wait=5)) as opened:
        opened.create()
        yield opened


def transact(ledger: Ledger[Any], handler: Callable[[Any], object]) -> None:
    ledger.transact(ledger.claim(GROUP, [ORDERS]), [SPAN], handler)


def transaction(ledger: Ledger[Any], handler: Callable[[Any], object]) -> None:
    with ledger.transaction(ledger.claim(GROUP, [ORDERS]), [SPAN]) as tx:
        handler(tx)


def detached(ledger: Ledger[Any], handler: Callable[[Any], object]) -> None:
    with ledger.detached(ledger.claim(GROUP, [ORDERS]), [SPAN]) as tx:
        handler(tx)


def replay(ledger: Ledger[Any], handler: Callable[[Any], object]) -> None:
    letter = FailedRecord(Record(*ORDERS, 0, None, b""), "no")
    ledger.transact(ledger.claim(GROUP, [ORDERS]), [SPAN], lambda tx: tx.park(letter))
    (parked,) = ledger.dead_letters(GROUP)
    ledger.replay(parked, handler)


@pytest.mark.parametrize(
    ("do", "asks"),
    # Whether a handler asks again or ends, it meets the closed connection: where from, makes no difference.
    [(transact, False), (transact, True), (transaction, True), (detached, False), (replay, False)],
    ids=["transact-silent", "transact-asking", "transaction-asking", "detached-silent", "replay-silent"],
)
def test_an_idle_handler_is_told_so_the_second_time(
    ledger: Ledger[Any], do: Any, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    ended: list[HeldIdle] = []

    class Counted(HeldIdle):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            ended.append(self)

    def handler(tx: Any) -> None:
        calls.append(tx)
        tx.execute(text("SELECT 1"))
        time.sleep(PAUSE)
        if asks:
            tx.execute(text("SELECT 1"))

    monkeypatch.setattr(sessions, "HeldIdle", Counted)
    with pytest.raises(HeldTooLong, match=r"hold \(1 s\)") as raised:
        do(ledger, handler)
    assert len(ended) == (2 if do in (transact, replay) else 1), "once, the process may have been frozen"
    assert calls and len(calls) <= len(ended)  # a busy machine may have been idle before it came to the handler
    assert HOLD <= raised.value.seconds < 30
    assert raised.value.hold == HOLD
    assert len(ledger.dead_letters(GROUP)) == (do is replay)
    assert ledger.read(GROUP).positions[ORDERS].next_offset == (do is replay)


def test_a_connection_that_breaks_while_a_statement_runs_for_longer_is_lost_and_the_handler_run_again(
    postgres: Any,
) -> None:
    with open_ledger(postgres.url, prefix=f"{fresh_name()}_", limits=Limits(hold=0.2, lock_wait=5)) as ledger:
        ledger.create()
        calls: list[Any] = []

        def handler(tx: Any) -> None:
            calls.append(tx)
            tx.execute(text("SELECT pg_sleep(0.5)"))
            if len(calls) == 1:
                tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

        transact(ledger, handler)
        assert len(calls) == 2
        assert ledger.read(GROUP).positions[ORDERS].next_offset == 1
