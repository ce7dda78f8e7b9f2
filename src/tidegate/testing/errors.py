"""What a test is told when it does not test what it says."""

from __future__ import annotations

from tidegate.core.errors import ConfigurationError, TidegateError

__all__ = ["CheckFailed", "FaultImpossible", "FaultMissed", "NotCaughtUp"]


class NotCaughtUp(TidegateError):
    """A run did not get to the end of its topics in time."""


class FaultMissed(TidegateError):
    """A run ended before it came to the step at which a fault was to strike: nothing was tested."""


class FaultImpossible(ConfigurationError):
    """A fault was asked for that cannot strike there: on a real broker, without a ledger, or without a group."""


class CheckFailed(AssertionError):
    """What was found after a fault is not what it should be; the first error is the ``__cause__``."""
