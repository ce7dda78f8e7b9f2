"""The events of the source in Kafka, and what they leave: the version of each row, at any position."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assigned
from tests.patience import wait_until
from tests.replication.source import Replicated

from tidegate import TopicPartition

Key = tuple[Any, ...]


class Change(NamedTuple):
    """What an event does: it writes a version of the row, deletes the row, or empties the table (without a key)."""

    key: Key | None
    version: int | None


class Log:
    """All events of all tables, read once, each partition as far as somebody has asked for."""

    def __init__(self, bootstrap: str, tables: Mapping[str, Replicated]) -> None:
        """``tables`` are the tables by the topics of their events."""
        self._tables = tables
        settings = {"bootstrap.servers": bootstrap, "group.id": "log", "log_level": 0, "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False})
        self._changes: dict[TopicPartition, list[Change]] = {}

    def between(self, source: TopicPartition, start: int, end: int) -> Sequence[Change]:
        if source not in self._changes:
            self._changes[source] = []
            self._consumer.incremental_assign([Assigned(*source, 0)])
        wait_until(lambda: self._has(source, end), f"{source} up to {end}")
        return self._changes[source][start:end]

    def close(self) -> None:
        self._consumer.close()

    def _has(self, source: TopicPartition, end: int) -> bool:
        while len(self._changes[source]) < end:
            found = self._consumer.consume(1000, 0.1)
            if not found:
                return False
            for message in found:
                if (error := message.error()) is not None:
                    if error.code() in (KafkaError._PARTITION_EOF, KafkaError._TRANSPORT):
                        continue
                    raise KafkaException(error)
                at = TopicPartition(message.topic(), message.partition())
                assert message.offset() == len(self._changes[at]), "there is a gap in the log"
                self._changes[at].append(self._change(at.topic, message.key(), message.value()))
        return True

    def _change(self, topic: str, key: bytes | None, value: bytes | None) -> Change:
        payload = None if value is None else json.loads(value)["payload"]
        row = None if key is None else json.loads(key)["payload"]
        place = None if row is None else tuple(row[name] for name in self._tables[topic].key)
        if payload is None:  # the tombstone of a deletion, which comes after it
            return Change(place, None)
        match payload["op"]:
            case "c" | "r" | "u":
                return Change(place, payload["after"]["version"])
            case "d" | "t":
                return Change(place, None)
        raise AssertionError(f"{topic}: an event of the operation {payload['op']!r}")


class Replay:
    """The rows of one table by the events below the positions of one target, which only grow."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._positions: dict[TopicPartition, int] = {}
        self._rows: dict[TopicPartition, dict[Key, int]] = {}

    def versions(self, positions: Mapping[TopicPartition, int]) -> dict[Key, int]:
        """Return the version of each row, by key."""
        for source, position in positions.items():
            start = self._positions.get(source, 0)
            assert start <= position, f"{source}: the position went back"
            rows = self._rows.setdefault(source, {})
            for key, version in self._log.between(source, start, position):
                if key is None:
                    rows.clear()
                elif version is None:
                    rows.pop(key, None)
                else:
                    rows[key] = version
            self._positions[source] = position
        return {key: version for rows in self._rows.values() for key, version in rows.items()}
