"""Errors of the sandbox. Their messages tell the reader what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.errors import ConfigurationError, TidegateError


class SandboxError(TidegateError):
    """A server of the sandbox cannot be started, reached or controlled."""


class PortTakenError(SandboxError):
    """Another process listens on the port that a server is to use."""


@contextmanager
def as_sandbox_error() -> Iterator[None]:
    """Raise a :class:`ConfigurationError`, such as for a missing program, as a :class:`SandboxError`."""
    try:
        yield
    except ConfigurationError as error:
        raise SandboxError(str(error)) from error.__cause__
