"""Several servers that are started and stopped together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tidegate.sandbox.errors import PortTakenError

__all__ = ["Several"]

_ATTEMPTS = 3


class Several(ABC):
    """All of them run, or none does."""

    def start(self, timeout: float | None = None) -> Self:
        """Start them all, and return when each knows of the others."""
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

    @abstractmethod
    def stop(self) -> None:
        """End all processes and remove their directories."""

    @property
    @abstractmethod
    def _has_started(self) -> bool:
        """Whether there is something to stop."""

    @abstractmethod
    def _start(self, timeout: float | None) -> None:
        """Try once, on new ports."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
