"""What lives from a start to a stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Lifetime"]


class Lifetime(ABC):
    """Runs for as long as a ``with`` block, or from a call to the other."""

    @abstractmethod
    def start(self) -> Self:
        """Begin; it works on return."""

    @abstractmethod
    def stop(self) -> None:
        """End, and leave nothing behind."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
