"""A module with a listener that is watched while it runs; the tests copy it into the directory that they run in."""

import os

from sqlalchemy import text

from tidegate import App, DeadLetter, Record
from tidegate.ledger import SqlTransaction

app = App(os.environ["TIDEGATE_KAFKA"], os.environ["TIDEGATE_LEDGER"])


@app.listener(os.environ["TOPIC"], group="billing", on_error=DeadLetter())
def bill(record: Record, tx: SqlTransaction) -> None:
    if record.value == b"bad":
        raise LookupError(f"offset {record.offset} has no customer")
    tx.execute(text("INSERT INTO bills VALUES (:at)"), {"at": record.offset})
