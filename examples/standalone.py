"""Named partitions, shared with nobody: no group's assignment, the same ledger."""

from os import environ

from sqlalchemy import text

from tidegate import App, Record, TopicPartition, Transaction

app = App(kafka=environ.get("KAFKA", "localhost:9092"), ledger=environ.get("LEDGER", "sqlite:///shop.db"))
with app.ledger.engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS audited (record_offset INTEGER)"))


@app.listener(partitions=[TopicPartition("orders", 0)], group="audit")
def audit(record: Record, tx: Transaction) -> None:
    tx.execute(text("INSERT INTO audited (record_offset) VALUES (:at)"), {"at": record.offset})


if __name__ == "__main__":
    print(__doc__, "Ctrl-C ends it.", sep="\n", flush=True)
    app.run()
