"""A driver of the ordeal, as a program: it opens its session, waits at its gate, and runs its pipeline.

    python -m tests.chaos.spark.driver

Its orders are the first line of its input; it stops when its input ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from tests.chaos.spark import faulty
from tests.chaos.spark.orders import GROUP, LIMITS, Orders
from tests.chaos.spark.traps import Place, Traps

from tidegate.cli.run import stop_with_parent
from tidegate.errors import TidegateError
from tidegate.ledger import open_ledger
from tidegate.observe.events import Claimed, Committed, Event, FencedOff, StoreLost
from tidegate.spark import BatchReport, Pipeline, SparkOptions
from tidegate.spark.session import open_session


class Driver:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._traps = Traps(orders.place)

    def run(self) -> int:
        orders = self._orders
        spark = open_session(SparkOptions(master=orders.master, conf=orders.conf))
        ledger = open_ledger(orders.url, limits=LIMITS)
        pipeline = Pipeline(
            orders.topic,
            group=GROUP,
            kafka={"bootstrap.servers": orders.bootstrap, "log_level": 0},
            ledger=ledger,
            spark=spark,
            observers=[self._hear],
            on_batch=self._batch,
            **orders.way.settings(),
        )
        signal.signal(signal.SIGTERM, lambda *_: pipeline.stop())
        self._note("ready")
        while not orders.gate.exists():
            time.sleep(0.02)
        try:
            report = pipeline.run(every=0.05)
        except TidegateError as error:
            self._note("stopped", error=type(error).__name__, reason=str(error))
            return 3
        self._note("report", **report.as_json())
        return 0

    def _batch(self, batch: BatchReport) -> None:
        self._note("batch", mode=batch.mode, records=batch.records, fenced=batch.fenced, done=batch.already_done)

    def _hear(self, event: Event) -> None:
        match event:
            case Claimed():
                self._note("claimed", partitions=len(event.partitions))
            case FencedOff():
                self._note("told of a fence", reason=event.reason)
            case StoreLost():
                self._note("lost", what=event.what, reason=event.reason)
            case Committed():
                self._traps.spring(Place.DRIVER_AFTER, driver=self._orders.name)

    def _note(self, event: str, **fields: Any) -> None:
        self._traps.note(event, driver=self._orders.name, **fields)


if __name__ == "__main__":
    given = Orders.loaded(sys.stdin.readline())
    stop_with_parent()
    os.environ[faulty.FOLDER] = given.folder
    faulty.install()
    ended = Driver(given).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)
