"""A process that runs a sink, and may be killed in the middle of a load."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event
from tests.app.sink.loads import GROUP, Load
from tests.processes import die

from tidegate import App, BatchBounds
from tidegate.tables import Mode


@dataclass(frozen=True)
class Order:
    """What a child is to do: load, through a proxy if it is given a URL, and die at that row of SQLite."""

    load: Load
    batch: int
    url: str | None = field(default=None, repr=False)
    dies_at_row: int | None = None


def consume(order: Order) -> None:
    load = order.load
    ledger: Any = load.ledger(order.url)
    if order.dies_at_row is not None:
        die_inside_of_sqlite(ledger.engine, load, order.dies_at_row)
    app = App({"bootstrap.servers": load.orders.bootstrap, "log_level": 0}, ledger)
    bounds = BatchBounds(count=order.batch, bytes=64 << 20, age=0.5)
    app.sink(partitions=load.orders.all, into=load.table, group=GROUP, batch=bounds)
    app.run(until_caught_up=True)
    ledger.close()
    os._exit(0)  # without waiting for threads of the client


def die_inside_of_sqlite(engine: Engine, load: Load, row: int) -> None:
    """Die before that row goes in, or is changed, counted over all loads."""
    rows = 0
    event_of_row = "UPDATE" if load.mode is Mode.UPDATE else "INSERT"

    def tick() -> None:
        nonlocal rows
        rows += 1
        if rows == row:
            die()

    def watch(driver: sqlite3.Connection, _: object) -> None:
        driver.create_function("tick", 0, tick)
        driver.execute(
            f"CREATE TEMP TRIGGER ticking BEFORE {event_of_row} ON main.{load.name} BEGIN SELECT tick(); END"
        )

    event.listen(engine, "connect", watch)
