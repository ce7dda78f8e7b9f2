"""What SQLite's definitions may say of conflicts and defaults: the rule holds there too, or the table is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from tests.tables.trial import open_engine

from tidegate import ConfigurationError
from tidegate.tables import Table, Target
from tidegate.tables.layout import Order

from .oracle import Gone, Sent
from .places import Place
from .through_sinks import Rule

MODES = ["append", "upsert", "ignore", "update", "accumulate"]


def settings_of(mode: str) -> dict[str, Any]:
    if mode == "append":
        return {}
    added = {"add": ("n",)} if mode == "accumulate" else {}
    return {"key": ("id",), "mode": mode, "tombstones": "delete", **added}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """With savepoints, as the ledger's connections have them."""
    opened = Place("sqlite", f"sqlite:///{tmp_path}/rows.db")
    opened.engine.dispose()
    opened.engine = open_engine(opened.url)
    yield opened
    opened.engine.dispose()


# Keys


@pytest.mark.parametrize(
    ("columns", "parked"),
    [
        ("id INTEGER PRIMARY KEY DESC, n INTEGER", [3]),
        ("id INTEGER, n INTEGER, PRIMARY KEY (id DESC)", [3]),
        ("id INT PRIMARY KEY, n INTEGER", [3]),
        ("id INTEGER PRIMARY KEY, n INTEGER", [3]),
        ("id INTEGER, n INTEGER, PRIMARY KEY (id)", [3]),
        ("id INTEGER PRIMARY KEY NOT NULL, n INTEGER) WITHOUT ROWID --(", [0, 1, 3, 4]),
        ("id INTEGER PRIMARY KEY, n INTEGER) WITHOUT ROWID --(", [0, 1, 3, 4]),
    ],
)
def test_a_null_in_a_primary_key_is_what_sqlite_takes_it_for(place: Place, columns: str, parked: list[int]) -> None:
    sent: list[Sent] = [{"id": None, "n": 1}, {"n": 2}, {"id": 7, "n": 3}, {"id": 7, "n": 4}, {"id": None, "n": 5}]
    assert Rule(place, columns).check_rule(sent, cuts=(1000, 2, 1))[1] == parked


@pytest.mark.parametrize("mode", ["upsert", "update", "accumulate"])
def test_a_key_is_found_as_its_index_compares_and_not_as_its_column_does(place: Place, mode: str) -> None:
    index = "CREATE UNIQUE INDEX {t}_i ON {t} (id COLLATE BINARY)"
    rule = Rule(place, "id TEXT COLLATE NOCASE, n INTEGER", [index], **settings_of(mode))
    sent: list[Sent] = [{"id": "A", "n": 1}, {"id": "B", "n": 2}, Gone(id="A"), Gone(id="c")]
    for size in (1000, 2, 1):
        found = rule.by_a_sink(sent, size, given="('a', 5), ('b', 6), ('B', 7), ('C', 8)")
        changed = 9 if mode == "accumulate" else 2
        assert found == ([("a", "5"), ("b", "6"), ("B", str(changed)), ("C", "8")], [])


# Defaults


@pytest.mark.parametrize("mode", ["upsert", "ignore"])
def test_a_record_that_gets_a_default_that_fails_is_parked(place: Place, mode: str) -> None:
    columns = "id INTEGER PRIMARY KEY, n INTEGER, a INTEGER DEFAULT (abs(-9223372036854775808))"
    sent: list[Sent] = [{"id": 1, "n": 1}, {"id": 1, "a": 5}, {"id": 2, "n": 2}, Gone(id=2), {"id": 3, "n": 3, "a": 1}]
    rows, parked = Rule(place, columns, **settings_of(mode)).check_rule(sent, cuts=(1000, 2))
    assert (rows, parked) == ([("1", "None", "5"), ("3", "3", "1")], [0, 2])


def test_a_default_of_the_wrong_type_fails_in_a_strict_table(place: Place) -> None:
    rule = Rule(place, "id INTEGER PRIMARY KEY, n INTEGER, a INTEGER DEFAULT 'x') STRICT --(", **settings_of("upsert"))
    assert rule.check_rule([{"id": 1, "n": 1}, {"id": 1, "a": 5}])[1] == [0]


