"""SIGKILL in the middle of bulk loads, on each database and in each mode."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from tests.app.sink.loader import Order, consume
from tests.app.sink.loads import Load, Orders
from tests.processes import ended, finished, killed, running

from tidegate.sandbox import Database, Kafka, Proxy
from tidegate.sandbox.relay import Relay
from tidegate.sandbox.trap import Trap
from tidegate.tables import Mode

PARTITIONS, RECORDS, BATCH = 2, 6000, 2000
STRIKES = [(1, 1), (2, 50_000)]  # in which load, and how far into it: bytes on the wire
ROWS = [10, PARTITIONS * BATCH + 1000]  # the same for SQLite: which row, of all loads

CASES = [(server, mode) for mode in ("append", "upsert", "accumulate") for server in ("mariadb", "mysql", "postgres")]
CASES += [("mariadb", "ignore"), ("postgres", "update")]  # whose statements differ little from those of the others


@pytest.fixture(scope="module")
def orders(kafka: Kafka) -> Orders:
    return Orders.create(kafka.bootstrap, PARTITIONS, RECORDS)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


class Striker(Proxy):
    """Kills a client in the middle of a load: when so many of its bytes have passed by, and before its COMMIT."""

    def __init__(self, server: Database, table: str, load: int, after: int) -> None:
        super().__init__(server.host, server.port)
        self.pid = 0
        self.struck: int | None = None
        """How many bytes of the load had passed by."""
        self._begins = re.compile(rb"""(?:COPY|INTO TABLE|INSERT INTO|UPDATE) ["`]%b["`]""" % table.encode())
        self._left = load
        self._after = after
        self._loading: Relay | None = None
        self._passed: dict[Relay, bytes] = {}

    def trapped(self, relay: Relay, data: bytes) -> Trap | None:
        seen = self._passed.get(relay, b"") + data
        while self._left and (begin := self._begins.search(seen)):
            self._left -= 1
            seen = seen[begin.end() :]
            self._loading = relay
        self._passed[relay] = seen if relay is self._loading else seen[-300:]
        if self._left == 0 and relay is self._loading and self.struck is None and len(seen) >= self._after:
            assert b"COMMIT" not in seen, "the load was over"
            self.struck = len(seen)
            os.kill(self.pid, signal.SIGKILL)
        return super().trapped(relay, data)


@pytest.mark.parametrize(("server", "mode"), CASES, indirect=["server"])
def test_a_kill_in_the_middle_of_a_load_loses_nothing_and_repeats_nothing(
    orders: Orders, server: Database, mode: str
) -> None:
    load = Load(orders, server.url, Mode(mode))
    load.prepare()
    for number, after in STRIKES:
        with Striker(server, load.name, number, after) as striker:
            with running(consume, Order(load, BATCH, server.url_for(port=striker.port))) as child:
                striker.pid = child.pid or 0
                assert ended(child) == -signal.SIGKILL
            assert striker.struck is not None
    finished(consume, Order(load, BATCH))
    load.check()


@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
def test_a_kill_in_the_middle_of_a_load_into_sqlite_loses_nothing_and_repeats_nothing(
    orders: Orders, tmp_path: Path, mode: Mode
) -> None:
    load = Load(orders, f"sqlite:///{tmp_path / 'load.db'}", mode)
    load.prepare()
    for row in ROWS:
        killed(consume, Order(load, BATCH, dies_at_row=row))
    assert 0 < load.position() < PARTITIONS * RECORDS, "the second kill was not in a later load"
    finished(consume, Order(load, BATCH))
    load.check()
