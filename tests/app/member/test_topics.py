"""What is subscribed to, and what happens to it meanwhile."""

from __future__ import annotations

import re

import pytest
from tests.app.member.stage import GROUP, Stage, numbered, wait_until

from tidegate.core.journal import Kind
from tidegate.core.policies import GroupProtocol, Latest, Recreated, StartStrategy
from tidegate.core.records import TopicPartition
from tidegate.errors import IdentityChanged, ListenerStopped, TidegateError
from tidegate.observe import LoggingObserver, StoreBack, StoreLost

PROTOCOLS = [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE, GroupProtocol.CONSUMER]


def recreated(stage: Stage, topic: str, values: list[str]) -> None:
    stage.delete_topic(topic)
    stage.topic(name=topic)
    stage.send(topic, values)


def test_several_topics_are_read_in_one_subscription(stage: Stage) -> None:
    orders, returns = stage.topic(2), stage.topic(1)
    stage.send(orders, numbered(5), partition=0)
    stage.send(orders, numbered(5), partition=1)
    stage.send(returns, numbered(7))

    stage.catch_up(orders, returns)

    assert stage.offsets(orders, 0) == stage.offsets(orders, 1) == list(range(5))
    assert stage.offsets(returns) == list(range(7))


def test_a_recreated_topic_stops_the_listener_with_both_identities(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(5))
    stage.catch_up(topic)
    before = stage.position(tp).identity.topic_id
    recreated(stage, topic, numbered(9))

    running = stage.start(topic)

    with pytest.raises(IdentityChanged) as stopped:
        running.ended()
    for part in (GROUP, str(tp), "offset 5", f"topic id {before}", "recreated as"):
        assert part in str(stopped.value)
    assert stage.offsets() == list(range(5))
    assert stage.position(tp).next_offset == 5


def test_a_topic_that_never_was_is_told_apart_from_one_that_was_deleted(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    log = LoggingObserver()
    name = f"{stage.topic()}-not-yet"
    running = stage.start(name)
    never = running.wait_for(StoreLost)
    advice = f"create it (tidegate topics create {name}), or check its name"
    assert (never.what, never.reason) == ("topic", f"there is no topic {name!r}: {advice}")
    stage.topic(name=name)
    stage.send(name, numbered(3))
    wait_until(lambda: stage.offsets(name) == [0, 1, 2])
    stage.delete_topic(name)
    gone = running.wait_for(StoreLost, lambda lost: lost is not never)
    assert (gone.what, gone.reason) == ("topic", f"topic {name!r} no longer exists: was it deleted?")
    running.stop()
    with caplog.at_level("INFO", "tidegate"):
        log(never)
        log(StoreBack(GROUP, "topic", 1.0))
        log(gone)
    assert not any("went away" in text or "is back" in text for text in caplog.messages)


def test_by_policy_a_recreated_topic_begins_again(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(5))
    stage.catch_up(topic)
    recreated(stage, topic, numbered(9, first=100))

    stage.catch_up(topic, recreated=Recreated.RESTART)

    assert stage.payloads() == numbered(5) + numbered(9, first=100)
    (edit,) = stage.journal(tp, Kind.EDIT)
    assert (edit.start, edit.end, edit.note) == (5, 0, "the topic is another one now")
    stage.verify()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [3, 9], ids=["shorter", "longer"])
