"""Offsets that hold no record, under pipelines: aborted transactions and their markers, compaction, empty logs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.app.member.stage import Stage, numbered
from tests.spark.loop.stage import PipelineStage, wait_until

from tidegate.core.records import TopicPartition
from tidegate.sandbox import Kafka

COMPACTED, TRANSACTIONS, ABORTED, EMPTY = range(4)


@pytest.fixture(scope="module")
def topic(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A partition that is compacted, one that ends with aborted transactions, one of nothing else, and an empty one."""
    stage = Stage(kafka.bootstrap, f"sqlite:///{tmp_path_factory.mktemp('gaps') / 'ledger.db'}")
    config: dict[str, Any] = {"segment_ms": 100, "min_cleanable_dirty_ratio": 0.001, "max_compaction_lag_ms": 100}
    topic = stage.topic(4, cleanup_policy="compact", **config)
    transact(stage, topic, TRANSACTIONS, [True, False, True, True, False, False])
    transact(stage, topic, ABORTED, [False, False])
    sent = len(stage.send(topic, numbered(50), key="a"))

    def compacted() -> bool:
        nonlocal sent
        sent += len(stage.send(topic, ["roll"], key="b"))  # only segments that are not written any more are cleaned
        return len(stage.offsets_in(topic, sent)) < sent

    wait_until(compacted, "compaction")
    stage.send(topic, numbered(5), key="c")
    stage.close()
    return topic


def transact(stage: Stage, topic: str, partition: int, outcomes: list[bool]) -> None:
    producer = stage.transactions()
    for number, commits in enumerate(outcomes):
        producer.begin_transaction()
        for part in range(3):
            # Keys that compaction leaves alone.
            producer.produce(topic, f"{number}-{part}", key=f"{number}-{part}", partition=partition)
        producer.flush()
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()


@pytest.mark.parametrize(
    ("stage", "way"),
    [("postgres", "partition"), ("mysql", "driver"), ("mariadb", "staged")],
    indirect=["stage"],
)
def test_lag_reaches_zero_where_offsets_hold_no_record(topic: str, stage: PipelineStage, way: str) -> None:
    ends = {number: stage.log_end(TopicPartition(topic, number)) for number in range(4)}
    before = stage.offsets_in(topic, ends[COMPACTED])

    report = stage.pipe_through(topic, way=way, max_records=40)

    assert (report.lag, report.stopped) == (0, "caught up")
    assert {tp.partition: at for tp, at in report.positions.items()} == ends
    assert ends[ABORTED] == 8
    committed = [f"{number}-{part}" for number in (0, 2, 3) for part in range(3)]
    assert stage.payloads(partition=TRANSACTIONS) == committed
    assert stage.rows(partition=ABORTED) == stage.rows(partition=EMPTY) == []
    # Compaction goes on meanwhile: whatever is still there was read, and nothing that was not.
    read = stage.offsets(partition=COMPACTED)
    assert set(stage.offsets_in(topic, ends[COMPACTED])) <= set(read) <= set(before)
    assert sorted(read) == sorted(set(read))
    assert report.records == len(stage.rows())
    stage.verify()
