"""The contract of a ledger: data and position move together, once."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.core.records import FailedRecord, Record, TopicPartition
from tidegate.core.work import Move, Span
from tidegate.errors import AlreadyDone, ConfigurationError, Fenced, LedgerBusy, NotCommitted, TidegateError
from tidegate.ledger.transaction import Conflict, ConnectionLost, Limits, Outcome, OutcomeUnknown

from .samples import FIRST, GROUP, PARTITIONS, SECOND, THIRD, advance, kinds, offsets, rows_of, span, writing
from .stores import Store

LETTER = FailedRecord(Record("orders", 0, 1, b"key", b"value"), "cannot be read")


class Oops(Exception):
    """A handler's own error."""


def test_data_position_and_letters_are_committed_together(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])

    def handler(tx: Any) -> None:
        writing(store, span(0, 3))(tx)
        tx.park(LETTER)

    result = store.ledger.transact(claims, [span(0, 3)], handler)
    assert (result.outcome, result.attempts) == (Outcome.COMMITTED, 1)
    other = store.open()
    assert offsets(other) == {FIRST: 3}
    assert store.rows() == rows_of(span(0, 3))
    assert [parked.letter for parked in other.dead_letters(GROUP)] == [LETTER]


def test_a_span_may_be_stepped_over_without_a_handler(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    assert store.ledger.transact(claims, [Span(FIRST, 0, 40)]).outcome is Outcome.COMMITTED
    assert offsets(store.ledger) == {FIRST: 40}


def test_an_error_of_the_handler_undoes_everything_and_reaches_the_caller(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND])
    before = store.ledger.read(GROUP)
    attempts = []

    def handler(tx: Any) -> None:
        attempts.append(tx)
        writing(store, span(0, 3))(tx)
        tx.park(LETTER)
        raise Oops

    with pytest.raises(Oops):
        store.ledger.transact(claims, [span(0, 3), span(0, 1, SECOND)], handler)
    assert len(attempts) == 1
    assert store.ledger.read(GROUP) == before
    assert store.rows() == []
    assert store.ledger.dead_letters(GROUP) == []
    assert kinds(store.ledger.journal(GROUP, FIRST)) == ["start", "claim"]
    advance(store, claims, span(0, 3))


@pytest.mark.parametrize("trouble", [Conflict, ConnectionLost, OutcomeUnknown])
def test_the_handler_runs_again_after_trouble_and_its_data_is_written_once(
    store: Store, trouble: type[Conflict | ConnectionLost | OutcomeUnknown]
) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    attempts = []

    def handler(tx: Any) -> None:
        attempts.append(tx)
        writing(store, span(0, 3))(tx)
        tx.park(LETTER)
        if len(attempts) < 3:
            raise trouble("as if the store had said so")

    result = store.ledger.transact(claims, [span(0, 3)], handler)
    assert (result.outcome, result.attempts, len(attempts)) == (Outcome.COMMITTED, 3, 3)
    assert store.rows() == rows_of(span(0, 3))
    assert len(store.ledger.dead_letters(GROUP)) == 1


def test_trouble_that_goes_on_ends_in_an_error_within_the_bound(store: Store) -> None:
    impatient = store.open(Limits(attempts=4))
    claims = impatient.claim(GROUP, [FIRST])

    def handler(tx: Any) -> None:
        writing(store, span(0, 3))(tx)
        raise Conflict("as if the store had said so")

    with pytest.raises(LedgerBusy, match=r"billing.*orders\[0\]"):
        impatient.transact(claims, [span(0, 3)], handler)
    assert store.rows() == []
    assert offsets(store.ledger) == {FIRST: 0}


def test_whoever_is_fenced_writes_nothing_and_is_told_the_owner(store: Store) -> None:
    old = store.ledger.claim(GROUP, [FIRST])
    new = store.open().claim(GROUP, [FIRST])
    before = store.ledger.read(GROUP)

    def handler(tx: Any) -> None:
        writing(store, span(0, 3))(tx)
        tx.park(LETTER)

    with pytest.raises(Fenced, match=f"{GROUP}.*{new[FIRST].owner}"):
        store.ledger.transact(old, [span(0, 3)], handler)
    assert store.rows() == []
    assert store.ledger.dead_letters(GROUP) == []
    assert store.ledger.read(GROUP) == before


def test_whoever_is_fenced_before_it_began_does_not_run_its_handler(store: Store) -> None:
    old = store.ledger.claim(GROUP, [FIRST])
    store.ledger.claim(GROUP, [FIRST])
    with pytest.raises(Fenced):
        store.ledger.transact(old, [span(0, 3)], lambda _: pytest.fail("the handler ran"))


