"""The broker's jars are fetched whole or not at all."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.java import downloads
from tidegate.java.cache import cache_directory
from tidegate.sandbox import SandboxError
from tidegate.sandbox.jars import KAFKA_VERSION, kafka_jars

FETCH = "from tidegate.sandbox.jars import kafka_jars; print(kafka_jars())"


@pytest.fixture
def new_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def repository_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ivy look for jars in a folder instead of the network."""
    settings = folder.parent / "settings.xml"
    settings.write_text(f"""<ivysettings>
      <settings defaultResolver="folder"/>
      <resolvers><filesystem name="folder">
        <artifact pattern="{folder}/[artifact]-[revision].[ext]"/>
      </filesystem></resolvers>
    </ivysettings>""")
    monkeypatch.setenv("TIDEGATE_IVY_SETTINGS", str(settings))


def test_the_cache_lies_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_CACHE", "/here")
    monkeypatch.setenv("XDG_CACHE_HOME", "/there")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_directory() == Path("/here")
    monkeypatch.delenv("TIDEGATE_CACHE")
    assert cache_directory() == Path("/there/tidegate")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path("/home/me/.cache/tidegate")


def test_two_processes_at_once_fetch_one_complete_set(tmp_path, new_cache, monkeypatch) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in (f"kafka_2.13-{KAFKA_VERSION}.jar", "slf4j-simple-1.7.36.jar"):
        (jars / name).write_bytes(b"a jar")
    repository_in(jars, monkeypatch)
    processes = [subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert found == [str(new_cache / f"kafka-{KAFKA_VERSION}")] * 2
    assert {path.name for path in Path(found[0]).iterdir()} == {path.name for path in jars.iterdir()}
    assert {path.suffix for path in new_cache.iterdir()} == {".1", ".lock"}, "nothing unfinished is left"


def test_jars_are_fetched_without_pyspark_and_a_line_tells_of_it(tmp_path, new_cache, monkeypatch) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in (f"kafka_2.13-{KAFKA_VERSION}.jar", "slf4j-simple-1.7.36.jar"):
        (jars / name).write_bytes(b"a jar")
    repository_in(jars, monkeypatch)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    told = io.StringIO()
    monkeypatch.setattr(downloads, "_out", told)
    assert kafka_jars().is_dir()
    first, *_, last = told.getvalue().splitlines()
    assert first == f"downloading kafka_2.13 {KAFKA_VERSION}"
    assert re.fullmatch(rf"downloading kafka_2.13 {KAFKA_VERSION}: 2 jars found, done after \d+ s", last)


def test_on_a_terminal_a_download_has_one_line_that_counts_up(monkeypatch) -> None:
    told = io.StringIO()
    told.isatty = lambda: True
    monkeypatch.setattr(downloads, "_out", told)
    monkeypatch.setattr(downloads._Live, "every", 0.0)
    with pytest.raises(ZeroDivisionError), downloads.downloading("a jar") as tell:
        tell("1 of 2")
        raise ZeroDivisionError
    shown = told.getvalue().split("\r\x1b[K")
    assert shown == [
        "",
        "downloading a jar",
        "downloading a jar: 1 of 2",
        "downloading a jar: 1 of 2, failed after 0 s\n",
    ]


def test_a_failed_fetch_shows_what_ivy_said_and_leaves_nothing(tmp_path, new_cache, monkeypatch, capfd) -> None:
    (tmp_path / "nothing").mkdir()
    repository_in(tmp_path / "nothing", monkeypatch)
    with pytest.raises(SandboxError, match=r"(?s)could not be fetched \(Ivy: 1\).*UNRESOLVED DEPENDENCIES"):
        kafka_jars()
    assert [path.suffix for path in new_cache.iterdir()] == [".lock"]
    assert capfd.readouterr() == ("", "")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SandboxError, match="Set TIDEGATE_CACHE"):
        kafka_jars()
