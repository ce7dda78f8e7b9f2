"""What an observer can tell of the health of a process."""

from __future__ import annotations

from tidegate.core.records import TopicPartition
from tidegate.core.work import Span
from tidegate.observe import (
    Claimed,
    Committed,
    LagSeen,
    ObservedHealth,
    Paused,
    ReadPosition,
    Rebalanced,
    Skipped,
    StoreBack,
    StoreLost,
)

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_positions_follow_claims_commits_and_losses_until_they_are_given_up() -> None:
    health = ObservedHealth()
    health(Claimed("g", (FIRST, SECOND), (3, 7)))
    health(Committed("g", (Span(FIRST, 3, 9, 6),), 0.1, 1, 0, False))
    health(Skipped("g", Span(SECOND, 7, 20), "loss", "retention"))
    health(Skipped("g", Span(SECOND, 20, 21), "skip", "one record of a span that is still to be committed"))
    assert health.positions() == [ReadPosition("g", *FIRST, 9, 9), ReadPosition("g", *SECOND, 20, 20)]
    health(Rebalanced("g", "assigned", (FIRST,), 0.1))
    health(Rebalanced("g", "revoked", (FIRST,), 0.1))
    health(LagSeen("g", SECOND, 25, 30))
    assert health.positions() == [ReadPosition("g", *SECOND, 25, 25)]


def test_it_is_not_ready_while_something_is_away() -> None:
    health = ObservedHealth()
    health(StoreLost("g", "ledger", "refused"))
    health(Paused("g", True))
    assert health.unready() == ["group 'g': the ledger is away: refused"]
    assert health.failing() == []
    health(StoreBack("g", "ledger", 1.0))
    assert health.unready() == []
