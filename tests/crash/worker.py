"""A process that works through a partition until it dies or freezes, by its own hand, at a given step."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.place import BATCH, GROUP, LIMITS, ORDERS, Place, span_at
from tests.processes import die, die_after

from tidegate import Fenced, Ledger

FATAL_TURN = 3  # the transactions before it go through
BULK = 30  # thousand rows: more than pipe and socket hold, but undone in no time, for their locks last until then


class Child:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.ledger: Ledger[Any] = place.ledger(LIMITS)
        self.turn = 0

    def work(self, during: Callable[[Any], None] = lambda _: None) -> None:
        claims = self.ledger.claim(GROUP, [ORDERS])
        self.reached("claim")
        position = claims[ORDERS].position
        while True:
            self.turn += 1
            span = span_at(position)

            def handler(tx: Any, span: Any = span) -> None:
                self.reached("advance")
                self.place.write(tx, span)
                self.reached("write")
                if self.turn == FATAL_TURN:
                    during(tx)

            self.ledger.transact(claims, [span], handler)
            self.reached("acknowledge")
            position = span.end

    def reached(self, step: str) -> None:
        """Overwritten by what shall happen."""


def die_at(place: Place, fatal: str) -> None:
    child = Child(place)
    if not child.place.is_redis and fatal in {"begin", "commit"}:
        patch_dialect(child)

    def reached(step: str) -> None:
        if step == fatal and (child.turn == FATAL_TURN or fatal == "claim"):
            die()

    child.reached = reached  # type: ignore[method-assign]
    child.work()


def patch_dialect(child: Child) -> None:
    """Tell when BEGIN is done and when COMMIT is about to be sent."""
    ledger: Any = child.ledger
    if child.place.is_duckdb:
        dialect, names = ledger, ("_begin", "_commit")
    else:
        dialect, names = ledger._store().dialect, ("begin", "commit")
    begin, commit = (getattr(dialect, name) for name in names)

    def begin_and_tell(conn: Any) -> None:
        begin(conn)
        child.reached("begin")

    def tell_and_commit(conn: Any) -> None:
        child.reached("commit")
        commit(conn)

    for name, told in zip(names, (begin_and_tell, tell_and_commit), strict=True):
        setattr(dialect, name, told)


def die_while_committing(place: Place, delay: str) -> None:
    """For a store without a network in between: death comes some microseconds after COMMIT was called."""
    child = Child(place)
    patch_dialect(child)

    def reached(step: str) -> None:
        if step == "commit" and child.turn == FATAL_TURN:
            die_after(float(delay))

    child.reached = reached  # type: ignore[method-assign]
    child.work()


def freeze(place: Place, how: str) -> None:
    """Freeze inside the transaction; when let go on, say how it ended."""
    child = Child(place)
    stop = {"idle": stop_idle, "bulk": stop_in_bulk_load}[how]
    try:
        child.work(during=lambda tx: stop(child.place, tx))
    except Fenced:
        print("fenced", flush=True)


def stop_idle(place: Place, tx: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_in_bulk_load(place: Place, tx: Any) -> None:
    line = f"{1 << 40}\n".encode()
    if place.url.startswith("postgres"):
        cursor = tx.connection.connection.cursor()
        with cursor.copy(f"COPY {place.data} (record_offset) FROM STDIN") as copy:
            for _ in range(BULK):
                copy.write(line * 1000)
            os.kill(os.getpid(), signal.SIGSTOP)
            copy.write(line)
    else:
        pipe = Path(os.environ["PIPE"])
        threading.Thread(target=feed, args=(pipe, line), daemon=True).start()
        tx.connection.exec_driver_sql(f"LOAD DATA LOCAL INFILE '{pipe}' INTO TABLE {place.data} (record_offset)")


def feed(pipe: Path, line: bytes) -> None:
    with pipe.open("wb") as out:
        for _ in range(BULK):
            out.write(line * 1000)
        out.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
        out.write(line)


def carry_out(command: str, url: str, prefix: str) -> None:
    """Do what a command says, with a colon before its argument, on a place."""
    name, _, argument = command.partition(":")
    work = {"die": die_at, "commit": die_while_committing, "freeze": freeze, "live": die_at}[name]
    work(Place(url, prefix), argument)


if __name__ == "__main__":
    assert BATCH > 0
    carry_out(*sys.argv[1:])
