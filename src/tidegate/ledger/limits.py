"""How long a ledger waits, and how long it may keep others waiting."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from tidegate.core.arguments import Count, convert_arguments
from tidegate.core.bounds import Hold, LockWait
from tidegate.core.errors import ConfigurationError
from tidegate.ledger.trouble import LockWaitOver, OutcomeUnknown, Trouble

__all__ = ["Limits", "Patience"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds, in seconds, that keep one frozen process from stopping the others.

    ``hold``: how long a transaction may sit idle on its locks before the database ends it. ``lock_wait``: how long an
    operation waits for a lock, and for how long conflicts are tried again; longer than ``hold``, so that whoever waits
    outlasts a frozen holder. ``attempts``: how often at most an operation is tried within that time.
    """

    hold: Hold = 10.0
    lock_wait: LockWait = 15.0
    attempts: Count = 100

    def __post_init__(self) -> None:
        convert_arguments(self)
        if self.hold > self.lock_wait:
            raise ConfigurationError(
                f"lock_wait ({self.lock_wait} s) has to be at least as long as hold ({self.hold} s)"
            )


class Patience:
    """The bounded number of tries of one operation."""

    def __init__(self, limits: Limits, what: str, unknown: OutcomeUnknown | None = None) -> None:
        """``unknown``: an outcome that the operation is to find out."""
        self._limits = limits
        self._what = what
        self._deadline: float | None = None
        self._tries = 0
        self._unknown = unknown

    def again(self, trouble: Trouble) -> None:
        """Wait a little and return if the operation may be tried again; otherwise raise what the trouble amounts to."""
        now = time.monotonic()
        if self._deadline is None:  # counted from the first trouble: a handler may take as long as it likes
            self._deadline = now + self._limits.lock_wait
        self._tries += 1
        if isinstance(trouble, OutcomeUnknown):
            self._unknown = trouble
        over = now >= self._deadline or self._tries >= self._limits.attempts
        if over or isinstance(trouble, LockWaitOver):
            # Once an outcome was unknown, nobody can say any more that nothing was written.
            raise (self._unknown or trouble).amounts_to(self._what) from trouble
        time.sleep(random.uniform(0.2, 1.0) * min(0.002 * 2**self._tries, 0.25))  # noqa: S311
