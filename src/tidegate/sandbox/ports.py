"""Free ports on the loopback interface."""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

from tidegate.sandbox.errors import SandboxError

LOOPBACK = "127.0.0.1"
_LOWEST = 15_000
_ATTEMPTS = 200
_given: set[int] = set()


def _first_ephemeral() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768


def is_free(port: int) -> bool:
    """Tell whether nobody listens on a loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
    return True


def free_port() -> int:
    """Return a free port that this process has not been given before.

    It lies below the range that the kernel takes ports of outgoing connections from. A server that was killed
    finds its port free when it is restarted, and no client that keeps trying connects to itself meanwhile.
    """
    highest = _first_ephemeral()
    low, high = (_LOWEST, highest) if highest > _LOWEST + 1_000 else (32_768, 61_000)
    for _ in range(_ATTEMPTS):
        port = random.randrange(low, high)  # noqa: S311 - no secret
        if port not in _given and is_free(port):
            _given.add(port)
            return port
    raise SandboxError(f"No free port found on {LOOPBACK} between {low} and {high}.")
