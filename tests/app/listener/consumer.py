"""A process that runs a listener, and dies by its own hand at a given step of the loop."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.app.listener.books import GROUP, LIMITS, Books
from tests.app.listener.topic import Topic
from tests.processes import die, die_after

from tidegate import Ledger, open_ledger
from tidegate.app.app import App
from tidegate.core.batches import BatchBounds
from tidegate.core.policies import Delivery, GroupProtocol
from tidegate.core.records import Record
from tidegate.kafka.consumer import Fetched, GroupConsumer
from tidegate.ledger import Transaction
from tidegate.observe.events import Committed, Event

SESSION_TIMEOUT = 0.6


@dataclass(frozen=True)
class Order:
    """What a child is to do: consume, and die when ``step`` is reached for the ``turn``-th time."""

    topic: Topic
    books: Books
    step: str | None = None
    turn: int = 1
    delay: float | None = None
    """Seconds from the step to its death, while it goes on."""
    ballast: int = 0
    """Bytes that each transaction writes besides, into SQLite, so that its commit takes a while."""
    until_caught_up: bool = True
    leave_after: int | None = None
    """Commits after which it leaves the group of its own accord."""
    url: str | None = field(default=None, repr=False)
    """Of a proxy before the store."""
    protocol: GroupProtocol = GroupProtocol.COOPERATIVE
    delivery: Delivery = Delivery.EXACTLY_ONCE
    threads: int = 1
    session_timeout: float = SESSION_TIMEOUT


class Steps:
    """Counts the steps that were reached, on whichever thread, and dies at the one that is fatal."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._reached: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reached(self, step: str) -> None:
        with self._lock:
            self._reached[step] += 1
            is_fatal = step == self._order.step and self._reached[step] == self._order.turn
        if not is_fatal:
            return
        if self._order.delay is None:
            die()
        else:
            die_after(self._order.delay)


def consume(order: Order) -> None:
    steps = Steps(order)
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
        session_timeout=order.session_timeout,
        threads=order.threads,
        kafka={} if order.protocol is GroupProtocol.CONSUMER else {"heartbeat.interval.ms": 150},
        on_assigned=lambda _: steps.reached("assigned"),
        on_revoked=lambda _: steps.reached("revoked"),
    )
    def bill(records: list[Record], tx: Transaction) -> None:
        steps.reached("handle")
        order.books.add(records, tx)
        if order.ballast:
            order.books.load(order.ballast, tx)
        steps.reached("write")

    app.run(until_caught_up=order.until_caught_up)
    ledger.close()
    os._exit(0)  # without waiting for threads of the client


def watch_source(steps: Steps) -> None:
    fetch = GroupConsumer.fetch

    def fetch_and_tell(source: GroupConsumer, *arguments: Any) -> Fetched:
        fetched = fetch(source, *arguments)
        if fetched.records:
            steps.reached("poll")
        return fetched

    GroupConsumer.fetch = fetch_and_tell  # type: ignore[method-assign]


def watch_ledger(ledger: Any, steps: Steps) -> None:
    claim, transact, release = ledger.claim, ledger.transact, ledger.release
    here = threading.local()  # each consumer has a thread of its own for the ledger

    def claim_and_tell(*args: Any, **options: Any) -> Any:
        claims = claim(*args, **options)
        steps.reached("claim")
        return claims

    def transact_and_tell(*args: Any, **options: Any) -> Any:
        steps.reached("advance")
        here.transacting = True
        result = transact(*args, **options)
        here.transacting = False
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
            if getattr(here, "transacting", False):
                steps.reached("commit")
            commit(conn)

        dialect.commit = tell_and_commit
