"""A process, as a run of the kit pretends to be one: it counts the steps it reaches, and dies where it is told to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from tidegate.core.records import TopicPartition
from tidegate.ledger.trouble import OutcomeUnknown
from tidegate.testing.faults import Crash, Fault, LostAnswer
from tidegate.testing.steps import Step

__all__ = ["Died", "Process", "Strike"]

Strike = Callable[[Fault, str, list[TopicPartition]], None]
"""Lets a fault happen that is no end of the process: told the group and the partitions that the step is about."""


class Died(BaseException):
    """The process is dead. No :class:`Exception`: nobody who handles those would hear of a real death either."""


class Process:
    """What the consumers and the ledger of one run share: whether it lives, and which faults are still to come."""

    def __init__(self, faults: Sequence[Fault], strike: Strike) -> None:
        self._pending = list(faults)
        self._strike = strike
        self._turns: Counter[Step] = Counter()
        self._lock = threading.Lock()
        self._dead = False
        self.steps: list[Step] = []
        self.joined = threading.Event()
        """Set once a consumer has subscribed."""
        self.told = threading.Event()
        """Set once a consumer is told that partitions are taken away."""

    @property
    def dead(self) -> bool:
        """Whether it has died."""
        return self._dead

    @property
    def missed(self) -> list[Fault]:
        """The faults that have not struck."""
        return list(self._pending)

    def live(self) -> None:
        """Do nothing; the dead cannot even do that."""
        if self._dead:
            raise Died

    def reached(self, step: Step, group: str, partitions: Sequence[TopicPartition]) -> None:
        """A step was reached: what is to strike here strikes."""
        for fault in self._due(step):
            if isinstance(fault, Crash):
                self._dead = True
                raise Died
            if isinstance(fault, LostAnswer):
                raise OutcomeUnknown("the test kit lost the answer")
            self._strike(fault, group, list(partitions))

    def _due(self, step: Step) -> list[Fault]:
        with self._lock:
            self.live()
            self.steps.append(step)
            self._turns[step] += 1
            due = [fault for fault in self._pending if fault.step is step and fault.turn == self._turns[step]]
            self._pending = [fault for fault in self._pending if fault not in due]
        return sorted(due, key=lambda fault: isinstance(fault, Crash | LostAnswer))  # what raises comes last
