"""Blocks that are no Python: files are read by the settings, and command lines by the program, as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tools.commands import HEAD

from tidegate.cli.options import with_every_command
from tidegate.settings import PipelineSettings, Settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[Any]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        pytest.param(block, id=f"{page.name}-{number}")
        for page in PAGES
        for number, block in enumerate(pattern.findall(page.read_text().partition(HEAD)[0]))
    ]


@pytest.mark.parametrize("block", blocks("toml"))
def test_a_file_is_read(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{(\w+)\}", block):
        monkeypatch.setenv(name, "set")
    file = tmp_path / "file.toml"
    file.write_text(block)
    if re.search(r"\A(?:#.*\n)*(topics|sql) = ", block):
        if "topics" not in block:
            into = "" if "[into]" in block else '[into]\ntable = "orders"\n'
            file.write_text(f'topics = "orders"\ngroup = "etl"\n{block}\n{into}')
        PipelineSettings.load(file)
    else:
        Settings.load(file)


def commands() -> list[Any]:
    lines = [
        (block.id, line.removeprefix("$ "))
        for block in blocks("console")
        for line in block.values[0].splitlines()
        if line.startswith("$ ") and "tidegate " in line and "pip install" not in line
    ]
    return [pytest.param(line, id=f"{page}: {line}") for page, line in lines]


@pytest.mark.parametrize("line", commands())
def test_a_command_line_is_understood(line: str) -> None:
    part = next(part for part in line.split("|") if "tidegate " in part)
    words = shlex.split(part, comments=True)
    words = words[words.index("tidegate") + 1 :]
    for end in ("&", "<", ">"):
        words = words[: words.index(end)] if end in words else words
    command: Any = typer.main.get_command(with_every_command())
    context = command.make_context("tidegate", [*words], resilient_parsing=False) if not words else None
    while hasattr(command, "commands") and words:
        name, *words = words
        assert name in command.commands, f"there is no command {name!r}"
        command = command.commands[name]
    if "--help" not in words:
        context = command.make_context(command.name, [*words])
        assert context is not None


def test_there_are_blocks() -> None:
    assert blocks("toml")
    assert commands()
