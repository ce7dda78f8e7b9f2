"""Several servers that are started and stopped together."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

from tidegate.sandbox.errors import PortTakenError
from tidegate.sandbox.lifetime import Lifetime

__all__ = ["Several"]

_ATTEMPTS = 3


class Several(Lifetime):
    """A set of servers of which all run or none."""

    def start(self, timeout: float | None = None) -> Self:
        """Start all servers, and return when they know each other."""
        if self._has_started:
            return self
        attempts = 0
        while True:
            attempts += 1
            try:
                self._start(timeout)
                return self
            except PortTakenError:
                self.stop()
                if attempts == _ATTEMPTS:
                    raise
            except BaseException:
                self.stop()
                raise

    @property
    @abstractmethod
    def _has_started(self) -> bool:
        """Whether there is something to stop."""

    @abstractmethod
    def _start(self, timeout: float | None) -> None:
        """Make one attempt, on new ports."""
