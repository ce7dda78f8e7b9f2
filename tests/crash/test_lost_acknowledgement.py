from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.crash.place import BATCH, GROUP, ORDERS, Place, span_at
from tests.crash.test_kill import commits

from tidegate import Fenced, Ledger
from tidegate.errors import NotCommitted
from tidegate.ledger import Outcome
from tidegate.sandbox import Proxy
from tidegate.sandbox.database import Database
from tidegate.sandbox.trap import Trap


@dataclass
class Line:
    """A ledger with a proxy between it and its store."""

    place: Place
    proxy: Proxy
    ledger: Ledger[Any]
    claims: Any
    runs: int = 0

    def handler(self, tx: Any) -> None:
        self.runs += 1
        self.place.write(tx, span_at(0))


@pytest.fixture
def line(server: Database, fresh: Callable[[str], Place]) -> Iterator[Line]:
    place = fresh(server.url)
    with Proxy(server.host, server.port) as proxy:
        ledger = place.ledger(url=server.url_for(port=proxy.port))
        yield Line(place, proxy, ledger, ledger.claim(GROUP, [ORDERS]))


def test_a_commit_whose_answer_is_lost_is_found_to_be_done(line: Line) -> None:
    trap = line.proxy.swallow_one_reply(commits)
    result = line.ledger.transact(line.claims, [span_at(0)], line.handler)
    assert trap.fired
    assert result.outcome is Outcome.COMMITTED
    assert result.unknown_outcomes == 1
    assert line.place.check(line.ledger) == BATCH


def test_a_commit_that_was_cut_and_whose_answer_is_lost_says_how_far_it_went(line: Line) -> None:
    trap = line.proxy.swallow_one_reply(commits)
    whole = span_at(0)
    half = whole._replace(end=BATCH // 2, records=BATCH // 2)

    def handler(tx: Any) -> None:
        line.runs += 1
        line.place.write(tx, half)
        tx.cut([half if line.runs == 1 else half._replace(end=1, records=1)])

    result = line.ledger.transact(line.claims, [whole], handler)
    assert trap.fired
    assert (result.outcome, result.unknown_outcomes, result.spans) == (Outcome.COMMITTED, 1, (half,))
    assert line.place.check(line.ledger) == BATCH // 2


def test_a_commit_that_never_arrives_is_done_again(line: Line) -> None:
    trap = line.proxy.swallow_one_request(commits)
    result = line.ledger.transact(line.claims, [span_at(0)], line.handler)
    assert trap.fired
    assert (result.outcome, result.unknown_outcomes, line.runs) == (Outcome.COMMITTED, 1, 2)
    assert line.place.check(line.ledger) == BATCH


def test_a_connection_that_breaks_after_commit_was_answered_is_no_failure(line: Line) -> None:
    """Drivers that roll back before a connection goes back into the pool find it closed then; others notice nothing."""
    line.proxy.swallow_one_request(lambda recent: commits(recent.rpartition(b"ROLLBACK")[0]))
    result = line.ledger.transact(line.claims, [span_at(0)], line.handler)
    assert (result.outcome, line.runs) == (Outcome.COMMITTED, 1)
    assert line.place.check(line.ledger) == BATCH


def test_a_block_whose_answer_is_lost_ends_well(line: Line) -> None:
    trap = line.proxy.swallow_one_reply(commits)
    with line.ledger.transaction(line.claims, [span_at(0)]) as tx:
        line.handler(tx)
    assert trap.fired
    assert line.place.check(line.ledger) == BATCH


def test_a_block_whose_commit_never_arrives_is_to_be_run_again(line: Line) -> None:
    trap = line.proxy.swallow_one_request(commits)
    with (
        pytest.raises(NotCommitted, match="run the block again"),
        line.ledger.transaction(line.claims, [span_at(0)]) as tx,
    ):
        line.handler(tx)
    assert trap.fired
    with line.ledger.transaction(line.claims, [span_at(0)]) as tx:
        line.handler(tx)
    assert line.place.check(line.ledger) == BATCH


def test_an_owner_that_was_superseded_while_its_answer_was_lost_is_fenced(line: Line) -> None:
    trap = line.proxy.swallow_one_request(commits_then_silence(line.proxy))
    with superseded(line, trap) as rival, pytest.raises(Fenced) as fenced:
        line.ledger.transact(line.claims, [span_at(0)], line.handler)
    assert trap.fired
    assert line.runs == 1
    assert fenced.value.owners[ORDERS] is not None
    assert line.place.check(rival) == 0


@pytest.mark.parametrize("in_a_block", [False, True], ids=["transact", "block"])
def test_an_owner_that_was_superseded_after_its_commit_is_not_told_that_nothing_was_written(
    line: Line, *, in_a_block: bool
) -> None:
    trap = line.proxy.swallow_one_reply(commits_then_silence(line.proxy))
    with superseded(line, trap) as rival, pytest.raises(Fenced) as fenced:
        if in_a_block:
            with line.ledger.transaction(line.claims, [span_at(0)]) as tx:
                line.handler(tx)
        else:
            line.ledger.transact(line.claims, [span_at(0)], line.handler)
    assert "othing was written" not in str(fenced.value)
    assert "not known whether this was committed" in str(fenced.value)
    assert line.place.check(rival) == BATCH


def commits_then_silence(proxy: Proxy) -> Callable[[bytes], bool]:
    """Match COMMIT, and let no later connection through before the proxy is restored: the rival is always first."""

    def matches(recent: bytes) -> bool:
        proxy.swallowing = commits(recent)
        return proxy.swallowing

    return matches


@contextmanager
def superseded(line: Line, trap: Trap) -> Iterator[Ledger[Any]]:
    """A rival that claims the partition once the connection of the lost COMMIT has gone."""
    rival = line.place.ledger()

    def takes_over() -> None:
        trap.wait(30)
        rival.claim(GROUP, [ORDERS])
        line.proxy.restore()

    taking = threading.Thread(target=takes_over)
    taking.start()
    yield rival
    taking.join()
