"""A process that runs a listener, and dies by its own hand at a given step of the loop."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.listeners.books import GROUP, LIMITS, Books
from tests.listeners.processes import die
from tests.listeners.topic import Topic

from tidegate import Ledger, open_ledger
from tidegate.app.app import App
from tidegate.core.batching import BatchBounds
from tidegate.core.delivery import Delivery
from tidegate.core.protocols import Protocol
from tidegate.core.records import Record
from tidegate.kafka.source import Fetched, Source
from tidegate.ledger import Transaction
from tidegate.observe.observer import Committed, Event

SESSION_TIMEOUT = 0.6


@dataclass(frozen=True)
class Order:
    """What a child is to do: consume, and die when ``step`` is reached for the ``turn``-th time."""

    topic: Topic
    books: Books
    step: str | None = None
    turn: int = 1
    until_caught_up: bool = True
    leave_after: int | None = None
    """Commits after which it leaves the group of its own accord."""
    url: str | None = field(default=None, repr=False)
    """Of a proxy before the store."""
    protocol: Protocol = Protocol.COOPERATIVE
    delivery: Delivery = Delivery.EXACTLY_ONCE


class Steps:
    """Counts the steps that were reached, and dies at the one that is fatal."""

    def __init__(self, fatal: str | None, turn: int) -> None:
        self._fatal = fatal
        self._turn = turn
        self._reached: Counter[str] = Counter()

    def reached(self, step: str) -> None:
        self._reached[step] += 1
        if step == self._fatal and self._reached[step] == self._turn:
            die()


def consume(order: Order) -> None:
    steps = Steps(order.step, order.turn)
    ledger: Ledger[Any] = open_ledger(order.url or order.books.url, prefix=order.books.prefix, limits=LIMITS)
    watch_ledger(ledger, steps)
    watch_source(steps)
    commits = 0

    def observe(event: Event) -> None:
        nonlocal commits
        if isinstance(event, Committed):
            commits += 1
            if commits == order.leave_after:
                app.stop()

    app = App({"bootstrap.servers": order.topic.bootstrap, "log_level": 0}, ledger, observers=[observe])

    @app.listener(
        order.topic.name,
        group=GROUP,
        protocol=order.protocol,
        delivery=order.delivery,
        batch=BatchBounds(count=5),
        session_timeout=SESSION_TIMEOUT,
        kafka={} if order.protocol is Protocol.CONSUMER else {"heartbeat.interval.ms": 150},
        on_assigned=lambda _: steps.reached("assigned"),
        on_revoked=lambda _: steps.reached("revoked"),
    )
    def bill(records: list[Record], tx: Transaction) -> None:
        steps.reached("handle")
        order.books.add(records, tx)
        steps.reached("write")

    app.run(until_caught_up=order.until_caught_up)
    ledger.close()
    os._exit(0)  # without waiting for threads of the client


def watch_source(steps: Steps) -> None:
    fetch = Source.fetch

    def fetch_and_tell(source: Source, *arguments: Any) -> Fetched:
        fetched = fetch(source, *arguments)
        if fetched.records:
            steps.reached("poll")
        return fetched

    Source.fetch = fetch_and_tell  # type: ignore[method-assign]


def watch_ledger(ledger: Any, steps: Steps) -> None:
    claim, transact, release = ledger.claim, ledger.transact, ledger.release
    transacting = threading.Event()

    def claim_and_tell(*args: Any, **options: Any) -> Any:
        claims = claim(*args, **options)
        steps.reached("claim")
        return claims

    def transact_and_tell(*args: Any, **options: Any) -> Any:
        steps.reached("advance")
        transacting.set()
        result = transact(*args, **options)
        transacting.clear()
        steps.reached("acknowledge")
        return result

    def tell_and_release(*args: Any, **options: Any) -> Any:
        steps.reached("release")
        return release(*args, **options)

    ledger.claim, ledger.transact, ledger.release = claim_and_tell, transact_and_tell, tell_and_release
    if hasattr(ledger, "_store"):
        dialect = ledger._store().dialect
        commit = dialect.commit

        def tell_and_commit(conn: Any) -> None:
            if transacting.is_set():
                steps.reached("commit")
            commit(conn)

        dialect.commit = tell_and_commit
