"""A PostgreSQL server."""

from __future__ import annotations

import signal
import socket
import struct
from pathlib import Path

from tidegate.sandbox.database import Database
from tidegate.sandbox.process import Command
from tidegate.sandbox.programs import find_program
from tidegate.sandbox.server import PROBE_SECONDS, Setting

DEBIAN_ROOT = Path("/usr/lib/postgresql")


class Postgres(Database):
    """PostgreSQL with its default durability. All connections use TCP and SCRAM authentication.

    ``user`` is a superuser. ``settings`` are server parameters, such as ``{"max_connections": 20}``.
    """

    title = "PostgreSQL"
    accounts = ("postgres",)
    stop_signal = signal.SIGINT  # "fast" shutdown; SIGTERM would wait for the clients to disconnect
    scheme = "postgresql+psycopg"

    def _check(self) -> None:
        self._programs()

    def _programs(self) -> Path:
        folders = sorted(DEBIAN_ROOT.glob("*/bin"), key=_version, reverse=True)
        # A distribution may link only one of the programs into PATH, so follow the link to find the others.
        return find_program("initdb", package="postgresql", folders=folders).resolve().parent

    def _initialise(self) -> None:
        programs, space = self._programs(), self._space
        data = space.fresh_folder("data")
        secret = space.private_file("superuser", self.password)
        create = space.private_file("create.sql", f"CREATE DATABASE {self.database};\n")
        try:
            self._run(
                Command(
                    [
                        programs / "initdb",
                        f"--pgdata={data}",
                        f"--username={self.user}",
                        f"--pwfile={secret}",
                        "--auth=scram-sha-256",
                        "--encoding=UTF8",
                        "--locale=C",
                        "--no-sync",  # makes the start faster; everything written later is synced
                        "--no-instructions",
                    ]
                )
            )
            self._run(Command([programs / "postgres", "--single", "-F", "-D", data, "postgres"], input=create))
        finally:
            secret.unlink()
            create.unlink()

    def _command(self) -> Command:
        space = self._space
        data = space.path / "data"
        # A kill leaves this file behind. The supervisor has seen all processes end, so a process with that id is a
        # different one.
        (data / "postmaster.pid").unlink(missing_ok=True)
        access = space.private_file("pg_hba.conf", f"host all all {self.host}/32 scram-sha-256\n")
        settings: dict[str, Setting] = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            "hba_file": str(access),
            "timezone": "UTC",
            "log_timezone": "UTC",
            "max_connections": 200,
            **self.settings,
        }
        lines = [f"{name} = {_literal(value)}\n" for name, value in settings.items()]
        config = space.private_file("postgresql.conf", "".join(lines))
        return Command([self._programs() / "postgres", "-D", data, "-c", f"config_file={config}"])

    def _ready(self) -> bool:
        """Begin to log in. A server that is still starting or recovering refuses before it asks for a password."""
        body = struct.pack(">i", 196608) + f"user\0{self.user}\0database\0{self.database}\0\0".encode()
        with socket.create_connection((self.host, self.port), timeout=PROBE_SECONDS) as connection:
            connection.sendall(struct.pack(">i", len(body) + 4) + body)
            return connection.recv(4096)[:1] == b"R"


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.parent.name.split(".") if part.isdigit())


def _literal(value: Setting) -> str:
    text = ("on" if value else "off") if isinstance(value, bool) else str(value)
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
