"""A trap in the proxy: it waits for one message of a client and loses the message or the reply."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from enum import Enum

Match = bytes | Callable[[bytes], bool]
"""Bytes that a client's message contains, or a function that recognises it in what the client sent last."""

_WINDOW = 64 * 1024


class Loses(Enum):
    """What a trap loses."""

    REPLY = "reply"
    REQUEST = "request"


class Trap:
    """Fires once, on the first connection whose client sends the message that it looks for."""

    def __init__(self, match: Match, loses: Loses) -> None:
        self.loses = loses
        self.swallowed = b""
        """The lost bytes: the request, or everything that the server still sent."""
        self._match = match
        self._recent: dict[Hashable, bytes] = {}
        self._fired = threading.Event()

    @property
    def fired(self) -> bool:
        """Whether the trap has fired."""
        return self._fired.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait until the trap has fired. Returns whether it has."""
        return self._fired.wait(timeout)

    def sees(self, connection: Hashable, data: bytes) -> bool:
        """Return whether a client's data completes the message, which may have begun in earlier data."""
        seen = self._recent.get(connection, b"") + data
        if isinstance(self._match, bytes):
            found, keep = self._match in seen, len(self._match) - 1
        else:
            found, keep = self._match(seen), _WINDOW
        self._recent[connection] = seen[-keep:] if keep else b""
        return found

    def forget(self, connection: Hashable) -> None:
        """Drop the data remembered for a connection that has ended."""
        self._recent.pop(connection, None)

    def fire(self, swallowed: bytes) -> None:
        """Record that the trap has fired."""
        self.swallowed = swallowed
        self._fired.set()
