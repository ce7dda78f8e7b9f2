from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest
from tests.crash.place import BATCH, GROUP, ORDERS, Place, span_at
from tests.crash.worker import FATAL_TURN, carry_out
from tests.processes import ended, killed, running

from tidegate.sandbox import Proxy
from tidegate.sandbox.database import Database

BEFORE = (FATAL_TURN - 1) * BATCH
AFTER = FATAL_TURN * BATCH


def goes_on_where_it_was(place: Place, expected: int) -> None:
    ledger = place.ledger()
    assert place.check(ledger) == expected
    claims = ledger.claim(GROUP, [ORDERS])
    position = claims[ORDERS].position
    for start_of_span in range(position, position + 3 * BATCH, BATCH):
        span = span_at(start_of_span)
        ledger.transact(claims, [span], lambda tx, span=span: place.write(tx, span))
    assert place.check(ledger) == expected + 3 * BATCH


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("claim", 0),
        ("begin", BEFORE),
        ("advance", BEFORE),
        ("write", BEFORE),
        ("commit", BEFORE),
        ("acknowledge", AFTER),
    ],
)
def test_a_kill_at_any_step_leaves_data_and_position_in_agreement(place: Place, step: str, expected: int) -> None:
    if place.is_redis and step in {"begin", "commit"}:
        pytest.skip("Redis has no such step: the transaction is one script")
    if place.is_duckdb:  # one process at a time can open it
        place.close()
    killed(carry_out, f"die:{step}", place.url, place.prefix)
    goes_on_where_it_was(place, expected)


def commits(seen: bytes) -> int:
    """How many transactions with data a client has asked to commit."""
    return len(re.findall(rb"(?<!AUTO)COMMIT|RPUSH", seen))


@pytest.mark.parametrize("fatal", [1, 2, 3])
def test_a_kill_while_the_commit_is_on_its_way_leaves_data_and_position_in_agreement(
    server: Database, fresh: Callable[[str], Place], fatal: int
) -> None:
    place = fresh(server.url)
    place.ledger().claim(GROUP, [ORDERS])
    with Proxy(server.host, server.port) as proxy:
        victims: SimpleQueue[int] = SimpleQueue()

        def kill_on_commit(seen: bytes) -> bool:
            if commits(seen) < fatal:
                return False
            os.kill(victims.get(), signal.SIGKILL)
            return True

        trap = proxy.swallow_one_reply(kill_on_commit)
        with running(carry_out, "live:", server.url_for(port=proxy.port), place.prefix) as child:
            victims.put(child.pid or 0)
            assert ended(child) == -signal.SIGKILL
        assert trap.wait(60)
    ledger = place.ledger()
    reached = ledger.read(GROUP).positions[ORDERS].next_offset
    goes_on_where_it_was(place, reached)


@pytest.mark.parametrize("store", ["sqlite", "duckdb"])
def test_a_kill_during_the_commit_in_a_file_leaves_data_and_position_in_agreement(
    store: str, tmp_path: Path, fresh: Callable[[str], Place]
) -> None:
    outcomes = set()
    for turn, delay in enumerate([0, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 0.2, 1.0, 5.0]):
        place = fresh(f"{store}:///{tmp_path / f'{turn}.db'}")
        if place.is_duckdb:
            place.close()
        killed(carry_out, f"commit:{delay}", place.url, place.prefix)
        ledger = place.ledger()
        reached = ledger.read(GROUP).positions[ORDERS].next_offset
        outcomes.add(reached >= AFTER)
        goes_on_where_it_was(place, reached)
        if delay >= 0.2 and reached >= AFTER:  # a busy machine takes longer
            break
    assert outcomes == {False, True}, "every kill came before the commit, or every one after it"
