"""Delivering: the data and the position, in one transaction or in two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from tidegate.core.delivery import Delivery
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Span
from tidegate.ledger.base import Ledger, Tx
from tidegate.ledger.transaction import Result

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
) -> Result:
    """Write and move the positions, in the order that the delivery says.

    Where the position goes first, nobody would ever hand the records out again if writing them failed: ``last`` is
    called with the transaction that writes, and may run it more than once.
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
            last(apart)
            return result
        case other:
            assert_never(other)
