"""The rule: a table and its dead letters are those that plain statements, one record at a time, would have left.

Random tables, records, cuts into batches and crashes go through a sink's own code; an oracle executes plain SQL on a
second table of the same definition (see :mod:`tests.tables.plain`, which lists the exceptions). A failure prints the
seed, the definition and the fewest records that show it. ``RULE_SEED=… RULE_TABLES=… make chaos`` searches on.
"""

from __future__ import annotations

import json
import os
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect
from tests.tables.cells import INTEGER, Kind, misfits, same
from tests.tables.handlers import sink_handler
from tests.tables.specs import Field, Spec
from tests.tables.trial import Search, open_engine, write

from tidegate import Record, Table
from tidegate.app.sink import Sink
from tidegate.sandbox import MariaDB, MySQL

from .places import DATABASES, LOCAL_FILES

PARTS = 3
TABLES, SEQUENCES = 10, 4  # of each part


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if database == "sqlite":
        url = f"sqlite:///{tmp_path}/rule.db"
    else:
        url = request.getfixturevalue(database).url + (LOCAL_FILES if database != "postgres" else "")
    opened = open_engine(url)
    yield opened
    opened.dispose()


@pytest.mark.parametrize("part", range(PARTS))
def test_any_cut_leaves_what_one_statement_for_each_record_would_have_left(
    engine: Engine, database: str, part: int
) -> None:
    search = Search(engine, database, f"14/{part}")
    stories = search.run(TABLES, SEQUENCES)
    assert not stories, "\n\n".join(stories)
    assert search.cases >= TABLES * SEQUENCES  # most tables are not refused


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_a_value_over_the_packet_is_parked_and_a_batch_over_it_is_cut(
    server: str, mode: str, request: pytest.FixtureRequest
) -> None:
    running: MariaDB | MySQL = request.getfixturevalue(server)
    long = Kind("LONGTEXT", same("a", "b" * 20_000, "c" * 45_000), misfits("d" * 70_000, "e" * 300_000), keys=False)
    spec = Spec(server, mode, (Field("k", INTEGER, nullable=False), Field("t", long)), ("k",))
    with small_packets(running):
        engine = open_engine(running.url + LOCAL_FILES)
        try:
            stories = Search(engine, server, "packets").table(0, 15, spec)
        finally:
            engine.dispose()
    assert not stories, stories[0][:3000]


@contextmanager
def small_packets(server: MariaDB | MySQL) -> Iterator[None]:
    engine = create_engine(server.url)
    with engine.connect() as conn:
        before = conn.exec_driver_sql("SELECT @@GLOBAL.max_allowed_packet").scalar()
        conn.exec_driver_sql("SET GLOBAL max_allowed_packet = 65536")
        try:
            yield
        finally:
            conn.exec_driver_sql(f"SET GLOBAL max_allowed_packet = {before}")
    engine.dispose()


ODD = [
    "",
    " ",
    "a ",
    " a",
    "x" * 63,
    "x" * 64,
    "x" * 65,
    "x" * 300,
    "ü" * 32,
    "ctid",
    "xmin",
    "rowid",
    "tableoid",
    "id ",
]
ODD += [
    "id ",
    "a.b",
    "%s",
    "%(n)s",
    ":n",
    "?",
    "select",
    "ß",
    "SS",
    "İ",
    "\U0001f600",
    "50%",
    "$1",
    "a b",
    "Ä",
    "ä",
]
LEFT_OUT = ['q"q', "b`t", "back\\slash", "new\nline", "nul\0"]  # which the docs say make no column


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_field_of_any_name_is_stored_or_its_record_is_parked(engine: Engine, database: str, mode: str) -> None:
    assert not lost_fields(engine, database, mode)


def lost_fields(engine: Engine, database: str, mode: str = "append") -> list[Any]:
    """Values of records that were neither parked nor stored; and records that were parked for no reason."""
    rng = random.Random(f"names {database}")
    name = f"r{secrets.token_hex(4)}"
    quoted = "`id`" if database in ("mysql", "mariadb") else '"id"'
    with engine.begin() as conn:
        conn.exec_driver_sql(f"CREATE TABLE {name} ({quoted} INTEGER NOT NULL PRIMARY KEY)")
    table = Table(name, key=() if mode == "append" else "id", mode=mode, evolve=True)
    sink = sink_handler(Sink(table), engine)
    sent: dict[int, dict[str, Any]] = {}
    parked: set[int] = set()
    for first in range(0, 60, 6):
        for number in range(first, first + 6):
            chosen = rng.sample([*ODD, *LEFT_OUT], rng.randrange(3))
            sent[number] = {"id": number} | {each: number * 100 + at for at, each in enumerate(chosen)}
        records = [
            Record("odd", 0, number, None, json.dumps(sent[number]).encode(), (), 0)
            for number in range(first, first + 6)
        ]
        with engine.connect() as conn, conn.begin():
            parked |= write(sink, conn, records)
    with engine.connect() as conn:
        columns = [each["name"] for each in inspect(conn).get_columns(name)]
        rows = {row[columns.index("id")]: row for row in conn.exec_driver_sql(f"SELECT * FROM {name}")}
    lost: list[Any] = [
        (field, value)
        for number in rows
        for field, value in sent[number].items()
        if field not in LEFT_OUT and value not in _stored(columns, rows[number], field)
    ]
    lost += [number for number in sent if (number in rows) is (number in parked)]
    return lost + [number for number in parked if set(sent[number]) <= {"id", "select", "a b", "$1", "50%"}]


def _stored(columns: list[str], row: Any, field: str) -> list[Any]:
    """What is in the column of that name, or in the one that differs from it in case alone."""
    exact = [at for at, name in enumerate(columns) if name == field]
    return [row[at] for at in exact or [at for at, name in enumerate(columns) if name.casefold() == field.casefold()]]


@pytest.mark.chaos
def test_any_cut_of_many_more_records(engine: Engine, database: str) -> None:
    seed = os.environ.get("RULE_SEED", secrets.token_hex(4))
    tables = int(os.environ.get("RULE_TABLES", "1000"))
    print(f"\n{database}: RULE_SEED={seed} RULE_TABLES={tables}")
    search = Search(engine, database, seed)
    stories = search.run(tables, 30)
    print(f"{search.cases} cases, {search.refused} tables refused")
    assert not stories, "\n\n".join(stories[:20])
