"""Comparing the clock of a store with this machine's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from tidegate.core.findings import Finding

__all__ = ["Clock", "compare_clocks", "this_machine"]

Clock: TypeAlias = Callable[[], datetime]

_SKEW = timedelta(seconds=5)


def this_machine() -> datetime:
    """What time it is here."""
    return datetime.now(UTC)


def compare_clocks(ask: Clock, now: Clock) -> Finding:
    """How far the store's clock is from this machine's, as that was halfway between question and answer."""
    before = now()
    theirs = ask()
    took = now() - before
    skew = (theirs - (before + took / 2)).total_seconds()
    if abs(skew) <= (_SKEW + took / 2).total_seconds():
        return Finding.ok("clock", f"the ledger's clock and this machine's differ by {abs(skew):.1f} s")
    which = "ahead of" if skew > 0 else "behind"
    return Finding.warning(
        "clock",
        f"the ledger's clock is {abs(skew):.0f} s {which} this machine's",
        "positions do not depend on clocks, but the times in the journal and lag in seconds do; set both by NTP",
    )
