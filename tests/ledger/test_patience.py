"""How long an operation is tried again: a pure matter of time, tries and what went wrong."""

from __future__ import annotations

import time

import pytest

from tidegate.errors import HeldTooLong, LedgerBusy, LedgerConflict, LedgerUnavailable
from tidegate.ledger.transaction import (
    Conflict,
    ConnectionLost,
    HeldIdle,
    Limits,
    LockWaitOver,
    OutcomeUnknown,
    Patience,
)

BRIEF = Limits(hold=0.2, lock_wait=0.2)
LONG = Limits(hold=60, lock_wait=600, answer=700)


def test_conflicts_are_tried_again_until_the_lock_wait_is_over() -> None:
    patience, tries, began = Patience(BRIEF, "group 'billing'"), 0, time.monotonic()
    with pytest.raises(LedgerConflict, match="billing") as raised:
        while True:
            tries += 1
            patience.again(Conflict("as if the store had said so"))
    assert time.monotonic() - began >= 0.2
    assert raised.value.conflicts == tries > 1


def test_no_operation_is_tried_more_often_than_the_limits_say() -> None:
    patience = Patience(Limits(attempts=3), "group 'billing'")
    patience.again(Conflict())
    patience.again(ConnectionLost())
    with pytest.raises(LedgerConflict):
        patience.again(Conflict())


def test_a_lock_that_was_waited_for_once_is_not_waited_for_again() -> None:
    with pytest.raises(LedgerBusy):
        Patience(LONG, "group 'billing'").again(LockWaitOver())


def test_a_transaction_that_was_idle_for_too_long_is_tried_once_more() -> None:
    patience = Patience(LONG, "group 'billing'")
    patience.again(HeldIdle("ended", seconds=70, hold=60))
    patience.again(Conflict())
    with pytest.raises(HeldTooLong):
        patience.again(HeldIdle("ended", seconds=70, hold=60))


def test_once_an_outcome_was_unknown_no_error_says_that_nothing_was_written() -> None:
    patience = Patience(Limits(attempts=2), "group 'billing'")
    patience.again(OutcomeUnknown("broken"))
    with pytest.raises(LedgerUnavailable, match="not known whether this was done"):
        patience.again(Conflict())
