"""Findings of ``tidegate doctor``, each with advice, and the check that compares two clocks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypeAlias

__all__ = ["Clock", "Finding", "Verdict", "compare_clocks", "this_machine"]


class Verdict(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    """No problem."""

    WARNING = "warning"
    """It works, but may behave in a surprising way."""

    FAULT = "fault"
    """It does not work, or not as promised."""


class Finding(NamedTuple):
    """The outcome of one check; ``advice`` is what to do about it."""

    check: str
    verdict: Verdict
    said: str
    advice: str | None = None

    @classmethod
    def ok(cls, check: str, said: str) -> Finding:
        """Return the finding that all is well."""
        return cls(check, Verdict.OK, said)

    @classmethod
    def warning(cls, check: str, said: str, advice: str) -> Finding:
        """Return a warning: it works, but may behave in a surprising way."""
        return cls(check, Verdict.WARNING, said, advice)

    @classmethod
    def fault(cls, check: str, said: str, advice: str) -> Finding:
        """Return a fault, which has to be fixed."""
        return cls(check, Verdict.FAULT, said, advice)


Clock: TypeAlias = Callable[[], datetime]

_SKEW = timedelta(seconds=5)


def this_machine() -> datetime:
    """Return the current time of this machine."""
    return datetime.now(UTC)


def compare_clocks(ask: Clock, now: Clock) -> Finding:
    """Compare the store's clock with this machine's time halfway between the question and the answer."""
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
