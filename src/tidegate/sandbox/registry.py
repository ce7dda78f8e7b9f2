"""A schema registry."""

from __future__ import annotations

import base64
import http.client
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.sandbox.jars import REGISTRY_VERSION, registry_jars
from tidegate.sandbox.process import Command
from tidegate.sandbox.programs import find_java
from tidegate.sandbox.server import PROBE_SECONDS, Server, Setting
from tidegate.sandbox.workspace import Workspace

_API = "/apis/ccompat/v7"
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Registry(Server):
    """Apicurio Registry, with the REST API of Confluent's schema registry at :attr:`url`.

    With ``login`` it requires a user and a password; otherwise it requires none. ``settings`` are
    properties of Quarkus and of Apicurio, such as ``{"quarkus.http.ssl-port": 8443}``.
    """

    title = "Apicurio Registry"
    user = "tidegate"

    def __init__(
        self,
        *,
        port: int | None = None,
        directory: str | Path | None = None,
        keep: bool = False,
        settings: Mapping[str, Setting] | None = None,
        login: bool = False,
    ) -> None:
        super().__init__(port=port, directory=directory, keep=keep, settings=settings)
        self.password = secrets.token_urlsafe(12) if login else None
        """The password of the user ``tidegate``; ``None`` without a login."""

    @property
    def url(self) -> str:
        """The address for clients, without user and password."""
        return f"http://{self.host}:{self.port}{_API}"

    @property
    def native_url(self) -> str:
        """The address of Apicurio's own API, for its serializers and converters."""
        return f"http://{self.host}:{self.port}/apis/registry/v2"

    def _check(self) -> None:
        find_java("Apicurio Registry")
        registry_jars()

    def _adopt(self, workspace: Workspace) -> None:
        """Keep the password of the server that has used the directory before."""
        stored = workspace.path / "password"
        if self.password is not None and stored.exists():
            self.password = stored.read_text()

    def _initialise(self) -> None:
        self._space.fresh_folder("data")
        if self.password is not None:
            self._space.private_file("password", self.password)

    def _command(self) -> Command:
        lines = [f"{name}={_literal(value)}\n" for name, value in self._properties().items()]
        config = self._space.private_file("registry.properties", "".join(lines))
        jar = registry_jars() / f"apicurio-registry-app-{REGISTRY_VERSION}-runner.jar"
        java = find_java("Apicurio Registry")
        return Command([java, *_JVM, f"-Dquarkus.config.locations={config}", "-jar", jar])

    def _ready(self) -> bool:
        """Ask for the subjects, which needs the login."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PROBE_SECONDS)
        try:
            connection.request("GET", f"{_API}/subjects", headers=self._authorization())
            return connection.getresponse().status == http.client.OK
        except http.client.HTTPException:
            return False
        finally:
            connection.close()

    def _authorization(self) -> dict[str, str]:
        if self.password is None:
            return {}
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {login}"}

    def _secrets(self) -> Sequence[str]:
        return () if self.password is None else (self.password,)

    def _properties(self) -> dict[str, Setting]:
        login: dict[str, Setting] = {}
        if self.password is not None:
            users = "quarkus.security.users.embedded"
            login = {
                "quarkus.http.auth.basic": True,
                f"{users}.enabled": True,
                f"{users}.plain-text": True,
                f"{users}.users.{self.user}": self.password,
                f"{users}.roles.{self.user}": "sr-admin",
                "quarkus.http.auth.permission.all.paths": "/apis/*",
                "quarkus.http.auth.permission.all.policy": "authenticated",
            }
        return {
            "quarkus.http.host": self.host,
            "quarkus.http.port": self.port,
            "quarkus.http.access-log.enabled": False,
            "apicurio.datasource.url": f"jdbc:h2:file:{self._space.path / 'data' / 'registry'};WRITE_DELAY=0",
            **login,
            **self.settings,
        }


def _literal(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace("\\", "\\\\")
