"""A trial: one delivery, whose driver is killed again and again until the last one may finish."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from demo.life import Life
from demo.watch import Watch, count_rows
from tidegate import Delivery

AIMED = {
    Delivery.EXACTLY_ONCE: "killed right behind a COMMIT, before the next plan",
    Delivery.AT_LEAST_ONCE: "killed between its data and its position",
    Delivery.AT_MOST_ONCE: "killed between its position and its data",
}
_PATIENCE = 240.0  # seconds for a driver to write something
_AIM = (1, 4)  # micro-batches of a driver before an aimed kill
_RANDOM = 0.4  # seconds at most between the first micro-batch and a random kill


class Kill(NamedTuple):
    """When a driver was killed, with how many rows in the table, and whether that moment was chosen."""

    at: float
    rows: int
    aimed: bool


class Trial:
    """Runs on a thread of its own."""

    def __init__(
        self, delivery: Delivery, file: Path, database: Path, kills: int, tell: Callable[[Trial], None], seed: int = 1
    ) -> None:
        self.delivery = delivery
        self.database = database
        self.watch = Watch(database)
        self.kills: list[Kill] = []
        self.state = "waiting"
        self.seconds = 0.0
        self.error: BaseException | None = None
        self._file = file
        self._wanted = kills
        self._tell = tell
        self._chance = random.Random(f"{seed} {delivery}")
        self._lives: list[Life] = []
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"demo-{delivery}")

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def abandon(self) -> None:
        """End everything at once, and wait until it has."""
        self._abandoned.set()
        for life in list(self._lives):
            life.kill()
        self.join()

    def _run(self) -> None:
        self.watch.start()
        try:
            for number in range(self._wanted):
                self._live_and_die(number)
            self._say("last driver: starting Spark, may finish")
            self._live(None).finish()
            self.seconds = self.watch.seconds
            self._say("caught up")
        except BaseException as error:  # told by the main thread
            self.error = error
            self._say(f"failed: {error}")
        finally:
            self.watch.close()
            for life in self._lives:
                life.close()

    def _live_and_die(self, number: int) -> None:
        """Every other kill is aimed, beginning with the first."""
        is_aimed = number % 2 == 0
        rows = count_rows(self.database)
        self._say(f"driver {number + 1}: starting Spark")
        life = self._live(self._chance.randint(*_AIM) if is_aimed else None)
        if is_aimed:
            is_there = life.wait_for_aim()
        else:
            is_there = self.watch.wait_beyond(rows, _PATIENCE) and not life.ended(self._chance.uniform(0.0, _RANDOM))
        if not is_there:
            life.finish()
            raise RuntimeError(
                f"driver {number + 1} was done before it could be killed: too few orders for so many kills"
            )
        life.kill()
        self.kills.append(Kill(self.watch.seconds, count_rows(self.database), is_aimed))
        self._say(f"driver {number + 1}: {AIMED[self.delivery] if is_aimed else 'killed at a random moment'}")

    def _live(self, aim: int | None) -> Life:
        log = self.database.with_name(f"{self.delivery}-{len(self._lives) + 1}.log")
        life = Life(self._file, self.delivery, log, aim)
        self._lives.append(life)
        if self._abandoned.is_set():
            life.kill()
        return life

    def _say(self, state: str) -> None:
        self.state = state
        self._tell(self)
