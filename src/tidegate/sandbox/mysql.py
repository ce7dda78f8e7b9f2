"""A MySQL server."""

from __future__ import annotations

import secrets
import shutil
import socket
import ssl
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.sandbox import programs
from tidegate.sandbox.debian import unpack
from tidegate.sandbox.mysql_family import PROTOCOL, MySQLFamily
from tidegate.sandbox.process import Command
from tidegate.sandbox.server import PROBE_SECONDS, Setting

__all__ = ["MySQL", "mysqld"]

_PACKAGE = "mysql-server-core"


class MySQL(MySQLFamily):
    """MySQL with its default durability and with LOAD DATA LOCAL allowed.

    The system's ``mysqld`` is used if it is MySQL's; otherwise one is fetched from Debian into the cache. ``user`` has
    all privileges and may grant them. ``settings`` are system variables, such as ``{"innodb_lock_wait_timeout": 5}``.
    """

    title = "MySQL"
    section = "mysqld"
    start_timeout = 120.0

    def _check(self) -> None:
        mysqld()

    def _initialise(self) -> None:
        self._space.fresh_folder("data")
        setup = self._write_setup()
        try:
            # No data is lost if this fails half-way, since the next start begins anew.
            hasty = ("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--disable-log-bin")
            self._run(self._mysqld("--initialize-insecure", f"--init-file={setup}", *hasty))
        finally:
            setup.unlink()

    def _command(self) -> Command:
        return self._mysqld()

    def url_for(
        self,
        user: str | None = None,
        password: str | None = None,
        database: str | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
    ) -> str:
        """Return the URL with some parts replaced. With another port it disables TLS, so that a proxy can read it."""
        url = super().url_for(user, password, database, host=host, port=port)
        return url if port in {None, self.port} else f"{url}&ssl_disabled=true"

    def _ready(self) -> bool:
        """Log in once: without TLS, ``caching_sha2_password`` works only for users that the server has cached."""
        with socket.create_connection((self.host, self.port), timeout=PROBE_SECONDS) as plain:
            greeting = _packet(plain)
            if not greeting or greeting[0] != PROTOCOL:
                return False
            after_version = greeting.index(0, 1) + 1
            offered = int.from_bytes(greeting[after_version + 13 : after_version + 15], "little")
            if not offered & _TLS:  # TLS is disabled in the settings
                return True
            head = struct.pack("<IIB23x", _CAPABILITIES, 2**24 - 1, _UTF8)
            _send(plain, 1, head)
            with _context().wrap_socket(plain) as secure:
                # A random scramble is not valid, so the server asks for the password itself.
                scramble = bytes([32]) + secrets.token_bytes(32)
                _send(secure, 2, head + self.user.encode() + b"\0" + scramble + b"caching_sha2_password\0")
                if _packet(secure) == _FULL_LOGIN:
                    _send(secure, 4, self.password.encode() + b"\0")
                    return _packet(secure)[:1] == b"\0"
        return False

    def _mysqld(self, *options: str) -> Command:
        program = mysqld()
        settings: dict[str, Setting] = {
            "secure-file-priv": "NULL",
            "mysqlx": False,
            "performance-schema": False,  # it takes half of the memory
            **program.settings,
        }
        return Command([*program.command, f"--defaults-file={self._write_config(settings)}", *options])


@dataclass(frozen=True)
class Mysqld:
    """The command that runs ``mysqld``, and settings for the paths of its files if they are not at the usual places."""

    command: list[str | Path]
    settings: dict[str, Setting] = field(default_factory=dict)


def mysqld() -> Mysqld:
    """Find MySQL's server program. The first call on a machine without it downloads about 60 MB."""
    for path in (None, ":".join(programs.SYSTEM_FOLDERS)):
        found = shutil.which("mysqld", path=path)
        if found and _is_mysql(found):
            return Mysqld([found])
    unpacked = unpack(_PACKAGE, MySQL.accounts)
    share = unpacked.root / "usr/share/mysql"
    return Mysqld(
        unpacked.command("usr/sbin/mysqld"),
        {
            "lc-messages-dir": str(share),
            "character-sets-dir": str(share / "charsets"),
            "plugin-dir": str(unpacked.root / "usr/lib/mysql/plugin"),
        },
    )


def _is_mysql(program: str) -> bool:
    """Return whether the program is MySQL's: MariaDB installs a ``mysqld`` as well."""
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    return answer.returncode == 0 and "MariaDB" not in answer.stdout


_TLS = 0x800
_CAPABILITIES = 0x1 | 0x200 | _TLS | 0x8000 | 0x80000  # long password, 4.1, TLS, secure login, named login
_UTF8 = 45
_FULL_LOGIN = b"\1\4"


def _packet(link: socket.socket) -> bytes:
    header = _exactly(link, 4)
    return _exactly(link, int.from_bytes(header[:3], "little"))


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = link.recv(count - len(data))
        if not piece:
            raise ConnectionError("the server hung up")
        data += piece
    return data


def _send(link: socket.socket, number: int, payload: bytes) -> None:
    link.sendall(len(payload).to_bytes(3, "little") + bytes([number]) + payload)


def _context() -> ssl.SSLContext:
    # the server is ours and on this machine, so there is nothing to verify
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
