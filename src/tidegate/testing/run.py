"""One run of an app's listeners, with the faults that strike in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate.app import App, Listener
from tidegate.core.records import TopicPartition
from tidegate.ledger import Ledger
from tidegate.observe.observer import Event
from tidegate.testing.errors import FaultImpossible
from tidegate.testing.faults import Fault, Fence, LostAnswer, Rebalance
from tidegate.testing.kit_broker import KitBroker
from tidegate.testing.life import Life, World
from tidegate.testing.process import Process
from tidegate.testing.steps import IN_TRANSACTION, ON_A_JOB, Step

__all__ = ["Run", "Running", "hurried"]

_STAND_DOWN = 0.02  # seconds that a listener leaves a partition to another owner: a session timeout, in life
_PATIENCE = 10.0
_LOOK = 0.05
_WITHOUT_LEDGER = {Step.POLLED, Step.WRITTEN, Step.COMMITTED}


@dataclass(frozen=True, slots=True)
class Run:
    """What a run did: the steps that it reached and the events that it told, in order, and whether it crashed."""

    steps: tuple[Step, ...]
    events: tuple[Event, ...]
    crashed: bool


class Running:
    """A run under way: a process, and those that join its group while it runs."""

    def __init__(self, app: App, listeners: Sequence[Listener], broker: KitBroker, ledger: Ledger[Any] | None) -> None:
        self._listeners = list(listeners)
        self._broker = broker
        self._world = World(app, broker, ledger, self._hear)
        self._process = Process((), self._strike)
        self._newcomers: list[Life] = []
        self._events: list[Event] = []
        self._progress = threading.Event()
        self.late = False
        """Whether it was stopped because it took too long."""

    def run(self, faults: Sequence[Fault], within: float, caught_up: Callable[[], bool]) -> Run:
        """Run until caught up or dead; what a listener failed with is raised."""
        for fault in faults:
            self._refuse_impossible(fault)
        if self._world.ledger is not None:
            self._world.ledger.create()
        self._process = Process(faults, self._strike)
        deadline = time.monotonic() + within
        life = Life(self._world, self._listeners, self._process)
        try:
            life.begin(until_caught_up=True)
            life.wait(within)
            while not life.alive and self._newcomers and not caught_up() and time.monotonic() < deadline:
                if not all(newcomer.alive for newcomer in self._newcomers):
                    break
                self._progress.wait(_LOOK)
                self._progress.clear()
        finally:
            self.late = time.monotonic() >= deadline
            for each in (life, *self._newcomers):
                each.stop()
        self._raise_failures([life, *self._newcomers])
        return Run(tuple(self._process.steps), tuple(self._events), self._process.dead)

    @property
    def missed(self) -> list[Fault]:
        """The faults that have not struck."""
        return self._process.missed

    def _raise_failures(self, lives: list[Life]) -> None:
        for life in lives:
            if life.failure is not None:
                raise life.failure
        if self._world.rival is not None and (failure := self._world.rival.failure()) is not None:
            raise failure

    def _hear(self, event: Event) -> None:
        self._events.append(event)
        self._progress.set()

    # Faults

    def _refuse_impossible(self, fault: Fault) -> None:
        if isinstance(fault, Rebalance):
            named = [each.spec.group for each in self._listeners if each.spec.topics.partitions]
            if named:
                raise FaultImpossible(f"{fault}: the partitions of group {named[0]!r} are named, and never rebalanced")
            if not self._broker.can_aim and (fault.lost or not fault.to_another):
                raise FaultImpossible(
                    f"{fault}: a real broker cannot be told to take partitions away at an exact step; use "
                    "Rebalance(step, to_another=True), which lets another member join, or run it without a broker"
                )
        if self._world.ledger is None and (isinstance(fault, Fence | LostAnswer) or fault.step not in _WITHOUT_LEDGER):
            raise FaultImpossible(f"{fault}: the app has no ledger, so there is nothing that it could strike")

    def _strike(self, fault: Fault, group: str, partitions: list[TopicPartition]) -> None:
        if isinstance(fault, Fence) and self._world.rival is not None:
            self._world.rival.claim(group, partitions, locked=fault.step in IN_TRANSACTION)
        elif isinstance(fault, Rebalance):
            self._process.told.clear()
            if fault.to_another:
                self._broker.expect_move(partitions, lost=fault.lost)
                self._join(group)
            else:
                self._broker.bounce(group, partitions, lost=fault.lost)
            if fault.step in ON_A_JOB:  # the polling goes on beside, so it will be told
                self._process.told.wait(_PATIENCE)

    def _join(self, group: str) -> None:
        """Let another process join the group; it goes on when this one has left."""
        listeners = [each for each in self._listeners if each.spec.group == group]
        newcomer = Life(self._world, listeners, Process((), self._strike))
        self._newcomers.append(newcomer)
        newcomer.begin(until_caught_up=False)


def hurried(listener: Listener, batch: int | None) -> Listener:
    """The same listener, which does not wait for time to pass, with so many records in a transaction at most."""
    spec = listener.spec
    bounds = replace(spec.batch, age=0.0, count=batch or spec.batch.count)
    return replace(listener, spec=replace(spec, session_timeout=_STAND_DOWN, batch=bounds))
