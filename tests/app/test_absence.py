"""When a member leaves its group to others, and when it comes back."""

from __future__ import annotations

from random import Random

from tidegate.app.member import Absence
from tidegate.core.policies import CommitStrategy
from tidegate.kafka.offsets import KafkaPositions
from tidegate.ledger import Limits
from tidegate.ledger.memory import MemoryLedger

SESSION = 10.0


class Silent(MemoryLedger):
    silence = 0.0  # type: ignore[assignment]


def absence() -> tuple[Silent, Absence]:
    ledger = Silent(Limits(answer=60))
    return ledger, Absence(ledger, SESSION, Random(1))


def test_it_leaves_when_the_ledger_has_been_silent_for_as_long_as_one_statement_may_take() -> None:
    ledger, member = absence()
    assert not member.is_due
    ledger.silence = 59.0
    assert not member.is_due
    ledger.silence = 60.0
    assert member.is_due


def test_positions_that_are_kept_in_kafka_are_never_silent() -> None:
    member = Absence(KafkaPositions(CommitStrategy.SYNCHRONOUS), SESSION, Random(1))
    assert member.silence == 0
    assert not member.is_due


def test_the_first_time_it_asks_at_once_and_then_about_every_second() -> None:
    _, member = absence()
    member.begin(100.0)
    assert member.is_away
    assert member.asks(100.0)
    assert not member.asks(100.4)
    assert member.asks(101.6)


def test_one_that_returns_in_vain_stays_away_for_longer_each_time_until_it_commits() -> None:
    _, member = absence()
    stays = []
    for _ in range(12):
        member.begin(0.0)
        stays.append(next(at / 10 for at in range(10_000) if member.asks(at / 10)))
        member.end()
    assert stays[0] == 0
    assert SESSION / 2 <= stays[1] <= SESSION
    assert SESSION * 1.5 <= stays[2] <= SESSION * 3
    assert max(stays) <= 600
    member.committed()
    member.begin(0.0)
    assert member.asks(0.0)
