"""What is read, and from where, while batches are handed out, taken back and postponed; the source is scripted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tidegate.app.intake import Intake
from tidegate.app.pool import Pool, PoolQueue
from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.assignment import Assignment, Command, LedgerCommand, ResumePartitions
from tidegate.core.batches import Batch, BatchBounds, Computed, Tried, split
from tidegate.core.policies import Ordering
from tidegate.core.positions import GroupState
from tidegate.core.records import Record, TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.kafka.consumer import Fetched
from tidegate.observe.events import Outages

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW, LATER = 1e9, 2e9  # times that are over, and not, whatever the clock says


class Script:
    """A source that returns what it was told to, and knows where and whether it reads."""

    def __init__(self) -> None:
        self.next = Fetched([], [], [], [])
        self.paused: set[TopicPartition] = set()
        self.sought: dict[TopicPartition, int] = {}
        self.asked_for = 0

    def fetch(self, most: int, timeout: float, room: int | None = None) -> Fetched:
        self.asked_for = most
        fetched, self.next = self.next, Fetched([], [], [], [])
        return fetched

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        self.sought[partition] = offset
        return True

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused.update(partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused.difference_update(partitions)


class Scene:
    """An intake with two partitions, of which the first has three records, handed out as the first batch."""

    def __init__(self, buffer_bytes: int = 1000, computing: PoolQueue | None = None) -> None:
        self.source = Script()
        self.assignment = Assignment(45.0, Random(0))
        spec = ListenerSpec(
            topics=Topics(("orders",)), group="g", batch=BatchBounds(2, 1000, 0), buffer_bytes=buffer_bytes
        )
        outages = Outages("g", lambda _: None)
        source: Any = self.source
        self.intake = Intake(spec, source, self.assignment, lambda _: None, outages, computing=computing)
        self.assignment.assigned([A, B])
        self.obey(self.assignment.claimed({tp: Claim("g", tp, 0, 1, "me") for tp in (A, B)}))
        self.intake.settle()
        if computing is None:
            self.read(*(record(A, offset) for offset in range(3)))
            (self.batch,) = self.ready()

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            assert not isinstance(command, LedgerCommand)
            self.intake.obey(command)

    def read(self, *records: Record, ends: dict[TopicPartition, int] | None = None) -> None:
        self.source.next = Fetched(list(records), list((ends or {}).items()), [], [])
        self.obey(self.intake.fetch(0))
        self.intake.settle()

    def refuse(self, partition: TopicPartition) -> None:
        self.source.next = Fetched([], [], [partition], [])
        self.obey(self.intake.fetch(0))

    def ready(self, now: float = NOW) -> list[Batch]:
        batches = self.intake.ready(now)
        self.intake.settle()
        return batches

    def postpone(self) -> None:
        self.intake.postpone(self.batch, LATER)
        self.intake.settle()


def record(tp: TopicPartition, offset: int) -> Record:
    return Record(*tp, offset, None, b"x" * 10)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_partition_whose_batch_waits_is_paused_and_read_on_behind_it_afterwards(scene: Scene) -> None:
    scene.postpone()
    assert scene.source.paused == {A}
    assert scene.source.sought[A] == 2
    assert scene.ready() == []
    assert scene.ready(LATER) == [scene.batch]
    assert scene.source.paused == set()
    scene.read(record(A, 2))
    scene.assignment.committed([scene.batch.span])
    assert [batch.span for batch in scene.ready()] == [Span(A, 2, 3, 1)]


def test_nothing_else_wakes_a_partition_whose_batch_waits() -> None:
    scene = Scene(buffer_bytes=15)
    scene.postpone()
    scene.obey([ResumePartitions((A, B))])
    assert scene.source.paused == {A}
    scene.read(record(B, 0), record(B, 1))  # more than the buffers hold
    assert scene.source.paused == {A, B}
    assert [batch.span for batch in scene.ready()] == [Span(B, 0, 2, 2)]
    assert scene.source.paused == {A}


def test_a_partition_whose_batch_has_waited_is_not_read_on_while_the_buffers_are_full() -> None:
    scene = Scene(buffer_bytes=15)
    scene.postpone()
    scene.read(record(B, 0), record(B, 1))
    scene.ready(LATER)
    assert scene.source.paused == {A, B}
    scene.ready(LATER)
    assert scene.source.paused == set()


def test_an_intake_with_a_batch_to_hand_out_again_is_not_settled(scene: Scene) -> None:
    """However far the log was read: its end may have been told before these records came."""
    assert scene.intake.is_settled
    scene.postpone()
    assert not scene.intake.is_settled
    scene.ready(LATER)
    assert scene.intake.is_settled
    scene.intake.take_back(scene.batch)
    assert not scene.intake.is_settled


def test_a_wait_ends_with_its_stretch_of_reading(scene: Scene) -> None:
    scene.postpone()
    scene.obey(scene.assignment.discarded([A]))
    scene.intake.settle()
    assert (scene.source.paused, scene.source.sought[A]) == (set(), 0)
    assert scene.ready(LATER) == []
    assert scene.intake.is_settled


def test_records_that_retention_took_meanwhile_are_looked_after_when_the_batch_has_been_committed(scene: Scene) -> None:
    scene.postpone()
    scene.refuse(A)
    assert scene.intake.next_refused() is None
    scene.ready(LATER)
    assert scene.intake.next_refused() == A
    assert scene.intake.next_refused() is None


class Pooled(Scene):
    """An intake with a pool whose handler takes its time with partition A, until it may go on."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.handled: list[Record] = []

        def compute(record: Record, attempt: int) -> Tried:
            self.handled.append(record)
            if record.source == A:
                assert self.go.wait(30)
            return Tried(0, Computed(()))

        pool = Pool(4, Ordering.PARTITION, compute, "test")
        super().__init__(buffer_bytes=120, computing=PoolQueue(pool, BatchBounds(2, 1000, 0), ahead=4))

    def compute(self) -> None:
        self.intake.compute(0)
        self.intake.settle()

    def committed(self, count: int) -> None:
        """Compute and commit what comes of it, until so many records were."""
        while count:
            self.intake.compute(30)
            batches = self.ready()
            self.assignment.committed(batch.span for batch in batches)
            count -= sum(batch.span.records for batch in batches)
        assert count == 0


