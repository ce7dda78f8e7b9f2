"""What an operator does to a group reaches the consumers that run, busy or idle, within seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from tests.app.member.stage import GROUP, Stage, numbered, wait_until

from tidegate.core.batches import BatchBounds
from tidegate.core.policies import GroupProtocol, LagGuard
from tidegate.core.records import TopicPartition
from tidegate.errors import LedgerUnavailable
from tidegate.kafka.claims import Lookout, SeenGroup
from tidegate.observe.events import FencedOff, Paused

SOON = 30.0  # about 3 s on a machine with nothing else to do


@contextmanager
def traffic(stage: Stage, topic: str) -> Iterator[None]:
    """Records come in all the time."""
    over = threading.Event()

    def produce() -> None:
        number = 0
        while not over.wait(0.02):
            stage.send(topic, [f"traffic {number}"])
            number += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("protocol", [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE, GroupProtocol.CONSUMER])
def test_a_rewind_of_an_idle_topic_is_processed_again(stage: Stage, protocol: GroupProtocol) -> None:
    topic = stage.topic(2)
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    running = stage.start(topic, protocol=protocol)
    wait_until(lambda: stage.offsets() == list(range(10)))

    stage.ledger.edit(GROUP, {tp: 4}, note="once more")

    wait_until(lambda: len(stage.rows()) == 16, "the rewind", SOON)
    stage.send(topic, ["on"])
    wait_until(lambda: len(stage.rows()) == 17)
    running.stop()
    assert stage.offsets() == [*range(10), *range(4, 11)]
    stage.verify()


def test_an_edit_forward_skips_what_lies_between(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.ledger.pause(GROUP)
    running = stage.start(topic)
    stage.send(topic, numbered(10))
    running.wait_for(Paused)

    stage.ledger.edit(GROUP, {tp: 7})
    stage.ledger.resume(GROUP)

    wait_until(lambda: len(stage.rows()) == 3, "the rest", SOON)
    running.stop()
    assert stage.offsets() == [7, 8, 9]
    stage.verify()


@pytest.mark.parametrize("protocol", [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE, GroupProtocol.CONSUMER])
def test_a_group_that_was_rebalanced_while_it_was_paused_goes_on_where_it_was(
    stage: Stage, protocol: GroupProtocol
) -> None:
    """Partitions that are assigned while the group is paused have a place of their own, and not the end of the log."""
    topic = stage.topic(2)
    first = stage.start(topic, protocol=protocol)
    for partition in (0, 1):
        stage.send(topic, numbered(5), partition=partition)
    wait_until(lambda: len(stage.rows()) == 10)
    stage.ledger.pause(GROUP)
    first.wait_for(Paused)
    for partition in (0, 1):
        stage.send(topic, numbered(5), partition=partition)
    second = stage.start(topic, protocol=protocol)
    second.wait_for(Paused)
    second.stop()  # and its partition comes back to the first, which is paused

    stage.ledger.resume(GROUP)
    for partition in (0, 1):
        stage.send(topic, ["on"], partition=partition)

    wait_until(lambda: len(stage.rows()) >= 22, "everything", SOON * 6)
    first.stop()
    assert sorted(stage.offsets()) == sorted([*range(11), *range(11)])
    stage.verify()


def test_a_rewind_of_a_busy_topic_is_processed_again(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    running = stage.start(topic, batch=BatchBounds(count=5))
    with traffic(stage, topic):
        wait_until(lambda: len(stage.rows()) >= 30)
        stage.ledger.edit(GROUP, {tp: 10})
        wait_until(lambda: stage.offsets().count(10) == 2, "the rewind", SOON)
    end = stage.log_end(tp)
    wait_until(lambda: stage.position(tp).next_offset == end)
    running.stop()

    offsets = stage.offsets()
    turn = next(number for number, offset in enumerate(offsets) if number and offset < offsets[number - 1])
    assert offsets == [*range(turn), *range(10, end)]
    stage.verify()


def test_rewinds_one_after_another_each_reach_the_end_again(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    stage.catch_up(topic)
    stage.send(topic, numbered(5, first=10))
    running = stage.start(topic, batch=BatchBounds(count=1, age=0))
    wait_until(lambda: len(stage.rows()) == 15)
    for target in (3, 0, 14):
        stage.ledger.edit(GROUP, {tp: target})
        stage.send(topic, ["next"])
        wait_until(lambda: stage.position(tp).next_offset == stage.log_end(tp), "the end", SOON)
    running.stop()
    assert stage.offsets()[:15] == list(range(15))
    assert stage.position(tp).owner is None
    stage.verify()


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_pause_and_resume_reach_a_running_member(stage: Stage, busy: bool) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    running = stage.start(topic)
    stage.send(topic, numbered(5))
    wait_until(lambda: len(stage.rows()) == 5)
    began = time.monotonic()
    stage.ledger.pause(GROUP)
    if busy:
        with traffic(stage, topic):
            running.wait_for(Paused, lambda event: event.paused)
    else:
        running.wait_for(Paused, lambda event: event.paused)
    assert time.monotonic() - began < SOON
    position = stage.position(tp).next_offset
    stage.send(topic, numbered(5))
    assert stage.position(tp).next_offset == position

    stage.ledger.resume(GROUP)

    wait_until(lambda: stage.position(tp).next_offset == stage.log_end(tp), "what came in meanwhile", SOON)
    running.stop()
    assert stage.offsets() == list(range(stage.log_end(tp)))
    assert [event.paused for event in running.told(Paused)] == [True, False]
    stage.verify()


@pytest.mark.parametrize("protocol", [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE])
def test_a_paused_group_stays_paused_over_a_restart(stage: Stage, protocol: GroupProtocol) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(5))
    stage.ledger.pause(GROUP)

    running = stage.start(topic, protocol=protocol)
    running.wait_for(Paused, lambda event: event.paused)
    assert stage.rows() == []
    stage.ledger.resume(GROUP)

    wait_until(lambda: stage.offsets() == list(range(5)), "what waited", SOON)
    running.stop()
    assert stage.position(tp).owner is None


def test_a_member_that_cannot_see_yet_whether_its_group_is_paused_handles_and_skips_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger answers claims and commits, and is away whenever it is asked for the group."""
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(50))
    stage.ledger.pause(GROUP)
    look, looks = Lookout.look, count(1)

    def fails_twice(lookout: Lookout, partitions: list[TopicPartition]) -> SeenGroup:
        if next(looks) <= 2:
            time.sleep(0.2)  # the log's end is known by then
            raise LedgerUnavailable("away")
        return look(lookout, partitions)

    monkeypatch.setattr(Lookout, "look", fails_twice)
    running = stage.start(topic, lag_guard=LagGuard(limit=10, keep=5, every=0.1))
    running.wait_for(Paused, lambda event: event.paused)
    assert stage.rows() == []
    assert stage.position(tp).next_offset == 0
    running.stop()


def test_a_rewind_during_a_pause_counts_when_the_group_is_resumed(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    running = stage.start(topic)
    wait_until(lambda: len(stage.rows()) == 10)
    stage.ledger.pause(GROUP)
    running.wait_for(Paused, lambda event: event.paused)

    stage.ledger.edit(GROUP, {tp: 6})
    wait_until(lambda: stage.position(tp).owner is not None, "another claim", SOON)
    stage.send(topic, ["on"])
    assert len(stage.rows()) == 10
    stage.ledger.resume(GROUP)

    wait_until(lambda: len(stage.rows()) == 15, "the rewind", SOON)
    running.stop()
    assert stage.offsets() == [*range(10), *range(6, 11)]
    assert running.told(FencedOff) == []
    stage.verify()
