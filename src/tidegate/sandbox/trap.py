"""What waits in a proxy for one message to pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from enum import Enum

Match = bytes | Callable[[bytes], bool]
"""Bytes that a client's message contains, or a function that recognises it in what the client sent lately."""

_WINDOW = 64 * 1024


class Loses(Enum):
    """What a trap makes disappear."""

    REPLY = "reply"
    REQUEST = "request"


class Trap:
    """Fires once, on the first connection whose client sends what it is looking for."""

    def __init__(self, match: Match, loses: Loses) -> None:
        self.loses = loses
        self.swallowed = b""
        """The bytes that were lost: the request, or all that the server still answered."""
        self._match = match
        self._recent: dict[Hashable, bytes] = {}
        self._fired = threading.Event()

    @property
    def fired(self) -> bool:
        """Whether it has happened."""
        return self._fired.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait until it has happened; tell whether it has."""
        return self._fired.wait(timeout)

    def sees(self, connection: Hashable, data: bytes) -> bool:
        """Look at what a client sends; the message may have begun in an earlier piece."""
        seen = self._recent.get(connection, b"") + data
        if isinstance(self._match, bytes):
            found, keep = self._match in seen, len(self._match) - 1
        else:
            found, keep = self._match(seen), _WINDOW
        self._recent[connection] = seen[-keep:] if keep else b""
        return found

    def forget(self, connection: Hashable) -> None:
        """Drop what was noted of a connection that has ended."""
        self._recent.pop(connection, None)

    def fire(self, swallowed: bytes) -> None:
        """Note that it has happened."""
        self.swallowed = swallowed
        self._fired.set()
