"""Delivering: the data and the position, in one transaction or in two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from tidegate.core.delivery import Delivery
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Span
from tidegate.ledger.base import Ledger, Tx
from tidegate.ledger.transaction import Outcome, Result

__all__ = ["deliver"]


def _once(apart: Callable[[], None]) -> None:
    apart()


def deliver(
    ledger: Ledger[Tx],
    delivery: Delivery,
    claims: Mapping[TopicPartition, Claim],
    spans: Sequence[Span],
    write: Callable[[Tx], object],
    *,
    last: Callable[[Callable[[], None]], None] = _once,
    shared: bool = False,
) -> Result:
    """Write and move the positions, in the order that the delivery says.

    Where the position goes first, nobody would ever hand the records out again if writing them failed: ``last`` is
    called with the transaction that writes, and may run it more than once. If the position had moved before, nothing is
    written. ``shared``: others may be at the same work with the same claims, as attempts at a task of Spark are, so
    that a COMMIT without an answer may have been theirs.
    """

    def apart() -> None:
        with ledger.detached(claims, spans) as tx:
            write(tx)

    match delivery:
        case Delivery.EXACTLY_ONCE:
            return ledger.transact(claims, spans, write)
        case Delivery.AT_LEAST_ONCE:
            apart()
            return ledger.transact(claims, spans)
        case Delivery.AT_MOST_ONCE:
            result = ledger.transact(claims, spans)
            if result.outcome is Outcome.COMMITTED and not (shared and result.unknown_outcomes):
                last(apart)
            return result
        case other:
            assert_never(other)
