"""Many schedules, on several cores."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from .faults import Tally
from .group import Protocol
from .world import Outcome, Parts, run_schedule

CHUNK = 500


@dataclass
class Summary:
    """What a number of schedules came to."""

    schedules: int = 0
    steps: int = 0
    fewest_steps: int = 1 << 30
    longest_settling: float = 0.0
    cpu_seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)
    failures: list[Outcome] = field(default_factory=list)
    option: str = Protocol.option
    """What the command line needs to replay a schedule, beside its seed."""

    def add(self, other: Summary) -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.fewest_steps = min(self.fewest_steps, other.fewest_steps)
        self.longest_settling = max(self.longest_settling, other.longest_settling)
        self.cpu_seconds += other.cpu_seconds
        self.events.update(other.events)
        self.tally.add(other.tally.counts)
        self.failures += other.failures

    def __str__(self) -> str:
        events = ", ".join(f"{name} {count:,}" for name, count in sorted(self.events.items()))
        return (
            f"{self.schedules:,} schedules, {self.steps:,} steps (at least {self.fewest_steps} each), "
            f"{self.cpu_seconds:.0f} s of CPU time, longest settling {self.longest_settling:.1f} s\n"
            f"{events}\n{self.tally}"
        )

    def explain(self) -> str:
        """Each failure, and how to see it again."""
        return "\n".join(
            f"seed {outcome.seed}: {violation.kind}: {violation.text}\n"
            f"    python -m tests.simulation --seed {outcome.seed}{self.option}"
            for outcome in self.failures[:10]
            for violation in outcome.violations[:3]
        )


def run_seeds(seeds: range, parts: Parts) -> Summary:
    """Run the schedules of these seeds in this process."""
    summary = Summary(option=parts.option)
    started = time.process_time()
    for seed in seeds:
        outcome = run_schedule(seed, parts, summary.tally)
        summary.schedules += 1
        summary.steps += outcome.steps
        summary.fewest_steps = min(summary.fewest_steps, outcome.steps)
        summary.longest_settling = max(summary.longest_settling, outcome.settled_in)
        summary.events.update(outcome.events)
        if outcome.violations:
            summary.failures.append(outcome)
    summary.cpu_seconds = time.process_time() - started
    return summary


def run_many(seeds: range, processes: int, parts: Parts) -> Summary:
    """Run the schedules of these seeds, in so many processes."""
    if processes == 1:
        return run_seeds(seeds, parts)
    total = Summary(option=parts.option)
    chunks = [seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for summary in pool.imap_unordered(partial(run_seeds, parts=parts), chunks):
            total.add(summary)
    return total
