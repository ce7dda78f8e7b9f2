"""Listeners that take their time, in threads of this process, and what they did."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.app.listener.books import GROUP, Books
from tests.app.listener.topic import Topic

from tidegate import Limits, open_ledger
from tidegate.app.app import App
from tidegate.core.records import Record
from tidegate.ledger import Transaction
from tidegate.observe.events import Event, Rebalanced

KINDS = ("one", "one in a transaction", "many", "many in a transaction")


class Shop:
    """A topic, books, and every call of a handler."""

    def __init__(self, bootstrap: str, store: str, partitions: int = 1, limits: Limits | None = None) -> None:
        self.topic = Topic.create(bootstrap, partitions)
        self.books = Books.open(store, partitions)
        self.limits = limits or Limits()
        self.calls: list[tuple[int, int]] = []
        """Partition and offset of each record that a handler was done with, as often as it was."""
        self.pause: Callable[[Record], object] = lambda _: None

    @property
    def repeated(self) -> dict[tuple[int, int], int]:
        """What a handler was done with more than once."""
        return {place: count for place, count in Counter(self.calls).items() if count > 1}

    def takes(self, seconds: float) -> None:
        """Let handlers take so long for each record."""
        self.pause = lambda _: time.sleep(seconds)

    def _take(self, records: list[Record]) -> None:
        for record in records:
            self.pause(record)
            self.calls.append((record.partition, record.offset))

    def handler(self, kind: str) -> Callable[..., None]:
        def one(record: Record) -> None:
            self._take([record])

        def one_in_a_transaction(record: Record, tx: Transaction) -> None:
            self._take([record])
            self.books.add([record], tx)

        def many(records: list[Record]) -> None:
            self._take(records)

        def many_in_a_transaction(records: list[Record], tx: Transaction) -> None:
            self._take(records)
            self.books.add(records, tx)

        return dict(zip(KINDS, (one, one_in_a_transaction, many, many_in_a_transaction), strict=True))[kind]

    @contextmanager
    def listening(self, handler: Callable[..., Any] | str, **settings: Any) -> Iterator[Listening]:
        """A member of the group that runs a handler, or one of a kind."""
        listening = Listening(self, self.handler(handler) if isinstance(handler, str) else handler, settings)
        try:
            yield listening
        finally:
            listening.stop()

    def caught_up(self, handler: Callable[..., Any] | str, *, timeout: float = 90, **settings: Any) -> Listening:
        """A member that has read to the end, or failed."""
        with self.listening(handler, until_caught_up=True, **settings) as listening:
            listening.wait(timeout)
        return listening

    def check(self, records: int, kind: str) -> None:
        """All records are done, each of them once."""
        everything = {(partition, offset) for partition in range(self.topic.partitions) for offset in range(records)}
        assert {tp.partition: end for tp, end in self.books.positions().items()} == dict.fromkeys(
            range(self.topic.partitions), records
        )
        assert set(self.calls) == everything
        if kind.endswith("transaction"):
            assert all(each.records == records for each in self.books.sums(self.topic.partitions).values())
        else:
            assert self.repeated == {}
        with self.books.ledger() as ledger:
            assert ledger.verify(GROUP).ok


class Listening:
    def __init__(self, shop: Shop, handler: Callable[..., Any], settings: dict[str, Any]) -> None:
        self.events: list[Event] = []
        self.error: BaseException | None = None
        until_caught_up = settings.pop("until_caught_up", False)
        self._ledger = open_ledger(shop.books.url, prefix=shop.books.prefix, limits=shop.limits)
        self.app = App(
            {"bootstrap.servers": shop.topic.bootstrap, "log_level": 0}, self._ledger, observers=[self.events.append]
        )
        self.app.listener(shop.topic.name, group=GROUP, **{"session_timeout": 6.0, **settings})(handler)
        self._thread = threading.Thread(target=self._run, args=(until_caught_up,), daemon=True)
        self._thread.start()

    def _run(self, until_caught_up: bool) -> None:
        try:
            self.app.run(until_caught_up=until_caught_up)
        except BaseException as error:
            self.error = error
        finally:
            self._ledger.close()

    def wait(self, timeout: float) -> None:
        """Wait for the end; what it failed with is raised."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"it goes on and on: {self.events[-3:]}"
        if self.error is not None:
            raise self.error

    def stop(self) -> float:
        """Ask it to stop; the seconds that it took."""
        began = time.monotonic()
        self.app.stop()
        self._thread.join(90)
        assert not self._thread.is_alive()
        return time.monotonic() - began

    @property
    def rebalances(self) -> dict[str, float]:
        """The longest that each kind of a rebalance took."""
        seconds: dict[str, float] = {}
        for event in self.told(Rebalanced):
            seconds[event.kind] = max(event.seconds, seconds.get(event.kind, 0.0))
        return seconds

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in list(self.events) if isinstance(event, kind)]


def plod(topic: Topic, books: Books, seconds: float, file: Path) -> None:
    """A process whose handler takes its time for each record, and writes down when it is done with one."""

    def handle(record: Record) -> None:
        time.sleep(seconds)
        with file.open("a") as lines:
            lines.write(f"{record.offset}\n")

    ledger = books.ledger()
    app = App({"bootstrap.servers": topic.bootstrap, "log_level": 0}, ledger)
    app.listener(topic.name, group=GROUP)(handle)
    app.run()
    ledger.close()
    os._exit(0)  # without waiting for threads of the client
