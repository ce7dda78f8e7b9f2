"""Orders into a table, without a function: one row for each id, the newest. The table is made, and grows with them."""

from os import environ

from tidegate import App, Table

app = App(kafka=environ.get("KAFKA", "localhost:9092"), ledger=environ.get("LEDGER", "sqlite:///shop.db"))

app.sink(
    "orders",
    into=Table("orders", key="id", mode="upsert", create=True, columns={"id": int, "total": "decimal(12,2)"}),
    columns={"id": "value.id", "total": "value.total", "customer": "key", "placed": "timestamp"},
)

if __name__ == "__main__":
    print(__doc__, "Ctrl-C ends it.", sep="\n", flush=True)
    app.run()
