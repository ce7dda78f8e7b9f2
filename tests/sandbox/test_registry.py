"""The schema registry: it keeps what is registered, and asks for a login if it has one."""

from __future__ import annotations

import base64
import http.client
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tidegate.java.cache import cache_directory
from tidegate.sandbox import Registry
from tidegate.sandbox.jars import REGISTRY_VERSION, registry_jars

SCHEMA = json.dumps({"schema": '{"type": "string"}'})


def ask(server: Registry, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    if server.password is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{server.user}:{server.password}".encode()).decode()
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    connection.request(method, f"/apis/ccompat/v7{path}", body, headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, json.loads(data) if response.status == 200 else None


def test_a_registry_keeps_its_schemas_in_its_folder_and_its_login(tmp_path: Path) -> None:
    with Registry(directory=tmp_path / "registry", login=True) as first:
        assert first.url == f"http://127.0.0.1:{first.port}/apis/ccompat/v7"
        status, registered = ask(first, "POST", "/subjects/words-value/versions", SCHEMA)
        assert status == 200
        first.kill()
        first.start()
        assert ask(first, "GET", "/subjects") == (200, ["words-value"])
        password = first.password
        assert password is not None
        assert password not in first.log_tail(10_000)
    with Registry(directory=tmp_path / "registry", login=True) as second:
        assert second.password == password
        assert ask(second, "GET", f"/schemas/ids/{registered['id']}")[1]["schema"] == '{"type": "string"}'
        second.password = "another"
        assert ask(second, "GET", "/subjects")[0] == 401
        second.password = None
        assert ask(second, "GET", "/subjects")[0] == 401


def test_an_archive_is_fetched_without_its_pom_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the user are used, with paths that are relative to their file."""
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mine" / "files" / "io" / "apicurio" / "apicurio-registry-app" / REGISTRY_VERSION
    folder.mkdir(parents=True)
    (tmp_path / "runner.jar").write_bytes(b"a jar")
    name = f"apicurio-registry-app-{REGISTRY_VERSION}"
    with tarfile.open(folder / f"{name}-all.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "runner.jar", f"{name}-runner.jar")
    settings = tmp_path / "mine" / "settings.xml"
    settings.write_text(
        "<ivysettings><settings defaultResolver='mine'/><resolvers>"
        "<ibiblio name='mine' m2compatible='true' root='file:${ivy.settings.dir}/files'/></resolvers></ivysettings>"
    )
    monkeypatch.setenv("TIDEGATE_IVY_SETTINGS", str(settings))
    found = registry_jars()
    assert found == cache_directory() / f"apicurio-registry-{REGISTRY_VERSION}"
    assert [path.name for path in found.iterdir()] == [f"{name}-runner.jar"]
