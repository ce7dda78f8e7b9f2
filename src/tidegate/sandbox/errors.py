"""What goes wrong in the sandbox, said so that the reader knows what to do."""

from __future__ import annotations

from tidegate.core.errors import TidegateError


class SandboxError(TidegateError):
    """A server of the sandbox cannot be started, reached or controlled."""


class PortTakenError(SandboxError):
    """Another process listens on the port that a server was to use."""
