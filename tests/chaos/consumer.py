"""A consumer of the storm: it writes what it reads, notes what happens to it, and freezes where it is told to."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.landing import landing_at

from tidegate import Ledger, Limits, open_ledger
from tidegate.app.app import App
from tidegate.core.batches import BatchBounds
from tidegate.core.policies import Delivery, GroupProtocol
from tidegate.core.positions import Position
from tidegate.core.records import Record
from tidegate.errors import LedgerUnavailable
from tidegate.ledger import Transaction
from tidegate.ledger.sql.mysql import MySqlDialect
from tidegate.ledger.sql.postgres import PostgresDialect
from tidegate.ledger.sql.sqlite import SqliteDialect
from tidegate.observe.events import Claimed, Committed, Event, FencedOff, Rebalanced

GROUP = "storm"
SESSION_TIMEOUT = 1.2
LIMITS = Limits(hold=1.0, lock_wait=3.0)
FREEZE_IN_TRANSACTION = signal.SIGUSR1
FREEZE_IN_ASSIGN = signal.SIGUSR2


@dataclass(frozen=True)
class Orders:
    bootstrap: str
    topic: str
    url: str = field(repr=False)  # has a password in it
    protocol: GroupProtocol
    guarded: bool = True
    """Whether positions are moved by compare-and-set; otherwise whatever they are."""
    delivery: Delivery = Delivery.EXACTLY_ONCE


class Consumer:
    def __init__(self, orders: Orders, notes: Path) -> None:
        self._orders = orders
        self._freeze: set[int] = set()
        self._frozen: set[tuple[int, int]] = set()
        for number in (FREEZE_IN_TRANSACTION, FREEZE_IN_ASSIGN):
            signal.signal(number, lambda number, _: self._freeze.add(number))
        # Last: whoever sees the file may send the signals.
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def run(self) -> None:
        orders = self._orders
        ledger, landing = open_ledger(orders.url, limits=LIMITS), landing_at(orders.url)
        wait_for(ledger)
        app = App({"bootstrap.servers": orders.bootstrap, "log_level": 0}, ledger, observers=[self._note])

        @app.listener(
            orders.topic,
            group=GROUP,
            protocol=orders.protocol,
            delivery=orders.delivery,
            session_timeout=SESSION_TIMEOUT,
            batch=BatchBounds(count=50, age=0.02),
            kafka=client_settings(orders.protocol),
            on_assigned=lambda _: self._freeze_if_told(FREEZE_IN_ASSIGN),
        )
        def land(records: list[Record], tx: Transaction) -> None:
            landing.write(tx, records)
            # Not twice with the same record: a listener stops if one takes longer than hold time and again.
            places = {(record.partition, record.offset) for record in records}
            if FREEZE_IN_TRANSACTION in self._freeze and not places & self._frozen:
                self._frozen |= places
                self._freeze_if_told(FREEZE_IN_TRANSACTION)

        app.run()

    def _freeze_if_told(self, where: int) -> None:
        if where in self._freeze:
            self._freeze.discard(where)
            self._write("Frozen", where=signal.Signals(where).name)
            os.kill(os.getpid(), signal.SIGSTOP)

    def _note(self, event: Event) -> None:
        if isinstance(event, FencedOff):
            self._write("FencedOff", partitions=[tp.partition for tp in event.owners], reason=event.reason)
        elif isinstance(event, Committed) and event.unknown_outcomes:
            self._write("Committed", unknown_outcomes=event.unknown_outcomes, attempts=event.attempts)
        elif isinstance(event, Claimed):
            self._write("Claimed", partitions=[tp.partition for tp in event.partitions])
        elif isinstance(event, Rebalanced):
            numbers = [tp.partition for tp in event.partitions]
            self._write("Rebalanced", kind=event.kind, partitions=numbers, seconds=event.seconds)

    def _write(self, event: str, **fields: Any) -> None:
        os.write(self._notes, json.dumps({"event": event, **fields}).encode() + b"\n")


_GUARD = re.compile(r"AND p\.next_offset = \S+ AND p\.epoch = \S+ AND p\.owner = \S+ ")


def wait_for(ledger: Ledger[Any]) -> None:
    """A listener that is started while its database is away ends at once: whoever starts it tries again."""
    while True:
        with suppress(LedgerUnavailable):
            return ledger.create()
        time.sleep(0.1)


def client_settings(protocol: GroupProtocol) -> dict[str, Any]:
    return {} if protocol is GroupProtocol.CONSUMER else {"heartbeat.interval.ms": 300}


def consume(orders: Orders, notes: Path) -> None:
    """The whole life of a consumer's process."""
    log = os.open(notes.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if not orders.guarded:
        for dialect in (PostgresDialect, MySqlDialect, SqliteDialect):
            dialect.advance, found = _GUARD.subn("", dialect.advance)
            assert found == 1
        Position.matches = lambda *_: True  # type: ignore[method-assign]
    try:
        Consumer(orders, notes).run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # without waiting for threads of the client
