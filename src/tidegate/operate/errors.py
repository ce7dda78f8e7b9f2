"""What can be wrong with what an operator asks for."""

from __future__ import annotations

from tidegate.core.errors import ConfigurationError, TidegateError

__all__ = ["ChangeRefused", "PositionsMoved"]


class ChangeRefused(ConfigurationError):
    """A change that makes no sense: beyond the end of the log, in the wrong direction, of a group that is not there."""


class PositionsMoved(TidegateError):
    """The positions are not what the preview was made of any more: nothing was changed, and a new preview is needed."""
