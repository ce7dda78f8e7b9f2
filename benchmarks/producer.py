"""What `Producer.send` with a handle costs beside the bare client's `produce` with a delivery callback."""

from __future__ import annotations

import statistics
import time
from typing import Any

from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as Client
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.report import Report
from tidegate import Producer
from tidegate.kafka import Interceptor
from tidegate.sandbox import Kafka

RECORDS = 400_000
ROUNDS = 7
VALUE = b"x" * 100
TOPIC = "produced"
SETTINGS: dict[str, Any] = {
    "linger.ms": 20,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 100_000,
    "compression.type": "lz4",
}


def bare(bootstrap: str) -> float:
    """The loop that the client's documentation has: produce with a callback, and poll."""
    delivered = 0

    def count(error: KafkaError | None, message: Message) -> None:
        nonlocal delivered
        delivered += error is None

    client = Client({"bootstrap.servers": bootstrap, **SETTINGS})
    client.list_topics(TOPIC, timeout=30)
    began = time.perf_counter()
    for _ in range(RECORDS):
        while True:
            try:
                client.produce(TOPIC, VALUE, on_delivery=count)
                break
            except BufferError:
                client.poll(0.05)
        client.poll(0)
    client.flush(60)
    took = time.perf_counter() - began
    assert delivered == RECORDS
    return took


def sending(bootstrap: str, **options: Any) -> float:
    """The same through a producer, every handle kept until the end and then looked at."""
    with Producer({"bootstrap.servers": bootstrap, **SETTINGS}, **options) as producer:
        producer.send(TOPIC, VALUE).result(30)
        handles = []
        began = time.perf_counter()
        for _ in range(RECORDS):
            handles.append(producer.send(TOPIC, VALUE))
        producer.flush(60)
        took = time.perf_counter() - began
    assert all(handle.done and handle.error is None for handle in handles)
    return took


def run(report: Report) -> None:
    report.heading("Producer")
    print("settings of both:", ", ".join(f"{key}={value}" for key, value in SETTINGS.items()))
    with Kafka() as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 4, 1)])[TOPIC].result(30)
        without, handles, intercepted = [], [], []
        for number in range(ROUNDS + 1):
            times = bare(kafka.bootstrap), sending(kafka.bootstrap)
            watched = sending(kafka.bootstrap, interceptors=[Interceptor()])
            if number:  # the first round warms up
                without.append(times[0])
                handles.append(times[1])
                intercepted.append(watched)
    ratios = [a / b for a, b in zip(without, handles, strict=True)]
    rate = RECORDS / statistics.median(handles)
    report.figure(
        "Producer: send with a handle / bare produce with a callback, records/s",
        statistics.median(ratios),
        "x",
        at_least=0.5,
        detail=f"median of {ROUNDS} rounds of {RECORDS:,} records of {len(VALUE)} bytes; send: {rate:,.0f} records/s",
    )
    watched_ratio = statistics.median(a / b for a, b in zip(without, intercepted, strict=True))
    report.figure("Producer: the same with an interceptor", watched_ratio, "x")
