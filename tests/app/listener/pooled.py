"""A process that runs a listener with a pool of workers or of coroutines, and the rows that it writes."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text
from tests.app.listener.books import GROUP, Books
from tests.app.listener.topic import Topic

from tidegate.app.app import App
from tidegate.core.batches import BatchBounds
from tidegate.core.records import Record
from tidegate.observe.events import Event

WORKERS = 16
SESSION_TIMEOUT = 3.0  # a shorter one expires on a busy machine with sixteen threads
LONGEST = 0.001  # seconds that a handler takes


def create(books: Books) -> None:
    """A table that remembers in which order its rows were written, and that would hold a record twice."""
    books.run(
        f"CREATE TABLE {books.prefix}seen (id SERIAL PRIMARY KEY, record_key INT, partition_id INT, place BIGINT)"
    )


def consume(topic: Topic, books: Books, diary: Path, kind: str = "threads") -> None:
    """Run until caught up, with threads or coroutines, and write into the diary what happens."""

    def note(event: Event) -> None:
        with diary.open("a", encoding="utf-8") as lines:
            lines.write(f"{os.getpid()} {time.time():.3f} {event!r:.300}\n")

    ledger = books.ledger()
    app = App({"bootstrap.servers": topic.bootstrap, "log_level": 0}, ledger, observers=[note])
    insert = text(f"INSERT INTO {books.prefix}seen (record_key, partition_id, place) VALUES (:key, :partition, :place)")

    def row(record: Record) -> Any:
        return insert, {"key": int(record.key or b""), "partition": record.partition, "place": record.offset}

    def see(record: Record) -> Any:
        time.sleep(random.random() * LONGEST)
        return row(record)

    async def wait(record: Record) -> Any:
        await asyncio.sleep(random.random() * LONGEST)
        return row(record)

    at_once = {"workers": WORKERS} if kind == "threads" else {"concurrency": WORKERS}
    app.listener(
        topic.name,
        group=GROUP,
        ordering="key",
        batch=BatchBounds(count=500, age=0),
        session_timeout=SESSION_TIMEOUT,
        **at_once,
    )(see if kind == "threads" else wait)
    app.run(until_caught_up=True)
    ledger.close()
    os._exit(0)  # without waiting for threads of the client
