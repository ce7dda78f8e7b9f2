"""The identity of a change over its retries, so that it takes effect only once even if answers are lost."""

from __future__ import annotations

from typing import Generic, TypeVar

from tidegate.core.runtime import Runtime
from tidegate.ledger.threads import THREADS

__all__ = ["Once"]

T = TypeVar("T")


class Once(Generic[T]):
    """One change, over all its attempts.

    The transaction that makes the change also stores ``id``. An attempt that finds the id in the store changes nothing,
    because an earlier attempt took effect. That attempt is always the last one that computed a result, so ``result``
    still holds it.

    ``what`` names the change in errors. ``unknown``: an attempt was sent but not answered, and no later attempt has
    found out yet whether it took effect.
    """

    result: T

    def __init__(self, what: str, runtime: Runtime = THREADS) -> None:
        self.what = what
        self._runtime = runtime
        self.id = self._runtime.token(16)
        self.unknown = False

    def anew(self) -> None:
        """Take a new id, after it is certain that no attempt so far has taken effect or ever will."""
        self.id = self._runtime.token(16)
        self.unknown = False
