"""A MariaDB server."""

from __future__ import annotations

import socket
from pathlib import Path

from tidegate.sandbox.database import Database
from tidegate.sandbox.process import Command
from tidegate.sandbox.programs import find_program
from tidegate.sandbox.server import PROBE_SECONDS, Setting

_PACKAGE = "mariadb-server"
_PROTOCOL = 10


class MariaDB(Database):
    """MariaDB, durable as it comes, with LOAD DATA LOCAL allowed.

    ``user`` has all privileges and may grant them. ``settings`` are system variables, such as
    ``{"innodb_lock_wait_timeout": 5}``.
    """

    title = "MariaDB"
    accounts = ("mysql",)
    scheme = "mysql+pymysql"
    query = "?charset=utf8mb4"

    def _check(self) -> None:
        find_program("mariadbd", package=_PACKAGE)
        find_program("mariadb-install-db", package=_PACKAGE)

    def _initialise(self) -> None:
        self._space.fresh_folder("data")
        config = self._write_config()  # some settings, such as the page size, are fixed by the first start
        install = find_program("mariadb-install-db", package=_PACKAGE)
        self._run(Command([install, f"--defaults-file={config}", "--skip-test-db"]))
        # The grant tables are not in force yet; FLUSH PRIVILEGES loads them, and CREATE USER works from there on.
        setup = self._space.private_file(
            "setup.sql",
            "FLUSH PRIVILEGES;\n"
            f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4;\n"
            f"CREATE USER '{self.user}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{self.user}'@'%' WITH GRANT OPTION;\n",
        )
        try:
            program = find_program("mariadbd", package=_PACKAGE)
            self._run(Command([program, f"--defaults-file={config}", "--bootstrap"], input=setup))
        finally:
            setup.unlink()

    def _command(self) -> Command:
        return Command([find_program("mariadbd", package=_PACKAGE), f"--defaults-file={self._write_config()}"])

    def _write_config(self) -> Path:
        settings: dict[str, Setting] = {
            "datadir": str(self._space.path / "data"),
            "tmpdir": str(self._space.path / "data"),  # a starting server removes the temporary tables there
            "bind-address": self.host,
            "port": self.port,
            "socket": "mariadb.sock",  # within the data directory: an absolute path may exceed what a socket can have
            "pid-file": "mariadb.pid",
            "skip-name-resolve": True,  # or every probe that hangs up counts against the host
            "local-infile": True,
            "character-set-server": "utf8mb4",
            "max-connections": 200,
            **self.settings,
        }
        lines = [f"{name} = {_literal(value)}\n" for name, value in settings.items()]
        return self._space.private_file("my.cnf", "[mariadbd]\n" + "".join(lines))

    def _ready(self) -> bool:
        """Wait for the greeting, which the server sends only once it serves clients."""
        with socket.create_connection((self.host, self.port), timeout=PROBE_SECONDS) as connection:
            greeting = connection.recv(4096)
            return len(greeting) > 4 and greeting[4] == _PROTOCOL


def _literal(value: Setting) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)
