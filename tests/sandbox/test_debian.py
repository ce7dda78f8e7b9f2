"""MySQL's server is fetched from Debian whole or not at all, and what is missing is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.sandbox import MySQL, SandboxError, debian, programs
from tidegate.sandbox.debian import unpack
from tidegate.sandbox.mysql import mysqld

ONE_LINE = "deb [trusted=yes] http://127.0.0.1:1/debian stable main contrib\n"
DEB822 = "Types: deb\nURIs: http://127.0.0.1:1/debian\nSuites: stable stable-updates\nComponents: main\nTrusted: yes\n"


@pytest.fixture
def new_cache(open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEGATE_CACHE", str(open_directory / "cache"))
    return open_directory / "cache"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of apt's sources on a machine that has no others."""
    folder = tmp_path / "sources"
    folder.mkdir()
    configuration = tmp_path / "apt.conf"
    configuration.write_text(f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{folder}";\n')
    monkeypatch.setenv("APT_CONFIG", str(configuration))
    return folder


@pytest.mark.parametrize(("name", "text"), [("debian.list", ONE_LINE), ("debian.sources", DEB822)])
def test_an_archive_that_cannot_be_reached_is_told_and_nothing_is_left(name, text, sources, new_cache) -> None:
    (sources / name).write_text(text)
    with pytest.raises(SandboxError, match=r"(?s)apt-get update ended with .*needs .*the network.*127\.0\.0\.1:1"):
        unpack("mysql-server-core", MySQL.accounts)
    assert [path.name for path in new_cache.iterdir()] == ["mysql-server-core.lock"]


def test_sources_without_a_debian_archive_are_told(sources, new_cache) -> None:
    (sources / "other.list").write_text("deb http://127.0.0.1:1/tools nodistro main\n")
    with pytest.raises(SandboxError, match=r"apt's sources name no archive .* install mysql-server-core as a system"):
        unpack("mysql-server-core", MySQL.accounts)


def test_a_machine_without_debians_tools_is_told_what_to_install(new_cache, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", ())
    with pytest.raises(SandboxError, match=r"apt-get, apt-config, dpkg-deb, not found .* install mysql-server-core"):
        MySQL().start()


def test_a_cache_that_cannot_be_written_is_named(open_directory, monkeypatch) -> None:
    (open_directory / "file").touch()
    monkeypatch.setenv("TIDEGATE_CACHE", str(open_directory / "file" / "cache"))
    with pytest.raises(SandboxError, match="(?i)set TIDEGATE_CACHE"):
        unpack("mysql-server-core", MySQL.accounts)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as another user")
def test_a_cache_that_the_servers_user_cannot_enter_is_named_or_avoided(tmp_path, monkeypatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setenv("TIDEGATE_CACHE", str(closed / "cache"))
    with pytest.raises(SandboxError, match="may not pass through"):
        unpack("mysql-server-core", MySQL.accounts)
    monkeypatch.delenv("TIDEGATE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(closed))
    (tmp_path / "roots" / "mysql-server-core").mkdir(parents=True)
    monkeypatch.setattr(debian, "ROOTS_CACHE", tmp_path / "roots")
    assert unpack("mysql-server-core", MySQL.accounts).root == tmp_path / "roots" / "mysql-server-core"


def test_a_mysqld_that_is_mariadbs_is_passed_over_and_one_of_mysql_is_used(tmp_path, monkeypatch) -> None:
    folders = []
    for name, version in (("first", "10.11.14-MariaDB"), ("second", "9.7.4 for Linux")):
        folder = tmp_path / name
        folder.mkdir()
        program = folder / "mysqld"
        program.write_text(f"#!/bin/sh\necho 'mysqld  Ver {version}'\n")
        program.chmod(0o755)
        folders.append(str(folder))
    monkeypatch.setenv("PATH", folders[0])
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", (folders[1],))
    assert mysqld().command == [f"{folders[1]}/mysqld"]
