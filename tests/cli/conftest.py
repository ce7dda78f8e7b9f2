"""The command line, run as a program in a directory that holds a module to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

COMMAND = [sys.executable, "-m", "tidegate.cli"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copy(Path(__file__).with_name("shop.py"), tmp_path)
    return tmp_path


def environment(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}


@pytest.fixture
def run(directory: Path) -> Run:
    def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], cwd=directory, env=environment(environ), capture_output=True, text=True, timeout=60
        )

    return command


@pytest.fixture
def start(directory: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def command(*arguments: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=directory,
            env=environment(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield command
    for process in started:
        process.kill()
        process.communicate()
