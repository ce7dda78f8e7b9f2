"""Which fault strikes whom, and when: the same for the same seed."""

from __future__ import annotations

import os
import random
from enum import Enum
from typing import NamedTuple

CONSUMERS = 5
"""Slots 0 to 4 are consumers that are there all the time, apart from what befalls them."""
GUEST = CONSUMERS
"""The slot of one that joins and leaves, each about every second."""


class Kind(Enum):
    KILL = "kill -9, and start another one"
    STOP = "stop for longer than the session timeout, anywhere"
    FREEZE_IN_TRANSACTION = "freeze inside the next transaction"
    FREEZE_IN_ASSIGN = "freeze inside the next on_assign"
    JOIN = "the guest joins"
    LEAVE = "the guest leaves"
    SWALLOW = "the answer to the next COMMIT is lost"
    BROKER = "kill -9 and restart of the broker"
    DATABASE = "restart of the database"


class Fault(NamedTuple):
    at: float
    kind: Kind
    slot: int = -1
    seconds: float = 0.0


def seed() -> int:
    return int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 32))


def schedule(seed: int, duration: float, *, outages: bool) -> list[Fault]:
    rng = random.Random(seed)
    faults: list[Fault] = []

    def now_and_then(every: float, first: float = 2.0) -> list[float]:
        times, at = [], first
        while at < duration - 1:
            times.append(at)
            at += every * rng.uniform(0.8, 1.2)
        return times

    def long_enough() -> float:
        return rng.uniform(2.2, 3.0)

    # Frozen together, they are missed together: one after the other, the group would do nothing but rebalance.
    for at in now_and_then(4.0):
        victims = rng.sample(range(CONSUMERS), 3)
        faults += [Fault(at, Kind.FREEZE_IN_TRANSACTION, slot, long_enough()) for slot in victims]
    faults += [Fault(at, Kind.KILL, rng.randrange(CONSUMERS)) for at in now_and_then(5.0, 4.5)]
    faults += [Fault(at, Kind.STOP, rng.randrange(CONSUMERS), long_enough()) for at in now_and_then(7.0, 5.5)]
    faults += [
        Fault(at, Kind.FREEZE_IN_ASSIGN, rng.randrange(CONSUMERS), long_enough()) for at in now_and_then(5.0, 3.0)
    ]
    faults += [Fault(at, (Kind.JOIN, Kind.LEAVE)[turn % 2], GUEST) for turn, at in enumerate(now_and_then(1.0, 3.0))]
    faults += [Fault(at, Kind.SWALLOW) for at in now_and_then(1.5)]
    if outages:
        faults += [Fault(duration * rng.uniform(0.35, 0.45), Kind.BROKER)]
        faults += [Fault(duration * rng.uniform(0.65, 0.75), Kind.DATABASE)]
    return sorted(faults, key=lambda fault: fault.at)
