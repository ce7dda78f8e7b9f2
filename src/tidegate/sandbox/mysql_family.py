"""The base class of servers that speak MySQL's protocol."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tidegate.sandbox.database import Database
from tidegate.sandbox.server import PROBE_SECONDS, Setting

PROTOCOL = 10


class MySQLFamily(Database):
    """A server that is configured by a ``my.cnf`` and greets its clients."""

    accounts = ("mysql",)
    scheme = "mysql+pymysql"
    query = "?charset=utf8mb4"
    section: ClassVar[str]

    def _write_config(self, particular: Mapping[str, Setting] | None = None) -> Path:
        settings: dict[str, Setting] = {
            "datadir": str(self._space.path / "data"),
            "tmpdir": str(self._space.path / "data"),  # a starting server removes leftover temporary tables there
            "bind-address": self.host,
            "port": self.port,
            # relative to the data directory: an absolute path may be too long for a socket
            "socket": f"{self.section}.sock",
            "pid-file": f"{self.section}.pid",
            "skip-name-resolve": True,  # without it, each probe that disconnects counts towards blocking the host
            "local-infile": True,
            "character-set-server": "utf8mb4",
            "max-connections": 200,
            **(particular or {}),
            **self.settings,
        }
        lines = [f"{name} = {_literal(value)}\n" for name, value in settings.items()]
        return self._space.private_file("my.cnf", f"[{self.section}]\n" + "".join(lines))

    def _write_setup(self, before: str = "") -> Path:
        """Write the SQL file that creates the database and its user."""
        return self._space.private_file(
            "setup.sql",
            f"{before}CREATE DATABASE {self.database} CHARACTER SET utf8mb4;\n"
            f"CREATE USER '{self.user}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{self.user}'@'%' WITH GRANT OPTION;\n",
        )

    def _ready(self) -> bool:
        """Read the greeting, which the server sends only once it serves clients."""
        with socket.create_connection((self.host, self.port), timeout=PROBE_SECONDS) as connection:
            greeting = connection.recv(4096)
            return len(greeting) > 4 and greeting[4] == PROTOCOL


def _literal(value: Setting) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)