@pytest.fixture
def pooled() -> Iterator[Pooled]:
    scene = Pooled()
    yield scene
    scene.go.set()
    scene.intake.close()


def test_a_slow_record_of_a_pool_takes_its_partitions_share_of_the_bytes_and_no_more(pooled: Pooled) -> None:
    pooled.read(*(record(A, offset) for offset in range(4)))  # 40 bytes, of 120 / (2 * 2) that are its share
    pooled.compute()
    assert pooled.source.paused == {A}
    for offset in range(20):
        pooled.read(record(B, offset))
        pooled.committed(1)
    assert pooled.source.paused == {A}
    pooled.go.set()
    pooled.committed(4)
    assert pooled.source.paused == set()


def test_a_pool_is_given_no_more_of_a_partition_than_is_enough(pooled: Pooled) -> None:
    pooled.read(*(record(A, offset) for offset in range(10)))
    for _ in range(5):
        pooled.compute()
    assert pooled.intake.bytes == 100
    assert pooled.intake._batching.bytes == 60
    pooled.go.set()
    pooled.committed(10)


def test_an_intake_that_computes_is_not_settled(pooled: Pooled) -> None:
    pooled.read(record(A, 0))
    pooled.compute()
    assert pooled.intake.is_computing
    assert not pooled.intake.is_settled
    pooled.go.set()
    pooled.committed(1)
    assert pooled.intake.is_settled


def test_a_new_stretch_of_reading_forgets_what_is_computed_and_frees_its_share(pooled: Pooled) -> None:
    pooled.read(*(record(A, offset) for offset in range(4)))
    pooled.compute()
    pooled.obey(pooled.assignment.discarded([A]))
    pooled.intake.settle()
    assert (pooled.intake.bytes, pooled.source.paused, pooled.source.sought[A]) == (0, set(), 0)
    pooled.go.set()
    pooled.read(record(A, 0))
    pooled.committed(1)


def test_no_handler_begins_while_the_group_is_paused(pooled: Pooled) -> None:
    pooled.read(record(B, 0))
    rows: Any = {tp: state.claim for tp, state in pooled.assignment.reading()}
    pooled.obey(pooled.assignment.observed(GroupState("g", True, rows)))
    pooled.compute()
    assert pooled.intake._batching.bytes == 10
    pooled.obey(pooled.assignment.observed(GroupState("g", False, rows)))
    assert pooled.handled == []
    pooled.committed(1)
    assert [each.source for each in pooled.handled] == [B]


def test_what_retention_took_is_looked_after_when_what_was_read_before_it_is_computed(pooled: Pooled) -> None:
    pooled.read(record(A, 0))
    pooled.compute()
    pooled.refuse(A)
    assert pooled.intake.next_refused() is None
    pooled.go.set()
    pooled.committed(1)
    assert pooled.intake.next_refused() == A


def test_it_reads_no_further_ahead_than_there_is_use_for(scene: Scene) -> None:
    scene.read(*(record(A, offset) for offset in range(3, 10)))
    scene.read()
    assert scene.source.asked_for == 1, "which still lets the client tell of rebalances"
    scene.assignment.committed([scene.batch.span])
    assert [batch.span for batch in scene.ready()] == [Span(A, 2, 4, 2)]
    scene.read()
    assert scene.source.asked_for > 1


def _computed(pooled: Pooled, count: int) -> Batch:
    pooled.read(*(record(B, offset) for offset in range(count)))
    while not (batches := pooled.ready()):
        pooled.intake.compute(30)
    return batches[0]


def test_what_a_transaction_has_no_room_for_is_handed_out_by_the_pool_after_it(pooled: Pooled) -> None:
    (first,), (rest,) = split([_computed(pooled, 2)], 1)
    pooled.intake.take_back(rest)  # while the first part is under way: the position is still in front of both
    assert pooled.intake.is_computing
    pooled.assignment.committed([first.span])
    pooled.committed(1)
    assert [each.offset for each in pooled.handled] == [0, 1]


def test_what_was_computed_before_a_new_stretch_of_reading_is_not_taken_back(pooled: Pooled) -> None:
    batch = _computed(pooled, 2)
    pooled.obey(pooled.assignment.discarded([B]))
    pooled.intake.take_back(batch)
    assert not pooled.intake.is_computing
