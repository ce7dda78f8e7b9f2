"""What goes wrong in the sandbox, said so that the reader knows what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.core.errors import ConfigurationError, TidegateError


class SandboxError(TidegateError):
    """A server of the sandbox cannot be started, reached or controlled."""


class PortTakenError(SandboxError):
    """Another process listens on the port that a server was to use."""


@contextmanager
def as_sandbox_error() -> Iterator[None]:
    """What is missing on the machine is told as everything that goes wrong in the sandbox is."""
    try:
        yield
    except ConfigurationError as error:
        raise SandboxError(str(error)) from error.__cause__
