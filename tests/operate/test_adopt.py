"""Positions from a consumer group and back: nothing is lost, and what may be repeated was named before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from sqlalchemy import create_engine, text
from tests.app.member.stage import GROUP, PATIENCE, Stage, numbered, wait_until
from tests.operate.leading import led_topic

from tidegate import App, Earliest, Latest, Span, Table, TopicPartition
from tidegate.core.journal import Kind
from tidegate.core.positions import Identity
from tidegate.errors import BrokerUnavailable, ChangeRefused, ConfigurationError, PositionsMoved
from tidegate.kafka.cluster import Survey
from tidegate.operate import Adoption, AdoptPreview, HandBack, HandBackPreview, KafkaGroup


def old_group(stage: Stage) -> str:
    return f"{stage.name}.old"


@contextmanager
def old_consumer(stage: Stage, group: str) -> Iterator[Any]:
    """A client of the group that is no member."""
    settings = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({**stage.kafka, **settings})
    try:
        yield consumer
    finally:
        consumer.close()


def commit(stage: Stage, group: str, *offsets: tuple[str, int, int]) -> None:
    with old_consumer(stage, group) as consumer:
        consumer.commit(offsets=[KafkaPartition(*each) for each in offsets], asynchronous=False)


def committed(stage: Stage, group: str, topic: str, partitions: int = 1) -> list[int]:
    with old_consumer(stage, group) as consumer:
        found = consumer.committed([KafkaPartition(topic, number) for number in range(partitions)], timeout=PATIENCE)
        return [each.offset for each in found]


@contextmanager
def member(stage: Stage, group: str, topic: str) -> Iterator[Any]:
    """A member of the group."""
    with old_consumer(stage, group) as consumer:
        assigned: list[object] = []
        consumer.subscribe([topic], on_assign=lambda _, found: assigned.extend(found))
        deadline = time.monotonic() + PATIENCE
        while not assigned:
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        yield consumer


def adoption(stage: Stage, survey: Survey, **options: Any) -> Adoption:
    return Adoption(stage.ledger, survey, KafkaGroup(survey, old_group(stage)), GROUP, **options)


def offsets(stage: Stage, group: str = GROUP) -> dict[tuple[str, int], int]:
    return {tuple(tp): row.next_offset for tp, row in stage.ledger.read(group).positions.items()}  # type: ignore[misc]


def adopted(stage: Stage, survey: Survey, **options: Any) -> AdoptPreview:
    each = adoption(stage, survey, **options)
    return each.execute(each.preview(), user="ada", reason="we move")


def handed(stage: Stage, survey: Survey, **options: Any) -> HandBackPreview:
    each = HandBack(stage.ledger, survey, GROUP, old_group(stage), **options)
    return each.execute(each.preview(), user="ada")


def test_committed_offsets_become_positions_with_the_identity_of_their_topic(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey, 3)
    for number in range(3):
        stage.send(topic, numbered(10), partition=number)
    commit(stage, old_group(stage), (topic, 0, 4), (topic, 1, 10))
    each = adoption(stage, survey)
    preview = each.preview()
    assert [(p.partition, p.old, p.new, p.origin.value) for p in preview.positions] == [
        (0, None, 4, "stored"),
        (1, None, 10, "stored"),
        (2, None, 0, "start"),
    ]
    assert [(d.partition, d.start, d.end, d.records) for d in preview.doubts] == [(0, 4, 10, 6)]
    assert (preview.exact, preview.records_in_doubt, preview.done) == (False, 6, False)
    assert preview.warnings == (
        f"Kafka group '{old_group(stage)}' has no offset of {topic}[2]: it starts at earliest, offset 0",
    )
    assert offsets(stage) == {}
    each.execute(preview, user="ada", reason="we move")
    assert offsets(stage) == {(topic, 0): 4, (topic, 1): 10, (topic, 2): 0}
    rows = stage.ledger.read(GROUP).positions.values()
    assert {row.identity for row in rows} == {survey.identities([topic])[topic]}
    (start,) = stage.ledger.journal(GROUP, TopicPartition(topic, 0))
    assert (start.kind, start.start) == (Kind.START, 4)
    assert start.note == f"adopted from Kafka group '{old_group(stage)}', in doubt: repeat by ada: we move"
    stage.verify()
    assert committed(stage, old_group(stage), topic, 3) == [4, 10, -1001]


def test_an_adoption_that_was_done_is_not_done_again(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey, 2)
    stage.send(topic, numbered(10))
    commit(stage, old_group(stage), (topic, 0, 4))
    adopted(stage, survey, start=Latest())
    entries = list(stage.ledger.journal(GROUP))
    stage.send(topic, numbered(5), partition=1)
    assert adopted(stage, survey, start=Latest()).done
    assert list(stage.ledger.journal(GROUP)) == entries
    claims = stage.ledger.claim(GROUP, [TopicPartition(topic, 0)])
    stage.ledger.transact(claims, [Span(TopicPartition(topic, 0), 4, 6, 2)])
    stage.ledger.release(claims)
    with pytest.raises(ChangeRefused, match=r"has positions in .* already, such as offset 6 .*--replace"):
        adoption(stage, survey).preview()
    done = adopted(stage, survey, replace=True)
    assert [(p.partition, p.old, p.new) for p in done.positions] == [(0, 6, 4), (1, 0, 0)]
    assert [entry.kind for entry in stage.journal(TopicPartition(topic, 0))][-1] == Kind.EDIT
    stage.verify()


def test_a_group_with_members_is_refused_at_the_preview_and_at_the_execution(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey)
    stage.send(topic, numbered(3))
    commit(stage, old_group(stage), (topic, 0, 1))
    each = adoption(stage, survey)
    preview = each.preview()
    with member(stage, old_group(stage), topic):
        with pytest.raises(ChangeRefused, match=r"has 1 members \(.*stop all of its consumers first"):
            each.preview()
        with pytest.raises(ChangeRefused, match="stop all of its consumers first"):
            each.execute(preview, user="ada")
        stage.ledger.claim(GROUP, [TopicPartition(topic, 0)], 0)
        stage.ledger.release({tp: r.claim(GROUP) for tp, r in stage.ledger.read(GROUP).positions.items()})
        with pytest.raises(ChangeRefused, match="stop all of its consumers first"):
            HandBack(stage.ledger, survey, GROUP, old_group(stage)).preview()
        with pytest.raises(ChangeRefused, match=r"has members|REBALANCE|Kafka's group"):
            survey.commit(old_group(stage), {TopicPartition(topic, 0): 2}, "by force")
    assert offsets(stage) == {(topic, 0): 0}


def test_what_changes_between_preview_and_execution_is_refused(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey)
    stage.send(topic, numbered(9))
    commit(stage, old_group(stage), (topic, 0, 1))
    each = adoption(stage, survey)
    preview = each.preview()
    commit(stage, old_group(stage), (topic, 0, 2))
    with pytest.raises(PositionsMoved, match="has changed since the preview"):
        each.execute(preview, user="ada")
    assert offsets(stage) == {}
    preview = each.preview()
    claims = stage.ledger.claim(GROUP, [TopicPartition(topic, 0)], 7)
    with pytest.raises(ChangeRefused, match=r"has an owner, .*stop its consumers first"):
        each.execute(preview, user="ada")
    with pytest.raises(PositionsMoved, match="since the preview"):  # as if it had been claimed a moment later
        each._check(preview, stage.ledger.read(GROUP).positions)
    stage.ledger.release(claims)
    assert offsets(stage) == {(topic, 0): 7}
    each = adoption(stage, survey, replace=True)
    preview = each.preview()
    stage.ledger.claim(GROUP, [TopicPartition(topic, 0)])
    with pytest.raises(PositionsMoved, match="since the preview"):  # it is where it was, but it has an owner
        each._check(preview, stage.ledger.read(GROUP).positions)


def test_offsets_that_kafka_does_not_have_are_refused_by_name(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey, 2)
    stage.send(topic, numbered(10))
    commit(stage, old_group(stage), (topic, 0, 3), (topic, 1, 0))
    stage.delete_records(TopicPartition(topic, 0), 5)
    with pytest.raises(ChangeRefused, match=r"offset 3 of .*\[0\], which begins at 5.*the records 3 to 4"):
        adoption(stage, survey).preview()
    assert [p.new for p in adoption(stage, survey, force=True).preview().positions] == [3, 0]
    commit(stage, old_group(stage), (topic, 0, 99))
    with pytest.raises(ChangeRefused, match=r"offset 99 of .*\[0\], which ends at 10"):
        adoption(stage, survey, force=True).preview()


def test_only_the_topics_that_were_named_are_adopted(stage: Stage, survey: Survey) -> None:
    first, second = led_topic(stage, survey), led_topic(stage, survey)
    for topic in (first, second):
        stage.send(topic, numbered(3))
    commit(stage, old_group(stage), (first, 0, 1), (second, 0, 2))
    adopted(stage, survey, topics=[first])
    assert offsets(stage) == {(first, 0): 1}
    done = adopted(stage, survey, topics=second)
    assert offsets(stage) == {(first, 0): 1, (second, 0): 2}
    assert f"group '{GROUP}' has positions in other topics, which stay as they are: {first}" in done.warnings
    third = led_topic(stage, survey)
    with pytest.raises(ChangeRefused, match=f"has no offset of topic '{third}'"):
        adoption(stage, survey, topics=[third]).preview()
    with pytest.raises(ChangeRefused, match="has no topic 'nosuch'"):
        adoption(stage, survey, topics=["nosuch"]).preview()


def test_a_group_does_not_tell_what_could_be_skipped(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey)
    stage.send(topic, numbered(3))
    with pytest.raises(ChangeRefused, match="has no offsets: it never committed"):
        adoption(stage, survey).preview()
    commit(stage, old_group(stage), (topic, 0, 1))
    with pytest.raises(ChangeRefused, match="--in-doubt skip is for checkpoints"):
        adoption(stage, survey, in_doubt="skip").preview()
    with pytest.raises(ConfigurationError, match=r"in_doubt.*repeat"):
        adoption(stage, survey, in_doubt="maybe")
    assert adoption(stage, survey, in_doubt="repeat").preview().records_in_doubt == 2


def test_positions_go_back_and_forth(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey, 2)
    for number in range(2):
        stage.send(topic, numbered(10), partition=number)
    commit(stage, old_group(stage), (topic, 0, 4), (topic, 1, 5))
    adopted(stage, survey)
    claims = stage.ledger.claim(GROUP, [TopicPartition(topic, n) for n in range(2)])
    stage.ledger.transact(claims, [Span(TopicPartition(topic, 0), 4, 8, 4), Span(TopicPartition(topic, 1), 5, 7, 2)])
    with pytest.raises(ChangeRefused, match=r"has an owner, .*--fence"):
        HandBack(stage.ledger, survey, GROUP, old_group(stage)).preview()
    stage.ledger.release(claims)
    back = HandBack(stage.ledger, survey, GROUP, old_group(stage))
    preview = back.preview()
    assert [(p.partition, p.old, p.new) for p in preview.positions] == [(0, 4, 8), (1, 5, 7)]
    assert committed(stage, old_group(stage), topic, 2) == [4, 5]
    assert not stage.ledger.read(GROUP).paused
    back.execute(preview, user="ada", reason="home")
    assert committed(stage, old_group(stage), topic, 2) == [8, 7]
    assert stage.ledger.read(GROUP).paused
    last = stage.journal(TopicPartition(topic, 1))[-1]
    noted = f"handed back to Kafka group '{old_group(stage)}' by ada: home"
    assert (last.kind, last.start, last.end, last.note) == (Kind.EDIT, 7, 7, noted)
    assert noted in {entry.note for entry in stage.ledger.journal(GROUP) if entry.kind is Kind.PAUSE}
    entries = list(stage.ledger.journal(GROUP))
    assert handed(stage, survey).done
    assert list(stage.ledger.journal(GROUP)) == entries
    stage.verify()
    # The old consumer goes on, and its group may not be moved back by mistake.
    commit(stage, old_group(stage), (topic, 0, 10), (topic, 1, 9))
    with pytest.raises(ChangeRefused, match=r"is at offset 10 of .*behind the position .*--replace"):
        handed(stage, survey)
    assert committed(stage, old_group(stage), topic, 2) == [10, 9]
    done = adopted(stage, survey, replace=True)
    assert f"group '{GROUP}' is paused; `tidegate resume` lets it run" in done.warnings
    assert offsets(stage) == {(topic, 0): 10, (topic, 1): 9}
    stage.ledger.edit(GROUP, {TopicPartition(topic, 0): 6})
    handed(stage, survey, replace=True)
    assert committed(stage, old_group(stage), topic, 2) == [6, 9]


def test_an_owner_that_is_gone_is_fenced_on_request(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey)
    stage.send(topic, numbered(5))
    claims = stage.ledger.claim(GROUP, [TopicPartition(topic, 0)], 2)
    handed(stage, survey, fence=True)
    assert committed(stage, old_group(stage), topic) == [2]
    with pytest.raises(Exception, match="edited or released"):
        stage.ledger.transact(claims, [Span(TopicPartition(topic, 0), 2, 3, 1)])
    assert offsets(stage) == {(topic, 0): 2}
    stage.verify()


@pytest.mark.parametrize("fails", ["commit", "edit"])
def test_a_hand_back_that_failed_is_finished_by_the_next(
    stage: Stage, survey: Survey, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    topic = led_topic(stage, survey)
    stage.send(topic, numbered(5))
    commit(stage, old_group(stage), (topic, 0, 2))
    adopted(stage, survey)
    with monkeypatch.context() as patch:

        def lost(*_: object, **__: object) -> None:
            raise BrokerUnavailable("away")

        patch.setattr(survey if fails == "commit" else stage.ledger, fails, lost)
        with pytest.raises(BrokerUnavailable):
            handed(stage, survey)
    assert stage.ledger.read(GROUP).paused, "nothing reads on while it is not known what Kafka has"
    stage.ledger.edit(GROUP, {TopicPartition(topic, 0): 3})
    assert not handed(stage, survey).done
    assert committed(stage, old_group(stage), topic) == [3]
    assert handed(stage, survey).done


def test_positions_of_another_topic_or_outside_its_log_are_not_handed_back(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey)
    stage.send(topic, numbered(5))
    with pytest.raises(ChangeRefused, match="has no positions of group"):
        handed(stage, survey)
    stage.ledger.edit(GROUP, {TopicPartition(topic, 0): 9})
    with pytest.raises(ChangeRefused, match=r"is at offset 9 of .*whose log has 0 to 5"):
        handed(stage, survey)
    other = Identity(survey.identities([topic])[topic].cluster_id, "A" * 22)
    stage.ledger.edit(GROUP, {TopicPartition(topic, 0): 1}, identities={topic: other})
    with pytest.raises(ChangeRefused, match="belongs to another topic"):
        handed(stage, survey)
    stage.ledger.edit(GROUP, {TopicPartition("gone", 0): 1})
    with pytest.raises(ChangeRefused, match="which this Kafka does not have"):
        handed(stage, survey)
    assert not stage.ledger.read(GROUP).paused


def test_a_partition_without_an_offset_keeps_its_start(stage: Stage, survey: Survey) -> None:
    """A claim takes a partition without a position for one that was added, and would read it from its beginning."""
    topic = led_topic(stage, survey, 2)
    for number in range(2):
        stage.send(topic, numbered(4), partition=number)
    commit(stage, old_group(stage), (topic, 0, 4))
    adopted(stage, survey, start=Latest())
    assert offsets(stage) == {(topic, 0): 4, (topic, 1): 4}
    assert adoption(stage, survey, start=Earliest()).preview().done


OLD = """
import json, sys, time
from confluent_kafka import Consumer
from sqlalchemy import create_engine, text

