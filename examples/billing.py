"""Orders into bills, exactly once: SQLite holds the bills and the positions."""

from dataclasses import dataclass
from os import environ

from sqlalchemy import text

from tidegate import App, Transaction

app = App(kafka=environ.get("KAFKA", "localhost:9092"), ledger=environ.get("LEDGER", "sqlite:///shop.db"))
with app.ledger.engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS bills (id INTEGER, total INTEGER)"))


@dataclass
class Order:
    id: int
    total: int


@app.listener("orders", group="billing")
def bill(order: Order, tx: Transaction) -> None:
    tx.execute(text("INSERT INTO bills (id, total) VALUES (:id, :total)"), {"id": order.id, "total": order.total})


if __name__ == "__main__":
    print(__doc__, "Ctrl-C ends it.", sep="\n", flush=True)
    app.run()
