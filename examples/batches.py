"""A batch at a time, as models: one statement for all of it. What does not validate is a dead letter."""

from os import environ

from pydantic import BaseModel
from sqlalchemy import text

from tidegate import App, DeadLetter, Transaction

app = App(kafka=environ.get("KAFKA", "localhost:9092"), ledger=environ.get("LEDGER", "sqlite:///shop.db"))
with app.ledger.engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS reported (id INTEGER, total INTEGER)"))


class Order(BaseModel):
    id: int
    total: int


@app.listener("orders", group="reporting", on_error=DeadLetter())
def report(orders: list[Order], tx: Transaction) -> None:
    tx.execute(text("INSERT INTO reported (id, total) VALUES (:id, :total)"), [order.model_dump() for order in orders])


if __name__ == "__main__":
    print(__doc__, "Ctrl-C ends it.", sep="\n", flush=True)
    app.run()