@pytest.mark.parametrize(("start", "end"), [(0, 5), (4, 6), (6, 7)])
def test_a_span_that_does_not_start_at_the_position_is_fenced(store: Store, start: int, end: int) -> None:
    claims = store.ledger.claim(GROUP, [FIRST], 5)
    with pytest.raises(Fenced):
        advance(store, claims, span(start, end))
    assert offsets(store.ledger) == {FIRST: 5}
    assert store.rows() == []


def test_a_position_that_is_gone_is_fenced(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    strange = {SECOND: claims[FIRST]._replace(partition=SECOND)}
    with pytest.raises(Fenced, match=r"orders\[1\]") as fenced:
        advance(store, strange, span(0, 1, SECOND))
    assert fenced.value.owners == {SECOND: None}


def test_the_same_work_again_is_done_already_and_writes_nothing(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND])
    spans = span(0, 3), span(0, 2, SECOND)
    advance(store, claims, *spans)
    result = store.open().transact(claims, reversed(spans), lambda _: pytest.fail("the handler ran"))
    assert result.outcome is Outcome.ALREADY_DONE
    assert store.rows() == rows_of(*spans)
    assert store.ledger.verify(GROUP).ok


@pytest.mark.parametrize("move", [Move.SKIP, Move.LOSS])
def test_stepping_over_records_that_were_processed_is_fenced_and_not_reported_as_done(store: Store, move: Move) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    advance(store, claims, span(0, 3))
    with pytest.raises(Fenced):
        store.ledger.transact(claims, [span(0, 3)], move=move, note="gone")
    assert [entry.kind for entry in store.ledger.journal(GROUP)][-1] == "advance"
    assert store.ledger.verify(GROUP).ok


def test_work_that_was_done_before_the_last_is_fenced(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    advance(store, claims, span(0, 3))
    advance(store, claims, span(3, 5))
    with pytest.raises(Fenced):
        advance(store, claims, span(0, 3))
    assert store.rows() == rows_of(span(0, 5))


def test_a_rewound_span_is_processed_again_though_an_old_owner_holds_the_same_start(store: Store) -> None:
    old = store.ledger.claim(GROUP, [FIRST])
    advance(store, old, span(0, 5))
    store.open().edit(GROUP, {FIRST: 0}, note="again, please")
    with pytest.raises(Fenced) as fenced:
        advance(store, old, span(0, 5))
    assert fenced.value.owners == {FIRST: None}
    assert store.rows() == rows_of(span(0, 5))
    new = store.ledger.reclaim(old).claims
    assert advance(store, new, span(0, 5)).outcome is Outcome.COMMITTED
    assert store.rows() == rows_of(span(0, 5), span(0, 5))
    assert store.ledger.verify(GROUP).ok


def test_a_rewound_span_is_processed_again_by_whoever_claims_next(store: Store) -> None:
    advance(store, store.ledger.claim(GROUP, [FIRST]), span(0, 5))
    store.ledger.edit(GROUP, {FIRST: 0})
    assert advance(store, store.ledger.claim(GROUP, [FIRST]), span(0, 5)).outcome is Outcome.COMMITTED


def test_several_partitions_advance_together(store: Store) -> None:
    claims = store.ledger.claim(GROUP, PARTITIONS)
    spans = [span(0, n + 1, tp) for n, tp in enumerate(PARTITIONS)]
    advance(store, claims, *spans)
    assert offsets(store.ledger) == {FIRST: 1, SECOND: 2, THIRD: 3}
    assert len({row.token for row in store.ledger.read(GROUP).positions.values()}) == 1


@pytest.mark.parametrize("stale", PARTITIONS, ids=str)
def test_if_one_of_several_is_stale_none_advances(store: Store, stale: TopicPartition) -> None:
    claims = store.ledger.claim(GROUP, PARTITIONS)
    other = store.ledger.claim(GROUP, [stale])
    before = store.ledger.read(GROUP)
    with pytest.raises(Fenced) as fenced:
        advance(store, claims, *(span(0, 2, tp) for tp in PARTITIONS))
    assert fenced.value.owners[stale] == other[stale].owner
    assert store.ledger.read(GROUP) == before
    assert store.rows() == []


def test_skips_and_losses_are_journalled_with_their_reason(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    store.ledger.transact(claims, [Span(FIRST, 0, 5)], move=Move.SKIP, note="poisoned")
    store.ledger.transact(claims, [Span(FIRST, 5, 90)], move=Move.LOSS, note="retention took it")
    skip, loss = list(store.ledger.journal(GROUP, FIRST))[2:]
    assert (skip.kind, skip.start, skip.end, skip.records, skip.note) == ("skip", 0, 5, 0, "poisoned")
    assert (loss.kind, loss.start, loss.end, loss.note) == ("loss", 5, 90, "retention took it")
    assert store.ledger.verify(GROUP).ok


@pytest.mark.parametrize(
    "spans",
    [[], [span(3, 3)], [span(5, 3)], [span(-1, 3)], [span(0, 2**63)], [span(0, 1), span(1, 2)], [span(0, 1, THIRD)]],
    ids=["none", "empty", "backward", "negative", "too large", "twice", "not claimed"],
)
def test_spans_that_make_no_sense_are_refused_before_anything_is_sent(store: Store, spans: list[Span]) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND])
    before = store.ledger.read(GROUP)
    with pytest.raises(ConfigurationError):
        store.ledger.transact(claims, spans, lambda _: pytest.fail("the handler ran"))
    assert store.ledger.read(GROUP) == before


