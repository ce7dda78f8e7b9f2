from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.audit import Audit, Ordeal
from tests.chaos.schedule import schedule, seed
from tests.chaos.storm import Storm, brewing

from tidegate.core.policies import Delivery, GroupProtocol
from tidegate.sandbox import Database, Kafka, MariaDB, MySQL, Postgres, Redis


def calmed(storm: Storm) -> tuple[Audit, Ordeal]:
    """What came of it, once every partition is at its end and everybody has left."""
    drained = storm.calm(120)
    audit, ordeal = storm.audit(), storm.ordeal()
    print(audit, ordeal)
    assert not storm.fleet.fallen, "\n\n".join(storm.fleet.fallen)
    assert drained, f"{storm.positions()} are not the ends {storm.feed.written}, or somebody did not leave"
    verification = storm.verify()
    assert verification.ok, verification.breaks
    return audit, ordeal


def weathered(storm: Storm, **least: int) -> None:
    """Nothing was lost, repeated or put out of order, and it was not for want of trying."""
    audit, ordeal = calmed(storm)
    assert audit.faults == 0, audit
    assert audit.landed == sum(storm.feed.written.values())
    assert ordeal.reaches(**least), (ordeal, least)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("database", "protocol"),
    [
        (Postgres, GroupProtocol.RANGE),
        (Postgres, GroupProtocol.ROUND_ROBIN),
        (Postgres, GroupProtocol.COOPERATIVE),
        (Postgres, GroupProtocol.CONSUMER),
        (MariaDB, GroupProtocol.COOPERATIVE),
        (MySQL, GroupProtocol.COOPERATIVE),
        (Redis, GroupProtocol.COOPERATIVE),
    ],
    indirect=["database"],
)
def test_a_minute_of_kills_freezes_and_outages_neither_loses_nor_repeats_a_record(
    broker: Kafka, database: Database, tmp_path: Path, protocol: GroupProtocol
) -> None:
    number = seed()
    print(f"\nCHAOS_SEED={number} protocol={protocol} store={database.title}")
    with brewing(broker, database, tmp_path, protocol) as storm:
        storm.blow(schedule(number, 70, outages=True))
        weathered(storm, fences=20, taken=5, unknown_outcomes=5, frozen_in_transaction=10, frozen_in_assign=3)


@pytest.mark.chaos
def test_at_least_once_repeats_records_in_the_same_storm_and_loses_none(
    broker: Kafka, database: Database, tmp_path: Path
) -> None:
    number = seed()
    print(f"\nCHAOS_SEED={number} delivery=at-least-once")
    with brewing(broker, database, tmp_path, GroupProtocol.COOPERATIVE, delivery=Delivery.AT_LEAST_ONCE) as storm:
        storm.blow(schedule(number, 40, outages=True))
        audit, _ = calmed(storm)
        assert (audit.lost, audit.falsified) == (0, 0), audit
        assert audit.twice > 0, audit


@pytest.mark.chaos
def test_at_most_once_loses_records_in_the_same_storm_and_repeats_none(
    broker: Kafka, database: Database, tmp_path: Path
) -> None:
    number = seed()
    print(f"\nCHAOS_SEED={number} delivery=at-most-once")
    with brewing(broker, database, tmp_path, GroupProtocol.COOPERATIVE, delivery=Delivery.AT_MOST_ONCE) as storm:
        storm.blow(schedule(number, 40, outages=True))
        audit, _ = calmed(storm)
        assert (audit.twice, audit.falsified) == (0, 0), audit
        assert audit.lost > 0, audit


@pytest.mark.parametrize("database", [Postgres, MySQL], indirect=True)
def test_some_seconds_of_kills_and_freezes_neither_lose_nor_repeat_a_record(
    broker: Kafka, database: Database, tmp_path: Path
) -> None:
    number, least = seed(), {"fences": 3, "taken": 2, "unknown_outcomes": 2}
    print(f"\nCHAOS_SEED={number}")
    with brewing(broker, database, tmp_path, GroupProtocol.COOPERATIVE) as storm:
        # A busy machine commits less in the same time, so fewer answers can be lost: the storm goes on until they are.
        storm.blow(schedule(number, 90, outages=False), enough=lambda at: at > 12 and storm.ordeal().reaches(**least))
        weathered(storm, **least)


def test_without_the_compare_and_set_the_same_faults_are_found_out(
    broker: Kafka, database: Database, tmp_path: Path
) -> None:
    number = seed()
    print(f"\nCHAOS_SEED={number}")
    with brewing(broker, database, tmp_path, GroupProtocol.COOPERATIVE, guarded=False) as storm:
        storm.blow(schedule(number, 40, outages=False), enough=lambda _: found_out(storm))
        audit = storm.audit()
        print(audit)
        assert found_out(storm), audit


def found_out(storm: Storm) -> bool:
    """Whether records landed twice or out of order; what is missing may still come."""
    audit = storm.audit()
    return audit.twice + audit.disordered > 0
