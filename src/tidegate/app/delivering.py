"""Delivering: the handler and the position, in one transaction or in two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegate.core.delivery import Delivery
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Span
from tidegate.ledger import Result

__all__ = ["deliver"]


def deliver(
    ledger: Any,
    delivery: Delivery,
    claims: Mapping[TopicPartition, Claim],
    spans: Sequence[Span],
    handler: Callable[[Any], object],
) -> Result:
    """Run ``handler`` and move the positions, in the order that the delivery says."""
    result: Result
    if delivery is Delivery.EXACTLY_ONCE:
        result = ledger.transact(claims, spans, handler)
        return result
    if delivery is Delivery.AT_MOST_ONCE:
        result = ledger.transact(claims, spans)
    with ledger.detached(claims, spans) as tx:
        handler(tx)
    if delivery is Delivery.AT_LEAST_ONCE:
        result = ledger.transact(claims, spans)
    return result
