"""Sixteen orders at a time, those of a key in order: computed in parallel, and written in one transaction."""

from dataclasses import dataclass
from os import environ

from sqlalchemy import text

from tidegate import App

app = App(kafka=environ.get("KAFKA", "localhost:9092"), ledger=environ.get("LEDGER", "sqlite:///shop.db"))
with app.ledger.engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS quotes (id INTEGER, total INTEGER)"))
INSERT = text("INSERT INTO quotes (id, total) VALUES (:id, :total)")


@dataclass
class Order:
    id: int
    total: int


@app.listener("orders", group="quoting", workers=16, ordering="key")
def quote(order: Order) -> object:
    return INSERT, {"id": order.id, "total": order.total}  # after asking a slow service, say


if __name__ == "__main__":
    print(__doc__, "Ctrl-C ends it.", sep="\n", flush=True)
    app.run()
