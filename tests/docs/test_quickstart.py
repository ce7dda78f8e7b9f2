"""The quickstart, typed into a shell in an empty folder: the wheel, the extras that the page names, nothing else.

Commands are the lines that begin with ``$``. What they print is what the page shows: ``…`` stands for any text, a
number for any number, and the sandbox's port for a free one. README shows the same files and commands.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from tidegate.sandbox.ports import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.]+)\n")
PORT = "9092"
END = "the end of a command"


class Block(NamedTuple):
    """A block of the page: a file to save, or commands with what they print."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        named = FILE.match(self.text)
        return named[1] if named and self.language != "console" else None

    def commands(self) -> Iterator[tuple[str, str]]:
        """Each command, and what it prints."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text())]


def shown(text: str) -> re.Pattern[str]:
    """The pattern of what a page shows."""
    parts = re.split(r"(…\n?|\d+| +)", text)
    return re.compile("".join(map(_pattern, parts)), re.DOTALL)


def _pattern(part: str) -> str:
    if part.startswith("…"):
        return ".*"
    return r"\d+" if part.isdigit() else " +" if part and not part.strip(" ") else re.escape(part)


class Shell:
    """A shell that is typed into: its state, such as an activated environment, lasts from command to command."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> str:
        """Type a command, and return what it printed when it has ended; it has to succeed."""
        self.type(f'{command}\necho "{END}: $?"')
        printed = ""
        for line in self._process.stdout:
            if line.startswith(END):
                assert line == f"{END}: 0\n", f"$ {command}\n{printed}{line}"
                return printed
            printed += line
        raise AssertionError(f"$ {command}\n{printed}the shell has ended")

    def type(self, text: str) -> None:
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def read_lines(self, count: int) -> str:
        return "".join(self._process.stdout.readline() for _ in range(count))

    def close(self) -> None:
        """End the shell with all that it runs."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def needed(distribution: metadata.Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for line in distribution.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": each}) for each in {"", *extras}):
            yield requirement


def pack(name: str, folder: Path, packed: set[str]) -> None:
    """Make wheels of a package of the running environment, and of what it needs.

    The running environment is made from the lock file, so these are the locked versions, and no index is asked.
    """
    distribution = metadata.distribution(name)
    if distribution.name in packed:
        return
    packed.add(distribution.name)
    stem = f"{re.sub(r'[-.]+', '_', distribution.name)}-{distribution.version}"
    tags = re.findall(r"^Tag: (.+)-(.+)-(.+)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    tag = "-".join(".".join(sorted(set(part))) for part in zip(*tags, strict=True))
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w", zipfile.ZIP_STORED) as wheel:
        for file in distribution.files or []:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                wheel.write(Path(str(file.locate())), str(file))
    for requirement in needed(distribution, frozenset()):
        pack(requirement.name, folder, packed)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the wheel of this tree, and with those of everything that its extras name."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("tidegate-*.whl")
    (distribution,) = metadata.distributions(path=[str(built)])
    packed = {"tidegate"}
    for requirement in needed(distribution, frozenset({"tables", "spark"})):
        if requirement.name != "tidegate":
            pack(requirement.name, folder, packed)
    yield folder
    shutil.rmtree(folder)  # Spark is large


@pytest.fixture
def environment(wheels: Path) -> dict[str, str]:
    """The variables of an ordinary user's shell. pip knows no other packages than those in the folder."""
    kept = ("HOME", "JAVA_HOME", "LANG", "TMPDIR", "TIDEGATE_CACHE", "SPARK_SUBMIT_OPTS", "SPARK_LOCAL_IP")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PATH": f"{Path(sys._base_executable).parent}:{os.defpath}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_NO_COMPILE": "1",  # compiling all of Spark takes longer than running it
    }


def renew(before: str, after: str) -> None:
    """Let the page show what is printed now."""
    text = PAGE.read_text()
    ended = f"{before}```" if f"{before}```" in text else f"{before}$ "
    PAGE.write_text(text.replace(ended, ended.replace(before, after)))


def test_the_page_works_as_typed_and_prints_what_it_shows(environment: dict[str, str], tmp_path: Path) -> None:
    port = str(free_port())
    first, second = Shell(tmp_path, environment), Shell(tmp_path, environment)
    shell = first
    try:
        for block in (Block(each.language, each.text.replace(PORT, port)) for each in blocks(PAGE)):
            if block.file is not None:
                (tmp_path / block.file).write_text(block.text)
            for command, printed in block.commands() if block.language == "console" else ():
                if command == "tidegate sandbox":
                    first.type(f"exec {command} --port kafka={port}")
                    told = first.read_lines(printed.count("\n"))
                    shell = second
                else:
                    told = shell.run(command)
                if os.environ.get("RENEW_GOLDEN") and not shown(printed).fullmatch(told):
                    renew(f"$ {command}\n{printed}".replace(port, PORT), f"$ {command}\n{told}".replace(port, PORT))
                else:
                    assert shown(printed).fullmatch(told), f"$ {command}\n{told}\ninstead of\n{printed}"
        os.killpg(first._process.pid, signal.SIGINT)
        rest, _ = first._process.communicate(timeout=60)
        assert rest == blocks(PAGE)[-1].text
    finally:
        for each in (first, second):
            if each._process.poll() is None:
                each.close()


def test_readme_shows_the_files_and_commands_of_the_quickstart() -> None:
    typed = {command for block in blocks(PAGE) if block.language == "console" for command, _ in block.commands()}
    files = {block.file: block.text for block in blocks(PAGE) if block.file}
    readme = ROOT / "README.md"
    assert {"shop.py", "copy_orders.py", "orders.toml"} == {block.file for block in blocks(readme) if block.file}
    for block in blocks(readme):
        if block.file:
            assert block.text == files[block.file]
    section = readme.read_text().partition("## A first listener")[2].partition("## Run it")[0]
    commands = [command for found in BLOCK.findall(section) for command, _ in Block(*found).commands()]
    assert commands
    assert not [command for command in commands if command not in typed]


def test_readme_moves_positions_of_a_group_and_a_topic_that_it_made() -> None:
    readme = (ROOT / "README.md").read_text()
    (group, topic), *others = re.findall(r"^\$ tidegate positions rewind (\S+) (\S+) ", readme, re.MULTILINE)
    assert not others
    assert f'@app.listener("{topic}", group="{group}")' in readme


@pytest.mark.parametrize(
    ("page", "told", "same"),
    [
        ("lag 12  ok\n", "lag 3 ok\n", True),
        ("lag 12 ok\n", "lag 3 late\n", False),
        ("…\ndone\n", "a\nb\ndone\n", True),
        ("…\ndone\n", "a\nb\n", False),
        ("", "something\n", False),
    ],
)
def test_what_is_printed_is_compared_with_the_page(page: str, told: str, same: bool) -> None:
    assert bool(shown(page).fullmatch(told)) is same
