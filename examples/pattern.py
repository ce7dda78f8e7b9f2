"""Every topic that matches, those of the future included, into one table."""

import re
from os import environ

from sqlalchemy import text

from tidegate import App, Record, Transaction

app = App(kafka=environ.get("KAFKA", "localhost:9092"), ledger=environ.get("LEDGER", "sqlite:///shop.db"))
with app.ledger.engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS archive (topic TEXT, record_offset INTEGER, value BLOB)"))


@app.listener(re.compile(r"orders\..*"), group="archive")
def keep(record: Record, tx: Transaction) -> None:
    row = {"topic": record.topic, "at": record.offset, "value": record.value}
    tx.execute(text("INSERT INTO archive (topic, record_offset, value) VALUES (:topic, :at, :value)"), row)


if __name__ == "__main__":
    print(__doc__, "Ctrl-C ends it.", sep="\n", flush=True)
    app.run()
