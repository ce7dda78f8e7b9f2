"""Orders into bills, from topic to topic, exactly once: bills and positions are one Kafka transaction."""

from dataclasses import dataclass
from os import environ

from tidegate import App, Outgoing

app = App(kafka=environ.get("KAFKA", "localhost:9092"), ledger=None)


@dataclass
class Order:
    id: int
    total: int


@app.listener("orders", group="bills")
def bill(order: Order) -> Outgoing:
    return Outgoing("bills", {"order": order.id, "amount": order.total}, key=str(order.id))


if __name__ == "__main__":
    print(__doc__, "Ctrl-C ends it.", sep="\n", flush=True)
    app.run()