def test_a_topic_recreated_under_a_running_listener_stops_it(stage: Stage, protocol: GroupProtocol, count: int) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))
    running = stage.start(topic, protocol=protocol)
    wait_until(lambda: len(stage.rows()) == 5)

    recreated(stage, topic, numbered(count, first=100))

    with pytest.raises((IdentityChanged, ListenerStopped), match="recreated"):
        running.ended()
    assert stage.payloads()[:5] == numbered(5)
    if count < 5:
        assert len(stage.rows()) == 5


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_by_policy_a_topic_recreated_under_a_running_listener_begins_again(
    stage: Stage, protocol: GroupProtocol
) -> None:
    """A shorter one: the position is behind its end, which is no reason to stop."""
    topic = stage.topic()
    stage.send(topic, numbered(5))
    running = stage.start(topic, protocol=protocol, recreated=Recreated.RESTART)
    wait_until(lambda: len(stage.rows()) == 5)

    recreated(stage, topic, numbered(3, first=100))

    wait_until(lambda: len(stage.rows()) == 8 or not running.is_alive, "the new topic")
    running.stop()
    assert stage.payloads() == numbered(5) + numbered(3, first=100)
    stage.verify()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_partitions_added_while_running_are_read_from_their_beginning(stage: Stage, protocol: GroupProtocol) -> None:
    topic = stage.topic()
    stage.send(topic, ["before"])
    running = stage.start(topic, start=StartStrategy(Latest()), protocol=protocol)
    wait_until(lambda: TopicPartition(topic, 0) in stage.ledger.read(GROUP).positions)

    stage.add_partitions(topic, 3)
    for partition in (1, 2):
        stage.send(topic, numbered(10), partition=partition)

    wait_until(lambda: len(stage.rows()) == 20)
    running.stop()
    assert stage.offsets(partition=1) == stage.offsets(partition=2) == list(range(10))
    assert stage.offsets(partition=0) == []


# Under GroupProtocol.CONSUMER the broker resolves patterns, and looks for new topics every 10 s at most often.
@pytest.mark.parametrize("protocol", [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE])
def test_a_new_topic_that_matches_the_pattern_is_picked_up_while_running(stage: Stage, protocol: GroupProtocol) -> None:
    first = stage.topic()
    other = stage.topic(name=f"other.{stage.name}")
    stage.send(first, numbered(3))
    stage.send(other, numbered(3))
    running = stage.start(pattern=rf"^{re.escape(stage.name)}\..*", protocol=protocol)
    wait_until(lambda: stage.payloads(first) == numbered(3))

    second = stage.topic()
    stage.send(second, numbered(4))

    wait_until(lambda: stage.payloads(second) == numbered(4), "the new topic")
    stage.send(first, ["on"])
    wait_until(lambda: stage.payloads(first) == [*numbered(3), "on"], "the old topic")
    running.stop()
    assert stage.rows(other) == []


def test_a_topic_that_is_not_there_yet_is_waited_for(stage: Stage) -> None:
    topic = f"{stage.name}.later"
    running = stage.start(topic)

    stage.topic(name=topic)
    stage.send(topic, numbered(3))

    wait_until(lambda: stage.payloads() == numbered(3))
    running.stop()


def test_named_partitions_are_read_without_a_group(stage: Stage) -> None:
    topic = stage.topic(3)
    for partition in range(3):
        stage.send(topic, numbered(5), partition=partition)

    stage.catch_up(partitions=[TopicPartition(topic, 0), TopicPartition(topic, 2)])

    assert stage.offsets(topic, 0) == stage.offsets(topic, 2) == list(range(5))
    assert stage.rows(topic, 1) == []
    assert {tp.partition for tp in stage.ledger.read(GROUP).positions} == {0, 2}
    assert all(row.owner is None for row in stage.ledger.read(GROUP).positions.values())


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_the_first_of_two_standalone_listeners_stops_and_names_the_other(stage: Stage, busy: bool) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(5))
    first = stage.start(partitions=[tp])
    wait_until(lambda: len(stage.rows()) == 5)

    second = stage.start(partitions=[tp])
    wait_until(lambda: len(stage.journal(tp, Kind.CLAIM)) == 2)
    if busy:
        stage.send(topic, numbered(5, first=5))

    with pytest.raises(TidegateError) as stopped:
        first.ended()
    owner = stage.position(tp).owner
    assert owner
    assert owner in str(stopped.value)
    stage.send(topic, ["on"])
    wait_until(lambda: "on" in stage.payloads())
    second.stop()
    assert stage.offsets() == list(range(11 if busy else 6))
    stage.verify()
