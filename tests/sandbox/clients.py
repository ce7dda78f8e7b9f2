"""One small client for each kind of server: remembers a text, and recalls it."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import contextmanager

import redis
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from tidegate.sandbox import Database, Kafka, Redis, Server


@contextmanager
def connection(url: str):
    """An SQL connection that is gone afterwards."""
    engine = sa.create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as opened:
            yield opened
    finally:
        engine.dispose()


def remember(server: Server, text: str) -> None:
    """Store a text and return when the server has acknowledged it."""
    if isinstance(server, Kafka):
        create_topic(server, text)
    elif isinstance(server, Redis):
        with redis.Redis.from_url(server.url) as client:
            client.sadd("memory", text)
    elif isinstance(server, Database):
        with connection(server.url) as sql, sql.begin():
            sql.execute(sa.text("CREATE TABLE IF NOT EXISTS memory (word VARCHAR(100))"))
            sql.execute(sa.text("INSERT INTO memory VALUES (:word)"), {"word": text})


def recall(server: Server) -> set[str]:
    """Return all texts that were stored."""
    if isinstance(server, Kafka):
        return topics(server)
    if isinstance(server, Redis):
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            return set(client.smembers("memory"))
    with connection(server.url) as sql:
        return set(sql.execute(sa.text("SELECT word FROM memory")).scalars())


def create_topic(server: Kafka, name: str, *, partitions: int = 1, replicas: int = 1) -> None:
    encoded = name.encode()
    topic = struct.pack(">h", len(encoded)) + encoded + struct.pack(">ihii", partitions, replicas, 0, 0)
    answer = _ask(server, 19, 2, struct.pack(">i", 1) + topic + struct.pack(">i?", 30_000, False))
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(encoded))
    assert error == 0, f"CreateTopics answered with error {error}"
    deadline = time.monotonic() + 30  # the controller has answered; the broker hears of the topic after it
    while name not in topics(server):
        assert time.monotonic() < deadline, f"{name} was created and is not there"
        time.sleep(0.02)


def topics(server: Kafka) -> set[str]:
    answer = _ask(server, 3, 1, struct.pack(">i", -1))
    at = 4
    (brokers,) = struct.unpack_from(">i", answer, at)
    at += 4
    for _ in range(brokers):
        (length,) = struct.unpack_from(">h", answer, at + 4)
        at += 4 + 2 + length + 4
        (rack,) = struct.unpack_from(">h", answer, at)
        at += 2 + max(0, rack)
    _controller, count = struct.unpack_from(">ii", answer, at)
    at += 8
    names = set()
    for _ in range(count):
        _error, length = struct.unpack_from(">hh", answer, at)
        names.add(answer[at + 4 : at + 4 + length].decode())
        at += 4 + length + 1
        (partitions,) = struct.unpack_from(">i", answer, at)
        at += 4
        for _ in range(partitions):
            at += 2 + 4 + 4
            for _ in range(2):
                (members,) = struct.unpack_from(">i", answer, at)
                at += 4 + 4 * members
    return names


def _ask(server: Kafka, api: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih", api, version, 1, -1) + body
    with socket.create_connection((server.host, server.port), timeout=30) as link, link.makefile("rb") as answers:
        link.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", answers.read(4))
        return answers.read(length)
