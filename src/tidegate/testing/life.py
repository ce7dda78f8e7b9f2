"""The life of a process: an app on a watched broker and a watched ledger, from its start to its end."""

from __future__ import annotations

import threading
from typing import Any

from tidegate.app import App, Listener
from tidegate.kafka.broker import Broker
from tidegate.ledger import Ledger
from tidegate.observe.observer import Observer
from tidegate.testing.process import Died, Process
from tidegate.testing.rival import Rival
from tidegate.testing.watched_broker import WatchedBroker
from tidegate.testing.watched_ledger import WatchedLedger

__all__ = ["Life", "World"]

_GRACE = 20.0  # seconds to leave in: a consumer takes up to 15 for it


class World:
    """What the processes of a run share."""

    def __init__(self, app: App, broker: Broker, ledger: Ledger[Any] | None, observer: Observer) -> None:
        self.app = app
        self.broker = broker
        self.ledger = ledger
        self.observer = observer
        self.rival = None if ledger is None else Rival(ledger)


class Life:
    """One process, which lives once: in a thread of its own, so that signals stay with the test."""

    def __init__(self, world: World, listeners: list[Listener], process: Process) -> None:
        self.process = process
        self.failure: BaseException | None = None
        """What the app failed with, if it did; death is no failure."""
        self._broker = WatchedBroker(world.broker, process)
        ledger = None
        if world.ledger is not None and world.rival is not None:
            ledger = WatchedLedger(world.ledger, process, world.rival.settle)
        self._app = world.app.elsewhere(self._broker, ledger, listeners, world.observer)
        self._thread: threading.Thread | None = None

    def begin(self, *, until_caught_up: bool) -> None:
        """Live until everything is read, or until told to stop; returns once the group was joined, if it can be."""
        self._thread = threading.Thread(target=self._live, args=(until_caught_up,), name="tidegate-kit", daemon=True)
        self._thread.start()
        self.process.joined.wait()

    @property
    def alive(self) -> bool:
        """Whether it goes on."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait for the end of its own accord, but not for longer than that."""
        if self._thread is not None:
            self._thread.join(seconds)

    def stop(self) -> None:
        """Finish the transaction under way, release and leave; a handler that does not return is left behind."""
        self._app.stop()
        self.wait(_GRACE)

    def _live(self, until_caught_up: bool) -> None:
        try:
            self._app.run(until_caught_up=until_caught_up)
        except Died:
            return
        except BaseException as error:
            self.failure = error
        finally:
            self._broker.close()
            self.process.joined.set()
