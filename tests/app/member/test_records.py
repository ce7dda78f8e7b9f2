"""Records of every kind arrive as they were produced."""

from __future__ import annotations

from typing import Any

from tests.app.member.stage import Stage, numbered, wait_until

from tidegate.core.batches import BatchBounds
from tidegate.core.policies import GroupProtocol
from tidegate.core.records import Record, TopicPartition


def received(stage: Stage, topic: str, **settings: Any) -> list[Record]:
    seen: list[Record] = []

    def handle(records: list[Record], tx: Any) -> None:
        stage.write(records, tx)
        seen.extend(records)

    stage.catch_up(topic, handle=handle, **settings)
    return seen


def test_tombstones_and_empty_values_are_told_apart(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, [None, b"", b"x"], key="k")
    stage.send(topic, [b"keyless"])
    stage.send(topic, [b"empty key"], key=b"")

    records = received(stage, topic)

    assert [(record.key, record.value) for record in records] == [
        (b"k", None),
        (b"k", b""),
        (b"k", b"x"),
        (None, b"keyless"),
        (b"", b"empty key"),
    ]
    assert stage.payloads()[:3] == [None, "", "x"]


def test_headers_keep_their_order_their_repetitions_and_their_nulls(stage: Stage) -> None:
    topic = stage.topic()
    headers = [("trace", b"1"), ("trace", b"2"), ("none", None), ("empty", b""), ("ünïcode", b"\xff")]
    stage.send(topic, ["with"], headers=headers)
    stage.send(topic, ["without"])

    first, second = received(stage, topic)

    assert first.headers == tuple(headers)
    assert second.headers == ()


def test_timestamps_are_the_producers_or_the_logs(stage: Stage) -> None:
    created = stage.topic(retention_ms=-1)
    appended = stage.topic(message_timestamp_type="LogAppendTime")
    stage.send(created, ["x"], timestamp=1_700_000_000_123)
    stage.send(appended, ["x"], timestamp=1_700_000_000_123)

    (first,) = received(stage, created)
    (second,) = received(stage, appended)

    assert first.timestamp == 1_700_000_000_123
    assert second.timestamp is not None
    assert second.timestamp > 1_700_000_000_123


def test_a_record_of_900_kb_passes_even_bounds_that_are_smaller(stage: Stage) -> None:
    topic = stage.topic()
    large = "ö" * 450_000
    stage.send(topic, ["small", large, "small"])

    stage.catch_up(topic, batch=BatchBounds(bytes=1000), buffer_bytes=1000)

    assert stage.payloads() == ["small", large, "small"]


def test_every_protocol_reads_every_record_in_order(stage: Stage) -> None:
    topic = stage.topic(3)
    sent = 0
    for protocol in GroupProtocol:
        for partition in range(3):
            stage.send(topic, numbered(50, first=sent), partition=partition)
        sent += 50
        stage.catch_up(topic, protocol=protocol)
        for partition in range(3):
            assert stage.payloads(topic, partition) == numbered(sent), protocol
    stage.verify()


def test_records_keep_arriving_while_a_member_runs(stage: Stage) -> None:
    topic = stage.topic(2)
    running = stage.start(topic)
    for number in range(5):
        stage.send(topic, [str(number)], partition=number % 2)
        wait_until(lambda number=number: len(stage.rows()) == number + 1)
    running.stop()
    assert stage.position(TopicPartition(topic, 0)).next_offset == 3
