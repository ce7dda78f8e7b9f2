"""A module with listeners whose dead letters the tests replay; they copy it into the directory that they run in."""

import os

from sqlalchemy import text

from tidegate import App, Record
from tidegate.ledger import SqlTransaction

app = App("nowhere.invalid:9092", os.environ["TIDEGATE_LEDGER"])
not_an_app = type("Other", (), {"run": lambda self: None})()


@app.listener("orders", group="billing")
def bill(record: Record, tx: SqlTransaction) -> None:
    if record.value == b"bad":
        raise LookupError("no \x1b[31mcustomer")
    tx.execute(text("INSERT INTO bills VALUES (:at)"), {"at": record.offset})
