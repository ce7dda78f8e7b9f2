"""Lag: how far behind the end of its log a group may fall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from tidegate.core.arguments import Amount, Kind, convert_arguments, span
from tidegate.core.errors import ConfigurationError

__all__ = ["Guard", "LagGuard"]


@dataclass(frozen=True, slots=True)
class LagGuard:
    """A partition that is more than ``limit`` records behind skips to ``keep`` before its end; looked at every so many
    seconds.
    """

    limit: Amount
    keep: Amount = 0
    every: Annotated[float, span(above=True)] = 60.0

    def __post_init__(self) -> None:
        convert_arguments(self)
        if self.keep > self.limit:
            raise ConfigurationError(f"keep: expected at most {self.limit}, the limit, not {self.keep}")


def _guard(given: Any) -> LagGuard | None:
    return given if isinstance(given, LagGuard) else None


# A number alone is refused: it would skip records, and how many are kept is not said.
Guard: TypeAlias = Annotated[LagGuard, Kind("a LagGuard, such as LagGuard(limit=100_000, keep=1_000)", _guard)]
"""A lag guard as an argument."""
