"""Which partition a record goes to: as Java has it, in turn, or as the user says."""

from __future__ import annotations

import random
import secrets
import shutil
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.kafka.producer import topics

from tidegate import Producer
from tidegate.errors import RecordRejected
from tidegate.kafka import java_partition, partitioners
from tidegate.kafka.partitioners import murmur2
from tidegate.sandbox import Kafka
from tidegate.sandbox.jars import kafka_jars

COUNTS = (1, 3, 12, 1000)


def keys() -> list[bytes]:
    """A few thousand, of all lengths from none to long."""
    chance = random.Random(20261115)
    lengths = [*range(70), 255, 1000, 65_536, *(chance.randrange(200) for _ in range(3000))]
    return [b"", b"\0", b"\xff" * 7, "schlüssel".encode(), *(chance.randbytes(length) for length in lengths)]


def test_every_key_has_the_partition_that_kafkas_own_java_class_gives_it(tmp_path: Path) -> None:
    if shutil.which("javac") is None:
        pytest.skip("to run a Java source takes a JDK, and here is a JRE only")
    wanted = tmp_path / "keys"
    wanted.write_text("".join(f"{key.hex()}\n" for key in keys()))
    source = Path(__file__).with_name("Murmur2.java")
    command = [
        "java",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{kafka_jars()}/*",
        str(source),
        str(wanted),
        *map(str, COUNTS),
    ]
    java = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    answers = [tuple(map(int, line.split())) for line in java.stdout.splitlines()]
    assert len(answers) == len(keys()) > 3000
    ours = [(murmur2(key), *(java_partition(key, count) for count in COUNTS)) for key in keys()]
    assert ours == answers


def test_keys_go_where_java_would_send_them(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap, 12)
    sent = [key for key in keys() if len(key) < 1000]
    with Producer(kafka.bootstrap) as producer:
        for key in sent:
            producer.send(topic, b"", key=key)
    found = topics.read(kafka.bootstrap, topic)
    assert Counter(message.key() for message in found) == Counter(sent), "an empty key is a key"
    assert not [message for message in found if message.partition() != java_partition(message.key() or b"", 12)]


def test_records_without_a_key_stay_together_for_a_batch_and_go_everywhere_in_the_end(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap, 4)
    settings = {"bootstrap.servers": kafka.bootstrap, "sticky.partitioning.linger.ms": 200, "linger.ms": 0}
    with Producer(settings) as producer:
        producer.send(topic, b"first").result(10)
        together = [producer.send(topic, b"v") for _ in range(50)]
        assert len({handle.result(10).partition for handle in together}) <= 2, "at most one change in so short a time"
    with Producer({**settings, "sticky.partitioning.linger.ms": 0}) as producer:
        apart = [producer.send(topic, b"v") for _ in range(200)]
        assert {handle.result(10).partition for handle in apart} == {0, 1, 2, 3}


def test_round_robin_goes_from_partition_to_partition_of_each_topic(kafka: Kafka) -> None:
    topic, other = topics.create(kafka.bootstrap, 3), topics.create(kafka.bootstrap, 2)
    with Producer(kafka.bootstrap, partitioner="round-robin") as producer:
        handles = [producer.send(each, b"v", key=b"same") for _ in range(6) for each in (topic, other)]
        places = [handle.result(10) for handle in handles]
    assert [place.partition for place in places if place.topic == topic] == [0, 1, 2, 0, 1, 2]
    assert [place.partition for place in places if place.topic == other] == [0, 1, 0, 1, 0, 1]


def test_a_partitioner_of_ones_own_is_given_what_was_sent(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap, 5)
    seen: list[tuple[object, object, int]] = []

    def choose(key: object, value: object, partitions: int) -> int | None:
        seen.append((key, value, partitions))
        return int(value["at"]) if isinstance(value, dict) else None

    with Producer(kafka.bootstrap, partitioner=choose) as producer:
        assert producer.send(topic, {"at": 3}, key="k").result(10).partition == 3
        assert producer.send(topic, b"v", key="k").result(10).partition == java_partition(b"k", 5)
        assert producer.send(topic, {"at": 3}, partition=1).result(10).partition == 1, "what is said is not asked for"
        with pytest.raises(RecordRejected, match="from 0 to 4"):
            producer.send(topic, {"at": 5})
        with pytest.raises(RecordRejected, match=r"the partitioner failed with KeyError at test_partitioning.py:\d+$"):
            producer.send(topic, {})
        with pytest.raises(RecordRejected, match="its number of partitions is not known"):
            producer.send("no-such-topic", {"at": 0})
    assert seen[0] == ("k", {"at": 3}, 5)


def test_a_partitioner_waits_for_a_topic_that_its_broker_is_about_to_know(kafka: Kafka) -> None:
    topic = f"later-{secrets.token_hex(6)}"
    soon = threading.Timer(0.7, topics.create, (kafka.bootstrap, 3), {"topic": topic})
    with Producer(kafka.bootstrap, partitioner=lambda key, value, count: count - 1) as producer:
        soon.start()
        try:
            assert producer.send(topic, b"v").result(10).partition == 2
        finally:
            soon.join()


def test_the_number_of_partitions_follows_the_topic(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioners, "_FRESH", 0.1)
    topic = topics.create(kafka.bootstrap, 2)
    settings = {"bootstrap.servers": kafka.bootstrap, "topic.metadata.refresh.interval.ms": 200}
    with Producer(settings, partitioner="round-robin") as in_turn, Producer(settings) as by_key:
        used = {in_turn.send(topic, b"v").result(10).partition for _ in range(4)}
        used |= {by_key.send(topic, b"v", key=b"%d" % number).result(10).partition for number in range(20)}
        assert used == {0, 1}
        topics.grow(kafka.bootstrap, topic, 6)
        deadline = time.monotonic() + 30
        for producer in (in_turn, by_key):
            used = set()
            while used != set(range(6)):
                assert time.monotonic() < deadline, f"only {used} are used"
                handles = [producer.send(topic, b"v", key=b"%d" % number) for number in range(40)]
                used |= {handle.result(10).partition for handle in handles}
