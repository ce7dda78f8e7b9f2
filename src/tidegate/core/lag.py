"""Lag: how far behind the end of its log a group may fall."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.core.errors import ConfigurationError

__all__ = ["LagGuard"]


@dataclass(frozen=True, slots=True)
class LagGuard:
    """A partition that is more than ``limit`` records behind skips to ``keep`` before its end; looked at every so many
    seconds.
    """

    limit: int
    keep: int = 0
    every: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= self.limit or self.every <= 0:
            raise ConfigurationError("'keep' has to be between 0 and 'limit', and 'every' more than 0 seconds")
