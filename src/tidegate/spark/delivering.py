"""Delivering: the data and the position, in one transaction or in two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidegate.core.delivery import Delivery
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Span
from tidegate.ledger import Ledger, Result, SqlTransaction

__all__ = ["deliver"]


def deliver(
    ledger: Ledger[SqlTransaction],
    delivery: Delivery,
    claims: Mapping[TopicPartition, Claim],
    spans: Sequence[Span],
    write: Callable[[SqlTransaction], object],
) -> Result:
    """Write and move the positions, in the order that the delivery says."""
    if delivery is Delivery.EXACTLY_ONCE:
        return ledger.transact(claims, spans, write)
    if delivery is Delivery.AT_LEAST_ONCE:
        with ledger.detached(claims, spans) as tx:
            write(tx)
        return ledger.transact(claims, spans)
    result = ledger.transact(claims, spans)
    with ledger.detached(claims, spans) as tx:
        write(tx)
    return result
