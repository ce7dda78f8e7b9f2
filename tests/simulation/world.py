"""One schedule: a group, its topic, its store, and what happens to them, all from one seed."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tidegate.core.assignment import Assignment
from tidegate.core.batching import Batch, BatchBounds, Batching
from tidegate.core.errors import Fenced
from tidegate.core.journal import Entry
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Span
from tidegate.core.start import LogOffsets, StartStrategy

from .coordinator import SESSION, Coordinator
from .faults import FAULT_RATE, Tally, rewind, strike
from .invariants import Violation, check
from .log import TOPIC, VARIANTS, Log, reel
from .member import Member
from .store import GROUP, Cut, Store

STEPS = 100
"""Steps with faults in every schedule; as many as it takes without them follow."""
SETTLE = 600
"""Steps without faults after which every partition has to be at its end."""
BOUNDS = BatchBounds(count=3, bytes=60, age=3)
START = StartStrategy()
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(8)]


@dataclass(frozen=True)
class Protocol:
    """The parts that a schedule is run with; a mutant replaces one of them."""

    store: type[Store] = Store
    member: type[Member] = Member
    assignment: type[Assignment] = Assignment
    batching: type[Batching] = Batching


class Outcome(NamedTuple):
    """What a schedule came to; ``events`` counts what happened in it."""

    seed: int
    violations: list[Violation]
    steps: int
    settled_in: int
    events: Counter[str]


class World:
    """Everything in one schedule. ``trace`` collects a line for each step if it is a list."""

    def __init__(self, seed: int, protocol: Protocol, tally: Tally, trace: list[str] | None = None) -> None:
        self.seed = seed
        self.protocol = protocol
        self.tally = tally
        self.trace = trace
        self.rng = rng = Random(seed)
        self.now = 0
        self.topic_id = 0
        self.variant = int(rng.random() * VARIANTS)
        self.store = protocol.store(rng)
        self.coordinator = Coordinator(rng, cooperative=rng.random() < 0.6)
        self.logs: dict[TopicPartition, Log] = {}
        for tp in PARTITIONS[: 3 if rng.random() < 0.7 else 4]:
            self.add_partition(tp)
        self.spawned = 0
        self.edits: dict[TopicPartition, list[int]] = {}
        self.cut_off: set[tuple[TopicPartition, str | None, int]] = set()
        self.violations: list[Violation] = []
        self.events: Counter[str] = Counter()
        self.paused_at: int | None = None
        self.thawing: list[tuple[int, Member]] = []
        self.respawning: list[int] = []
        self.awake: list[Member] = []
        for _ in range(3 if rng.random() < 0.7 else 4):
            self.spawn()
        self.coordinator.rebalance(0)

    def run(self) -> Outcome:
        """The schedule from its beginning to its end."""
        settled_in = SETTLE
        try:
            for _ in range(STEPS):
                self.step()
            settled_in = self.settle()
            if self.rng.random() < 0.25:
                rewind(self)
                settled_in = max(settled_in, self.settle())
            self.violations += check(self)
        except Exception:
            self.violations.append(Violation("error", traceback.format_exc()))
        for entry in self.store.journal(GROUP):
            self.events[entry.kind.value] += 1
        return Outcome(self.seed, self.violations, self.now, settled_in, self.events)

    def step(self) -> None:
        """One step: a fault, or a step of a member."""
        self.pass_time()
        random = self.rng.random
        chance = random()
        if chance < FAULT_RATE:
            strike(self)
            return
        if chance > 0.85:
            number = int(random() * len(self.logs))
            self.logs[PARTITIONS[number]].append(1 + int(random() * 3))
        member = self.awake[int(random() * len(self.awake))]
        self._run(member)

    def pass_time(self) -> None:
        self.now = now = self.now + 1
        self.store.pass_time(now)
        if self.thawing or self.respawning:
            for timer in [timer for timer in self.thawing if timer[0] <= now]:
                self.thawing.remove(timer)
                self.awake.append(timer[1])
            for when in [when for when in self.respawning if when <= now]:
                self.respawning.remove(when)
                self.spawn()
        if not now & 3:
            self.coordinator.expel_the_silent(now)

    def settle(self) -> int:
        """Stop all faults, and count the steps until every partition is at its end."""
        self.thawing = [(0, member) for _, member in self.thawing]
        self.respawning = [0 for _ in self.respawning]
        self.store.resume(GROUP)
        self.paused_at = None
        self.pass_time()
        for member in self.awake:
            member.deaf_until = 0
            member.cut = Cut.NONE
        start = self.now
        while not self.at_the_end():
            if self.now - start >= SETTLE:
                self.violations.append(Violation("liveness", self._where_it_stands()))
                break
            for member in list(self.awake):
                self.pass_time()
                self._run(member)
        return self.now - start

    def at_the_end(self) -> bool:
        """Whether every partition's position is the log's end, and nothing is on its way that could change that."""
        if self.store.timers or self.store.transactions:
            return False
        positions = self.store.read(GROUP).positions
        topic_id = str(self.topic_id)
        for tp, log in self.logs.items():
            row = positions.get(tp)
            if row is None or row.next_offset != log.end or row.identity.topic_id != topic_id:
                return False
        return True

    def _run(self, member: Member) -> None:
        if self.trace is None:
            member.run()
            return
        before = member.step
        member.run()
        positions = self.store.read(GROUP).positions
        rows = " ".join(f"{tp.partition}:{row.next_offset}/{row.epoch}" for tp, row in sorted(positions.items()))
        self.note(f"{member.name} {before.name.lower():<11} -> {member.step.name.lower():<11} {rows}")

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now:4} {text}")

    # What the world is made of

    def add_partition(self, tp: TopicPartition) -> None:
        self.logs[tp] = Log(reel(tp, self.topic_id, self.variant), int(self.rng.random() * 12))
        self.coordinator.partitions.append(tp)

    def spawn(self) -> None:
        """Start a process."""
        self.spawned += 1
        part = self.protocol
        assignment = part.assignment(SESSION, self.rng)
        member = part.member(self, f"m{self.spawned}", assignment, part.batching(BOUNDS))
        self.awake.append(member)
        self.coordinator.join(member, self.now)
        if self.now:
            self.coordinator.rebalance(self.now)

    def starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where reading begins, as the log is now."""
        return START.offsets(partitions, {tp: LogOffsets(self.logs[tp].start, self.logs[tp].end) for tp in partitions})

    # What a member is told has to be true

    def check_committed(self, claims: dict[TopicPartition, Claim], batches: list[Batch]) -> None:
        for batch in batches:
            if not self._journalled(claims[batch.span.partition], batch.span):
                self.violations.append(Violation("report", f"{batch.span} was called committed, and is not"))

    def check_not_committed(self, claims: dict[TopicPartition, Claim], batches: list[Batch]) -> None:
        for batch in batches:
            if self._journalled(claims[batch.span.partition], batch.span):
                self.violations.append(Violation("report", f"{batch.span} was called not committed, and is"))

    def _journalled(self, claim: Claim, span: Span) -> bool:
        def same(entry: Entry) -> bool:
            return (entry.start, entry.end, entry.epoch) == (span.start, span.end, claim.epoch)

        return any(map(same, reversed(list(self.store.journal(GROUP, span.partition)))))

    def check_paused(self, member: Member) -> None:
        """A member that has read the group's rows since it was paused begins nothing."""
        if self.paused_at is not None and member.observed_at > self.paused_at:
            self.violations.append(Violation("pause", f"{member.name} went on after {self.paused_at}"))

    def check_cause(
        self, member: Member, fenced: Fenced, claims: dict[TopicPartition, Claim], spans: Sequence[Span]
    ) -> None:
        """A fence has a cause: the row was claimed or edited since, or a commit of the member's own landed late."""
        self.events["fence"] += 1
        rows = self.store.read(GROUP).positions
        starts = {span.partition: span.start for span in spans}
        causes = 0
        for tp in fenced.owners:
            row, claim = rows[tp], claims[tp]
            landed_late = tp in member.in_doubt and row.next_offset > starts[tp]
            if row.epoch > claim.epoch or landed_late:
                causes += 1
            else:
                text = f"{member.name} was fenced from {tp} at {starts[tp]}, but nobody else moved it: {row}"
                self.violations.append(Violation("fence", text))
        if not causes:
            self.violations.append(Violation("fence", f"{member.name} was fenced, but no position had moved: {fenced}"))

    def _where_it_stands(self) -> str:
        positions = self.store.read(GROUP).positions
        ends = {str(tp): (log.end, positions.get(tp) and positions[tp].next_offset) for tp, log in self.logs.items()}
        return f"after {SETTLE} steps without faults, ends and positions are {ends}"


def run_schedule(seed: int, protocol: Protocol, tally: Tally, trace: list[str] | None = None) -> Outcome:
    """Run the schedule of a seed."""
    return World(seed, protocol, tally, trace).run()
