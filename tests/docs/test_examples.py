"""The Python blocks of README and docs run as they stand, those of a page one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate.sandbox import Kafka

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param("\n".join(blocks), id=str(path.relative_to(ROOT)))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if (blocks := BLOCK.findall(path.read_text()))
]


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> dict[str, str]:
    """Addresses that examples write for servers, and the sandbox's servers that stand in for them."""
    return {"redis://localhost:6379/0": "redis_server", "localhost:9092": "kafka"}


def address_of(server: Any) -> str:
    """The address of a server; a broker has the topics that examples send to."""
    if not isinstance(server, Kafka):
        return str(server.url)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    existing = admin.list_topics(timeout=30).topics
    wanted = [NewTopic(name, 2, 1) for name in ("shop-orders", "shop-audit") if name not in existing]
    for future in (admin.create_topics(wanted) if wanted else {}).values():
        future.result(30)
    return server.bootstrap


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_a_page_run(
    example: str, servers: dict[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for address, fixture in servers.items():
        if address in example:
            example = example.replace(address, address_of(request.getfixturevalue(fixture)))
    for _ in range(2 if "open_ledger" in example else 1):  # what is stored by the first run is there in the second
        command = [sys.executable, "-c", example]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr


def test_there_are_examples() -> None:
    assert EXAMPLES
