"""Records into batches."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.batches import Batch, BatchBounds, Batching, Pacing, Tried
from tidegate.core.records import Record, Records, TopicPartition
from tidegate.core.work import Span
from tidegate.errors import ConfigurationError

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
TRIES = {(A, 0): Tried(2)}


def record(offset: int, tp: TopicPartition = A, size: int = 10) -> Record:
    return Record(*tp, offset, None, b"x" * size)


class Buffers(Batching):
    """Buffers that are given records as they come."""

    def put(self, records: Iterable[Record], now: float) -> None:
        self.add(Records.of(records).runs, now)


def started(count: int = 3, size: int = 1000, age: float = 5.0, position: int = 0) -> Buffers:
    batching = Buffers(BatchBounds(count, size, age))
    batching.start(A, position, generation=7)
    return batching


def test_a_batch_is_ready_when_it_has_enough_records() -> None:
    batching = started(count=3)
    batching.put([record(0), record(1)], now=0)
    assert batching.ready(now=0) == []
    batching.put([record(2)], now=0)
    assert batching.ready(now=0) == [Batch(7, Span(A, 0, 3, 3), (record(0), record(1), record(2)))]
    assert batching.ready(now=99) == []


def test_a_batch_is_ready_when_it_has_enough_bytes() -> None:
    batching = started(count=100, size=25)
    batching.put([record(0), record(1)], now=0)
    assert batching.ready(now=0) == []
    batching.put([record(2)], now=0)
    (first,) = batching.ready(now=0)
    assert first.span == Span(A, 0, 2, 2), "a third record would be too much"


def test_a_batch_is_ready_when_its_first_record_is_old_enough() -> None:
    batching = started(age=5.0)
    batching.put([record(0)], now=1.0)
    batching.put([record(1)], now=4.0)
    assert batching.ready(now=5.9) == []
    assert [batch.span for batch in batching.ready(now=6.0)] == [Span(A, 0, 2, 2)]
    batching.put([record(2)], now=7.0)
    assert batching.ready(now=11.9) == []


def test_a_record_too_large_for_a_batch_goes_alone() -> None:
    batching = started(count=100, size=25)
    batching.put([record(0, size=900), record(1)], now=0)
    assert [batch.span for batch in batching.ready(now=0)] == [Span(A, 0, 1, 1)]
    assert batching.bytes == 10


def test_a_span_starts_at_the_position_and_not_at_its_first_record() -> None:
    batching = started(position=5)
    batching.put([record(8), record(9), record(12)], now=0)
    assert [batch.span for batch in batching.ready(now=0)] == [Span(A, 5, 13, 3)]


def test_a_span_ends_where_the_source_continues() -> None:
    batching = started()
    batching.put([record(0)], now=0)
    batching.reached(A, 9, now=0)
    assert [batch.span for batch in batching.ready(now=5)] == [Span(A, 0, 9, 1)]


def test_a_span_without_records_is_a_batch_all_the_same() -> None:
    batching = started(position=4)
    batching.reached(A, 9, now=1.0)
    assert batching.ready(now=5.9) == []
    assert batching.ready(now=6.0) == [Batch(7, Span(A, 4, 9, 0), ())]


def test_a_source_that_has_not_moved_makes_no_batch() -> None:
    batching = started(position=4)
    batching.reached(A, 4, now=0)
    batching.reached(A, 3, now=0)
    batching.reached(B, 9, now=0)
    assert batching.ready(now=99) == []


def test_records_seen_before_and_of_partitions_not_started_are_left_out() -> None:
    batching = started(position=5)
    batching.put([record(4), record(5), record(5), record(6, tp=B), record(6)], now=0)
    assert [batch.records for batch in batching.ready(now=9)] == [(record(5), record(6))]


def test_dropping_forgets_only_these_partitions() -> None:
    batching = started()
    batching.start(B, 0, generation=8)
    batching.put([record(0), record(0, tp=B)], now=0)
    batching.drop([A])
    batching.put([record(1)], now=0)
    assert batching.ready(now=9) == [Batch(8, Span(B, 0, 1, 1), (record(0, tp=B),))]
    assert batching.bytes == 0


def test_starting_again_forgets_what_was_read_before() -> None:
    batching = started()
    batching.put([record(0)], now=0)
    batching.start(A, 40, generation=9)
    assert batching.ready(now=99) == []
    batching.put([record(40)], now=0)
    assert batching.ready(now=99) == [Batch(9, Span(A, 40, 41, 1), (record(40),))]


def test_the_rest_is_everything_in_batches_within_the_bounds() -> None:
    batching = started(count=2)
    batching.put([record(offset) for offset in range(5)], now=0)
    batching.reached(A, 9, now=0)
    spans = [batch.span for batch in batching.rest([A, B])]
    assert spans == [Span(A, 0, 2, 2), Span(A, 2, 4, 2), Span(A, 4, 9, 1)]


def test_a_batch_that_is_taken_back_comes_again_with_what_was_read_behind_it() -> None:
    batching = started(count=3)
    batching.put([record(offset) for offset in range(4)], now=0)
    (first,) = batching.ready(now=0)
    batching.take_back(first._replace(tries=TRIES))
    assert batching.has_taken_back
    assert batching.waiting == set()
    assert batching.ready(now=0) == [first._replace(tries=TRIES)]
    assert not batching.has_taken_back
    assert [(batch.span, batch.tries) for batch in batching.ready(now=99)] == [(Span(A, 3, 4, 1), {})]


def test_a_short_batch_that_is_taken_back_is_filled_up() -> None:
    batching = started(count=3)
    batching.put([record(0)], now=0)
    (first,) = batching.ready(now=5)
    batching.take_back(first)
    batching.put([record(1)], now=6)
    batching.reached(A, 4, now=6)
    assert [batch.span for batch in batching.ready(now=6)] == [Span(A, 0, 4, 2)]


def test_a_postponed_batch_comes_again_as_it_was_and_not_before_its_time() -> None:
    batching = started(count=3)
    batching.put([record(offset) for offset in range(4)], now=0)
    (first,) = batching.ready(now=0)
    assert batching.postpone(first._replace(tries=TRIES), until=7.0)
    assert (batching.waiting, batching.has_taken_back, batching.bytes) == ({A}, True, 0)
    assert batching.ready(now=6.9) == []
    assert batching.ready(now=7.0) == [first._replace(tries=TRIES)]
    assert (batching.waiting, batching.has_taken_back) == (set(), False)
    assert batching.ready(now=99) == [], "what was behind it has to be read again"
    batching.put([record(3)], now=99)
    assert [batch.span for batch in batching.ready(now=999)] == [Span(A, 3, 4, 1)]


def test_a_postponed_batch_goes_alone_and_keeps_its_partition_waiting_only() -> None:
    batching = started(count=1)
    batching.start(B, 0, generation=8)
    batching.put([record(0), record(0, tp=B), record(1, tp=B)], now=0)
    first, other = batching.ready(now=0)
    batching.postpone(first, until=7.0)
    batching.take_back(other)
    assert [batch.span.partition for batch in batching.ready(now=1)] == [B]
    assert batching.ready(now=7.0) == [first]
    assert [batch.span for batch in batching.ready(now=7.0)] == [Span(B, 1, 2, 1)]


def test_postponed_batches_take_turns_with_the_others_the_one_that_was_due_first_before() -> None:
    batching = started(count=1)
    tps = [TopicPartition("orders", number) for number in range(4)]
    for tp in tps:
        batching.start(tp, 0, generation=8)
    batching.put([record(offset, tp) for tp in tps for offset in range(3)], now=0)
    for late, batch in zip((9.0, 8.0, 7.0), batching.ready(now=0), strict=False):
        batching.postpone(batch, until=late)
    order = [[batch.span.partition for batch in batching.ready(now=9.0)] for _ in range(6)]
    assert order == [[tps[2]], [tps[3]], [tps[1]], [tps[3]], [tps[0]], []]


@pytest.mark.parametrize("end", ["drop", "start"])
def test_a_batch_whose_stretch_of_reading_is_over_is_not_taken_back(end: str) -> None:
    batching = started(count=1)
    batching.put([record(0)], now=0)
    (first,) = batching.ready(now=0)
    batching.drop([A]) if end == "drop" else batching.start(A, 0, generation=8)
    batching.take_back(first)
    assert not batching.postpone(first, until=7.0)
    assert (batching.ready(now=99), batching.bytes, batching.waiting) == ([], 0, set())


@pytest.mark.parametrize("end", ["drop", "start"])
def test_whatever_ends_a_stretch_of_reading_ends_the_wait(end: str) -> None:
    batching = started(count=1)
    batching.put([record(0)], now=0)
    (first,) = batching.ready(now=0)
    batching.postpone(first._replace(tries=TRIES), until=7.0)
    batching.drop([A]) if end == "drop" else batching.start(A, 0, generation=8)
    assert (batching.waiting, batching.has_taken_back, batching.ready(now=99)) == (set(), False, [])
    batching.start(A, 0, generation=9)
    batching.put([record(0)], now=99)
    assert [batch.tries for batch in batching.ready(now=99)] == [{}]


def test_a_batch_cannot_be_taken_back_behind_the_next_one() -> None:
    batching = started(count=1)
    batching.put([record(0), record(1)], now=0)
    (first,), _ = batching.ready(now=0), batching.ready(now=0)
    with pytest.raises(RuntimeError, match="cannot be taken back"):
        batching.take_back(first)


@pytest.mark.parametrize("bounds", [{"count": 0}, {"bytes": 0}, {"age": -1.0}])
def test_bounds_that_no_batch_can_keep_are_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(bounds))}: expected"):
        BatchBounds(**bounds)  # type: ignore[arg-type]


@given(
    gaps=st.lists(st.integers(0, 4), max_size=40),
    trailing=st.integers(0, 5),
    position=st.integers(0, 10),
    count=st.integers(1, 6),
    size=st.integers(1, 60),
    cuts=st.sets(st.integers(0, 40)),
    backs=st.sets(st.integers(0, 40)),
)
def test_batches_are_what_was_read_without_a_gap_or_a_repetition(
    gaps: list[int], trailing: int, position: int, count: int, size: int, cuts: set[int], backs: set[int]
) -> None:
    batching = started(count, size, age=1.0, position=position)
    records, offset = [], position
    for gap in gaps:
        offset += gap
        records.append(record(offset))
        offset += 1
    batches: list[Batch] = []
    for i, item in enumerate(records):
        batching.put([item], now=i)
        if i in cuts:
            handed_out = batching.ready(now=i)
            for batch in handed_out if i in backs else ():
                batching.take_back(batch)
            batches += [] if i in backs else handed_out
    batching.reached(A, offset + trailing, now=99)
    batches += batching.rest([A])
    assert [item for batch in batches for item in batch.records] == records
    at = position
    for batch in batches:
        assert batch.span.start == at < batch.span.end
        assert batch.span.records == len(batch.records) <= count
        assert len(batch.records) == 1 or sum(item.size for item in batch.records) <= size
        assert all(batch.span.start <= item.offset < batch.span.end for item in batch.records)
        at = batch.span.end
    assert at == offset + trailing
    assert batching.bytes == 0


def test_it_is_ahead_with_two_batches_of_every_partition_and_those_that_wait_do_not_count() -> None:
    batching = started(count=3)
    batching.start(B, 0, generation=7)
    batching.put(map(record, range(11)), now=0)
    assert not batching.is_ahead
    batching.put([record(11)], now=0)
    assert batching.is_ahead, "however they are shared out, it is enough for two batches of both"
    (batch,) = batching.ready(now=0)
    assert not batching.is_ahead
    batching.postpone(batch, until=9)
    batching.put([record(number, B) for number in range(6)], now=0)
    assert batching.is_ahead, "the one that waits has no use for more"


def test_nothing_to_read_is_never_ahead() -> None:
    assert not Batching(BatchBounds(count=1)).is_ahead


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 6), st.integers(1, 60))
def test_the_bytes_of_what_is_left_are_right_however_it_was_handed_out(sizes: list[int], count: int, most: int) -> None:
    batching = started(count=count, size=most, age=0.0)
    batching.put([record(offset, size=size) for offset, size in enumerate(sizes)], now=0)
    left = list(sizes)
    while batches := batching.ready(now=1):
        (batch,) = batches
        taken = [len(each.value or b"") for each in batch.records]
        assert taken == left[: len(taken)]
        assert len(taken) <= count
        assert len(taken) == 1 or sum(taken) <= most
        left = left[len(taken) :]
        assert batching.bytes == sum(left)
    assert not left


def paced(*counts: int) -> tuple[Pacing, list[Batch]]:
    """Partitions with batches of so many records each."""
    batches = []
    for number, count in enumerate(counts):
        tp = TopicPartition("orders", number)
        batches.append(Batch(7, Span(tp, 0, count, count), tuple(record(offset, tp) for offset in range(count))))
    return Pacing(Random(0)), batches


def test_a_batch_is_cut_behind_a_record_and_takes_along_what_is_known_of_its_own_records() -> None:
    records = tuple(record(offset) for offset in (3, 5, 9))
    tries = {(A, 5): Tried(1), (A, 9): Tried(2)}
    batch = Batch(7, Span(A, 2, 20, 3), records, tries)
    assert batch.cut(2) == (
        Batch(7, Span(A, 2, 6, 2), records[:2], {(A, 5): Tried(1)}),
        Batch(7, Span(A, 6, 20, 1), records[2:], {(A, 9): Tried(2)}),
    )


def test_after_each_conflict_half_as_much_goes_at_once_down_to_one_record_and_grows_again() -> None:
    pacing, (batch,) = paced(8)
    sizes = []
    part, now = batch, 0.0
    for _ in range(5):
        pacing.conflicted(part, now)
        now += 10
        (part,), (rest,) = pacing.choose([batch], now)
        assert part.span.end == rest.span.start
        sizes.append(len(part.records))
    assert sizes == [4, 2, 1, 1, 1]
    for limit in (2, 4, None):
        pacing.committed([part.span])
        assert pacing.limit(A) == limit
    assert not pacing


def test_after_a_conflict_a_partition_waits_for_a_while_that_grows_with_their_number() -> None:
    class Longest(Random):
        def random(self) -> float:
            return 1.0

    _, (batch,) = paced(8)
    pacing = Pacing(Longest())
    waits = []
    for _ in range(8):
        pacing.conflicted(batch, 0.0)
        waits.append(next(after for after in (0.04, 0.08, 0.16, 0.32, 0.64, 1.0) if pacing.choose([batch], after)[0]))
    assert waits == [0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]
    for _ in range(3000):  # of one record, for hours
        pacing.conflicted(batch, 0.0)
    assert pacing.choose([batch], 1.0)[0]


def test_a_partition_that_goes_in_parts_goes_by_itself_and_takes_turns_with_the_others() -> None:
    pacing, (first, second, third) = paced(4, 4, 4)
    pacing.conflicted(first, 0.0)
    chosen = [pacing.choose([first, second, third], now)[0] for now in (10.0, 11.0, 12.0)]
    part, _ = first.cut(2)
    assert chosen == [[part], [second, third], [part]]


def test_partitions_that_go_in_parts_come_one_after_the_other() -> None:
    pacing, batches = paced(4, 4, 4)
    for batch in batches:
        pacing.conflicted(batch, 0.0)
    chosen = [pacing.choose(batches, now)[0] for now in (10.0, 11.0, 12.0, 13.0)]
    assert sorted(batch.span.partition.partition for (batch,) in chosen[:3]) == [0, 1, 2]
    assert chosen[3] == chosen[0]


def test_a_partition_that_waits_after_a_conflict_does_not_hold_the_others_up() -> None:
    pacing, (first, second) = paced(4, 4)
    pacing.conflicted(first, 1e9)
    assert pacing.choose([first, second], 0.0) == ([second], [first])
    assert pacing.choose([first], 0.0) == ([], [first])


@given(count=st.integers(1, 600), bad=st.sets(st.integers(0, 599), min_size=1, max_size=3))
def test_a_refused_record_is_found_in_a_few_steps_whatever_else_is_refused(count: int, bad: set[int]) -> None:
    bad = {offset for offset in bad if offset < count} or {0}
    pacing, (whole,) = paced(count)
    found, steps, left = set[int](), 0, whole
    while left is not None:
        (part,), rest = pacing.choose([left], float(steps)) if pacing else ([left], [])
        steps += 1
        within = bad & {each.offset for each in part.records} - found
        if within and len(part.records) > 1:
            pacing.refused(part)
            continue
        found |= within
        pacing.committed([part.span])
        left = rest[0] if rest else None
    assert found == bad
    assert steps <= 4 + 3 * len(bad) * count.bit_length()


def test_what_is_dropped_is_forgotten() -> None:
    pacing, (batch,) = paced(8)
    pacing.conflicted(batch, 0.0)
    pacing.forget([A, B])
    assert not pacing
    pacing.committed([batch.span])


def test_a_turn_that_keeps_others_waiting_is_cut_short_and_grows_again_without_turns() -> None:
    pacing, (batch,) = paced(1000)
    pacing.committed([batch.span], turn=0.1)
    assert not pacing
    pacing.committed([batch.span], turn=1.0)
    assert pacing.limit(A) == 400
    pacing.committed([Span(A, 0, 400, 400)], turn=0.8)
    assert pacing.limit(A) == 200
    pacing.committed([Span(A, 0, 1, 1)], turn=9.0)
    assert pacing.limit(A) == 1
    for _ in range(10):
        pacing.committed([Span(A, 0, 1, 1)])
    assert not pacing


def test_partitions_that_have_their_turn_go_together_in_parts() -> None:
    pacing, (first, second) = paced(1000, 100)
    pacing.committed([first.span, second.span], turn=4.0)
    (part, other), left = pacing.choose([first, second], 0.0)
    assert [len(part.records), len(other.records)] == [100, 10]
    assert [len(batch.records) for batch in left] == [900, 90]


def test_a_partition_that_gets_few_records_into_a_turn_gets_more_into_the_next_ones_up_to_its_share() -> None:
    """The others use the turn up each time: by its time alone, its limit would stay what it is, or become smaller."""
    pacing, _ = paced(1000, 1000)
    pacing.committed([Span(A, 0, 400, 400), Span(B, 0, 2, 2)], turn=0.41)
    limits = []
    for _ in range(9):
        count = pacing.limit(B) or 1000
        pacing.committed([Span(A, 0, 400, 400), Span(B, 0, count, count)], turn=0.41)
        limits.append(pacing.limit(B))
    assert limits == [2, 4, 8, 16, 32, 64, 128, 256, 320]
    assert pacing.limit(A) == 390


def test_while_turns_are_taken_partitions_that_ran_into_conflicts_go_together_and_those_with_a_suspect_do_not() -> None:
    pacing, batches = paced(8, 8, 8)
    pacing.conflicted(batches[0], 0.0)
    pacing.conflicted(batches[1], 0.0)
    pacing.refused(batches[2])
    (part,), _ = pacing.choose(batches, 10.0)
    assert part.span.partition.partition == 2
    pacing.committed([Span(A, 0, 4, 4)], turn=0.1)
    chosen = [pacing.choose(batches, now)[0] for now in (11.0, 12.0)]
    assert [[batch.span.partition.partition for batch in each] for each in chosen] == [[0, 1], [2]]