@pytest.mark.parametrize(
    ("default", "order"),
    [
        ("5", "FREE"),
        ("(-5)", "FREE"),
        ("+1.5e3", "FREE"),
        ("'it''s abs(1)'", "FREE"),
        ("x'ab'", "FREE"),
        ("NULL", "FREE"),
        ("TRUE", "FREE"),
        ("CURRENT_TIMESTAMP", "FREE"),
        ("(datetime('now'))", "FREE"),
        ("(abs(-9223372036854775808))", "KEPT"),
        ("(json('x'))", "KEPT"),
        ("(5 + 1)", "KEPT"),
    ],
)
def test_only_a_default_that_may_fail_keeps_rows_in_order(place: Place, default: str, order: str) -> None:
    name = place.create(f"id INTEGER PRIMARY KEY, a DEFAULT {default}")
    assert Target(place.engine, Table(name, key="id", mode="upsert")).layout.order.name == order


def test_a_column_whose_default_is_null_has_none(place: Place) -> None:
    columns = "id INTEGER PRIMARY KEY, n INTEGER, a INTEGER NOT NULL DEFAULT NULL"
    assert Rule(place, columns, **settings_of("upsert")).check_rule([{"id": 1, "n": 1}, {"id": 1, "a": 5}])[1] == [0]


# Conflicts

REFUSED = [
    ("id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK, n INTEGER", [], "ON CONFLICT ROLLBACK"),
    ("id INTEGER PRIMARY KEY, n INTEGER UNIQUE on /* so */ conflict\nfail", [], "ON CONFLICT FAIL"),
    ("id INTEGER PRIMARY KEY, n INTEGER NOT NULL ON CONFLICT FAIL", [], "ON CONFLICT FAIL"),
    ("id INTEGER PRIMARY KEY, n INTEGER, UNIQUE (n) ON CONFLICT ROLLBACK", [], "ON CONFLICT ROLLBACK"),
    *(
        ("id INTEGER PRIMARY KEY, n INTEGER", [f"CREATE TRIGGER {{t}}_g BEFORE {when} ON {{t}} {body}"], said)
        for when in ("INSERT", "UPDATE OF n", "DELETE")
        for body, said in (
            ("WHEN 1 = 2 BEGIN SELECT RAISE(ROLLBACK, 'no'); END", "RAISE(ROLLBACK, …)"),
            ("BEGIN SELECT raise ( fail , 'no') WHERE 1 = 2; END", "RAISE(FAIL, …)"),
            ("BEGIN INSERT OR ROLLBACK INTO {t} SELECT 1, 2 WHERE 1 = 2; END", "OR ROLLBACK"),
            ("BEGIN UPDATE OR FAIL {t} SET n = 1 WHERE 1 = 2; END", "OR FAIL"),
        )
    ),
]


@pytest.mark.parametrize(("columns", "extra", "said"), REFUSED)
def test_what_ends_the_transaction_or_leaves_half_a_statement_is_refused(
    place: Place, columns: str, extra: list[str], said: str
) -> None:
    name = place.create(columns)
    for statement in extra:
        place.run(statement.replace("{t}", name))
    for mode in ("append", "upsert"):
        with pytest.raises(ConfigurationError) as refused:
            Target(place.engine, Table(name, **settings_of(mode))).prepare()
        assert f"table {name}: " in str(refused.value)
        assert said in str(refused.value)
        assert ("trigger" in str(refused.value)) == bool(extra)


def test_another_table_that_ends_the_transaction_is_refused_if_a_trigger_or_a_reference_may_come_to_it(
    place: Place,
) -> None:
    place.create("id INTEGER PRIMARY KEY, n INTEGER UNIQUE ON CONFLICT ROLLBACK", "log")
    name = place.create("id INTEGER PRIMARY KEY, n INTEGER")
    assert Target(place.engine, Table(name, **settings_of("upsert"))).layout.order is Order.FREE
    place.run(f"CREATE TRIGGER {name}_g AFTER INSERT ON {name} BEGIN INSERT INTO log (n) VALUES (NEW.n); END")
    with pytest.raises(ConfigurationError, match=f"table {name}: .*'log' has ON CONFLICT ROLLBACK"):
        Target(place.engine, Table(name, **settings_of("upsert"))).prepare()


