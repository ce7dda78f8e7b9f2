"""Servers that clients connect to by URL and password."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from tidegate.sandbox.server import Server, Setting
from tidegate.sandbox.workspace import Workspace

_PASSWORD_FILE = "password"  # noqa: S105 - the name of a file


class Database(Server):
    """A server with a user, a generated password and a database. Clients connect to ``url``."""

    scheme: ClassVar[str]
    query: ClassVar[str] = ""
    user: str = "tidegate"
    database: str = "tidegate"

    def __init__(
        self,
        *,
        port: int | None = None,
        directory: str | Path | None = None,
        keep: bool = False,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        super().__init__(port=port, directory=directory, keep=keep, settings=settings)
        self.password = secrets.token_hex(16)

    @property
    def url(self) -> str:
        """The URL to connect to, including user and password."""
        return self.url_for()

    def url_for(
        self,
        user: str | None = None,
        password: str | None = None,
        database: str | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
    ) -> str:
        """Return the URL with some parts replaced: another user, another database, a proxy's port."""
        who = quote(self.user if user is None else user, safe="")
        secret = quote(self.password if password is None else password, safe="")
        where = f"{host or self.host}:{port or self.port}"
        name = quote(self.database if database is None else database, safe="")
        return f"{self.scheme}://{who}:{secret}@{where}/{name}{self.query}"

    def _adopt(self, workspace: Workspace) -> None:
        """Use the password that the data in a kept directory was created with."""
        stored = workspace.path / _PASSWORD_FILE
        if workspace.initialised and stored.exists():
            self.password = stored.read_text().strip()
        else:
            workspace.private_file(_PASSWORD_FILE, self.password)

    def _secrets(self) -> Sequence[str]:
        return (self.password,)
