"""Positions that are moved by hand while a listener runs: it is fenced, and goes on from the new place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.app.member.stage import GROUP, Stage, numbered, wait_until

from tidegate import TopicPartition
from tidegate.kafka.cluster import Survey
from tidegate.ledger import Kind
from tidegate.observe import Paused
from tidegate.operate import By, Operator, Overview, State, To
from tidegate.sandbox import Kafka

SOON = 60.0


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres"])
def placed(request: pytest.FixtureRequest, kafka: Kafka, stages: Callable[[str, str], Stage], tmp_path: Path) -> Stage:
    url = f"sqlite:///{tmp_path / 'ledger.db'}" if request.param == "sqlite" else None
    return stages(kafka.bootstrap, url or request.getfixturevalue(request.param).url)


def test_it_reads_again_what_was_rewound_and_never_what_was_skipped(placed: Stage, survey: Survey) -> None:
    topic = placed.topic(2)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    operator = Operator(placed.ledger, survey)
    for partition in (0, 1):
        placed.send(topic, numbered(20), partition=partition)
    running = placed.start(topic)
    wait_until(lambda: len(placed.rows()) == 40, "all records", SOON)

    before = placed.position(tp)
    done = operator.execute(operator.rewind(GROUP, topic, To(5), partitions=[0]), user="ada", reason="again")
    assert [(shift.old, shift.new, shift.owner) for shift in done.shifts] == [(20, 5, before.owner)]
    wait_until(lambda: placed.offsets(topic, 0) == [*range(20), *range(5, 20)], "what was rewound", SOON)
    wait_until(lambda: placed.position(tp).owner is not None, "the claim", SOON)
    assert placed.position(tp).epoch == before.epoch + 2, "by the edit, and by the claim after it"
    assert [entry.kind for entry in placed.journal(tp)][-3] is not Kind.RELEASE
    assert placed.offsets(topic, 1) == list(range(20)), "the other one went on undisturbed"

    assert operator.set_paused(operator.pause(GROUP), user="ada")
    running.wait_for(Paused)
    placed.send(topic, numbered(10), partition=0)
    operator.execute(operator.skip(GROUP, topic, To(28), partitions=[0]), user="ada")
    assert operator.set_paused(operator.resume(GROUP), user="ada")
    wait_until(lambda: placed.offsets(topic, 0)[35:] == [28, 29], "what was left", SOON)

    running.stop()
    placed.verify()
    edits = [(entry.start, entry.end, entry.note) for entry in placed.journal(tp, Kind.EDIT)]
    assert edits == [(20, 5, "rewind by ada: again"), (20, 28, "skip by ada")]
    assert placed.journal(other, Kind.EDIT) == []


def test_a_rewind_in_the_middle_of_traffic_leaves_nothing_unsaid(stage: Stage, survey: Survey) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    operator = Operator(stage.ledger, survey)
    over = threading.Event()

    def produce() -> None:
        while not over.is_set():
            stage.send(topic, numbered(50))

    traffic = threading.Thread(target=produce)
    running = stage.start(topic)
    traffic.start()
    try:
        wait_until(lambda: len(stage.rows()) > 200, "traffic", SOON)
        done = operator.execute(operator.rewind(GROUP, topic, By(-150)), user="ada")
        wait_until(lambda: stage.position(tp).next_offset > done.shifts[0].old, "that it is where it was", SOON)
    finally:
        over.set()
        traffic.join()
    end = stage.log_end(tp)
    wait_until(lambda: stage.position(tp).next_offset == end, "the end", SOON)
    seen = Overview(stage.ledger, survey).group(GROUP)
    assert (seen.lag_records, seen.lag_seconds, seen.owners) == (0, 0.0, 1)
    assert seen.state is State.OK
    running.stop()
    stage.verify()
    advanced = [n for e in stage.journal(tp, Kind.ADVANCE) for n in range(e.start, e.end)]
    assert stage.offsets() == advanced, "what was read is what the journal says was read"