@pytest.mark.parametrize("start", [2**31 - 1, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 3])
def test_offsets_are_exact_in_all_of_their_64_bits(store: Store, start: int) -> None:
    claims = store.ledger.claim(GROUP, [FIRST], start)
    with pytest.raises(Fenced):
        store.ledger.transact(claims, [Span(FIRST, start - 1, start)])
    store.ledger.transact(claims, [Span(FIRST, start, start + 1)])
    assert offsets(store.open()) == {FIRST: start + 1}
    last = list(store.ledger.journal(GROUP, FIRST))[-1]
    assert (last.start, last.end) == (start, start + 1)
    assert store.ledger.verify(GROUP).ok


def test_a_position_may_be_the_largest_offset(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    store.ledger.transact(claims, [Span(FIRST, 0, 2**63 - 1)])
    assert offsets(store.ledger) == {FIRST: 2**63 - 1}


# The transaction as a block


def test_a_block_commits_when_it_is_left(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    with store.ledger.transaction(claims, [span(0, 3)]) as tx:
        writing(store, span(0, 3))(tx)
        tx.park(LETTER)
    assert offsets(store.ledger) == {FIRST: 3}
    assert store.rows() == rows_of(span(0, 3))
    assert len(store.ledger.dead_letters(GROUP)) == 1


def test_a_block_that_raises_writes_nothing(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    with pytest.raises(Oops), store.ledger.transaction(claims, [span(0, 3)]) as tx:
        writing(store, span(0, 3))(tx)
        raise Oops
    assert offsets(store.ledger) == {FIRST: 0}
    assert store.rows() == []


def test_a_block_of_a_fenced_owner_writes_nothing(store: Store) -> None:
    old = store.ledger.claim(GROUP, [FIRST])
    store.ledger.claim(GROUP, [FIRST])
    with pytest.raises(Fenced), store.ledger.transaction(old, [span(0, 3)]) as tx:
        writing(store, span(0, 3))(tx)
    assert store.rows() == []


def test_a_block_that_was_committed_before_says_so(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    advance(store, claims, span(0, 3))
    with pytest.raises(AlreadyDone), store.ledger.transaction(claims, [span(0, 3)]) as tx:
        writing(store, span(0, 3))(tx)
    assert store.rows() == rows_of(span(0, 3))


@pytest.mark.parametrize("trouble", [Conflict, ConnectionLost, OutcomeUnknown])
def test_a_block_that_met_trouble_can_be_run_again(
    store: Store, trouble: type[Conflict | ConnectionLost | OutcomeUnknown]
) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    with pytest.raises(NotCommitted), store.ledger.transaction(claims, [span(0, 3)]) as tx:
        writing(store, span(0, 3))(tx)
        raise trouble("as if the store had said so")
    assert store.rows() == []
    with store.ledger.transaction(claims, [span(0, 3)]) as tx:
        writing(store, span(0, 3))(tx)
    assert store.rows() == rows_of(span(0, 3))


@pytest.mark.parametrize("swallows", [False, True], ids=["as it is", "and swallows the error"])
def test_a_handler_that_ends_its_transaction_separates_nothing(store: Store, swallows: bool) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    before = store.ledger.read(GROUP)

    def handler(tx: Any) -> None:
        writing(store, span(0, 2))(tx)
        try:
            store.end_transaction(tx)
        except Exception:
            if not swallows:
                raise
        writing(store, span(2, 3))(tx)

    try:
        store.ledger.transact(claims, [span(0, 3)], handler)
    except TidegateError:
        assert store.ledger.read(GROUP) == before
        assert store.rows() == []
        advance(store, claims, span(0, 3))
    assert offsets(store.ledger) == {FIRST: 3}
    assert store.rows() == rows_of(span(0, 3))


def test_a_detached_transaction_writes_data_and_letters_and_leaves_the_position_alone(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    with store.ledger.detached(claims, [span(0, 3)]) as tx:
        writing(store, span(0, 3))(tx)
        tx.park(FailedRecord(Record("orders", 0, 1), "no"))
    assert [row.offset for row in store.rows()] == [0, 1, 2]
    assert len(store.ledger.dead_letters(GROUP)) == 1
    assert offsets(store.ledger) == {FIRST: 0}
    with pytest.raises(ZeroDivisionError), store.ledger.detached(claims, [span(0, 3)]) as tx:
        writing(store, span(0, 3))(tx)
        raise ZeroDivisionError
    assert len(store.rows()) == 3
