"""The demo, shortened: what it shows, and that it leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def processes_that_name(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in command:
                found.append(command)
    return found


def test_the_same_kill_repeats_loses_or_does_nothing_and_nobody_is_left_behind(tmp_path: Path) -> None:
    # One kill for each delivery, and that an aimed one: six starts of Spark, of which three are killed.
    command = [sys.executable, "-m", "demo", "--orders", "6000", "--kills", "1", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    rows = {words[0]: words[1:] for words in map(str.split, done.stdout.splitlines()) if len(words) == 7}
    assert rows["exactly-once"][:4] == ["6,000", "6,000", "0", "0"]
    assert rows["exactly-once"][4] == rows["exactly-once"][5]
    assert rows["at-least-once"][2] == "0" != rows["at-least-once"][3]
    assert rows["at-most-once"][3] == "0" != rows["at-most-once"][2]
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert not processes_that_name(str(tmp_path))
