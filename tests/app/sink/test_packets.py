"""Values and batches that are too large for what the database takes at once."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event
from tests.app.sink.till import GROUP, Till

from tidegate.app.replay import Replay
from tidegate.core.records import left_out
from tidegate.tables.postgres import writer as postgres_writer

PACKET = 1 << 20
TEXTS = "id INTEGER PRIMARY KEY, text {}"
UPSERT = {"key": "id", "mode": "upsert"}


@pytest.fixture(params=["mariadb", "mysql"])
def narrow(request: pytest.FixtureRequest) -> Iterator[Till]:
    """A server that takes no more than a megabyte at once, as new connections find it."""
    url = request.getfixturevalue(request.param).url
    before = Till(url)
    with before.engine.connect() as conn:
        found = conn.exec_driver_sql("SELECT @@GLOBAL.max_allowed_packet").scalar_one()
    before.sql(f"SET GLOBAL max_allowed_packet = {PACKET}")
    opened = Till(url)
    yield opened
    before.sql(f"SET GLOBAL max_allowed_packet = {found}")
    opened.close()
    before.close()


def text(number: int, size: int, of: str = "x") -> str:
    return json.dumps({"id": number, "text": of * size})


def connection(till: Till) -> Any:
    with till.ledger.engine.connect() as conn:
        return conn.exec_driver_sql("SELECT CONNECTION_ID()").scalar_one()


@pytest.mark.parametrize("into", [{}, UPSERT], ids=["append", "upsert"])
def test_a_value_over_the_packet_is_parked_and_a_batch_over_it_is_cut(narrow: Till, into: dict[str, Any]) -> None:
    narrow.create(TEXTS.format("LONGTEXT"))
    same = connection(narrow)
    sizes = [10, 300_000, 300_000, 300_000, 2 * PACKET, 300_000, 600_000, 400_000, 10]
    narrow.write(*(text(number, size) for number, size in enumerate(sizes)), **into)
    narrow.write(text(20, 600_000, "'"), text(21, 300_000, "'"), text(22, PACKET), **into)
    assert narrow.parked() == [4, 9, 11]
    assert narrow.ids() == [0, 1, 2, 3, 5, 6, 7, 8, 21]
    assert all("column 'text'" in error and "max_allowed_packet is 1048576" in error for error in narrow.errors())
    assert connection(narrow) == same, "the server has not closed the connection"


@pytest.mark.parametrize("into", [{}, UPSERT], ids=["append", "upsert"])
def test_rows_near_the_limit_are_stored_or_parked_and_never_an_outage(narrow: Till, into: dict[str, Any]) -> None:
    narrow.create(TEXTS.format("LONGTEXT"))
    same = connection(narrow)
    stored, parked, number = PACKET - 200, PACKET, 0
    while parked - stored > 1:
        size, number = (stored + parked) // 2, number + 1
        narrow.write(text(1000 + number, size), **into)
        stored, parked = (size, parked) if 1000 + number in narrow.ids() else (stored, size)
    assert len(narrow.ids()) + len(narrow.parked()) == number
    assert narrow.ids()
    assert narrow.parked()
    assert connection(narrow) == same


def test_a_batch_of_many_narrow_columns_is_cut_by_what_it_takes_in_a_statement(narrow: Till) -> None:
    names = [f"c{number}" for number in range(300)]
    narrow.create(f"id INTEGER PRIMARY KEY, {', '.join(f'{name} TINYINT' for name in names)}")
    row = dict.fromkeys(names, -100)
    narrow.write(*(json.dumps({"id": number, **row}) for number in range(1000)), **UPSERT)
    assert len(narrow.ids()) == 1000
    assert not narrow.parked()


def test_a_letter_that_is_larger_than_the_packet_is_kept_without_its_value_and_not_replayed(narrow: Till) -> None:
    narrow.create(TEXTS.format("VARCHAR(10)"))
    narrow.write(text(1, 1), text(2, 2 * PACKET), text(3, 300_000), text(4, 700_000), text(5, 1))
    assert narrow.ids() == [1, 5]
    large, fits, doubled = narrow.letters()
    assert left_out(large.record) == f"value, {2 * PACKET + 21} bytes"
    assert left_out(doubled.record) == "value, 700021 bytes"
    assert left_out(fits.record) is None
    assert fits.record.value == text(3, 300_000).encode()
    assert (large.record.offset, large.record.value) == (1, None)


def test_a_replay_does_not_take_a_letter_without_its_value_for_a_tombstone(narrow: Till) -> None:
    from tidegate import App, Table

    narrow.create(TEXTS.format("VARCHAR(10)"))
    narrow.write(text(1, 1), text(2, 2 * PACKET))
    app = App("nowhere.invalid:9092", narrow.ledger)
    app.sink("orders", into=Table(narrow.name, key="id", mode="upsert"), group=GROUP)
    (parked,) = narrow.ledger.dead_letters(GROUP)
    replayed = Replay(narrow.ledger, app.listeners, GROUP).one(parked.id)
    assert replayed.outcome == "failed"
    assert "does not hold all of its record" in str(replayed.error)
    assert [each.id for each in narrow.ledger.dead_letters(GROUP)] == [parked.id]


def test_on_sqlite_a_value_over_its_limit_is_parked_without_it(tmp_path: Any) -> None:
    till = Till(f"sqlite:///{tmp_path / 'till.db'}")
    till.create(TEXTS.format("TEXT"))

    @event.listens_for(till.ledger.engine, "checkout")
    def narrow_down(driver: sqlite3.Connection, *_: object) -> None:
        driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)

    till.write(text(1, 10), text(2, 200_000), text(3, 50_000))
    assert till.ids() == [1, 3]
    assert till.parked() == [1]
    assert "too big" in till.errors()[0]
    assert left_out(till.letters()[0].record) == "value, 200021 bytes"
    till.close()


@pytest.mark.parametrize("into", [{}, UPSERT], ids=["append", "upsert"])
def test_on_postgres_a_row_that_is_longer_than_a_message_is_parked(
    on_postgres: Till, monkeypatch: pytest.MonkeyPatch, into: dict[str, Any]
) -> None:
    """A gigabyte in life."""
    monkeypatch.setattr(postgres_writer, "_LONGEST", 1 << 20)
    monkeypatch.setattr("tidegate.tables.writer._PART", 1 << 19)
    on_postgres.create(TEXTS.format("TEXT"))
    sizes = [10, 300_000, 300_000, 1 << 20, 300_000, 10]
    on_postgres.write(*(text(number, size) for number, size in enumerate(sizes)), **into)
    assert on_postgres.parked() == [3]
    assert on_postgres.ids() == [0, 1, 2, 4, 5]
    assert "column 'text'" in on_postgres.errors()[0]


def test_on_postgres_a_row_or_a_key_that_no_page_takes_is_parked(on_postgres: Till) -> None:
    on_postgres.create("id TEXT PRIMARY KEY, total INTEGER")
    key = os.urandom(6000).hex()
    on_postgres.write('{"id": "a"}', json.dumps({"id": key}), '{"id": "b"}')
    assert on_postgres.parked() == [1]
    assert on_postgres.ids() == ["a", "b"]


def test_a_batch_of_many_megabytes_passes_in_parts(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.tables.writer._PART", 4 << 20)
    till.create(TEXTS.format("TEXT" if till.database in ("postgresql", "sqlite") else "LONGTEXT"))
    till.write(*(text(number, PACKET) for number in range(10)))
    till.write(*(text(number, PACKET) for number in range(10)), **UPSERT)
    assert len(till.ids()) == 10
    assert not till.parked()
