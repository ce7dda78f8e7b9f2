"""Each fault of the table layer that was mended, put back: the comparison with plain SQL has to find it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pytest
from sqlalchemy import Engine
from tests.tables.cells import KINDS, Kind, misfits, same
from tests.tables.specs import Field, Spec
from tests.tables.trial import Search, open_engine

from tidegate.errors import TidegateError
from tidegate.ledger.sql import mysql
from tidegate.sandbox import MySQL
from tidegate.tables import Layout, Rows, plan, reader, target
from tidegate.tables.database import TableDatabase
from tidegate.tables.layout import Order
from tidegate.tables.mysql import facts as mysql_facts
from tidegate.tables.mysql import writer as mysql_writer

from .places import LOCAL_FILES
from .test_against_plain_sql import lost_fields, small_packets

SEQUENCES = 200


class Mutant(NamedTuple):
    """A fault: its number in the list of faults, where it showed, and how to have it again."""

    point: int
    fault: str
    spec: Spec
    alter: Callable[[Layout], Layout] | None = None
    patch: Callable[[pytest.MonkeyPatch], None] | None = None

    def __str__(self) -> str:
        return f"{self.point}: {self.fault}, {self.spec.database}"


def _spec(database: str, mode: str = "upsert", key: str = "integer", *extras: str, **kinds: str | Field) -> Spec:
    known = KINDS[database]
    fields = [Field("k", known[key], nullable=False)]
    for name, kind in {"n": "integer", "t": "text", **kinds}.items():
        fields.append(Field(name, known[kind]) if isinstance(kind, str) else replace(kind, name=name))
    return Spec(database, mode, tuple(fields), ("k",), extras=extras)


def _defaulted(database: str) -> Field:
    return Field("", KINDS[database]["integer"], nullable=False, default="42")


def _as_bytes(layout: Layout) -> Layout:
    return replace(layout, columns=tuple(replace(each, folds=False, compared="") for each in layout.columns))


def _free(layout: Layout) -> Layout:
    return replace(layout, order=Order.FREE)


def _uncounted(layout: Layout) -> Layout:
    return replace(layout, is_numbered=False)


def _with_length(layout: Layout) -> Layout:
    columns = (replace(each, sql_type="varchar(3)[]") if each.name == "c" else each for each in layout.columns)
    return replace(layout, columns=tuple(columns))


def _any_choice(layout: Layout) -> Layout:
    return replace(layout, columns=tuple(replace(each, choices=None, pattern=None) for each in layout.columns))


def _exact_names(layout: Layout) -> Layout:
    return replace(layout, table=replace(layout.table, ignore_case=False))


def _lacks_nothing(patch: pytest.MonkeyPatch) -> None:
    write = target.write_rows
    patch.setattr(target, "write_rows", lambda conn, layout, rows: write(conn, layout, replace(rows, lacking={})))


def _null_is_default(patch: pytest.MonkeyPatch) -> None:
    write = target.write_rows

    def lacking(layout: Layout, rows: Rows) -> dict[str, Any]:
        names = [each for each in rows.batch.schema.names if layout.by_name[each].has_default]
        return {**rows.lacking, **{name: pc.is_null(rows.batch.column(name)) for name in names}}

    patch.setattr(Layout, "refuses_null", lambda layout, column: layout._finds_rows(column))
    patch.setattr(
        target,
        "write_rows",
        lambda conn, layout, rows: write(conn, layout, replace(rows, lacking=lacking(layout, rows))),
    )


def _no_doubts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan.Plan, "_is_in_doubt", False)


def _several_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mysql_facts, "_refuse_keys", lambda *_: None)


def _rows_of_nulls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reader.Reader, "_empty", lambda *_: [])


def _signals_stop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mysql, "_VALUE_STATES", ("22", "23", "44"))
    patch.setattr(mysql, "_VALUES", mysql._VALUES - {1644})


MUTANTS = [
    *(
        Mutant(1, "keys are compared as bytes", _spec(database, mode, key), _as_bytes)
        for database, mode, key in [
            ("postgres", "upsert", "citext"),
            ("postgres", "upsert", "caseless"),
            ("postgres", "accumulate", "numeric"),
            ("postgres", "ignore", "inet"),
            ("postgres", "upsert", "char"),
            ("postgres", "upsert", "interval"),
            ("mariadb", "upsert", "caseless"),
            ("mysql", "upsert", "caseless"),
            ("sqlite", "upsert", "nocase"),
            ("sqlite", "upsert", "rtrim"),
        ]
    ),
    *(
        Mutant(1, "rows are merged whatever else the table has", _spec(database, "upsert", "integer", extra), _free)
        for database, extra in [
            ("postgres", "unique t"),
            ("postgres", "exclusion"),
            ("postgres", "check"),
            ("postgres", "counting after"),
            ("sqlite", "unique t"),
            ("sqlite", "counting after"),
            ("mariadb", "counting after"),
            ("mysql", "changing trigger"),
        ]
    ),
    *(
        Mutant(1, "rows are merged whatever is in them", spec, None, _no_doubts)
        for spec in (
            _spec("postgres", "upsert", c="jsonb"),
            _spec("mysql", "accumulate", c="json"),
            _spec("mariadb", "accumulate", c="json"),
        )
    ),
    *(
        Mutant(2, "a field that is lacked is null", _spec(database, mode, n=_defaulted(database)), None, _lacks_nothing)
        for database, mode in [
            ("postgres", "upsert"),
            ("mariadb", "append"),
            ("mysql", "upsert"),
            ("sqlite", "accumulate"),
        ]
    ),
    *(
        Mutant(2, "a null is the default", _spec(database, n=_defaulted(database)), None, _null_is_default)
        for database in ("postgres", "sqlite")
    ),
    Mutant(2, "numbers are given out of order", _spec("postgres", "upsert", "integer", "serial"), _uncounted),
    *(
        Mutant(3, "any unique index is the key", _spec(each, "upsert", "integer", "unique t"), None, _several_keys)
        for each in ("mariadb", "mysql")
    ),
    Mutant(4, "a cast cuts", _spec("postgres", "upsert", c="varchars"), _with_length),
    *(
        Mutant(4, "a text is the number of a label", _spec(each, c="enum"), _any_choice)
        for each in ("mariadb", "mysql")
    ),
    *(
        Mutant(5, "a record without a field is a row of nulls", _spec(each, "append"), None, _rows_of_nulls)
        for each in ("postgres", "mariadb", "mysql", "sqlite")
    ),
    Mutant(5, "a field in another case is not there", _spec("sqlite", "append"), _exact_names),
    *(
        Mutant(
            6, "what a trigger signals stops a sink", _spec(each, "append", "integer", "raising"), None, _signals_stop
        )
        for each in ("mariadb", "mysql")
    ),
]


@pytest.fixture
def engine(mutant: Mutant, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    database = mutant.spec.database
    if database == "sqlite":
        opened = open_engine(f"sqlite:///{tmp_path}/rule.db")
    else:
        local = LOCAL_FILES if database != "postgres" else ""
        opened = open_engine(request.getfixturevalue(database).url + local)
    yield opened
    opened.dispose()


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_fault_that_is_put_back_is_found(mutant: Mutant, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant.patch is not None:
        mutant.patch(monkeypatch)
    spec = mutant.spec
    if mutant.point == 5:  # nothing else refuses it
        spec = replace(spec, constraint="", fields=tuple(replace(each, nullable=True) for each in spec.fields))
    search = Search(engine, spec.database, f"mutant {mutant}", mutant.alter, chances=(0.0,), shrinks=False)
    assert search.table(0, SEQUENCES, spec), f"not found in {search.cases} cases"


@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_a_packet_that_nobody_heeds_is_found(
    server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = request.getfixturevalue(server)
    monkeypatch.setattr(mysql_writer, "_packet", lambda _: 1 << 30)
    long = Kind("LONGTEXT", same("a", "b" * 20_000, "c" * 45_000), misfits("e" * 300_000), keys=False)
    spec = Spec(server, "upsert", (Field("k", KINDS[server]["integer"], nullable=False), Field("t", long)), ("k",))
    with small_packets(running):
        engine = open_engine(running.url + LOCAL_FILES)
        try:
            assert Search(engine, server, "packets", chances=(0.0,), shrinks=False).table(0, 20, spec)
        finally:
            engine.dispose()


def test_a_name_that_nobody_looks_at_is_found(mysql: MySQL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableDatabase, "misnamed", lambda *_: None)
    engine = open_engine(mysql.url)
    try:
        lost = lost_fields(engine, "mysql")
    except TidegateError:
        lost = ["stopped"]
    engine.dispose()
    assert lost
