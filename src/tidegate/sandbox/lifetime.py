"""The base class of everything in the sandbox that is started and stopped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Lifetime"]


class Lifetime(ABC):
    """Runs for the length of a ``with`` block, or from :meth:`start` to :meth:`stop`."""

    @abstractmethod
    def start(self) -> Self:
        """Start; it is usable when this returns."""

    @abstractmethod
    def stop(self) -> None:
        """Stop, and clean up."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
