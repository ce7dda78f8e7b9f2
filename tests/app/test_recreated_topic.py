"""A topic that is deleted and created again while a member asks about its log."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from tidegate.app.member import Member
from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.assignment import Claiming, Reclaiming
from tidegate.core.policies import LogOffsets, OutOfRange, Recreated
from tidegate.core.positions import Identity
from tidegate.core.records import TopicPartition
from tidegate.ledger.memory import MemoryLedger

ORDERS = TopicPartition("orders", 0)


class Cluster:
    """Answers for the topic; if ``is_doomed``, the topic is created anew just before its log is looked up."""

    def __init__(self) -> None:
        self.incarnation, self.log, self.is_doomed = 1, LogOffsets(5, 9), False

    def recreate(self) -> None:
        self.incarnation, self.log = 2, LogOffsets(0, 4)

    def identities(self, topics: Collection[str]) -> dict[str, Identity]:
        return {"orders": Identity("here", str(self.incarnation))}

    def partitions(self, topics: Collection[str]) -> set[TopicPartition]:
        return {ORDERS}

    def logs(self, partitions: Iterable[TopicPartition], at: int | None = None) -> dict[TopicPartition, LogOffsets]:
        if self.is_doomed:
            self.recreate()
        return {ORDERS: self.log}

    def unanswered(self) -> None: ...


class Silent:
    """A source that is never polled."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        pass


def member_of(cluster: Any, ledger: MemoryLedger) -> Member:
    spec = ListenerSpec(
        topics=Topics(("orders",)), group="billing", out_of_range=OutOfRange.SKIP, recreated=Recreated.RESTART
    )
    source: Any = Silent()
    handler: Any = None  # no record is handled
    member = Member(spec, ledger, cluster, lambda _: source, handler=handler, tell=lambda _: None)
    assert member.assigned([ORDERS]) == {ORDERS: 5}
    return member


def test_a_topic_that_is_recreated_between_two_questions_is_not_taken_for_a_log_that_lost_records() -> None:
    cluster = Cluster()
    member = member_of(cluster, MemoryLedger())
    cluster.is_doomed = True
    member._step_over_what_is_gone(ORDERS)
    assert member._error is None
    assert isinstance(member._assignment.state(ORDERS), Claiming)


def test_a_position_that_another_member_has_moved_to_the_new_topic_is_not_compared_with_its_log() -> None:
    cluster, ledger = Cluster(), MemoryLedger()
    member = member_of(cluster, ledger)
    cluster.recreate()
    ledger.claim("billing", [ORDERS], 0, identities=lambda: cluster.identities(["orders"]), restart=True)
    member._step_over_what_is_gone(ORDERS)
    assert member._error is None
    assert isinstance(member._assignment.state(ORDERS), Reclaiming)
