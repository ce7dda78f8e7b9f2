"""Ports: those that refuse, and those that are free."""

from __future__ import annotations

import socket

from tidegate.sandbox.ports import free_port, is_free

_HELD: list[socket.socket] = []


def refused_port() -> int:
    """A port that refuses connections until the end of the tests: it is taken, so that no server can come to it."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    _HELD.append(held)
    return int(held.getsockname()[1])


def two_free_ports() -> int:
    """The first of two neighbours that are free, outside of the range from which connections take theirs."""
    while True:
        first = free_port()
        if is_free(first + 1):
            return first
