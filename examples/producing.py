"""Orders that are in the topic once they are said to be; a topic that could lose them is refused."""

from dataclasses import dataclass
from os import environ

from tidegate import Producer
from tidegate.kafka import WeakTopic


@dataclass
class Order:
    id: int
    total: int


print(__doc__, "It ends by itself.", sep="\n")
try:
    with Producer.safe(environ.get("KAFKA", "localhost:9092"), on_weak_topic=environ.get("WEAK", "refuse")) as producer:
        orders = producer.to("new-orders")
        handles = [orders.send(Order(number, 10 * number), key=str(number % 7)) for number in range(100)]
        print("at offsets", *sorted(handle.result(30).offset for handle in handles)[-3:])
except WeakTopic as weak:
    print(weak)