given = json.loads(sys.argv[1])
engine = create_engine(given["url"])
consumer = Consumer({**given["kafka"], "group.id": given["group"], "enable.auto.commit": False,
                     "auto.offset.reset": "earliest", "session.timeout.ms": 6000})
consumer.subscribe([given["topic"]])
print("ready", flush=True)
handled = 0
while True:
    batch = [message for message in consumer.consume(50, 0.5) if not message.error()]
    for message in batch:
        row = {"id": json.loads(message.value())["id"]}
        with engine.begin() as conn:
            conn.execute(text(f"INSERT INTO {given['table']} (id) VALUES (:id)"), row)
        handled += 1
        if handled == given["waits_at"]:  # in the middle of a batch
            print("waits", flush=True)
            time.sleep(3600)
    if batch:
        consumer.commit(asynchronous=False)
"""
TOTAL = 400


def old_program(stage: Stage, survey: Survey, url: str, topic: str, table: str, waits_at: int) -> None:
    """Run a plain consumer, at least once, and kill it in the middle of a batch."""
    group = old_group(stage)
    given = {"url": url, "kafka": stage.kafka, "group": group, "topic": topic, "table": table, "waits_at": waits_at}
    program = subprocess.Popen(
        [sys.executable, "-c", OLD, json.dumps(given)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert program.stdout is not None
        assert [program.stdout.readline() for _ in range(2)] == ["ready\n", "waits\n"]
        with pytest.raises(ChangeRefused, match="stop all of its consumers first"):
            adoption(stage, survey).preview()
    finally:
        os.kill(program.pid, signal.SIGKILL)
        program.communicate()

    def is_empty() -> bool:
        described = survey.group(group)
        return described is None or described.state == "empty"

    wait_until(is_empty, "the end of the session of the old consumer")


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_from_a_killed_consumer_to_a_sink_and_back_under_load(
    request: pytest.FixtureRequest, stages: Any, kafka: Any, survey: Survey, tmp_path: Path, database: str
) -> None:
    url = f"sqlite:///{tmp_path / 'rows.db'}" if database == "sqlite" else request.getfixturevalue(database).url
    stage: Stage = stages(kafka.bootstrap, url)
    topic = led_topic(stage, survey, 2)
    ids = iter(range(TOTAL))

    def send(count: int) -> None:
        for partition in range(2):
            stage.send(topic, [json.dumps({"id": next(ids)}) for _ in range(count // 2)], partition=partition)

    def written() -> list[int]:
        with engine.connect() as conn:
            return sorted(conn.execute(text(f"SELECT id FROM {table}")).scalars())

    engine, table = create_engine(url), f"{stage.name}_rows"
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE {table} (id INTEGER NOT NULL)"))
    send(200)
    old_program(stage, survey, url, topic, table, waits_at=73)
    send(100)  # producers do not wait
    before = written()
    each = adoption(stage, survey)
    preview = each.preview()
    each.execute(preview, user="ada")

    app = App(stage.kafka, stage.ledger)
    app.sink(topic, into=Table(table), group=GROUP)
    assert app.run(until_caught_up=True, quiet=True) == 0
    now = written()
    assert sorted(set(now)) == list(range(300)), "nothing is lost"
    repeated = {number for number in now if now.count(number) > 1}
    named = {
        number
        for doubt in preview.doubts
        for number in _ids_of(stage, doubt.topic, doubt.partition, range(doubt.start, doubt.end))
    }
    assert repeated <= named, "what is repeated was named"
    assert len(now) == 300 + len(repeated)
    assert len(before) == 73
    handed(stage, survey)
    send(100)
    old_program(stage, survey, url, topic, table, waits_at=100)
    after = written()
    assert sorted(set(after)) == list(range(TOTAL))
    assert len(after) == TOTAL + len(repeated), "back again, nothing is repeated"
    stage.verify()
    engine.dispose()


def _ids_of(stage: Stage, topic: str, partition: int, wanted: range) -> list[int]:
    with old_consumer(stage, f"{stage.name}.bystander") as consumer:
        consumer.assign([KafkaPartition(topic, partition, wanted.start)])
        return [json.loads(each.value())["id"] for each in consumer.consume(len(wanted), PATIENCE)] if wanted else []
