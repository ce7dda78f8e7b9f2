"""The kit in a user's own project: its documentation, its fixture, and the switch, under a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

SHOP = """
from tidegate import App, Record
from tidegate.testing import Crash, Step

app = App("kafka.invalid:9092", "memory://")
seen = []


@app.listener("orders", group="collecting")
def note(record: Record) -> None:
    seen.append(record.value)


def test_a_record_is_noted(make_kit):
    kit = make_kit(app)
    kit.send("orders", "a")
    kit.run(Crash(Step.POLLED))
    kit.run()
    kit.check()
    assert seen == [b"a"]
    print("on", type(kit._broker).__name__)
"""


def run_pytest(project: Path, *options: str, **environ: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, env=os.environ | environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_of_the_documentation_pass(tmp_path: Path) -> None:
    conftest, tests = [], []
    for block in BLOCK.findall(PAGE.read_text()):
        (conftest if "pytest_plugins" in block else tests).append(block)
    (tmp_path / "conftest.py").write_text("\n".join(conftest))
    (tmp_path / "test_shop.py").write_text("\n".join(tests))
    passed = re.search(r"(\d+) passed", run_pytest(tmp_path, "-W", "error"))
    assert passed is not None
    assert int(passed[1]) >= "".join(tests).count("def test_") > 5


def test_the_switch_starts_a_broker_for_the_same_tests(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tidegate.testing.fixtures"]')
    (tmp_path / "test_shop.py").write_text(SHOP)
    assert "on RealBroker" in run_pytest(tmp_path, "-s", TIDEGATE_TEST_BROKER="sandbox")
