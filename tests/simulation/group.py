"""A consumer group: members that a coordinator assigns partitions to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.app.member import Member
from tidegate.core.records import TopicPartition

from .broker import Source
from .coordinator import SESSION, Coordinator
from .faults import Fault, Faults
from .process import KINDS, Client, Process
from .world import Parts, World

if TYPE_CHECKING:
    from .faults import Tally

FAULTS = Faults(
    {
        Fault.CRASH: 8,
        Fault.FREEZE: 12,
        Fault.LATE_NOTICE: 8,
        Fault.REQUEST_LOST: 9,
        Fault.REPLY_LOST: 10,
        Fault.LANDS_LATE: 9,
        Fault.ROLLED_BACK: 8,
        Fault.REBALANCE: 9,
        Fault.GROWTH: 4,
        Fault.RECREATION: 4,
        Fault.RETENTION: 5,
        Fault.REWIND: 6,
        Fault.SKIP: 6,
        Fault.PAUSE: 5,
        Fault.RESUME: 4,
    }
)


@dataclass(frozen=True)
class Protocol(Parts):
    """The parts that a group of listeners is run with."""

    member: type[Member] = Member
    source: type[Source] = Source

    faults = FAULTS

    def world(self, seed: int, tally: Tally, trace: list[str] | None) -> GroupWorld:
        return GroupWorld(seed, self, tally, trace)


class GroupWorld(World):
    """A group of three or four processes."""

    protocol: Protocol
    awake: list[Process]  # type: ignore[assignment]

    def prepare(self) -> None:
        random = self.rng.random
        self.kind = KINDS[int(random() * len(KINDS))]
        self.coordinator = Coordinator(self.rng, cooperative=random() < 0.6)

    def populate(self) -> None:
        for _ in range(3 if self.rng.random() < 0.7 else 4):
            self.spawn()

    def add_partition(self, tp: TopicPartition) -> None:
        super().add_partition(tp)
        self.coordinator.partitions.append(tp)

    def topic_changed(self, *, everything: bool) -> None:
        self.coordinator.rebalance(self.now, everything=everything)

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        if not self.steps & 3:
            self.coordinator.expel_the_silent(self.now)

    def spawn(self) -> None:
        """Start a process."""
        self.spawned += 1
        process = Process(self, f"m{self.spawned}")
        process.last_seen = self.now
        self.awake.append(process)

    def gone(self, process: Process) -> None:
        """A process has ended; another one takes its place."""
        if process in self.awake:
            self.awake.remove(process)
        self.respawning.append(self.now + self.rng.random() * SESSION if self.has_faults else self.now)

    def suffers(self, fault: Fault, victim: Client) -> bool:
        random = self.rng.random
        assert isinstance(victim, Process)
        match fault:
            case Fault.CRASH | Fault.FREEZE:
                if len(self.awake) < 2:
                    return False
                self.awake.remove(victim)
                if fault is Fault.CRASH:
                    victim.crash()
                    self.respawning.append(self.now + random() * SESSION)
                else:
                    self.freeze(victim)
            case Fault.LATE_NOTICE:
                victim.deaf_until = self.now + 0.2 + random() * 2.5 * SESSION
            case Fault.ROLLED_BACK:
                if victim.store.tx is None:
                    return False
                victim.store.tx.rollback()
            case Fault.REBALANCE:
                self.coordinator.rebalance(self.now)
            case other:
                raise NotImplementedError(other)
        return True
