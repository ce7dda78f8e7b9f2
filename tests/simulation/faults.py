"""Faults: what strikes, and at which step of the protocol it struck."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.core.records import TopicPartition

from .log import TOPIC, Log, reel
from .process import Client
from .scheduler import GreenStrand
from .steps import Step
from .store import GROUP, Cut

if TYPE_CHECKING:
    from .world import World

FAULT_RATE = 0.08


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
    EXECUTOR_LOST = 15
    SPECULATION = 16
    TAKEOVER = 17
    STOP = 18


_IN_TRANSACTION = {Step.WRITE, Step.COMMIT}
_ON_THE_WIRE = set(Step) - {Step.ACKNOWLEDGE}
_OF_TASKS = {Step.FETCH, Step.BEGIN, Step.WRITE, Step.COMMIT, Step.ACKNOWLEDGE}
_LANDING = _ON_THE_WIRE - {Step.FETCH, Step.READ}
WHERE: dict[Fault, set[Step]] = {fault: set(Step) for fault in Fault} | {
    Fault.ROLLED_BACK: _IN_TRANSACTION,
    Fault.REQUEST_LOST: _ON_THE_WIRE,
    Fault.LANDS_LATE: _LANDING,
    Fault.EXECUTOR_LOST: _OF_TASKS,
    Fault.SPECULATION: _OF_TASKS,
    Fault.STOP: set(Step) - {Step.RELEASE},
}
"""The steps at which a fault can strike: a transaction that is not open cannot be rolled back, a request that was not
sent cannot be lost, what is fetched late is what was fetched before a rebalance, which happens anyway, executors run
tasks, and a driver that releases its partitions has stopped already."""


@dataclass(frozen=True)
class Faults:
    """The faults of one kind of world, each with its weight: how often it is drawn."""

    weights: dict[Fault, int]

    @cached_property
    def drawn(self) -> list[Fault]:
        return [fault for fault, weight in self.weights.items() for _ in range(weight)]


class Tally:
    """How often each fault struck at each step."""

    def __init__(self) -> None:
        self.counts = [[0] * len(Step) for _ in Fault]

    def add(self, other: list[list[int]]) -> None:
        for mine, theirs in zip(self.counts, other, strict=True):
            mine[:] = [a + b for a, b in zip(mine, theirs, strict=True)]

    def rare(self, bound: int, faults: Faults) -> list[str]:
        """Those of the faults that struck less often than that where they can."""
        return [
            f"{fault.name.lower()} at {step.name.lower()}: {self.counts[fault][step]}"
            for fault in faults.weights
            for step in WHERE[fault]
            if self.counts[fault][step] < bound
        ]

    def __str__(self) -> str:
        lines = [" " * 13 + "".join(f"{step.name.lower():>12}" for step in Step)]
        for fault in Fault:
            if not any(self.counts[fault]):
                continue
            cells = [f"{self.counts[fault][step]:>12}" if step in WHERE[fault] else f"{'-':>12}" for step in Step]
            lines.append(f"{fault.name.lower():<13}" + "".join(cells))
        return "\n".join(lines)


def strike(world: World) -> None:
    """Let something go wrong for a process that is about to take its next step."""
    random = world.rng.random
    if not world.awake:
        return
    busy = [process for process in world.awake if process.step is not Step.FETCH] if random() < 0.7 else []
    victims = busy or world.awake  # most processes poll most of the time: prefer the others
    victim = victims[int(random() * len(victims))]
    drawn = world.protocol.faults.drawn
    fault = drawn[int(random() * len(drawn))]
    if world.is_paused and random() < 0.3:
        fault = Fault.RESUME
    step = victim.step
    if step not in WHERE[fault] or not _apply(world, fault, victim):
        return
    world.tally.counts[fault][step] += 1
    world.note(f"{victim.name} {fault.name} at {step.name.lower()}")


def _apply(world: World, fault: Fault, victim: Client) -> bool:
    match fault:
        case Fault.REQUEST_LOST:
            victim.cut = Cut.REQUEST_LOST
        case Fault.REPLY_LOST:
            victim.cut = Cut.REPLY_LOST
        case Fault.LANDS_LATE:
            victim.cut = Cut.LANDS_LATE
        case Fault.GROWTH:
            return _grow(world)
        case Fault.RECREATION:
            return _recreate(world)
        case Fault.PAUSE | Fault.RESUME:
            return _pause(world, fault is Fault.PAUSE)
        case Fault.RETENTION | Fault.REWIND | Fault.SKIP:
            return _move(world, fault, victim)
        case _:
            return world.suffers(fault, victim)
    return True


def _pause(world: World, paused: bool) -> bool:
    if world.is_paused == paused:
        return False
    world.is_paused = paused
    return world.store.pause(GROUP) if paused else world.store.resume(GROUP)


def _grow(world: World) -> bool:
    if len(world.logs) == 6:
        return False
    world.add_partition(TopicPartition(TOPIC, len(world.logs)))
    world.topic_changed(everything=False)
    return True


def _recreate(world: World) -> bool:
    if world.topic_id == 3 or world.operating:
        return False
    world.topic_id += 1
    for tp in world.logs:
        world.logs[tp] = Log(reel(tp, world.topic_id, world.variant), int(world.rng.random() * 12))
    world.topic_changed(everything=True)
    return True


def _move(world: World, fault: Fault, victim: Client) -> bool:
    """Retention and operators move what the victim has: the log's start, or a position."""
    random = world.rng.random
    partitions = victim.partitions or list(world.logs)
    tp = partitions[int(random() * len(partitions))]
    log = world.logs[tp]
    row = world.store.row(tp)
    if fault is Fault.RETENTION:
        log.start += int(random() * (log.end - log.start + 1))
        world.cut_off.add((tp, str(world.topic_id), log.start))
        return True
    if row is None or row.identity.topic_id != str(world.topic_id) or world.operating:
        return False
    _edit(world, tp, fault, _OPERATORS_CUTS[int(random() * len(_OPERATORS_CUTS))])
    return True


def rewind(world: World) -> None:
    """An operator's rewind of a quiet group: only owners that read their rows now and then notice."""
    partitions = list(world.logs)
    _edit(world, partitions[int(world.rng.random() * len(partitions))], Fault.REWIND, Cut.NONE)


def _edit(world: World, tp: TopicPartition, fault: Fault, cut: Cut) -> None:
    """An operator's edit, which waits for the lock of the row, and is tried again if its connection breaks."""
    random, store = world.rng.random, world.store
    row = store.row(tp)
    assert row is not None
    position, end = row.next_offset, world.logs[tp].end
    offset = (
        int(random() * (position + 1)) if fault is Fault.REWIND else position + int(random() * (end - position + 1))
    )

    def edit() -> None:
        if cut:
            world.events["operator tried again"] += 1
        store.edit(GROUP, {tp: offset}, note="operator")
        world.operating -= 1

    world.edits.setdefault(tp, []).append(offset)
    world.operating += 1
    world.operator.cut = cut
    world.operator.strand = GreenStrand(world.operator, edit)


_OPERATORS_CUTS = (Cut.NONE, Cut.REQUEST_LOST, Cut.REPLY_LOST, Cut.LANDS_LATE)
