"""Pools of workers whose process is killed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.app.listener.books import Books
from tests.app.listener.pooled import consume, create
from tests.app.listener.topic import Topic
from tests.patience import PATIENCE, wait_until
from tests.processes import running

from tidegate.sandbox import Kafka, Postgres

RECORDS, PARTITIONS, KEYS, KILLS = 16_000, 4, 200, 3


@pytest.mark.parametrize("kind", ["threads", "coroutines"])
def test_a_pool_that_is_killed_again_and_again_writes_every_record_once_and_those_of_a_key_in_order(
    kafka: Kafka, postgres: Postgres, tmp_path: Path, kind: str
) -> None:
    diary = tmp_path / "diary"
    topic = Topic.create(kafka.bootstrap, PARTITIONS)
    books = Books.open(postgres.url, PARTITIONS)
    create(books)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 5}
    )
    for number in range(RECORDS):
        producer.produce(topic.name, b"", key=str(number % KEYS), partition=number % KEYS % PARTITIONS)
        if number % 10_000 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0

    under_way = 0
    for kill in range(1, KILLS + 1):
        with running(consume, topic, books, diary, kind) as child:
            wait_until(lambda share=kill: sum(books.positions().values()) > RECORDS * share // (KILLS + 2), "progress")
            under_way += child.exitcode is None
    with running(consume, topic, books, diary, kind) as child:
        child.join(PATIENCE)
        assert child.exitcode == 0, diary.read_text(encoding="utf-8")[-8000:]
    assert under_way > 1, "they were done before they could be killed"

    places: dict[int, list[int]] = defaultdict(list)
    seen: dict[int, list[int]] = defaultdict(list)
    for key, partition, place in books.run(
        f"SELECT record_key, partition_id, place FROM {books.prefix}seen ORDER BY id"
    ):
        places[key].append(place)
        seen[partition].append(place)
    assert all(sorted(found) == list(range(RECORDS // PARTITIONS)) for found in seen.values())
    assert len(places) == KEYS
    assert all(found == sorted(found) for found in places.values())
    with books.ledger() as ledger:
        verification = ledger.verify("billing")
    assert verification.ok, verification.breaks
