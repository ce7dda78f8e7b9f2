"""One run of an app's listeners, with its faults: simulated processes on threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate.app import App, Listener
from tidegate.core.records import TopicPartition
from tidegate.kafka.broker import Broker
from tidegate.ledger import Ledger
from tidegate.observe.events import Event, Observer
from tidegate.testing.broker import KitBroker
from tidegate.testing.faults import (
    IN_TRANSACTION,
    ON_A_JOB,
    Died,
    Fault,
    FaultImpossible,
    FaultyProcess,
    Fence,
    LostAnswer,
    Rebalance,
    Step,
)
from tidegate.testing.watched import IdleTime, Rival, WatchedBroker, WatchedLedger

__all__ = ["Life", "Run", "Running", "World", "hurried"]


_GRACE = 20.0  # seconds that a process may take to stop: a consumer takes up to 15 to leave its group


class World:
    """The app, the broker, the ledger and the observer that all processes of a run share."""

    def __init__(self, app: App, broker: Broker, ledger: Ledger[Any] | None, observer: Observer) -> None:
        self.app = app
        self.broker = broker
        self.ledger = ledger
        self.observer = observer
        self.time = IdleTime()
        self.rival = None if ledger is None else Rival(ledger)


class Life:
    """One simulated process, which runs once. It runs in its own thread, so that signals still go to the test."""

    def __init__(self, world: World, listeners: list[Listener], process: FaultyProcess) -> None:
        self.process = process
        self.failure: BaseException | None = None
        """The error that the app failed with, if any; a simulated crash is not a failure."""
        self._broker = WatchedBroker(world.broker, process, world.time)
        ledger = None
        if world.ledger is not None and world.rival is not None:
            ledger = WatchedLedger(world.ledger, process, world.rival.settle)
        self._app = world.app.elsewhere(self._broker, ledger, listeners, world.observer, world.time)
        self._thread: threading.Thread | None = None

    def begin(self, *, until_caught_up: bool) -> None:
        """Start the process, which runs until caught up or until :meth:`stop`.

        Returns once it has joined the group, or has ended without joining.
        """
        self._thread = threading.Thread(target=self._live, args=(until_caught_up,), name="tidegate-kit", daemon=True)
        self._thread.start()
        self.process.joined.wait()

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the process to end by itself."""
        if self._thread is not None:
            self._thread.join(seconds)

    def stop(self) -> None:
        """Stop the process: it finishes its transaction, releases and leaves. A handler that hangs is abandoned."""
        self._app.stop()
        self.wait(_GRACE)

    def _live(self, until_caught_up: bool) -> None:
        try:
            self._app.run(until_caught_up=until_caught_up, quiet=True)
        except Died:
            return
        except BaseException as error:
            self.failure = error
        finally:
            self._broker.close()
            self.process.joined.set()


_STAND_DOWN = 0.02  # seconds that a listener leaves a partition to another owner: in production, the session timeout
_PATIENCE = 10.0
_LOOK = 0.05
_WITHOUT_LEDGER = {Step.POLLED, Step.WRITTEN, Step.COMMITTED}


@dataclass(frozen=True, slots=True)
class Run:
    """What a run did: the steps that it reached and the events that it reported, in order, and whether it crashed."""

    steps: tuple[Step, ...]
    events: tuple[Event, ...]
    crashed: bool


class Running:
    """A run in progress: one process, and the processes that join its group meanwhile."""

    def __init__(self, app: App, listeners: Sequence[Listener], broker: KitBroker, ledger: Ledger[Any] | None) -> None:
        self._listeners = list(listeners)
        self._broker = broker
        self._world = World(app, broker, ledger, self._hear)
        self._process = FaultyProcess((), self._strike)
        self._newcomers: list[Life] = []
        self._events: list[Event] = []
        self._progress = threading.Event()
        self.late = False
        """Whether the run was stopped because it took too long."""

    def run(self, faults: Sequence[Fault], within: float, caught_up: Callable[[], bool]) -> Run:
        """Run until caught up or crashed, for ``within`` seconds at most; raises what a listener failed with."""
        for fault in faults:
            self._refuse_impossible(fault)
        if self._world.ledger is not None:
            self._world.ledger.create()
        self._process = FaultyProcess(faults, self._strike)
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
                    f"{fault}: a real broker cannot be made to take partitions away at an exact step; use "
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
            if fault.step in ON_A_JOB:  # the polling thread keeps running, so it will be notified
                self._process.told.wait(_PATIENCE)

    def _join(self, group: str) -> None:
        """Start another process that joins the group; it keeps running after this one has left."""
        listeners = [each for each in self._listeners if each.spec.group == group]
        newcomer = Life(self._world, listeners, FaultyProcess((), self._strike))
        self._newcomers.append(newcomer)
        newcomer.begin(until_caught_up=False)


def hurried(listener: Listener, batch: int | None) -> Listener:
    """Return a copy of the listener with short waits and at most ``batch`` records in a transaction."""
    spec = listener.spec
    bounds = replace(spec.batch, age=0.0, count=batch or spec.batch.count)
    return replace(listener, spec=replace(spec, session_timeout=_STAND_DOWN, batch=bounds))
