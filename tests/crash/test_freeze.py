from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.place import BATCH, GROUP, LIMITS, ORDERS, Place, span_at
from tests.crash.worker import FATAL_TURN
from tests.processes import program, wait_until_frozen

from tidegate.errors import LedgerBusy
from tidegate.sandbox import PgBouncer, Redis

COMMITTED = (FATAL_TURN - 1) * BATCH
SLACK = 6.0  # seconds, for a machine that is busy


@pytest.mark.parametrize("how", ["idle", "bulk"])
def test_a_partition_held_by_a_frozen_process_is_taken_over_within_the_bound(
    how: str, row_locks: Place, tmp_path: Path
) -> None:
    taken_over_within_the_bound(how, row_locks, tmp_path)


@pytest.mark.parametrize("how", ["idle", "bulk"])
def test_a_partition_held_by_a_frozen_process_behind_a_pooler_is_taken_over_within_the_bound(
    how: str, pgbouncer: PgBouncer, fresh: Callable[[str], Place], tmp_path: Path
) -> None:
    taken_over_within_the_bound(how, fresh(pgbouncer.url), tmp_path)


def test_a_partition_of_a_frozen_process_is_taken_over_at_once_where_there_are_no_locks(
    redis_server: Redis, fresh: Callable[[str], Place], tmp_path: Path
) -> None:
    taken_over_within_the_bound("idle", fresh(redis_server.url), tmp_path)


def taken_over_within_the_bound(how: str, place: Place, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    separator = "&" if "?" in place.url else "?"
    url = place.url + (f"{separator}local_infile=1" if place.url.startswith("mysql") else "")
    child = program("tests.crash.worker", f"freeze:{how}", url, place.prefix, env={**os.environ, "PIPE": str(pipe)})
    try:
        wait_until_frozen(child)
        ledger = place.ledger()
        began = time.monotonic()
        claims = ledger.claim(GROUP, [ORDERS])
        waited = time.monotonic() - began
        assert waited < LIMITS.lock_wait + SLACK
        assert claims[ORDERS].position == COMMITTED
        span = span_at(COMMITTED)
        ledger.transact(claims, [span], lambda tx: place.write(tx, span))
        os.kill(child.pid, signal.SIGCONT)
        told, _ = child.communicate(timeout=90)
        assert told == "fenced\n"
        assert place.check(ledger) == COMMITTED + BATCH
    finally:
        child.kill()
        child.communicate()


def test_sqlite_names_the_frozen_process_that_holds_the_write_lock_within_the_bound(
    tmp_path: Path, fresh: Callable[[str], Place]
) -> None:
    place = fresh(f"sqlite:///{tmp_path / 'ledger.db'}")
    child = program("tests.crash.worker", "freeze:idle", place.url, place.prefix)
    try:
        wait_until_frozen(child)
        ledger = place.ledger()
        began = time.monotonic()
        with pytest.raises(LedgerBusy, match=rf"held by process {child.pid}\b"):
            ledger.claim(GROUP, [ORDERS])
        assert LIMITS.lock_wait - 0.5 < time.monotonic() - began < LIMITS.lock_wait + SLACK
        assert place.check(ledger) == COMMITTED
        os.kill(child.pid, signal.SIGKILL)
        child.wait(90)
        assert ledger.claim(GROUP, [ORDERS])[ORDERS].position == COMMITTED
    finally:
        child.kill()
        child.communicate()
