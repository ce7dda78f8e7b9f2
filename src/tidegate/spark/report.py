"""Reports of what a pipeline did: in one micro-batch, and in a whole run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidegate.core.records import TopicPartition

__all__ = ["BatchReport", "Report"]


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One micro-batch: ``records`` read, ``rows`` written and ``dead_letters`` parked, in ``seconds``.

    ``mode`` is how it was committed: ``partition``, ``driver`` or ``staged``. ``fenced`` counts partitions whose commit
    was refused. ``already_done`` counts commits that found their work committed before. ``lag`` is the number of
    offsets left to read after it.
    """

    number: int
    mode: str
    records: int
    rows: int
    dead_letters: int
    lag: int
    seconds: float
    fenced: int = 0
    already_done: int = 0


@dataclass(slots=True)
class Report:
    """A run: the sums over its micro-batches, the final positions, and why it ended."""

    group: str
    batches: int = 0
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    seconds: float = 0.0
    lag: int = 0
    fenced: int = 0
    already_done: int = 0
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    stopped: str = ""

    def add(self, batch: BatchReport) -> None:
        """Add a micro-batch to the sums."""
        self.batches += 1
        self.records += batch.records
        self.rows += batch.rows
        self.dead_letters += batch.dead_letters
        self.fenced += batch.fenced
        self.already_done += batch.already_done
        self.lag = batch.lag

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values, for a file or another program."""
        plain = ("group", "batches", "records", "rows", "dead_letters", "lag", "fenced", "already_done", "stopped")
        return {name: getattr(self, name) for name in plain} | {
            "seconds": round(self.seconds, 3),
            "positions": [
                {"topic": tp.topic, "partition": tp.partition, "position": offset}
                for tp, offset in sorted(self.positions.items())
            ],
        }
