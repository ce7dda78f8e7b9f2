"""What can go wrong between a ledger and its store, told apart by what to do about it.

These never leave the ledger: each is tried again within the limits or becomes one of the public errors.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.core.errors import LedgerBusy, LedgerError, LedgerUnavailable
from tidegate.core.positions import Position
from tidegate.core.records import TopicPartition

__all__ = ["Conflict", "ConnectionLost", "LockWaitOver", "NotMoved", "OutcomeUnknown", "Trouble"]


class Trouble(Exception):
    """Base: something that another try may cure."""

    def amounts_to(self, what: str) -> LedgerError:
        """The public error, if it was not cured within the limits."""
        return LedgerBusy(
            f"{what}: conflicts with other transactions went on for too long ({self}); nothing was written"
        )


class Conflict(Trouble):
    """A deadlock, a serialization failure, a row that two created at once: rolled back, try again at once."""


class LockWaitOver(Trouble):
    """A lock was not to be had within the bound."""

    def amounts_to(self, what: str) -> LedgerError:
        """Name the lock, and its holder where the store can tell."""
        return LedgerBusy(f"{what}: {self}; nothing was written. Is another process frozen inside a transaction?")


class ConnectionLost(Trouble):
    """The connection broke before COMMIT was sent, so nothing was committed."""

    def amounts_to(self, what: str) -> LedgerError:
        """The store stayed away."""
        return LedgerUnavailable(f"{what}: {self}; nothing was written")


class OutcomeUnknown(Trouble):
    """The connection broke after COMMIT was sent: it was carried out, or not."""

    def amounts_to(self, what: str) -> LedgerError:
        """The store stayed away, so that nobody can tell yet."""
        return LedgerUnavailable(
            f"{what}: the connection broke during COMMIT and the ledger has not answered since ({self}); whether it "
            "was committed shows when the partition is claimed again"
        )


class NotMoved(Exception):
    """The compare-and-set did not match every row; carries the rows as they are, read under their locks.

    Of a replay: the dead letter is gone.
    """

    def __init__(self, rows: Mapping[TopicPartition, Position]) -> None:
        super().__init__("the compare-and-set did not match")
        self.rows = dict(rows)
