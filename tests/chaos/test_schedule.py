from __future__ import annotations

from collections import Counter

import pytest
from tests.chaos.schedule import CONSUMERS, GUEST, Kind, schedule, seed


def test_the_same_seed_gives_the_same_faults_and_another_one_gives_others() -> None:
    assert schedule(7, 70, outages=True) == schedule(7, 70, outages=True)
    assert schedule(7, 70, outages=True) != schedule(8, 70, outages=True)


def test_a_seed_can_be_given_to_replay_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_SEED", "7")
    assert seed() == 7
    monkeypatch.delenv("CHAOS_SEED")
    assert seed() != seed()


@pytest.mark.parametrize("number", range(20))
def test_a_minute_has_every_kind_of_fault(number: int) -> None:
    faults = schedule(number, 70, outages=True)
    struck = Counter(fault.kind for fault in faults)
    assert struck.keys() == set(Kind)
    assert struck[Kind.BROKER] == struck[Kind.DATABASE] == 1
    assert struck[Kind.KILL] >= 10
    assert struck[Kind.JOIN] + struck[Kind.LEAVE] >= 55, "about one of them every second"
    guests = [fault.kind for fault in faults if fault.slot == GUEST]
    assert guests == [(Kind.JOIN, Kind.LEAVE)[turn % 2] for turn in range(len(guests))]
    assert {fault.slot for fault in faults if fault.kind is Kind.KILL} <= set(range(CONSUMERS))
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
