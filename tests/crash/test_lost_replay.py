"""A replay of a dead letter whose COMMIT gets lost, on the way there or on the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.crash.place import GROUP, ORDERS, Place, span_at
from tests.crash.test_kill import commits

from tidegate import Ledger, Record
from tidegate.ledger import FailedRecord, Outcome, StoredLetter
from tidegate.sandbox import Proxy
from tidegate.sandbox.database import Database


@dataclass
class Line:
    """A ledger with a proxy between it and its store, and a dead letter in it."""

    place: Place
    proxy: Proxy
    ledger: Ledger[Any]
    parked: StoredLetter
    runs: int = 0

    def replay(self) -> Any:
        return self.ledger.replay(self.parked, self.handler)

    def handler(self, tx: Any) -> None:
        self.runs += 1
        self.place.write(tx, span_at(0))


@pytest.fixture
def line(server: Database, fresh: Callable[[str], Place]) -> Iterator[Line]:
    place = fresh(server.url)
    near = place.ledger()
    letter = FailedRecord(Record(*ORDERS, 3), "no")
    near.transact(near.claim(GROUP, [ORDERS]), [span_at(0)], lambda tx: tx.park(letter))
    with Proxy(server.host, server.port) as proxy:
        far = place.ledger(url=server.url_for(port=proxy.port))
        (parked,) = far.dead_letters(GROUP)
        far.failed_again(parked, "no")  # a session that is open commits its limits no more
        yield Line(place, proxy, far, parked)


def test_a_replay_whose_answer_is_lost_is_found_to_be_done(line: Line) -> None:
    trap = line.proxy.swallow_one_reply(commits)
    result = line.replay()
    assert trap.fired
    assert (result.outcome, result.unknown_outcomes, line.runs) == (Outcome.COMMITTED, 1, 1)
    assert line.place.check(line.ledger) == len(line.place.offsets())
    assert line.ledger.dead_letters(GROUP) == []


def test_a_replay_whose_commit_never_arrives_is_done_again(line: Line) -> None:
    trap = line.proxy.swallow_one_request(commits)
    result = line.replay()
    assert trap.fired
    assert (result.outcome, result.unknown_outcomes, line.runs) == (Outcome.COMMITTED, 1, 2)
    assert line.place.check(line.ledger) == len(line.place.offsets())
    assert line.ledger.dead_letters(GROUP) == []