def test_words_in_names_texts_and_comments_are_not_refused(place: Place) -> None:
    name = place.create(
        "id INTEGER PRIMARY KEY, \"ON CONFLICT FAIL\" TEXT DEFAULT 'ON CONFLICT ROLLBACK', -- ON CONFLICT FAIL\n"
        "[RAISE(FAIL, 1)] INTEGER, `OR FAIL` INTEGER /* ON CONFLICT ROLLBACK */"
    )
    assert Target(place.engine, Table(name, **settings_of("upsert"))).layout.order is Order.FREE


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["IGNORE", "REPLACE", "ABORT"])
def test_conflicts_that_a_definition_settles_are_settled_record_by_record(place: Place, way: str, mode: str) -> None:
    sent: list[Sent] = [
        {"id": 1, "u": 1, "n": 1},
        {"id": 2, "u": 1, "n": 2},
        {"id": 1, "u": 2, "n": None},
        {"id": 3, "u": 2, "n": 3},
        {"id": 3, "u": 9},
        {"id": 3, "u": 1, "n": 5},
        {"id": 2, "u": 2, "n": 2},
        {"id": 4, "u": 4},
        {"id": 5, "u": 9, "n": 9},
        {"id": 9, "u": 5, "n": 1},
        {"id": 9, "n": 2},
    ]
    if mode != "append":
        sent[7:7] = [Gone(id=3), {"id": 3, "u": 1, "n": 1}]
    for columns in (
        f"id INTEGER PRIMARY KEY ON CONFLICT {way}, u INTEGER, n INTEGER",
        f"id INTEGER PRIMARY KEY, u INTEGER UNIQUE ON CONFLICT {way}, n INTEGER",
        f"id INTEGER PRIMARY KEY, u INTEGER, n INTEGER NOT NULL ON CONFLICT {way} DEFAULT 7",
        f"id INTEGER PRIMARY KEY, u INTEGER, n INTEGER NOT NULL ON CONFLICT {way}",
        f"id INTEGER NOT NULL, u INTEGER, n INTEGER, UNIQUE (id) ON CONFLICT {way}, UNIQUE (u) ON CONFLICT {way}",
    ):
        given = ", ".join(f"({n}, {n + 10}, {n})" for n in ((1, 2, 3, 4, 5, 9) if mode == "update" else (9,)))
        Rule(place, columns, **settings_of(mode)).check_rule(sent, given=given, cuts=(1000, 3, 1))


@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_a_trigger_passes_over_leaves_the_others(place: Place, mode: str) -> None:
    trigger = "CREATE TRIGGER {t}_g BEFORE INSERT ON {t} WHEN NEW.n = 2 BEGIN SELECT RAISE(IGNORE); END"
    sent = [{"id": id, "n": n} for id, n in ((1, 1), (2, 2), (3, 3), (1, 2), (4, 2), (5, 5))]
    rule = Rule(place, "id INTEGER PRIMARY KEY, n INTEGER", [trigger], **settings_of(mode))
    rule.check_rule(sent, given="(9, 9)")


def test_a_trigger_may_pass_over_a_row_that_lacks_what_its_table_needs(place: Place) -> None:
    trigger = "CREATE TRIGGER {t}_g BEFORE INSERT ON {t} WHEN NEW.n = 2 BEGIN SELECT RAISE(IGNORE); END"
    rule = Rule(place, "id INTEGER PRIMARY KEY, n INTEGER, a TEXT NOT NULL", [trigger], **settings_of("upsert"))
    sent: list[Sent] = [{"id": 1, "n": 2}, {"id": 1, "n": 1}, {"id": 1, "n": 1, "a": "x"}, {"id": 2, "n": 2, "a": None}]
    assert rule.check_rule(sent, cuts=(1000, 1))[1] == [1]


# Other files


def attached(place: Place, path: Path) -> Engine:
    engine = create_engine(place.url)
    event.listen(engine, "connect", lambda driver, _: driver.execute(f"ATTACH '{path}' AS other"))
    return engine


