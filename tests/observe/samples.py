"""One event of each kind, with something planted where a payload or a secret could be."""

from __future__ import annotations

from tidegate.core.records import TopicPartition
from tidegate.core.work import Span
from tidegate.observe import (
    Claimed,
    Committed,
    Conflicted,
    DeadLettered,
    Event,
    FencedOff,
    LagSeen,
    Paused,
    Polled,
    Rebalanced,
    Retried,
    Skipped,
    StoreBack,
    StoreLost,
)

PLANTED = "pl4nted"
ORDERS = TopicPartition("orders", 3)
BILLS = TopicPartition("bills", 0)

EVENTS: list[Event] = [
    Polled("billing", 20, 4096),
    Committed("billing", (Span(ORDERS, 10, 30, 20),), 0.25, 2, 1, True),
    Claimed("billing", (ORDERS,), (10,)),
    FencedOff("billing", {ORDERS: "host-77-ab12"}, "someone else claimed it"),
    Rebalanced("billing", "assigned", (ORDERS,), 1.5),
    LagSeen("billing", ORDERS, 30, 130),
    DeadLettered("billing", ORDERS, 12, f"ValidationError: input_value='{PLANTED}'\n{PLANTED}"),
    Skipped("billing", Span(ORDERS, 13, 14, 1), "skip", f"skipped after ValueError: not a number: '{PLANTED}'"),
    Skipped("billing", Span(ORDERS, 14, 20), "loss", "retention passed the position: offsets 14 to 19 are gone"),
    Paused("billing", True),
    StoreLost("billing", "ledger", f"cannot connect to\nmysql+pymysql://me:{PLANTED}@db/shop"),
    StoreBack("billing", "ledger", 61.2),
    Retried("billing", ORDERS, 12, 2, 0.5, "ValueError"),
    Conflicted(
        "billing", (Span(ORDERS, 10, 30, 20),), 2, f"deadlock detected at\nmysql+pymysql://me:{PLANTED}@db/shop"
    ),
]
