"""Whoever consumes keeps the journal short, beside its work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from tests.app.member.stage import GROUP, Stage, numbered, wait_until
from tests.kafka.loops import Loop, settings

from tidegate import Limits, OwnLoop, Record, TopicPartition
from tidegate.core.journal import Kind
from tidegate.sandbox import Kafka


@pytest.fixture
def forgetful(kafka: Kafka, stages: Callable[..., Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage whose journal is kept for a moment, and whose consumers look after it soon."""
    for module in ("tidegate.app.member", "tidegate.kafka.own_loop"):
        monkeypatch.setattr(f"{module}._FIRST_UPKEEP", (0.5, 0.6))
    return stages(kafka.bootstrap, f"sqlite:///{tmp_path / 'ledger.db'}", Limits(retention=0.01))


def test_a_listener_prunes_the_journal_of_its_group(forgetful: Stage) -> None:
    topic = forgetful.topic()
    forgetful.send(topic, numbered(5))
    running = forgetful.start(topic)
    wait_until(lambda: not forgetful.journal(TopicPartition(topic, 0), Kind.START) and forgetful.offsets(topic))
    running.stop()
    assert forgetful.payloads(topic) == numbered(5)
    forgetful.verify()


def test_a_loop_of_ones_own_prunes_the_journal_of_its_group(forgetful: Stage) -> None:
    topic = forgetful.topic()
    forgetful.send(topic, numbered(5))
    loop = Loop(forgetful, topic)
    loop.until(lambda: len(forgetful.offsets(topic)) == 5)
    loop.until(lambda: not forgetful.journal(TopicPartition(topic, 0), Kind.START), "pruning")
    loop.stop()
    forgetful.verify()


def test_a_loop_of_ones_own_reads_again_what_was_cut(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(6))
    kafka = settings(stage)
    consumer = Consumer(kafka)
    loop = OwnLoop(consumer, stage.ledger, [topic], kafka=kafka)
    done: list[Record] = []
    cuts = 0
    while len(done) < 6:
        records: list[Record] = []
        while len(records) < min(3, 6 - len(done)):
            record = loop.accept(consumer.poll(0.1))
            records += [] if record is None else [record]
        with loop.transaction(*records) as tx:
            (step,) = tx.steps
            if len(records) > 1:
                cuts += 1
                tx.cut([step.span._replace(end=records[0].offset + 1, records=1)])
                del records[1:]
            stage.write(records, tx)
        done += records
    loop.close()
    assert (stage.payloads(topic), cuts) == (numbered(6), 5)
    assert stage.ledger.read(GROUP).positions[TopicPartition(topic, 0)].next_offset == 6
    stage.verify()