@pytest.mark.parametrize("journal", ["WAL", "MEMORY", "OFF", "DELETE", "TRUNCATE"])
def test_a_table_in_another_file_is_refused_unless_both_files_commit_together(
    place: Place, tmp_path: Path, journal: str
) -> None:
    engine = attached(place, tmp_path / "other.db")
    event.listen(engine, "connect", lambda driver, _: driver.execute(f"PRAGMA other.journal_mode = {journal}"))
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE other.far (id INTEGER PRIMARY KEY, n INTEGER CHECK (n < 5))")
    with engine.connect() as conn:
        conn.exec_driver_sql("PRAGMA main.journal_mode = WAL")
    with pytest.raises(ConfigurationError, match="main has the journal mode wal, .* commits each file by itself"):
        Target(engine, Table("far", schema="other")).prepare()
    with engine.connect() as conn:
        conn.exec_driver_sql("PRAGMA main.journal_mode = DELETE")
    target = Target(engine, Table("far", key="id", mode="upsert", schema="other"))
    if journal in ("DELETE", "TRUNCATE"):
        assert target.layout.order is Order.KEPT
    else:
        with pytest.raises(ConfigurationError, match=f"other has the journal mode {journal.lower()}, "):
            target.prepare()
    engine.dispose()


def test_a_table_that_is_found_in_another_file_without_its_schema_is_refused(place: Place, tmp_path: Path) -> None:
    engine = attached(place, tmp_path / "other.db")
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE other.far (id INTEGER PRIMARY KEY, n INTEGER CHECK (n < 5))")
    for mode in MODES:
        with pytest.raises(ConfigurationError, match="is in an attached database; give the name of that"):
            Target(engine, Table("far", **settings_of(mode))).prepare()
    engine.dispose()


def test_a_temporary_table_is_refused(place: Place) -> None:
    place.run("CREATE TABLE hidden (id INTEGER PRIMARY KEY, n INTEGER)")
    event.listen(place.engine, "connect", lambda driver, _: driver.execute("CREATE TEMP TABLE hidden (id INTEGER)"))
    assert Target(place.engine, Table("hidden", schema="main")).layout.names == {"id", "n"}
    place.engine.dispose()
    for schema in (None, "temp"):
        with pytest.raises(ConfigurationError, match="is temporary: it ends with the connection"):
            Target(place.engine, Table("hidden", schema=schema)).prepare()


# Foreign keys that are checked at COMMIT


@pytest.mark.parametrize("words", ["DEFERRABLE INITIALLY DEFERRED", "deferrable  INITIALLY\nDEFERRED"])
def test_a_deferred_key_that_a_later_record_could_mend_is_refused(place: Place, words: str) -> None:
    own = place.create(f"id INTEGER PRIMARY KEY, n INTEGER REFERENCES self (id) {words}", name="self")
    for mode in MODES:
        with pytest.raises(ConfigurationError, match="the foreign key of 'self' that refers to it is DEFERRABLE"):
            Target(place.engine, Table(own, **settings_of(mode))).prepare()
    parent = place.create("id INTEGER PRIMARY KEY, n INTEGER")
    child = place.create(f"id INTEGER PRIMARY KEY, n INTEGER REFERENCES {parent} (id) {words}")
    with pytest.raises(ConfigurationError, match=f"the foreign key of '{child}' that refers to it is DEFERRABLE"):
        Target(place.engine, Table(parent, **settings_of("upsert"))).prepare()
    Target(place.engine, Table(parent, key="id", mode="upsert", tombstones="refuse")).prepare()
    Target(place.engine, Table(child, **settings_of("upsert"))).prepare()


@pytest.mark.parametrize(
    "words", ["", "NOT DEFERRABLE INITIALLY DEFERRED", "DEFERRABLE", "DEFERRABLE INITIALLY IMMEDIATE"]
)
def test_a_key_that_is_checked_at_once_is_taken(place: Place, words: str) -> None:
    place.create(f"id INTEGER PRIMARY KEY, n INTEGER REFERENCES self (id) {words}", name="self")
    assert Target(place.engine, Table("self", **settings_of("upsert"))).layout.order is Order.SINGLE
