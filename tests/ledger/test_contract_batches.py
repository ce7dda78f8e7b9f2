"""The contract of a ledger: batches of a query, which are recognized in the next run by their digest."""

from __future__ import annotations

import pytest

from tidegate.core.records import query_source
from tidegate.core.work import Span
from tidegate.errors import Fenced, InvalidName
from tidegate.ledger.transaction import Outcome

from .samples import GROUP, OTHER, advance, offsets, rows_of
from .stores import Store

QUERY = query_source("6ba189b4-386e-4d8e-b1fc-1c868ca3979c")


def batch(number: int, digest: str = "a") -> Span:
    return Span(QUERY, number, number + 1, 1, digest)


def test_a_batch_of_an_earlier_run_is_done_already(store: Store) -> None:
    first = store.ledger.claim(GROUP, [QUERY])
    advance(store, first, batch(0))
    store.ledger.release(first)
    for _ in range(2):  # a claim of one row, and one of rows that differ
        again = store.ledger.claim(GROUP, [QUERY, OTHER])
        result = store.ledger.transact(again, [batch(0)], lambda _: pytest.fail("the handler ran"))
        assert result.outcome is Outcome.ALREADY_DONE
    assert not store.ledger.confirm(again, [batch(0)])
    advance(store, again, batch(1))
    assert offsets(store.ledger)[QUERY] == 2
    assert store.rows() == rows_of(batch(0), batch(1))
    assert store.ledger.verify(GROUP).ok


def test_other_offsets_under_the_same_number_are_fenced(store: Store) -> None:
    advance(store, store.ledger.claim(GROUP, [QUERY]), batch(0))
    again = store.ledger.claim(GROUP, [QUERY])
    with pytest.raises(Fenced):
        advance(store, again, batch(0, "b"))
    assert store.rows() == rows_of(batch(0))


def test_an_edit_forgets_the_batch(store: Store) -> None:
    advance(store, store.ledger.claim(GROUP, [QUERY]), batch(0))
    store.ledger.edit(GROUP, {QUERY: 1}, note="the same number")
    with pytest.raises(Fenced):
        advance(store, store.ledger.claim(GROUP, [QUERY]), batch(0))


@pytest.mark.parametrize("topic", ["query:", "query:a b", "query:" + "q" * 250, "other:a"])
def test_what_is_no_query_is_refused(store: Store, topic: str) -> None:
    with pytest.raises(InvalidName):
        store.ledger.claim(GROUP, [QUERY._replace(topic=topic)])
