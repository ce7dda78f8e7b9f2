"""A Redis server."""

from __future__ import annotations

import socket

from tidegate.sandbox.database import Database
from tidegate.sandbox.process import Command
from tidegate.sandbox.programs import find_program
from tidegate.sandbox.server import PROBE_SECONDS, Setting


class Redis(Database):
    """Redis with a password and an append-only file, so that acknowledged writes survive a kill.

    ``settings`` are directives of its configuration file, such as ``{"maxmemory": "64mb"}``.
    """

    title = "Redis"
    scheme = "redis"
    user = ""
    database = "0"

    def _check(self) -> None:
        find_program("redis-server", package="redis-server")

    def _initialise(self) -> None:
        self._space.fresh_folder("data")

    def _command(self) -> Command:
        settings: dict[str, Setting] = {
            "bind": self.host,
            "port": self.port,
            "requirepass": self.password,
            "dir": f'"{self._space.path / "data"}"',
            "appendonly": True,
            "appendfsync": "everysec",
            "save": '""',
            "daemonize": False,
            **self.settings,
        }
        lines = [f"{name} {_literal(value)}\n" for name, value in settings.items()]
        config = self._space.private_file("redis.conf", "".join(lines))
        return Command([find_program("redis-server", package="redis-server"), config])

    def _ready(self) -> bool:
        """Log in and send a PING. A server that is still loading its data refuses."""
        with socket.create_connection((self.host, self.port), timeout=PROBE_SECONDS) as connection:
            connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
            answer = b""
            while answer.count(b"\r\n") < 2 and (data := connection.recv(1024)):
                answer += data
            return answer == b"+OK\r\n+PONG\r\n"


def _literal(value: Setting) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
