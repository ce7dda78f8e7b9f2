"""The storm: consumers, a feed, and faults on a schedule, on servers of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.app.listener.topic import Topic
from tests.chaos.audit import Audit, Ordeal
from tests.chaos.consumer import FREEZE_IN_ASSIGN, FREEZE_IN_TRANSACTION, GROUP, LIMITS, Orders
from tests.chaos.feed import Feed
from tests.chaos.fleet import Fleet
from tests.chaos.landing import Landing, landing_at
from tests.chaos.schedule import CONSUMERS, GUEST, Fault, Kind

from tidegate import open_ledger
from tidegate.core.policies import Delivery, GroupProtocol
from tidegate.ledger import Verification
from tidegate.sandbox import Database, Kafka, Proxy

PARTITIONS = 8
_TICK = 0.05


@dataclass
class Storm:
    broker: Kafka
    database: Database
    landing: Landing
    proxy: Proxy
    feed: Feed
    fleet: Fleet
    outages: ThreadPoolExecutor

    def blow(self, faults: list[Fault], *, enough: Callable[[float], bool] = lambda _: False) -> None:
        """Let the faults strike, each at its time, and end early if after so many seconds it is ``enough``."""
        began = time.monotonic()
        under_way: list[Future[object]] = []
        for fault in faults:
            while time.monotonic() - began < fault.at:
                self.fleet.attend()
                time.sleep(_TICK)
            assert not self.fleet.fallen, self.fleet.fallen[0]
            if enough(fault.at):
                break
            if fault.kind in (Kind.BROKER, Kind.DATABASE):
                under_way.append(self.outages.submit(self._outage, fault.kind))
            else:
                self._strike(fault)
        for outage in under_way:
            while not outage.done():
                self.fleet.attend()
                time.sleep(_TICK)
            outage.result()
        self.feed.end()

    def calm(self, timeout: float) -> bool:
        """Wait until every partition is at its end, and have everybody leave; whether that came about in time."""
        deadline = time.monotonic() + timeout
        self.proxy.restore()
        drained = False
        while not drained and time.monotonic() < deadline:
            self.fleet.attend()
            drained = self.positions() == self.feed.written
            time.sleep(_TICK)
        self.fleet.leave(range(GUEST + 1))
        while not self.fleet.gone() and time.monotonic() < deadline:
            self.fleet.attend()
            time.sleep(_TICK)
        return drained and self.fleet.gone()

    def positions(self) -> dict[int, int]:
        with open_ledger(self.database.url, limits=LIMITS) as ledger:
            rows = ledger.read(GROUP).positions
        return {tp.partition: row.next_offset for tp, row in rows.items()}

    def audit(self) -> Audit:
        return Audit.of(self.landing.rows(), self.feed.written)

    def ordeal(self) -> Ordeal:
        with open_ledger(self.database.url, limits=LIMITS) as ledger:
            return Ordeal.of(self.fleet.folder, ledger.journal(GROUP), self.fleet.killed)

    def verify(self) -> Verification:
        with open_ledger(self.database.url, limits=LIMITS) as ledger:
            return ledger.verify(GROUP)

    def _strike(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.KILL:
                self.fleet.kill(fault.slot)
            case Kind.STOP:
                self.fleet.stop(fault.slot, fault.seconds)
            case Kind.FREEZE_IN_TRANSACTION:
                self.fleet.freeze(fault.slot, FREEZE_IN_TRANSACTION, fault.seconds)
            case Kind.FREEZE_IN_ASSIGN:
                self.fleet.freeze(fault.slot, FREEZE_IN_ASSIGN, fault.seconds)
            case Kind.JOIN:
                self.fleet.join(fault.slot)
            case Kind.LEAVE:
                self.fleet.leave([fault.slot])
            case Kind.SWALLOW:
                self.proxy.swallow_one_reply(self.landing.commits_records)

    def _outage(self, kind: Kind) -> None:
        if kind is Kind.BROKER:
            self.broker.kill()
            self.broker.start()
        else:
            self.database.restart()


@contextmanager
def brewing(
    broker: Kafka,
    database: Database,
    folder: Path,
    protocol: GroupProtocol,
    *,
    guarded: bool = True,
    delivery: Delivery = Delivery.EXACTLY_ONCE,
) -> Iterator[Storm]:
    """Everything that a storm needs, with its consumers at work."""
    topic = Topic.create(broker.bootstrap, PARTITIONS)
    landing = landing_at(database.url)
    landing.prepare()
    with open_ledger(database.url) as ledger:
        ledger.create()
    with (
        Proxy(database.host, database.port) as proxy,
        ThreadPoolExecutor(1) as outages,
        Feed(topic) as feed,
    ):
        url = database.url_for(port=proxy.port)
        fleet = Fleet(Orders(broker.bootstrap, topic.name, url, protocol, guarded, delivery), folder)
        try:
            for slot in range(CONSUMERS):
                fleet.join(slot)
            yield Storm(broker, database, landing, proxy, feed, fleet, outages)
        finally:
            fleet.end()
