"""An app that dies once, in the second batch: after the data, or after the position, whichever its delivery does first."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import text

from tidegate import App, BatchBounds, Record, Transaction
from tidegate.core.delivery import Delivery


def main(kafka: str, ledger: str, delivery: str, marker: str) -> None:
    app = App(kafka, ledger)
    batches = 0
    deadly = not Path(marker).exists()

    def die() -> None:
        if deadly and batches == 2:
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    @app.listener("amounts", group=delivery, delivery=Delivery(delivery), batch=BatchBounds(count=50, age=0.0))
    def add(records: list[Record], tx: Transaction) -> None:
        nonlocal batches
        batches += 1
        if delivery != "at-least-once":
            die()
        for record in records:
            tx.execute(text("INSERT INTO amounts VALUES (:amount)"), {"amount": int(record.value or 0)})  # type: ignore[attr-defined]

    ledger_of_app: Any = app.ledger
    transact = ledger_of_app.transact

    def transact_or_die(claims: Any, spans: Any, *args: Any, **options: Any) -> Any:
        if delivery == "at-least-once" and not args:
            die()
        return transact(claims, spans, *args, **options)

    ledger_of_app.transact = transact_or_die
    app.run(until_caught_up=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
