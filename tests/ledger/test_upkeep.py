"""The journal is pruned by those who write it: by one of them, now and then, and whatever happens they go on."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from tidegate import ConfigurationError, Limits
from tidegate.errors import LedgerUnavailable
from tidegate.ledger.memory import MemoryLedger
from tidegate.ledger.upkeep import EVERY, Upkeep

from .samples import FIRST, GROUP, SECOND, advance, kinds, span
from .stores import MemoryStore, SqlStore, Store

DAY = timedelta(days=1)
DAY_ONE = datetime(1970, 1, 1, tzinfo=UTC)


def old_journal(store: Store) -> None:
    """Entries of eight days ago, and some of today."""
    claims = store.ledger.claim(GROUP, [FIRST, SECOND])
    advance(store, claims, span(0, 3))
    store.ledger.release(claims)
    store.age(GROUP, 8 * DAY.total_seconds())
    advance(store, store.ledger.claim(GROUP, [FIRST]), span(3, 5))


def done(upkeep: Upkeep) -> None:
    assert upkeep._thread is not None
    upkeep._thread.join(30)
    assert not upkeep._thread.is_alive()


def test_what_is_older_than_the_retention_goes_by_itself(store: Store) -> None:
    old_journal(store)
    upkeep = Upkeep(store.ledger, GROUP)
    upkeep.look()
    done(upkeep)
    assert kinds(store.ledger.journal(GROUP, FIRST)) == ["claim", "advance"]
    assert kinds(store.ledger.journal(GROUP, SECOND)) == ["release"]
    assert store.ledger.verify(GROUP).ok
    assert sum(bucket.records for bucket in store.ledger.history(GROUP, DAY_ONE)) == 5, "which is kept for longer"


def test_one_of_many_prunes(store: Store) -> None:
    store.ledger.claim(GROUP, [FIRST])
    ledgers = [store.ledger, *(store.open() for _ in range(3))]
    assert [ledger.begin_pruning(GROUP, timedelta(hours=1)) for ledger in ledgers] == [True, False, False, False]
    store.ledger.claim("shipping", [FIRST])
    for ledger in ledgers:
        assert ledger.begin_pruning("shipping", timedelta(milliseconds=1))
        time.sleep(0.02)


def test_pruning_takes_the_coarse_history_after_ninety_days(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    for days in (1000, 80, 0):
        at = claims[FIRST].position
        advance(store, claims, span(at, at + 1))
        store.age(GROUP, days * DAY.total_seconds())
        claims = store.ledger.claim(GROUP, [FIRST])
    advance(store, claims, span(3, 4))
    store.ledger.claim(GROUP, [FIRST])
    assert sum(bucket.records for bucket in store.ledger.history(GROUP, DAY_ONE)) in (3, 4), "on Redis it goes at once"
    store.ledger.prune(DAY)
    assert sum(bucket.records for bucket in store.ledger.history(GROUP, DAY_ONE)) == 3
    store.ledger.prune(timedelta(0))
    assert sum(bucket.records for bucket in store.ledger.history(GROUP, DAY_ONE)) == 3


class Failing(MemoryLedger):
    """A ledger that is away whenever somebody wants to prune it."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.asked = threading.Semaphore(0)

    def begin_pruning(self, group: str, every: timedelta) -> bool:
        self.asked.release()
        raise self.error


@pytest.mark.parametrize("error", [LedgerUnavailable("away"), ZeroDivisionError()])
def test_a_ledger_that_cannot_be_pruned_fails_nobody(error: Exception) -> None:
    ledger = Failing(error)
    upkeep = Upkeep(ledger, GROUP)
    upkeep.look()
    done(upkeep)
    upkeep._due = 0.0
    upkeep.look()
    done(upkeep)
    assert ledger.asked.acquire(timeout=0)
    assert ledger.asked.acquire(timeout=0), "it is tried again another time"


def test_a_login_that_may_not_delete_leaves_it_to_others(postgres: Any) -> None:
    store = SqlStore(postgres.url)
    old_journal(store)
    with store.engine.begin() as conn:
        conn.execute(text(f"REVOKE DELETE ON {store.prefix}journal FROM {store.prefix}user"))
    upkeep = Upkeep(store.ledger, GROUP)
    upkeep.look()
    done(upkeep)
    assert len(list(store.ledger.journal(GROUP, FIRST))) == 6
    upkeep._due = 0.0
    upkeep.look()
    assert not upkeep._thread or not upkeep._thread.is_alive(), "it does not ask again"
    store.close()


def test_nothing_is_pruned_where_the_journal_is_kept_for_ever() -> None:
    store = MemoryStore()
    old_journal(store)
    upkeep = Upkeep(store.open(Limits(retention=0)), GROUP)
    upkeep.look()
    assert upkeep._thread is None
    assert len(list(store.ledger.journal(GROUP, FIRST))) == 6


def test_a_process_looks_every_ten_minutes_at_most() -> None:
    store = MemoryStore()
    store.ledger.claim(GROUP, [FIRST])
    upkeep = Upkeep(store.ledger, GROUP, first=3600)
    upkeep.look()
    assert upkeep._thread is None, "not yet"
    upkeep._due = 0.0
    upkeep.look()
    assert upkeep._due >= time.monotonic() + EVERY - 10


def test_the_retention_is_a_time_and_a_week_by_default() -> None:
    assert Limits().retention == 7 * 86_400
    assert Limits(retention="30d").retention == 30 * 86_400  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="retention"):
        Limits(retention=-1)
