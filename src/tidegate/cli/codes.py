"""Exit codes: what a service manager learns about why a command ended."""

from __future__ import annotations

from enum import IntEnum

from tidegate.core.errors import BrokerUnavailable, ConfigurationError, LedgerUnavailable
from tidegate.kafka.errors import SendAgain

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """Why a command ended."""

    OK = 0
    """Stopped as asked, or caught up."""

    FAILED = 1
    """A listener cannot go on, or what was looked at is not well: someone has to look before it is started again."""

    CONFIGURATION = 2
    """The command line, the settings or the app are not right; nothing was started."""

    UNREACHABLE = 3
    """The ledger or Kafka is not reachable; to start again later may help."""

    INTERRUPTED = 130
    """Stopped at once, by a second SIGINT. What was under way was rolled back."""

    TERMINATED = 143
    """Stopped at once, by a second SIGTERM. What was under way was rolled back."""

    @classmethod
    def of(cls, error: BaseException) -> ExitCode:
        """The code for a command that this error ended."""
        match error:
            case ConfigurationError():
                return cls.CONFIGURATION
            case LedgerUnavailable() | BrokerUnavailable() | SendAgain():
                return cls.UNREACHABLE
            case KeyboardInterrupt():
                return cls.INTERRUPTED
            case _:
                return cls.FAILED
