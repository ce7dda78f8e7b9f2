"""Starting and watching the children of the crash tests."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.crash.place import Place

ROOT = Path(__file__).parents[2]


def start(
    command: str, place: Place, *, url: str | None = None, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.child", command, url or place.url, place.prefix],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_until_frozen(child: subprocess.Popen[str], timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while state(child.pid) != "T":
        assert child.poll() is None, "the child ended instead of freezing"
        assert time.monotonic() < deadline, "the child did not freeze"
        time.sleep(0.01)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
