"""Counters in Redis: each record counts once, because the position moves in the script that counts."""

from os import environ

from tidegate import App, Record
from tidegate.ledger.redis import RedisTransaction

app = App(kafka=environ.get("KAFKA", "localhost:9092"), ledger=environ.get("LEDGER", "redis://localhost:6379/0"))


@app.listener("orders", group="counting")
def count(record: Record, tx: RedisTransaction) -> None:
    tx.redis.hincrby("{tidegate}:orders", (record.key or b"?").decode(), 1)


if __name__ == "__main__":
    print(__doc__, "Ctrl-C ends it.", sep="\n", flush=True)
    app.run()
