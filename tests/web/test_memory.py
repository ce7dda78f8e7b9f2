"""The memory of the dashboard is bounded, whatever the ledger holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tidegate.core.records import FailedRecord, Record, TopicPartition
from tidegate.core.work import Span
from tidegate.ledger import open_ledger

from .conftest import CHOSEN
from .served import Served

LETTERS, SIZE = 26, 4 << 20
GROUPS, ENTRIES, NOTE = 5_000, 3_000, 60_000
BOUND = 110 << 20  # what the pages below may add; all letters are 208 MB, all notes 180 MB


def peak(served: Served) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{served.process.pid}/status").read_text())
    assert found
    return int(found[1]) << 10


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """The address of a ledger with huge letters, errors, notes and names, and many groups."""
    url, tp = f"sqlite:///{tmp_path / 'hostile.db'}", TopicPartition("orders", 0)
    with open_ledger(url) as ledger:
        ledger.create()
        claims = ledger.claim("billing", [tp])
        for number in range(LETTERS):
            record = Record("orders", 0, number, b"k" * 1000, b"v" * SIZE, (("h", b"x" * 100_000),))
            letter = FailedRecord(record, "e" * SIZE)
            ledger.transact(claims, [Span(tp, number, number + 1, 1)], lambda tx, letter=letter: tx.park(letter))  # type: ignore[misc]
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(
            text(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :groups) "
                "INSERT INTO tidegate_groups (consumer_group, paused, seq, updated_at) "
                "SELECT 'g' || i || char(27) || substr(hex(zeroblob(130)), 1, 240), 0, 0, "
                "(SELECT max(updated_at) FROM tidegate_groups) FROM n"
            ),
            {"groups": GROUPS},
        )
        conn.execute(
            text(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :entries) "
                "INSERT INTO tidegate_journal (consumer_group, topic, partition_id, seq, kind, start_offset, "
                "end_offset, records, epoch, note, at) SELECT 'billing', '', -1, i, 'pause', 0, 0, 0, 0, "
                "substr(hex(zeroblob(:note)), 1, :note), (SELECT max(updated_at) FROM tidegate_positions) FROM n"
            ),
            {"entries": ENTRIES, "note": NOTE},
        )
    engine.dispose()
    return url


def test_the_pages_need_little_memory_whatever_is_stored(
    hostile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Served.start(tmp_path, "--no-kafka", TIDEGATE_LEDGER=hostile, TIDEGATE_DASHBOARD_TOKEN=CHOSEN)
    served.token = CHOSEN
    try:
        cookie = served.log_in()
        before = peak(served)
        for path in (
            "/",
            "/?q=g4&sort=lag&page=100",
            "/group?name=billing&window=24h",
            "/letters?group=billing",
            "/letter?group=billing&id=1",
            "/letter/value?group=billing&id=1",
            "/journal?group=billing&since=all",
            "/journal?group=billing&since=all&kind=claim",
        ):
            answer = served.ask(path, cookie=cookie)
            assert answer.status == 200, path
            assert len(answer.text) < 2 << 20 or path.startswith("/letter/value"), path
        grown = peak(served) - before
    finally:
        served.close()
    stored = LETTERS * 2 * SIZE + ENTRIES * NOTE
    with capsys.disabled():
        print(f"\nthe dashboard took {grown >> 20} MB for a ledger of {stored >> 20} MB (bound {BOUND >> 20} MB)")
    assert grown < BOUND
