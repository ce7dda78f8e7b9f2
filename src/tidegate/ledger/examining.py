"""Examining a ledger: whether it can be used here, as it is. Nothing is created or changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.core.findings import Finding
from tidegate.ledger.base import Ledger
from tidegate.ledger.clocks import Clock, this_machine
from tidegate.ledger.memory import MemoryLedger
from tidegate.ledger.sql.examining import examine_sql
from tidegate.ledger.sql.ledger import SqlLedger

__all__ = ["examine_ledger"]


def examine_ledger(ledger: Ledger[Any], now: Clock = this_machine) -> Iterator[Finding]:
    """The findings, one after the other; after one that makes the others pointless there are no more."""
    if isinstance(ledger, SqlLedger):
        yield from examine_sql(ledger, now)
    elif isinstance(ledger, MemoryLedger):
        advice = "they end with the process; name a database for anything but tests"
        yield Finding.warning("ledger", "positions are kept in memory", advice)
    else:
        from tidegate.ledger.redis.examining import examine_redis  # noqa: PLC0415 - redis is an extra

        yield from examine_redis(ledger, now)
