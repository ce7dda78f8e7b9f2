"""Through PgBouncer in transaction mode, where each transaction may get another session of the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tidegate import Limits, Span, TopicPartition, open_ledger
from tidegate.errors import HeldTooLong
from tidegate.sandbox import PgBouncer, Postgres

from .stores import fresh_name

ORDERS = TopicPartition("orders", 0)
LIMITS = Limits(hold=3, lock_wait=7)
ASKED = ("lock_timeout", "idle_in_transaction_session_timeout")


@pytest.fixture
def one_session(postgres: Postgres) -> Iterator[PgBouncer]:
    """All clients share one session of the server."""
    with PgBouncer(postgres, settings={"default_pool_size": 1}) as server:
        yield server


def limits(conn: Any) -> list[str]:
    return [str(conn.execute(text(f"SHOW {name}")).scalar()) for name in ASKED]


@pytest.mark.parametrize("whose", ["the ledger's", "the user's"])
def test_limits_hold_in_the_transaction_and_are_gone_after_it(one_session: PgBouncer, whose: str) -> None:
    bystander = create_engine(one_session.url, poolclass=NullPool)
    engine = create_engine(one_session.url)
    prefix = fresh_name()
    target = one_session.url if whose == "the ledger's" else engine
    in_force: list[list[str]] = []
    with open_ledger(target, prefix=prefix, limits=LIMITS) as ledger:
        claims = ledger.claim("billing", [ORDERS])
        for start in range(10):  # often enough for psycopg to prepare what it could not find again
            ledger.transact(claims, [Span(ORDERS, start, start + 1)], lambda tx: in_force.append(limits(tx)))
            with bystander.connect() as conn:
                assert limits(conn) == ["0", "0"], "the limits stayed behind for a stranger"
        assert in_force == [["7s", "3s"]] * 10
        assert ledger.verify("billing").ok
    engine.dispose()


def test_a_client_that_sits_on_its_locks_is_ended_and_the_next_one_goes_on(one_session: PgBouncer) -> None:
    prefix = fresh_name()
    patient = Limits(hold=1, lock_wait=20)
    with (
        open_ledger(one_session.url, prefix=prefix, limits=patient) as idle,
        open_ledger(one_session.url, prefix=prefix, limits=patient) as other,
    ):
        claims = idle.claim("billing", [ORDERS])
        ended = pytest.raises(HeldTooLong, match="hold")
        with ended, idle.transaction(claims, [Span(ORDERS, 0, 1)]):
            taken = other.claim("billing", [ORDERS])  # waits until the server has ended the first session
        assert other.transact(taken, [Span(ORDERS, 0, 1)]).outcome.name == "COMMITTED"
        assert other.verify("billing").ok
