"""Several members of one sink: they create, alter and write the same table at once."""

from __future__ import annotations

import json
import secrets
from collections import Counter

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, text

from tidegate import App, BatchBounds, Table, TopicPartition, open_ledger
from tidegate.observe.events import Committed, Event
from tidegate.sandbox import Kafka
from tidegate.tables import Evolution

GROUP = "counting"
PARTITIONS, RECORDS, KEYS, BATCH = 4, 600, 40, 50


def produced(kafka: Kafka) -> str:
    """A topic whose partitions all have every key, each in an order of its own; late fields come in the middle."""
    topic = f"visits-{secrets.token_hex(6)}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, "enable.idempotence": True})
    for partition in range(PARTITIONS):
        for number in range(RECORDS):
            value = {"page": number * (2 * partition + 1) % KEYS, "visits": 1, "seconds": number}
            if number >= RECORDS // 2:
                value |= {"clicks": 2, f"from_{partition}": 1}
            producer.produce(topic, json.dumps(value), partition=partition)
    assert producer.flush(30) == 0
    return topic


def test_members_that_create_alter_and_add_to_one_table_at_once_lose_nothing(kafka: Kafka, url: str) -> None:
    topic, name = produced(kafka), f"m{secrets.token_hex(6)}"
    attempts = Counter[str]()

    def heard(event: Event) -> None:
        if isinstance(event, Committed):
            attempts.update(commits=1, again=event.attempts - 1)

    with open_ledger(url, prefix=f"{name}_") as ledger:
        app = App({"bootstrap.servers": kafka.bootstrap, "log_level": 0}, ledger, observers=[heard])
        for partition in range(PARTITIONS):
            app.sink(
                partitions=[TopicPartition(topic, partition)],
                into=Table(name, key="page", mode="accumulate", create=True, evolve=True),
                group=GROUP,
                batch=BatchBounds(count=BATCH, bytes=1 << 20, age=0.1),
            )
        app.run(until_caught_up=True)
        assert ledger.verify(GROUP).ok
        assert not ledger.dead_letters(GROUP)
    late = ", ".join(f"sum(from_{partition})" for partition in range(PARTITIONS))
    engine = create_engine(url)
    with engine.connect() as conn:
        totals = conn.execute(
            text(f"SELECT count(*), sum(visits), sum(seconds), sum(clicks), {late} FROM {name}")
        ).one()
    engine.dispose()
    assert [int(total) for total in totals] == [
        KEYS,
        PARTITIONS * RECORDS,
        PARTITIONS * sum(range(RECORDS)),
        PARTITIONS * RECORDS,
        *[RECORDS // 2] * PARTITIONS,
    ]
    assert attempts["commits"] >= PARTITIONS * RECORDS / BATCH


def test_members_that_widen_one_table_at_once_lose_nothing(kafka: Kafka, url: str) -> None:
    topic, name = f"wider-{secrets.token_hex(6)}", f"m{secrets.token_hex(6)}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, "enable.idempotence": True})
    values = {partition: [number << 8 * partition + number // 2 for number in range(1, 60)] for partition in range(2)}
    for partition, numbers in values.items():
        for number in numbers:
            value = {"id": number, "n": number, "s": "x" * (number % 50)}
            producer.produce(topic, json.dumps(value), partition=partition)
    assert producer.flush(30) == 0
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE {name} (id BIGINT, n SMALLINT, s VARCHAR(5))"))
    with open_ledger(url, prefix=f"{name}_") as ledger:
        app = App({"bootstrap.servers": kafka.bootstrap, "log_level": 0}, ledger)
        for partition in range(2):
            app.sink(
                partitions=[TopicPartition(topic, partition)],
                into=Table(name, evolve=Evolution(widen="widen")),
                group=GROUP,
                batch=BatchBounds(count=7, bytes=1 << 20, age=0.1),
            )
        app.run(until_caught_up=True)
        assert ledger.verify(GROUP).ok
        assert not ledger.dead_letters(GROUP)
    with engine.connect() as conn:
        found = sorted(tuple(row) for row in conn.execute(text(f"SELECT id, n, length(s) FROM {name}")))
    engine.dispose()
    assert found == sorted((number, number, number % 50) for numbers in values.values() for number in numbers)
