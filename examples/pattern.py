"""Every topic that matches, those of the future included, into one table."""

import re
from os import environ

from sqlalchemy import text

from tidegate import App, Record, Transaction

app = App(kafka=environ.get("KAFKA", "localhost:9092"), ledger=environ.get("LEDGER", "sqlite:///shop.db"))


@app.listener(re.compile(r"orders\..*"), group="archive")
def keep(record: Record, tx: Transaction) -> None:
    row = {"topic": record.topic, "at": record.offset, "value": record.value}
    tx.execute(text("INSERT INTO archive (topic, record_offset, value) VALUES (:topic, :at, :value)"), row)
