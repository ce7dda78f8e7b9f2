"""Three brokers, one of them killed and restarted and leaders moved while records are sent."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient
from tests.kafka.producer import topics
from tests.patience import wait_until

from tidegate import Producer
from tidegate.errors import SendAgain
from tidegate.kafka import Handle
from tidegate.sandbox import KafkaCluster

RECORDS = 200_000
KEYS = 500
PARTITIONS = 6
CHUNK = 1000


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster(3) as started:
        yield started


class Feed(threading.Thread):
    """Sends numbered records, the last of them only when everything has happened that is to happen."""

    def __init__(self, producer: Producer, topic: str, happened: threading.Event) -> None:
        super().__init__()
        self.handles: list[Handle] = []
        self.is_flowing = threading.Event()
        self._producer = producer
        self._topic = topic
        self._happened = happened

    def run(self) -> None:
        for start in range(0, RECORDS, CHUNK):
            for number in range(start, start + CHUNK):
                key = b"%d" % (number % KEYS)
                self.handles.append(self._producer.send(self._topic, b"%d" % number, key=key))
            if start >= RECORDS // 10:
                self.is_flowing.set()
                # Slower as the end comes nearer, so that there is always something on its way.
                self._happened.wait(0.02 if start < RECORDS * 3 // 4 else 0.4)


def moved_back(admin: AdminClient, topic: str, before: dict[int, int]) -> bool:
    """Elect the preferred leaders, which is possible for replicas that are in sync; whether all are where they were."""
    with suppress(KafkaException):
        admin.elect_leaders(ElectionType.PREFERRED, None).result(30)
    return topics.leaders(admin, topic) == before


def test_every_acknowledged_record_is_there_once_and_in_order(cluster: KafkaCluster) -> None:
    safe_topic = topics.create(cluster.bootstrap, PARTITIONS, 3, {"min.insync.replicas": "2"})
    loose_topic = topics.create(cluster.bootstrap, PARTITIONS, 3, {"min.insync.replicas": "2"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    happened = threading.Event()
    settings = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 10, "log_level": 0}
    safe = Producer.safe(settings, topics=[safe_topic])
    loose = Producer({**settings, "acks": 0})
    feeds = [Feed(safe, safe_topic, happened), Feed(loose, loose_topic, happened)]
    try:
        for feed in feeds:
            feed.start()
        for feed in feeds:
            assert feed.is_flowing.wait(60)
        before = topics.leaders(admin, safe_topic)
        victim = next(node for node in cluster.nodes if node.node_id == before[0])
        victim.kill()
        victim.start()
        after = topics.leaders(admin, safe_topic)
        assert after != before, "with the broker its partitions got other leaders"
        wait_until(lambda: moved_back(admin, safe_topic, before), "they are moved back while records are on their way")
    finally:
        happened.set()
        for feed in feeds:
            feed.join()
    assert safe.close(60) == []
    loose.close(60)

    assert not [handle for handle in feeds[0].handles if handle.error is not None]
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for message in topics.read(cluster.bootstrap, safe_topic):
        by_key[message.key()].append(int(message.value() or -1))
    assert by_key == {b"%d" % key: list(range(key, RECORDS, KEYS)) for key in range(KEYS)}

    acknowledged = sum(handle.error is None for handle in feeds[1].handles)
    found = Counter(topics.values(cluster.bootstrap, loose_topic))
    print(f"acks=0: {acknowledged - len(found)} of {acknowledged} records lost, {found.total() - len(found)} twice")
    assert acknowledged == RECORDS, "with acks=0 everything seems well, whatever is lost"


def test_closing_says_of_which_records_it_does_not_know(cluster: KafkaCluster) -> None:
    topic = topics.create(cluster.bootstrap, 1, 1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    leader = next(node for node in cluster.nodes if node.node_id == topics.leaders(admin, topic)[0])
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "log_level": 0})
    producer.send(topic, b"before").result(30)
    leader.pause()
    try:
        producer.send(topic, b"on its way")
        (undelivered,) = producer.close(1)
    finally:
        leader.resume()
    assert undelivered.is_unknown
    assert isinstance(undelivered.error, SendAgain)
    assert "may have been written" in str(undelivered.error)
