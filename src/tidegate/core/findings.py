"""Findings: what an examination has to say, and what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Finding", "Verdict"]


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    """As it should be."""

    WARNING = "warning"
    """It works, and something about it may surprise."""

    FAULT = "fault"
    """It cannot work like this, or not as promised."""


class Finding(NamedTuple):
    """The outcome of one check; ``advice`` is what to do."""

    check: str
    verdict: Verdict
    said: str
    advice: str | None = None

    @classmethod
    def ok(cls, check: str, said: str) -> Finding:
        """All is well."""
        return cls(check, Verdict.OK, said)

    @classmethod
    def warning(cls, check: str, said: str, advice: str) -> Finding:
        """Something to think about."""
        return cls(check, Verdict.WARNING, said, advice)

    @classmethod
    def fault(cls, check: str, said: str, advice: str) -> Finding:
        """Something to mend."""
        return cls(check, Verdict.FAULT, said, advice)
