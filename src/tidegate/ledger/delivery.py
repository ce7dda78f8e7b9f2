"""Delivery of data and position: in one transaction (exactly once), or in two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from tidegate.core.policies import Delivery
from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.ledger.ledger import Tx
from tidegate.ledger.position_store import PositionStore
from tidegate.ledger.transaction import Outcome, Result

__all__ = ["deliver"]


def _once(apart: Callable[[], object]) -> None:
    apart()


def deliver(
    ledger: PositionStore[Tx],
    delivery: Delivery,
    claims: Mapping[TopicPartition, Claim],
    spans: Sequence[Span],
    write: Callable[[Tx], object],
    *,
    written: Callable[[], Sequence[Span]] | None = None,
    last: Callable[[Callable[[], object]], None] = _once,
    shared: bool = False,
    conflicts: int | None = None,
) -> Result:
    """Write the data and move the positions, in the order that ``delivery`` demands.

    ``write`` cuts a transaction that advances positions, if it stops early. If the positions move in another
    transaction, ``written`` returns the spans that it has written; by default all. At-most-once moves the positions
    first, so records that cannot be written then are never read again. Therefore ``last`` is called with the function
    that writes, and may retry it. Nothing is written if the positions had already moved before. ``shared``:
    other processes may do the same work with the same claims, as attempts at a Spark task do, so an unanswered COMMIT
    may have been theirs; at-most-once then writes nothing after one. ``conflicts`` applies to exactly-once only: raise
    at the conflict with that number instead of retrying.
    """

    def apart() -> Sequence[Span]:
        with ledger.detached(claims, spans) as tx:
            write(tx)
        return spans if written is None else written()

    match delivery:
        case Delivery.EXACTLY_ONCE:
            return ledger.transact(claims, spans, write, conflicts=conflicts)
        case Delivery.AT_LEAST_ONCE:
            return ledger.transact(claims, apart())
        case Delivery.AT_MOST_ONCE:
            result = ledger.transact(claims, spans)
            if result.outcome is Outcome.COMMITTED and not (shared and result.unknown_outcomes):
                last(apart)
            return result
        case other:
            assert_never(other)
