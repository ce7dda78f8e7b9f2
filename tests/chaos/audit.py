"""What came of it: the records that landed against those that were written, and what the consumers went through."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.app.listener.topic import amount
from tests.chaos.landing import Row

from tidegate.core.journal import Entry, Kind


@dataclass(frozen=True)
class Audit:
    """Counts of records, over all partitions."""

    landed: int
    lost: int
    twice: int
    disordered: int
    falsified: int

    @property
    def faults(self) -> int:
        return self.lost + self.twice + self.disordered + self.falsified

    @classmethod
    def of(cls, rows: Sequence[Row], ends: Mapping[int, int]) -> Audit:
        twice = disordered = falsified = 0
        seen: dict[int, set[int]] = {partition: set() for partition in ends}
        highest = dict.fromkeys(ends, -1)
        for row in rows:
            partition, offset = row.partition_id, row.record_offset
            twice += offset in seen[partition]
            disordered += offset <= highest[partition]
            falsified += (row.number, row.amount) != (offset, amount(partition, offset))
            seen[partition].add(offset)
            highest[partition] = max(highest[partition], offset)
        lost = sum(len(set(range(end)) - seen[partition]) for partition, end in ends.items())
        return cls(len(rows), lost, twice, disordered, falsified)


@dataclass(frozen=True)
class Ordeal:
    """What was observed while it went on."""

    fences: int
    taken: int
    """Claims on partitions that a living process held."""
    unknown_outcomes: int
    frozen_in_transaction: int
    frozen_in_assign: int
    rebalances: int

    @classmethod
    def of(cls, folder: Path, journal: Iterable[Entry], killed: Mapping[int, float]) -> Ordeal:
        lines = (line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines(keepends=True))
        notes = [json.loads(line) for line in lines if line.endswith("\n")]  # a process may still be writing its last

        def count(event: str, **fields: str) -> int:
            return sum(note["event"] == event and fields.items() <= note.items() for note in notes)

        return cls(
            fences=count("FencedOff"),
            taken=taken_from_the_living(journal, killed),
            unknown_outcomes=sum(note.get("unknown_outcomes", 0) for note in notes),
            frozen_in_transaction=count("Frozen", where="SIGUSR1"),
            frozen_in_assign=count("Frozen", where="SIGUSR2"),
            rebalances=count("Rebalanced"),
        )

    def reaches(self, **counts: int) -> bool:
        """Whether at least so much happened."""
        return all(getattr(self, name) >= count for name, count in counts.items())


def taken_from_the_living(journal: Iterable[Entry], killed: Mapping[int, float]) -> int:
    """Claims that follow what another owner did, without a release in between, and before that one was killed."""
    taken = 0
    holders: dict[object, int | None] = {}
    for entry in journal:
        holder = holders.get(entry.partition)
        if entry.kind is Kind.CLAIM and holder is not None and holder != process_of(entry.owner):
            assert entry.at is not None
            taken += entry.at.timestamp() < killed.get(holder, float("inf"))
        holders[entry.partition] = None if entry.kind is Kind.RELEASE else process_of(entry.owner)
    return taken


def process_of(owner: str | None) -> int | None:
    return int(owner.split(":")[1]) if owner else None
