"""PgBouncer in front of a PostgreSQL server."""

from __future__ import annotations

import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.sandbox.postgres import Postgres
from tidegate.sandbox.process import Command
from tidegate.sandbox.programs import find_program
from tidegate.sandbox.server import PROBE_SECONDS, Server, Setting

_PACKAGE = "pgbouncer"
_TLS_REQUEST = struct.pack(">ii", 8, 80877103)


class PgBouncer(Server):
    """PgBouncer in transaction mode: a client has a server session for one transaction only.

    ``url`` is the server's URL with PgBouncer's port. Every user of the server can log in. ``settings`` are those of
    its section ``[pgbouncer]``, such as ``{"default_pool_size": 5}``.
    """

    title = "PgBouncer"
    accounts = ("postgres",)
    stop_signal = signal.SIGINT

    def __init__(
        self,
        server: Postgres,
        *,
        port: int | None = None,
        directory: str | Path | None = None,
        keep: bool = False,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        super().__init__(port=port, directory=directory, keep=keep, settings=settings)
        self._server = server

    @property
    def url(self) -> str:
        """The URL to connect to, including user and password."""
        return self._server.url_for(port=self.port)

    def _check(self) -> None:
        find_program("pgbouncer", package=_PACKAGE)

    def _initialise(self) -> None:
        pass

    def _command(self) -> Command:
        server, space = self._server, self._space
        users = space.private_file("users", f'"{server.user}" "{server.password}"\n')
        settings: dict[str, Setting] = {
            "listen_addr": self.host,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "pool_mode": "transaction",
            "auth_type": "scram-sha-256",
            "auth_file": str(users),
            "auth_user": server.user,
            "auth_query": "SELECT usename, passwd FROM pg_shadow WHERE usename = $1",
            "max_client_conn": 500,
            "default_pool_size": 20,
            "server_login_retry": 1,
            **self.settings,
        }
        lines = [f"{name} = {_literal(value)}\n" for name, value in settings.items()]
        config = space.private_file(
            "pgbouncer.ini",
            f"[databases]\n* = host={server.host} port={server.port}\n[pgbouncer]\n" + "".join(lines),
        )
        return Command([find_program("pgbouncer", package=_PACKAGE), config])

    def _ready(self) -> bool:
        """Ask whether it supports TLS. Any answer shows that it serves clients."""
        with socket.create_connection((self.host, self.port), timeout=PROBE_SECONDS) as connection:
            connection.sendall(_TLS_REQUEST)
            return connection.recv(1) in {b"S", b"N"}

    def _secrets(self) -> Sequence[str]:
        return (self._server.password,)


def _literal(value: Setting) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)
