"""Free ports on the loopback interface."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterator
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
    """Return whether no process listens on a loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
    return True


def listener_on(port: int) -> str:
    """Describe the process that listens on a port, for people: its id and its command, as far as this user may see."""
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(Path("/proc/net", table), port)}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if any(str(link.readlink()) in sockets for link in (process / "fd").iterdir()):
                    return f"process {process.name} ({(process / 'comm').read_text().strip()})"
            except OSError:  # it has ended, or belongs to another user
                continue
    return f"a process that this user may not see (as root: ss -ltnp 'sport = :{port}')"


def _listening(table: Path, port: int) -> Iterator[str]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for fields in map(str.split, lines):
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            yield fields[9]


def free_port() -> int:
    """Return a free port that was not returned before in this process.

    It lies below the range from which the kernel picks ports of outgoing connections. So a killed server finds its port
    free when it restarts, and no client that keeps connecting to that port connects to itself meanwhile.
    """
    highest = _first_ephemeral()
    low, high = (_LOWEST, highest) if highest > _LOWEST + 1_000 else (32_768, 61_000)
    for _ in range(_ATTEMPTS):
        port = random.randrange(low, high)  # noqa: S311 - not a secret
        if port not in _given and is_free(port):
            _given.add(port)
            return port
    raise SandboxError(f"No free port found on {LOOPBACK} between {low} and {high}.")
