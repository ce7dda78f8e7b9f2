"""Records as columns are the records that they were made of."""

from __future__ import annotations

from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.records import Record, Records, TopicPartition


def _records(topics: list[str], partitions: int) -> st.SearchStrategy[Record]:
    return st.builds(
        Record,
        st.sampled_from(topics),
        st.integers(0, partitions - 1),
        st.integers(0, 20),
        st.none() | st.binary(max_size=3),
        st.none() | st.binary(max_size=5),
        st.sampled_from([(), (("trace", b"1"), ("trace", None))]),
        st.none() | st.integers(0, 99),
    )


mixed = st.lists(_records(["orders", "bills"], 2), max_size=12)
ascending = st.lists(_records(["orders"], 1), max_size=12, unique_by=attrgetter("offset")).map(
    lambda records: sorted(records, key=attrgetter("offset"))
)
given_records = mixed | ascending


@given(given_records)
def test_columns_are_the_records_again(records: list[Record]) -> None:
    found = Records.of(records)
    assert list(found) == records
    assert found == records == found
    assert tuple(records) == found
    assert len(found) == len(records)
    assert [found[place] for place in range(-len(records), len(records))] == records * 2
    assert list(found.sizes) == [each.size for each in records]
    for name in Record._fields:
        assert list(found.part(name)) == list(map(attrgetter(name), records))
    assert found != [*records, Record("orders", 0, 99)]


@given(given_records)
def test_a_run_has_one_partition_and_ascending_offsets(records: list[Record]) -> None:
    runs = Records.of(records).runs
    assert [record for run in runs for record in run] == records
    for run in runs:
        offsets = [record.offset for record in run]
        assert len(run) > 0
        assert {record.source for record in run} == {run.source}
        assert offsets == sorted(set(offsets)) == list(run.offsets)
        assert run.end == offsets[-1] + 1


@given(given_records, st.integers(-1, 22))
def test_what_lies_behind_an_offset_is_found_in_a_run(records: list[Record], offset: int) -> None:
    for run in Records.of(records).runs:
        found = run.behind(offset)
        assert ([] if found is None else list(found)) == [each for each in run if each.offset >= offset]


@given(st.lists(given_records, max_size=6), st.integers(-5, 40), st.integers(-5, 40))
def test_what_is_joined_can_be_cut_anywhere(lists: list[list[Record]], first: int, last: int) -> None:
    records = [record for each in lists for record in each]
    found = Records.joined(map(Records.of, lists))
    assert found == records
    assert found[first:last] == records[first:last]
    assert found[first:] == records[first:]
    assert found[::2] == records[::2]
    assert Records.joined([found[:first], found[first:]]) == records[:first] + records[first:]
    places = [place for place in (0, 3, 7, 30) if place < len(records)]
    assert found.at(places) == [records[place] for place in places]
    assert list(map(list, lists)) == [list(Records.of(each)) for each in lists], "what was joined is as it was"


def test_single_records_do_not_stay_in_single_runs() -> None:
    records = [Record("orders", 0, offset, None, b"x") for offset in range(3000)]
    found = Records()
    for each in records:
        found = Records.joined([found, Records.of([each])])
    assert found == records
    assert len(found.runs) < 20


def test_a_key_without_bytes_is_a_key() -> None:
    (run,) = Records.of([Record("orders", 0, 1, b""), Record("orders", 0, 2, b"")]).runs
    assert [record.key for record in run] == [b"", b""]


def test_a_place_that_does_not_exist_is_none() -> None:
    found = Records.of([Record("orders", 0, 1)])
    with pytest.raises(IndexError):
        found[1]
    with pytest.raises(IndexError):
        Records()[0]
    assert found.runs[0].source == TopicPartition("orders", 0)
