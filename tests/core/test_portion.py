"""How much of what is ready goes into one transaction."""

from __future__ import annotations

from tidegate.core.batches import Batch, Done, Portion, Tried, split
from tidegate.core.records import Record, TopicPartition
from tidegate.core.work import Span


def batch(partition: int, count: int, start: int = 0, step: int = 1) -> Batch:
    tp = TopicPartition("orders", partition)
    records = tuple(Record(*tp, start + step * number, None, b"") for number in range(count))
    return Batch(1, Span(tp, start, start + step * count, count), records)


def sizes(batches: list[Batch]) -> dict[int, int]:
    return {each.span.partition.partition: len(each.records) for each in batches}


def served(portion: Portion, batches: list[Batch], seconds: float) -> dict[int, int]:
    """What goes into the next transaction, which takes so long for each record."""
    now, _ = portion.of(batches)
    count = sum(sizes(now).values())
    portion.took([each.span.partition for each in now], count, seconds * count)
    return sizes(now)


def test_a_batch_is_cut_behind_a_record_and_what_is_known_goes_with_its_part() -> None:
    whole = batch(0, 4, start=10, step=3)
    known = {(whole.span.partition, offset): Tried(1, Done()) for offset in (10, 16)}
    head, tail = whole._replace(tries=known).cut(2)
    assert (head.span, head.records) == (Span(whole.span.partition, 10, 14, 2), whole.records[:2])
    assert (tail.span, tail.records) == (Span(whole.span.partition, 14, 22, 2), whole.records[2:])
    assert [offset for _, offset in head.tries] == [10]
    assert [offset for _, offset in tail.tries] == [16]


def test_spans_without_records_go_with_the_first_part() -> None:
    gap = Batch(1, Span(TopicPartition("orders", 9), 5, 8), ())
    first, rest = split([batch(0, 2), batch(1, 3), gap, batch(2, 1)], 3)
    assert sizes(first) == {0: 2, 1: 1, 9: 0}
    assert sizes(rest) == {1: 2, 2: 1}
    assert split([gap], 0) == ([gap], [])


def test_without_a_first_portion_there_is_no_bound_until_time_sets_one() -> None:
    portion = Portion(5.0)
    assert served(portion, [batch(0, 10_000)], 0.0001) == {0: 10_000}
    assert served(portion, [batch(0, 10_000)], 0.001) == {0: 10_000}
    assert served(portion, [batch(0, 10_000)], 0.001) == {0: 5_000}


def test_a_first_portion_grows_quickly_as_long_as_the_records_are_quick() -> None:
    portion = Portion(5.0, 4)
    seen = [served(portion, [batch(0, 10_000)], 0.00001)[0] for _ in range(6)]
    assert seen == [4, 32, 256, 2048, 10_000, 10_000]


def test_a_portion_of_slow_records_takes_no_more_than_its_seconds() -> None:
    portion = Portion(5.0, 4)
    assert [served(portion, [batch(0, 100)], 1.0)[0] for _ in range(3)] == [4, 5, 5]
    assert [served(portion, [batch(0, 100)], 15.0)[0] for _ in range(3)] == [5, 1, 1]


def test_a_single_quick_record_does_not_make_the_next_portion_small() -> None:
    portion = Portion(5.0, 4)
    for _ in range(6):
        served(portion, [batch(0, 10_000)], 0.00001)
    served(portion, [batch(0, 1)], 0.5)
    assert served(portion, [batch(0, 10_000)], 0.00001) == {0: 10_000}


def test_what_was_too_much_is_halved_at_least_and_down_to_one() -> None:
    portion = Portion(5.0)
    portion.was_too_much(10_000, 12.0)
    assert sizes(portion.of([batch(0, 10_000)])[0]) == {0: 4166}
    portion.was_too_much(100, 6.0)
    assert sizes(portion.of([batch(0, 10_000)])[0]) == {0: 50}
    portion.was_too_much(3, 100.0)
    assert sizes(portion.of([batch(0, 10_000)])[0]) == {0: 1}


def test_partitions_take_turns() -> None:
    portion = Portion(5.0, 4)
    seen = [served(portion, [batch(number, 5) for number in range(3)], 1.0) for _ in range(4)]
    assert seen[0] == {0: 4}
    assert seen[1] == {1: 5}
    assert seen[2] == {2: 5}
    assert seen[3] == {0: 5}
