"""Delivering: the handler and the position, in one transaction or in two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegate.app.handling import Postponed
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
    *,
    wait: Callable[[float], object],
) -> Result:
    """Run ``handler`` and move the positions, in the order that the delivery says.

    Where the position goes first, nobody would ever hand a postponed record out again: it is waited for here, between
    two transactions. Otherwise :class:`Postponed` is raised.
    """
    result: Result
    if delivery is Delivery.EXACTLY_ONCE:
        result = ledger.transact(claims, spans, handler)
    elif delivery is Delivery.AT_LEAST_ONCE:
        with ledger.detached(claims, spans) as tx:
            handler(tx)
        result = ledger.transact(claims, spans)
    else:
        result = ledger.transact(claims, spans)
        while (after := _postponed(ledger, claims, spans, handler)) is not None:
            wait(after)
    return result


def _postponed(
    ledger: Any, claims: Mapping[TopicPartition, Claim], spans: Sequence[Span], handler: Callable[[Any], object]
) -> float | None:
    """Run the handler; the seconds after which to do so again, if a record is to be tried again."""
    try:
        with ledger.detached(claims, spans) as tx:
            handler(tx)
    except Postponed as postponed:
        return postponed.after
    return None
