"""What a command shows on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

from .conftest import COMMAND


def on_a_terminal(*arguments: str, cwd: Path, env: dict[str, str], given: bytes = b"") -> tuple[int, bytes]:
    """The exit code of a command, and all that it wrote."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write(given)
        process.stdin.close()
        shown = b""
        while part := _read(ours):
            shown += part
        os.close(ours)
        return process.wait(90), shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 10_000)
    except OSError:  # the other side is closed
        return b""
