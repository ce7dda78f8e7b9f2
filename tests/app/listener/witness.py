"""A process that consumes and writes down what it is told of rebalances."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.app.listener.books import GROUP, Books
from tests.app.listener.topic import Topic

from tidegate.app.app import App
from tidegate.core.policies import GroupProtocol
from tidegate.core.records import Record, TopicPartition
from tidegate.ledger import Transaction
from tidegate.observe.events import Event, Rebalanced


@dataclass(frozen=True)
class Note:
    """A rebalance, as the observer saw it (then with its duration) or as a callback was told."""

    kind: str
    partitions: frozenset[int]
    seconds: float | None = None


class Notebook:
    def __init__(self, file: Path) -> None:
        self._file = file
        file.touch()

    def write(self, kind: str, partitions: list[TopicPartition], seconds: float | None = None) -> None:
        line = json.dumps([kind, [tp.partition for tp in partitions], seconds])
        with self._file.open("a") as file:
            file.write(line + "\n")

    def callback(self, kind: str) -> Callable[[list[TopicPartition]], None]:
        """One that fails, once it has taken note."""

        def told(partitions: list[TopicPartition]) -> None:
            self.write(kind, partitions)
            raise RuntimeError("not my day")

        return told

    def notes(self, kind: str | None = None) -> list[Note]:
        whole, _, _ = self._file.read_text().rpartition("\n")  # the last line may be under way
        found = [json.loads(line) for line in whole.splitlines()]
        return [Note(what, frozenset(where), took) for what, where, took in found if kind in (None, what)]


def witness(topic: Topic, books: Books, protocol: GroupProtocol, session_timeout: float, file: Path) -> None:
    notebook = Notebook(file)

    def observe(event: Event) -> None:
        if isinstance(event, Rebalanced):
            notebook.write(event.kind, list(event.partitions), event.seconds)

    ledger = books.ledger()
    app = App({"bootstrap.servers": topic.bootstrap, "log_level": 0}, ledger, observers=[observe])

    @app.listener(
        topic.name,
        group=GROUP,
        protocol=protocol,
        session_timeout=session_timeout,
        on_assigned=notebook.callback("assigned"),
        on_revoked=notebook.callback("revoked"),
        on_lost=notebook.callback("lost"),
    )
    def bill(records: list[Record], tx: Transaction) -> None:
        books.add(records, tx)

    app.run()
    ledger.close()
    os._exit(0)  # without waiting for threads of the client
