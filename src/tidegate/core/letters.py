"""Dead letters: records whose handling failed for good."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from tidegate.core.records import Record

__all__ = ["Letter", "ParkedLetter"]


class Letter(NamedTuple):
    """A record to park in the transaction that steps over it, with the reason and the number of attempts made."""

    record: Record
    error: str
    attempts: int = 1


class ParkedLetter(NamedTuple):
    """A dead letter as the ledger holds it."""

    id: int
    group: str
    letter: Letter
    at: datetime
