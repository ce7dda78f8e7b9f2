"""What came of it, to the cent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import Engine, select
from tests.chaos.spark.feed import amount, key
from tests.chaos.spark.orders import KEYS, LANDED, TOTALS, Way


@dataclass(frozen=True)
class Audit:
    """Of totals, ``lost`` and ``twice`` are what they differ by; ``wrong`` counts sums or amounts that are off."""

    records: int
    lost: int
    twice: int
    wrong: int
    cents: int
    """By which the sum of everything is off."""

    @property
    def faults(self) -> int:
        return self.lost + self.twice + self.wrong + abs(self.cents)

    @classmethod
    def of(cls, engine: Engine, way: Way, ends: Mapping[int, int]) -> Audit:
        return _of_totals(engine, ends) if way.sums else _of_rows(engine, ends)


def _of_totals(engine: Engine, ends: Mapping[int, int]) -> Audit:
    totals, counts = dict.fromkeys(range(KEYS), Decimal(0)), dict.fromkeys(range(KEYS), 0)
    for partition, end in ends.items():
        for number in range(end):
            totals[key(number)] += amount(partition, number)
            counts[key(number)] += 1
    with engine.connect() as conn:
        rows = {row.k: row for row in conn.execute(select(TOTALS))}
    found = {k: (Decimal(rows[k].total), int(rows[k].n)) if k in rows else (Decimal(0), 0) for k in totals}
    return Audit(
        records=sum(counts.values()),
        lost=sum(max(0, counts[k] - found[k][1]) for k in counts),
        twice=sum(max(0, found[k][1] - counts[k]) for k in counts),
        wrong=sum(found[k][0] != totals[k] for k in totals) + len(rows.keys() - totals.keys()),
        cents=int(100 * (sum(total for total, _ in found.values()) - sum(totals.values()))),
    )


def _of_rows(engine: Engine, ends: Mapping[int, int]) -> Audit:
    expected = {(partition, number) for partition, end in ends.items() for number in range(end)}
    seen: set[tuple[int, int]] = set()
    twice = wrong = 0
    total = Decimal(0)
    with engine.connect() as conn:
        for row in conn.execute(select(LANDED)):
            at = (row.partition_id, row.record_offset)
            twice += at in seen
            wrong += row.amount != amount(*at) or at not in expected
            total += row.amount
            seen.add(at)
    owed = sum((amount(*at) for at in expected), Decimal(0))
    return Audit(len(expected), len(expected - seen), twice, wrong, int(100 * (total - owed)))
