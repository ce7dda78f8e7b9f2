"""How members come and go."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.app.member.stage import GROUP, PATIENCE, Stage, numbered, wait_until

from tidegate.core.batches import BatchBounds
from tidegate.core.journal import Kind
from tidegate.core.policies import Delivery, GroupProtocol
from tidegate.core.records import Record, TopicPartition
from tidegate.observe.events import Rebalanced

Called = list[tuple[str, list[TopicPartition]]]
COUNT = 200


def callbacks(called: Called) -> dict[str, Any]:
    return {
        "on_assigned": lambda partitions: called.append(("assigned", sorted(partitions))),
        "on_revoked": lambda partitions: called.append(("revoked", sorted(partitions))),
        "on_lost": lambda partitions: called.append(("lost", sorted(partitions))),
    }


def owners(stage: Stage) -> set[str | None]:
    return {row.owner for row in stage.ledger.read(GROUP).positions.values()}


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_a_clean_stop_commits_releases_and_leaves(stage: Stage, protocol: GroupProtocol) -> None:
    topic = stage.topic(2)
    partitions = [TopicPartition(topic, number) for number in range(2)]
    for tp in partitions:
        stage.send(topic, numbered(20), partition=tp.partition)
    called: Called = []
    running = stage.start(topic, protocol=protocol, **callbacks(called))
    wait_until(lambda: len(stage.rows()) == 40)

    running.stop()

    assert owners(stage) == {None}
    for tp in partitions:
        assert stage.position(tp).next_offset == len(stage.rows(topic, tp.partition)) == 20
        assert stage.journal(tp)[-1].kind is Kind.RELEASE
    assert called == [("assigned", partitions), ("revoked", partitions)]
    assert [event.kind for event in running.told(Rebalanced)] == ["assigned", "revoked"]
    assert all(event.seconds >= 0 for event in running.told(Rebalanced))
    stage.verify()


def test_a_stop_while_the_handler_runs_lets_it_finish(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(5))

    def handle(records: list[Record], tx: Any) -> None:
        running.member.stop()
        stage.write(records, tx)

    running = stage.start(topic, handle=handle)
    running.ended()

    assert stage.offsets() == list(range(5))
    assert stage.position(tp)[1:4:2] == (5, None)


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_partitions_move_to_a_second_member_and_back(stage: Stage, protocol: GroupProtocol) -> None:
    topic = stage.topic(2)
    first = stage.start(topic, protocol=protocol)
    first.wait_for(Rebalanced)
    called: Called = []
    second = stage.start(topic, protocol=protocol, **callbacks(called))
    wait_until(lambda: len(owners(stage) - {None}) == 2 and None not in owners(stage), "a share for each")
    for partition in range(2):
        stage.send(topic, numbered(10), partition=partition)
    wait_until(lambda: len(stage.rows()) == 20)

    first.stop()
    wait_until(lambda: len(second.member._assignment.partitions) == 2, "both partitions for the second")
    for partition in range(2):
        stage.send(topic, numbered(10, first=10), partition=partition)
    wait_until(lambda: len(stage.rows()) == 40)
    second.stop()

    for partition in range(2):
        assert stage.payloads(topic, partition) == numbered(20)
    assert called[-1][0] == "revoked"
    assert owners(stage) == {None}
    stage.verify()


def test_a_callback_that_raises_does_no_harm(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))

    def failing(_: list[TopicPartition]) -> None:
        raise RuntimeError("not my day")

    running = stage.start(topic, on_assigned=failing, on_revoked=failing, on_lost=failing)
    wait_until(lambda: len(stage.rows()) == 5)
    running.stop()

    assert stage.offsets() == list(range(5))
    assert owners(stage) == {None}


def test_a_handler_that_fails_stops_the_member_and_leaves_the_position_in_front(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))

    def failing(records: list[Record], tx: Any) -> None:
        stage.write(records, tx)
        raise RuntimeError("not my day")

    running = stage.start(topic, handle=failing)
    with pytest.raises(RuntimeError, match="not my day"):
        running.ended()

    assert stage.rows() == []
    assert stage.position(TopicPartition(topic, 0)).next_offset == 0
    assert owners(stage) == {None}


@pytest.mark.parametrize("busy", [(0, 1), (2, 3)])
@pytest.mark.parametrize("protocol", [GroupProtocol.COOPERATIVE, GroupProtocol.CONSUMER])
def test_members_that_are_to_catch_up_leave_nothing_unread_that_is_on_its_way_between_them(
    stage: Stage, protocol: GroupProtocol, busy: tuple[int, int]
) -> None:
    topic = stage.topic(4)
    for partition in busy:  # whichever two of them move to the second member, one of the two has all of these
        stage.send(topic, numbered(40), partition=partition)

    def slowly(records: list[Record], tx: Any) -> None:
        time.sleep(0.05)
        stage.write(records, tx)

    # A group of its own: the broker may forget one that has just changed from a classic protocol to the new one.
    group = f"{GROUP}-{protocol}"
    settings = {"group": group, "protocol": protocol, "handle": slowly, "batch": BatchBounds(count=2)}
    members = [stage.start(topic, until_caught_up=True, **settings)]
    wait_until(lambda: len(stage.rows()) >= 4)
    members.append(stage.start(topic, until_caught_up=True, **settings))
    for member in members:
        member.ended()

    assert len(stage.rows()) == 80
    assert {row.owner for row in stage.ledger.read(group).positions.values()} == {None}


@pytest.mark.parametrize("delivery", [Delivery.EXACTLY_ONCE, Delivery.AT_LEAST_ONCE], ids=["ledger", "in Kafka"])
@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_a_member_that_is_to_catch_up_does_not_end_while_a_partition_that_it_gave_away_is_unread(
    stage: Stage, protocol: GroupProtocol, delivery: Delivery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidegate")
    topic = stage.topic(2)
    for partition in range(2):
        stage.send(topic, numbered(COUNT), partition=partition)
    joined, gate = threading.Event(), threading.Event()
    seen: dict[str, list[tuple[int, int]]] = {"first": [], "second": []}

    def slowly(record: Record) -> None:
        seen["first"].append((record.partition, record.offset))
        joined.wait(0.5)  # slowly, until the second member has joined: both partitions are unread then

    def blocked(record: Record) -> None:
        gate.wait(PATIENCE)
        seen["second"].append((record.partition, record.offset))

    # A group of its own: the broker may forget one that has just changed from a classic protocol to the new one.
    group = f"{GROUP}-{topic}"
    settings: dict[str, Any] = {
        "group": group,
        "protocol": protocol,
        "delivery": delivery,
        "batch": BatchBounds(count=20, age=0),
    }
    if delivery is Delivery.AT_LEAST_ONCE:
        settings["ledger"] = None
    first = stage.listen(slowly, topic, until_caught_up=True, **settings)
    wait_until(lambda: seen["first"], "the first record")
    second = stage.listen(blocked, topic, **settings)
    moved = second.wait_for(Rebalanced, lambda event: event.kind == "assigned" and event.partitions).partitions
    assert len(moved) == 1
    joined.set()

    wait_until(
        lambda: "other members" in caplog.text or not first.is_alive,
        "the end of what the first member has",
        3 * PATIENCE,
    )
    assert first.is_alive, f"{moved} is unread"
    second.member.stop()  # before it has read what it was given
    gate.set()
    second.ended()
    first.ended()

    assert len(seen["second"]) < COUNT
    assert {*seen["first"], *seen["second"]} == {(partition, at) for partition in range(2) for at in range(COUNT)}
