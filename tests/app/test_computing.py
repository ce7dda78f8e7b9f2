"""Batches that a pool works on: handed out in order, whatever is done first."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tidegate.app.pool import Later, Pool, PoolQueue
from tidegate.core.batches import Batch, BatchBounds, Computed, Tried
from tidegate.core.policies import Ordering
from tidegate.core.records import Record, TopicPartition
from tidegate.core.work import Span

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
LONG = 30.0


class Gate:
    """A handler that lets records through when it is told to, by their offsets."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._open: set[int] = set()
        self._changed = threading.Condition()

    def let(self, *offsets: int) -> None:
        with self._changed:
            self._open.update(offsets)
            self._changed.notify_all()

    def compute(self, record: Record, attempt: int) -> Tried:
        self.seen.append(record.offset)
        with self._changed:
            assert self._changed.wait_for(lambda: record.offset in self._open, LONG)
        return Tried(0, Computed(record.offset))


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def computing(gate: Gate) -> Iterator[PoolQueue]:
    made = PoolQueue(Pool(8, Ordering.KEY, gate.compute, "test"), BatchBounds(count=4, bytes=1000), ahead=6)
    yield made
    gate.let(*range(100))
    made.close()


def batch(start: int, end: int, tp: TopicPartition = A, *, size: int = 10, generation: int = 1) -> Batch:
    records = tuple(Record(*tp, offset, None, b"x" * size) for offset in range(start, end))
    return Batch(generation, Span(tp, start, end, len(records)), records)


def handed_out(computing: PoolQueue, count: int = 1) -> list[Batch]:
    """Batches, as soon as there are so many."""
    found: list[Batch] = []
    deadline = time.monotonic() + LONG
    while len(found) < count:
        assert time.monotonic() < deadline
        computing.wait(0.1)
        found += computing.ready()
    return found


def results(given: Batch) -> list[object]:
    tries = [given.tries[record.source, record.offset].settled for record in given.records]
    return [each.writes for each in tries if isinstance(each, Computed)]


def test_a_batch_is_handed_out_when_all_of_it_is_computed(computing: PoolQueue, gate: Gate) -> None:
    computing.add([batch(0, 3)])
    gate.let(0, 2)
    assert computing.ready() == []
    gate.let(1)
    (done,) = handed_out(computing)
    assert done.span == Span(A, 0, 3, 3)
    assert results(done) == [0, 1, 2]
    assert (computing.bytes, computing.partitions) == (0, set())


def test_the_second_batch_waits_for_the_first_and_both_go_as_one(computing: PoolQueue, gate: Gate) -> None:
    computing.add([batch(0, 2)])
    computing.add([batch(2, 4)])
    gate.let(2, 3)
    computing.wait(LONG)
    assert computing.ready() == []
    gate.let(0, 1)
    (done,) = handed_out(computing)
    assert (done.span, results(done)) == (Span(A, 0, 4, 4), [0, 1, 2, 3])


def test_another_partition_waits_for_nobody(computing: PoolQueue, gate: Gate) -> None:
    computing.add([batch(0, 2), batch(50, 52, B)])
    gate.let(50, 51)
    assert [each.span for each in handed_out(computing)] == [Span(B, 50, 52, 2)]
    assert computing.partitions == {A}


@pytest.mark.parametrize("size", [10, 300])
def test_what_goes_as_one_stays_within_the_bounds_of_a_batch(computing: PoolQueue, gate: Gate, size: int) -> None:
    for start in (0, 2, 4):
        computing.add([batch(start, start + 2, size=size)])
    gate.let(*range(6))
    deadline = time.monotonic() + LONG
    while not all(entry.is_computed for entry in computing._queues[A].entries):
        assert time.monotonic() < deadline
        computing.wait(0.1)
    spans = [each.span for each in handed_out(computing, 2 if size == 10 else 3)]
    assert spans == ([Span(A, 0, 4, 4), Span(A, 4, 6, 2)] if size == 10 else [Span(A, n, n + 2, 2) for n in (0, 2, 4)])


def test_a_batch_without_records_keeps_its_place(computing: PoolQueue, gate: Gate) -> None:
    computing.add([batch(0, 1)])
    computing.add([Batch(1, Span(A, 1, 9, 0), ())])
    assert computing.ready() == []
    gate.let(0)
    assert [each.span for each in handed_out(computing)] == [Span(A, 0, 9, 1)]


def test_what_was_taken_back_is_handed_out_first_and_not_computed_again(computing: PoolQueue, gate: Gate) -> None:
    computing.add([batch(0, 2)])
    gate.let(0, 1, 2)
    (done,) = handed_out(computing)
    computing.add([batch(2, 3)])
    computing.take_back(done)
    assert computing.bytes == 30
    while (again := computing.ready())[0].span.end != 3:
        computing.take_back(again[0])
        computing.wait(0.1)
    assert results(again[0]) == [0, 1, 2]
    assert sorted(gate.seen) == [0, 1, 2]
    assert computing.bytes == 0


def test_what_was_dropped_is_not_handed_out_and_what_comes_after_it_is(computing: PoolQueue, gate: Gate) -> None:
    computing.add([batch(0, 2), batch(50, 51, B)])
    computing.drop([A, TopicPartition("never", 0)])
    assert (computing.partitions, computing.bytes_of(A), computing.bytes_of(B)) == ({B}, 0, 10)
    computing.add([batch(0, 1, generation=2)])
    gate.let(0)
    (done,) = handed_out(computing)
    assert (done.generation, done.span) == (2, Span(A, 0, 1, 1))


def test_a_partition_with_enough_records_is_full_until_some_are_handed_out(computing: PoolQueue, gate: Gate) -> None:
    computing.add([batch(0, 4), batch(50, 54, B)])
    assert computing.full == set()
    computing.add([batch(4, 7)])
    assert computing.full == {A}
    gate.let(*range(4))
    handed_out(computing)
    assert computing.full == set()


def test_what_stops_the_pool_is_raised_to_whoever_waits() -> None:
    def compute(record: Record, attempt: int) -> Tried:
        raise ValueError("stop") if attempt == 2 else Later(0)

    computing = PoolQueue(Pool(1, Ordering.KEY, compute, "test"), BatchBounds(), ahead=10)
    computing.add([batch(0, 1)])
    with pytest.raises(ValueError, match="stop"):
        handed_out(computing)
