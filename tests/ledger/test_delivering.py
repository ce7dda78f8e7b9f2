"""The order of data and position, by delivery."""

from __future__ import annotations

from typing import Any

from tidegate.core.policies import Delivery
from tidegate.ledger.ledger import deliver
from tidegate.ledger.transaction import Outcome, OutcomeUnknown

from .samples import FIRST, GROUP, offsets, rows_of, span, writing
from .stores import Store


def test_at_most_once_writes_nothing_for_a_span_that_was_done_before(store: Store) -> None:
    """Another attempt at the same work has moved the position, and has written, or will."""
    claims = store.ledger.claim(GROUP, [FIRST])
    spans = [span(0, 3)]
    first = deliver(store.ledger, Delivery.AT_MOST_ONCE, claims, spans, writing(store, spans[0]))
    again = deliver(store.ledger, Delivery.AT_MOST_ONCE, claims, spans, writing(store, spans[0]))
    assert (first.outcome, again.outcome) == (Outcome.COMMITTED, Outcome.ALREADY_DONE)
    assert store.rows() == rows_of(spans[0])
    assert offsets(store.ledger) == {FIRST: 3}


def test_at_most_once_writes_nothing_if_another_attempt_may_have_moved_the_position(store: Store) -> None:
    """Two tasks of Spark may hold the same claim, and they have the same token."""
    claims = store.ledger.claim(GROUP, [FIRST])
    spans, write = [span(0, 3)], writing(store, span(0, 3))
    other, really, tries = store.open(), store.ledger._open, []

    def open_late(work: Any) -> Any:
        tries.append(work)
        if len(tries) == 1:  # this one never arrives, while another one does
            deliver(other, Delivery.AT_MOST_ONCE, claims, spans, write, shared=True)
            raise OutcomeUnknown("lost")
        return really(work)

    store.ledger._open = open_late  # type: ignore[method-assign]
    deliver(store.ledger, Delivery.AT_MOST_ONCE, claims, spans, write, shared=True)
    assert len(tries) == 2
    assert store.rows() == rows_of(span(0, 3))
