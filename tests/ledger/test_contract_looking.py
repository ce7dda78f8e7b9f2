"""The contract, for those who look on: totals, the newest entries, and edits that look before they leap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from tests.patience import next_millisecond

from tidegate.core.journal import Kind
from tidegate.core.positions import Totals
from tidegate.core.records import TopicPartition
from tidegate.ledger.ledger import Rows

from .samples import FIRST, GROUP, OTHER, SECOND, THIRD, advance, kinds, offsets, span
from .stores import Store


def test_totals_add_up_the_positions_of_each_group_and_topic(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND, OTHER], 5)
    advance(store, claims, span(5, 9))
    store.ledger.release({SECOND: claims[SECOND]})
    store.ledger.claim("shipping", [FIRST], 2)
    store.ledger.pause("shipping")
    store.ledger.pause("audit")
    found = store.open().totals()
    assert [total._replace(updated_at=None) for total in found] == [
        Totals("audit", True, None),
        Totals(GROUP, False, "orders", 2, 1, 14),
        Totals(GROUP, False, "payments", 1, 1, 5),
        Totals("shipping", True, "orders", 1, 1, 2),
    ]
    rows = store.ledger.read(GROUP).positions
    assert found[1].updated_at == max(row.updated_at for tp, row in rows.items() if tp.topic == "orders")  # type: ignore[type-var]
    assert found[0].updated_at is None


def test_totals_of_the_largest_offsets_are_exact(store: Store) -> None:
    largest = 2**63 - 1
    store.ledger.edit(GROUP, {FIRST: largest, SECOND: largest, THIRD: largest - 2})
    (total,) = store.ledger.totals()
    assert total.next_offsets == 3 * largest - 2


def test_the_newest_entries_come_first(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND], 0)
    next_millisecond()
    advance(store, claims, span(0, 3))
    next_millisecond()
    advance(store, claims, span(0, 7, SECOND))
    next_millisecond()
    store.ledger.edit(GROUP, {FIRST: 1}, note="again")
    next_millisecond()
    store.ledger.pause(GROUP)
    newest = store.open().newest(GROUP)
    found = list(islice(newest, 4))
    assert kinds(found) == ["pause", "edit", "advance", "advance"]
    assert [entry.partition for entry in found] == [None, FIRST, SECOND, FIRST]
    assert (found[1].start, found[1].end, found[1].note) == (3, 1, "again")
    whole = [*found, *newest]
    assert len(whole) == len(set(whole)), "each of them once"
    assert set(whole) == set(store.ledger.journal(GROUP))
    assert list(store.ledger.newest(GROUP, FIRST)) == list(store.ledger.journal(GROUP, FIRST))[::-1]
    assert list(store.ledger.newest("nobody")) == []
    assert list(store.ledger.newest(GROUP, THIRD)) == []


def test_the_newest_entries_are_read_page_by_page(store: Store) -> None:
    partitions = [TopicPartition("orders", number) for number in range(3)]
    claims = store.ledger.claim(GROUP, partitions, 0)
    for _ in range(90):
        store.ledger.release(claims)
        claims = store.ledger.claim(GROUP, partitions)
    newest = store.ledger.newest(GROUP)
    first = next(newest)
    store.ledger.release(claims)  # while the pages are turned
    found = [first, *newest]
    assert len(found) == len(set(found)) >= 3 * 182
    for tp in partitions:
        numbers = [entry.seq for entry in found if entry.partition == tp]
        assert numbers == list(range(numbers[0], 0, -1)), "every entry, each once, backwards"
    whole = list(store.ledger.newest(GROUP))
    times = [entry.at for entry in whole if entry.at is not None]
    assert all(later >= earlier - timedelta(seconds=1) for later, earlier in pairwise(times))
    assert datetime.now(UTC) - times[0] < timedelta(seconds=60)


def test_an_edit_looks_at_the_rows_before_it_changes_them(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND], 4)
    seen: list[dict[TopicPartition, int]] = []

    def look(rows: Rows) -> None:
        seen.append({tp: row.next_offset for tp, row in rows.items()})

    store.ledger.edit(GROUP, {FIRST: 2, THIRD: 1}, check=look)
    assert seen == [{FIRST: 4}]
    assert offsets(store.ledger) == {FIRST: 2, SECOND: 4, THIRD: 1}

    def refuse(rows: Rows) -> None:
        raise ValueError("not so")

    with pytest.raises(ValueError, match="not so"):
        store.ledger.edit(GROUP, {FIRST: 0, SECOND: 0}, check=refuse)
    assert offsets(store.ledger) == {FIRST: 2, SECOND: 4, THIRD: 1}
    advance(store, claims, span(4, 5, SECOND))
    assert next(store.ledger.newest(GROUP, FIRST)).kind is Kind.EDIT
    assert store.ledger.verify(GROUP).ok
