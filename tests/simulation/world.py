"""One schedule: consumers, their topic, their store, and what happens to them, all from one seed."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, NamedTuple

from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.errors import Fenced

from .broker import Cluster
from .coordinator import SESSION
from .faults import FAULT_RATE, Fault, Faults, Tally, rewind, strike
from .invariants import Violation, check
from .log import TOPIC, VARIANTS, Log, reel
from .process import RUNNING, Client, Operator
from .scheduler import GreenStrand, Scheduler
from .steps import Step
from .store import GROUP, Cut, Moved, Server, Store

SETTLE = 150.0
"""Seconds without faults after which every partition has to be at its end."""
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(8)]


@dataclass(frozen=True)
class Parts:
    """The parts that a schedule is run with; a mutant replaces one of them."""

    store: type[Store] = Store
    cluster: type[Cluster] = Cluster

    faults: ClassVar[Faults]
    option: ClassVar[str] = ""
    """What the command line needs to replay a schedule, beside its seed."""

    def world(self, seed: int, tally: Tally, trace: list[str] | None) -> World:
        """The world in which these parts act."""
        raise NotImplementedError


class Outcome(NamedTuple):
    """What a schedule came to; ``events`` counts what happened in it."""

    seed: int
    violations: list[Violation]
    steps: int
    settled_in: float
    events: Counter[str]


class World:
    """Everything in one schedule. ``trace`` collects a line for each step if it is a list.

    Subclasses add who consumes the topic: a group of listeners, or a pipeline.
    """

    length = 240
    """Steps with faults in every schedule; as many as it takes without them follow."""

    def __init__(self, seed: int, protocol: Parts, tally: Tally, trace: list[str] | None = None) -> None:
        self.seed = seed
        self.protocol = protocol
        self.tally = tally
        self.trace = trace
        self.rng = rng = Random(seed)
        self.scheduler = Scheduler(rng)
        self.steps = 0
        self.has_faults = True
        self.topic_id = 0
        self.variant = int(rng.random() * VARIANTS)
        self.prepare()
        self.server = Server(self)
        self.logs: dict[TopicPartition, Log] = {}
        for tp in PARTITIONS[: 3 if rng.random() < 0.7 else 4]:
            self.add_partition(tp)
        self.spawned = 0
        self.edits: dict[TopicPartition, list[int]] = {}
        self.cut_off: set[tuple[TopicPartition, str | None, int]] = set()
        self.violations: list[Violation] = []
        self.events: Counter[str] = Counter()
        self.operating = 0
        """How many edits of operators are under way."""
        self.is_paused = False
        self.thawing: list[tuple[float, Client]] = []
        self.respawning: list[float] = []
        self.awake: list[Client] = []
        """The processes that faults can strike: those that are neither dead nor frozen."""
        self.operator = Operator(self)
        self.store = self.operator.store
        self.populate()

    def prepare(self) -> None:
        """Draw what this kind of world has to know before it has a topic."""

    def populate(self) -> None:
        """Start the first processes."""
        raise NotImplementedError

    @property
    def now(self) -> float:
        return self.scheduler.now

    def run(self) -> Outcome:
        """The schedule from its beginning to its end."""
        RUNNING[:] = [self]
        settled_in = SETTLE
        try:
            while self.steps < self.length:
                self.step()
            settled_in = self.settle()
            if self.rng.random() < 0.25 and not self.violations:
                rewind(self)
                settled_in = max(settled_in, self.settle())
            self.violations += check(self)
        except Exception:
            self.violations.append(Violation("error", traceback.format_exc()))
        finally:
            self.scheduler.end()
        for entry in self.store.journal(GROUP):
            self.events[entry.kind.value] += 1
        return Outcome(self.seed, self.violations, self.steps, settled_in, self.events)

    def step(self) -> None:
        """One step: a fault, or a step of a process."""
        random = self.rng.random
        self.pass_time(0.1 * random())
        chance = random()
        if chance < FAULT_RATE:
            strike(self)
            return
        if chance > 0.9:
            number = int(random() * len(self.logs))
            self.logs[PARTITIONS[number]].append(1 + int(random() * 3))
        self._run_one()

    def pass_time(self, seconds: float) -> None:
        self.steps += 1
        self.scheduler.now = now = self.scheduler.now + seconds
        self.server.pass_time(now)
        if self.thawing or self.respawning:
            for timer in [timer for timer in self.thawing if timer[0] <= now]:
                self.thawing.remove(timer)
                timer[1].is_frozen = False
                if not timer[1].is_dead:
                    self.awake.append(timer[1])
            for when in [when for when in self.respawning if when <= now]:
                self.respawning.remove(when)
                self.spawn()

    def _run_one(self) -> None:
        """Run one of the strands that can go on; if there is none, time passes."""
        now, random = self.scheduler.now, self.rng.random
        ready = [s for s in self.scheduler.strands if s.until <= now and not s.process.is_frozen]
        if not ready:
            self.idle()
            return
        if random() < 0.5:  # most strands poll or wait for a job most of the time: prefer those with a request
            ready = [s for s in ready if s.step is not None and s.step is not Step.FETCH] or ready
        strand = ready[int(random() * len(ready))]
        self._run(strand)

    def idle(self) -> None:
        """No strand can go on at present."""

    def _run(self, strand: GreenStrand) -> None:
        process = strand.process
        if self.now >= process.deaf_until:
            process.last_seen = self.now
        step = strand.step
        self.scheduler.run(strand)
        if self.trace is not None:
            rows = " ".join(
                f"{tp.partition}:{row.next_offset}/{row.epoch}"
                for tp, row in sorted(self.store.read(GROUP).positions.items())
            )
            after = "ended" if strand.ended.is_set() else "" if strand.step is None else strand.step.name.lower()
            self.note(f"{process.name} {'' if step is None else step.name.lower():<11} -> {after:<11} {rows}")
        if strand.ended.is_set() and (error := strand.exception()) is not None and strand is process.strand:
            text = "".join(traceback.format_exception(error))
            self.violations.append(Violation("error", f"{process.name} ended with {text}"))

    def settle(self) -> float:
        """Stop all faults, and count the seconds until every partition is at its end."""
        self.has_faults = False
        self.thawing = [(0.0, process) for _, process in self.thawing]
        self.respawning = [0.0 for _ in self.respawning]
        self.store.resume(GROUP)
        self.is_paused = False
        self.pass_time(0.0)
        for process in [*self.awake, self.operator]:
            process.deaf_until = 0.0
            process.cut = Cut.NONE
        start = self.now
        while not self.at_the_end():
            if self.now - start >= SETTLE:
                self.violations.append(Violation("liveness", self._where_it_stands()))
                break
            self.pass_time(0.1 * self.rng.random())
            self._run_one()
        return self.now - start

    def at_the_end(self) -> bool:
        """Whether every partition's position is the log's end, and nothing is on its way that could change that."""
        if self.server.timers or self.server.transactions or self.operating:
            return False
        topic_id = str(self.topic_id)
        for tp, log in self.logs.items():
            row = self.store.row(tp)
            if row is None or row.next_offset != log.end or row.identity.topic_id != topic_id:
                return False
        return True

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.steps:4} {self.now:6.2f} {text}")

    def is_unlucky(self, chance: float) -> bool:
        """Whether something goes wrong by chance, while things do."""
        return self.has_faults and self.rng.random() < chance

    # What the world is made of

    def add_partition(self, tp: TopicPartition) -> None:
        self.logs[tp] = Log(reel(tp, self.topic_id, self.variant), int(self.rng.random() * 12))

    def topic_changed(self, *, everything: bool) -> None:
        """The topic has another partition, or, with ``everything``, was created again."""

    def freeze(self, process: Client) -> None:
        """A process does nothing for a while, and then goes on as if nothing had happened."""
        process.is_frozen = True
        self.thawing.append((self.now + 0.2 + self.rng.random() * 2 * SESSION, process))

    def spawn(self) -> None:
        """Start a process."""
        raise NotImplementedError

    def suffers(self, fault: Fault, victim: Client) -> bool:
        """Let a fault of this kind of world strike; return whether it could."""
        raise NotImplementedError

    # What a process is told has to be true

    def check_committed(self, claims: Mapping[TopicPartition, Claim], spans: Sequence[Span]) -> None:
        for span in spans:
            if not self._is_committed(claims[span.partition], span):
                self.violations.append(Violation("report", f"{span} was called committed, and is not"))

    def check_not_committed(self, claims: Mapping[TopicPartition, Claim], spans: Sequence[Span]) -> None:
        for span in spans:
            if self._is_committed(claims[span.partition], span):
                self.violations.append(Violation("report", f"{span} was called not committed, and is"))

    def _is_committed(self, claim: Claim, span: Span) -> bool:
        def same(moved: Moved) -> bool:
            return moved.span[:3] == span[:3] and moved.claim.epoch == claim.epoch

        return any(map(same, reversed(self.server.moves.get(span.partition, []))))

    def check_paused(self, process: Client) -> None:
        """A process that has read that its group is paused begins nothing."""
        if process.knows_paused:
            self.violations.append(Violation("pause", f"{process.name} went on"))

    def check_cause(
        self, process: Client, fenced: Fenced, claims: Mapping[TopicPartition, Claim], spans: Sequence[Span]
    ) -> None:
        """A fence has a cause: the row was claimed or edited since, or a commit of the process's own landed late."""
        self.events["fence"] += 1
        rows = self.store.read_now().positions
        starts = {span.partition: span.start for span in spans}
        causes = 0
        for tp in fenced.owners:
            row, claim = rows[tp], claims[tp]
            landed_late = tp in process.in_doubt and row.next_offset > starts[tp]
            if row.epoch > claim.epoch or landed_late:
                causes += 1
            else:
                text = f"{process.name} was fenced from {tp} at {starts[tp]}, but nobody else moved it: {row}"
                self.violations.append(Violation("fence", text))
        if not causes:
            self.violations.append(
                Violation("fence", f"{process.name} was fenced, but no position had moved: {fenced}")
            )

    def _where_it_stands(self) -> str:
        positions = self.store.read(GROUP).positions
        ends = {str(tp): (log.end, positions.get(tp) and positions[tp].next_offset) for tp, log in self.logs.items()}
        return f"after {SETTLE} s without faults, ends and positions are {ends}"


def run_schedule(seed: int, protocol: Parts, tally: Tally, trace: list[str] | None = None) -> Outcome:
    """Run the schedule of a seed."""
    before = logging.root.manager.disable
    logging.disable()  # what processes log is part of the schedule
    try:
        return protocol.world(seed, tally, trace).run()
    finally:
        logging.disable(before)
