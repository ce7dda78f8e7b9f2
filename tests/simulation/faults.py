"""Faults: what strikes, and at which step of the protocol it struck."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from tidegate.core.records import TopicPartition

from .coordinator import SESSION
from .log import Log, reel
from .member import Member
from .steps import Step
from .store import GROUP, Cut

if TYPE_CHECKING:
    from .world import World

FAULT_RATE = 0.1


class Fault(IntEnum):
    CRASH = 0
    FREEZE = 1
    LATE_NOTICE = 2
    REQUEST_LOST = 3
    REPLY_LOST = 4
    LANDS_LATE = 5
    ROLLED_BACK = 6
    REBALANCE = 7
    GROWTH = 8
    RECREATION = 9
    RETENTION = 10
    REWIND = 11
    SKIP = 12
    PAUSE = 13
    RESUME = 14


_WEIGHTS = {
    Fault.CRASH: 8,
    Fault.FREEZE: 12,
    Fault.LATE_NOTICE: 8,
    Fault.REQUEST_LOST: 9,
    Fault.REPLY_LOST: 10,
    Fault.LANDS_LATE: 9,
    Fault.ROLLED_BACK: 8,
    Fault.REBALANCE: 9,
    Fault.GROWTH: 3,
    Fault.RECREATION: 3,
    Fault.RETENTION: 4,
    Fault.REWIND: 6,
    Fault.SKIP: 4,
    Fault.PAUSE: 5,
    Fault.RESUME: 3,
}
_DRAWN = [fault for fault, weight in _WEIGHTS.items() for _ in range(weight)]

_IN_TRANSACTION = {Step.WRITE, Step.COMMIT}
_ON_THE_WIRE = set(Step) - {Step.ACKNOWLEDGE}
_LANDING = _ON_THE_WIRE - {Step.FETCH}
WHERE: dict[Fault, set[Step]] = {fault: set(Step) for fault in Fault} | {
    Fault.ROLLED_BACK: _IN_TRANSACTION,
    Fault.REQUEST_LOST: _ON_THE_WIRE,
    Fault.LANDS_LATE: _LANDING,
}
"""The steps at which a fault can strike: a transaction that is not open cannot be rolled back, a request that was not
sent cannot be lost, and what is fetched late is what was fetched before a rebalance, which happens anyway."""


class Tally:
    """How often each fault struck at each step."""

    def __init__(self) -> None:
        self.counts = [[0] * len(Step) for _ in Fault]

    def add(self, other: list[list[int]]) -> None:
        for mine, theirs in zip(self.counts, other, strict=True):
            mine[:] = [a + b for a, b in zip(mine, theirs, strict=True)]

    def rare(self, bound: int) -> list[str]:
        """The faults that struck less often than that where they can."""
        return [
            f"{fault.name.lower()} at {step.name.lower()}: {self.counts[fault][step]}"
            for fault in Fault
            for step in WHERE[fault]
            if self.counts[fault][step] < bound
        ]

    def __str__(self) -> str:
        lines = [" " * 13 + "".join(f"{step.name.lower():>12}" for step in Step)]
        for fault in Fault:
            cells = [f"{self.counts[fault][step]:>12}" if step in WHERE[fault] else f"{'-':>12}" for step in Step]
            lines.append(f"{fault.name.lower():<13}" + "".join(cells))
        return "\n".join(lines)


def strike(world: World) -> None:
    """Let something go wrong for a member that is about to take its next step."""
    random = world.rng.random
    victim = world.awake[int(random() * len(world.awake))]
    if victim.step is Step.FETCH:  # most members are there most of the time: look for another one, once
        victim = world.awake[int(random() * len(world.awake))]
    fault = _DRAWN[int(random() * len(_DRAWN))]
    if world.paused_at is not None and random() < 0.3:
        fault = Fault.RESUME
    if victim.step not in WHERE[fault] or not _apply(world, fault, victim):
        return
    world.tally.counts[fault][victim.step] += 1
    world.note(f"{victim.name} {fault.name} at {victim.step.name.lower()}")


def _apply(world: World, fault: Fault, victim: Member) -> bool:
    random = world.rng.random
    match fault:
        case Fault.CRASH | Fault.FREEZE:
            if len(world.awake) < 2:
                return False
            world.awake.remove(victim)
            if fault is Fault.CRASH:
                victim.crash()
                world.respawning.append(world.now + 1 + int(random() * SESSION))
            else:
                world.thawing.append((world.now + 2 + int(random() * 2 * SESSION), victim))
        case Fault.LATE_NOTICE:
            victim.deaf_until = world.now + 2 + int(random() * 2.5 * SESSION)
        case Fault.REQUEST_LOST:
            victim.cut = Cut.REQUEST_LOST
        case Fault.REPLY_LOST:
            victim.cut = Cut.REPLY_LOST
        case Fault.LANDS_LATE:
            victim.cut = Cut.LANDS_LATE
        case Fault.ROLLED_BACK:
            assert victim.tx is not None
            victim.tx.rollback()
        case Fault.REBALANCE:
            world.coordinator.rebalance(world.now)
        case Fault.GROWTH:
            return _grow(world)
        case Fault.RECREATION:
            return _recreate(world)
        case Fault.PAUSE | Fault.RESUME:
            return _pause(world, fault is Fault.PAUSE)
        case _:
            return _move(world, fault, victim)
    return True


def _pause(world: World, paused: bool) -> bool:
    if (world.paused_at is not None) == paused:
        return False
    world.paused_at = world.now if paused else None
    return world.store.pause(GROUP) if paused else world.store.resume(GROUP)


def _grow(world: World) -> bool:
    if len(world.logs) == 6:
        return False
    world.add_partition(TopicPartition(world.coordinator.partitions[0].topic, len(world.logs)))
    world.coordinator.rebalance(world.now)
    return True


def _recreate(world: World) -> bool:
    if world.topic_id == 3:
        return False
    world.topic_id += 1
    for tp in world.logs:
        world.logs[tp] = Log(reel(tp, world.topic_id, world.variant), int(world.rng.random() * 12))
    world.coordinator.rebalance(world.now, everything=True)
    return True


def _move(world: World, fault: Fault, victim: Member) -> bool:
    """Retention and operators move what the victim has: the log's start, or a position."""
    random = world.rng.random
    partitions = victim.assignment.partitions or world.coordinator.partitions
    tp = partitions[int(random() * len(partitions))]
    log = world.logs[tp]
    row = world.store.read(GROUP, [tp]).positions.get(tp)
    if fault is Fault.RETENTION:
        log.start += int(random() * (log.end - log.start + 1))
        world.cut_off.add((tp, str(world.topic_id), log.start))
        return True
    if row is None or row.identity.topic_id != str(world.topic_id):
        return False
    _edit(world, tp, fault)
    return True


def rewind(world: World) -> None:
    """An operator's rewind of a quiet group: only owners that read their rows now and then notice."""
    partitions = world.coordinator.partitions
    _edit(world, partitions[int(world.rng.random() * len(partitions))], Fault.REWIND)


def _edit(world: World, tp: TopicPartition, fault: Fault) -> None:
    """An operator's edit, which waits for whoever has the row locked."""
    store, random = world.store, world.rng.random
    if tp in store.locks:
        store.timers.append((store.now + 1, lambda: _edit(world, tp, fault)))
        return
    position, end = store.read(GROUP, [tp]).positions[tp].next_offset, world.logs[tp].end
    offset = (
        int(random() * (position + 1)) if fault is Fault.REWIND else position + int(random() * (end - position + 1))
    )
    store.edit(GROUP, {tp: offset}, note="operator")
    world.edits.setdefault(tp, []).append(offset)
