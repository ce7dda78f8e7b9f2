"""What MySQL and MariaDB do by themselves: the rule holds there too, or the table is refused."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url
from tests.tables.handlers import sink_handler
from tests.tables.trial import write

from tidegate import ConfigurationError, Record
from tidegate.app.sink import Sink
from tidegate.sandbox import MariaDB, MySQL
from tidegate.tables import Table, Target
from tidegate.tables.layout import Order

from .oracle import Gone, Sent
from .places import Place, feed
from .through_sinks import Rule

KEYED = ["upsert", "ignore", "update", "accumulate"]


def keyed(mode: str, **options: Any) -> dict[str, Any]:
    added = {"add": ("n",)} if mode == "accumulate" else {}
    return {"key": ("id",), "mode": mode, "tombstones": "delete", **added, **options}


def looked(place: Place, columns: str, mode: str = "upsert") -> Order:
    return Target(place.engine, Table(place.create(columns), key="id", mode=mode)).layout.order


@pytest.fixture
def on_mariadb(mariadb: MariaDB) -> Iterator[Place]:
    opened = Place("mariadb", mariadb.url)
    yield opened
    opened.engine.dispose()


@pytest.fixture
def only_mysql(mysql: MySQL) -> Iterator[Place]:
    opened = Place("mysql", mysql.url)
    yield opened
    opened.engine.dispose()


# Values that only the server refuses


@pytest.mark.parametrize("kind", ["TEXT", "VARCHAR(20)"])
def test_a_check_that_a_text_is_json_is_a_check(only_mysql: Place, kind: str) -> None:
    rule = Rule(only_mysql, f"id INT PRIMARY KEY, a {kind}, n INT, CHECK (json_valid(a))", **keyed("accumulate"))
    rows, parked = rule.check_rule([{"id": 1, "a": "x", "n": 5}, {"id": 1, "a": "1", "n": 2}])
    assert (rows, parked) == ([("1", "1", "2")], [0])


def test_the_check_of_a_json_column_of_mariadb_costs_nothing_and_others_count(on_mariadb: Place) -> None:
    assert looked(on_mariadb, "id INT PRIMARY KEY, j JSON, `k``s` JSON") is Order.FREE
    assert looked(on_mariadb, "id INT PRIMARY KEY, j JSON CHECK (json_valid(j) AND j <> '1')") is Order.KEPT
    assert looked(on_mariadb, "id INT PRIMARY KEY, j VARCHAR(5) CHECK (json_valid(j))") is Order.KEPT
    rule = Rule(on_mariadb, "id INT PRIMARY KEY, j VARCHAR(5) CHECK (json_valid(j)), n INT", **keyed("accumulate"))
    rule.check_rule([{"id": 1, "j": 1234567, "n": 5}, {"id": 1, "j": 1, "n": 2}])


def test_a_value_that_an_index_on_an_expression_refuses_parks_its_record(only_mysql: Place) -> None:
    columns = "id INT PRIMARY KEY, a VARCHAR(9), n INT, KEY ((CAST(a AS SIGNED)))"
    rule = Rule(only_mysql, columns, **keyed("accumulate"))
    rows, parked = rule.check_rule([{"id": 1, "a": "x", "n": 5}, {"id": 1, "a": "1", "n": 2}], cuts=(1000, 1))
    assert (rows, parked) == ([("1", "1", "2")], [0])


def test_values_that_an_index_on_the_elements_of_json_refuses_park_their_records(only_mysql: Place) -> None:
    columns = "id INT PRIMARY KEY, a JSON, n INT, KEY (n, (CAST(a->'$' AS UNSIGNED ARRAY)))"
    rule = Rule(only_mysql, columns, **keyed("upsert"))
    sent = [{"id": 1, "a": a, "n": 1} for a in (["x"], [-1], [2**70], {"b": 1}, [1])]
    sent += [{"id": 1, "a": list(range(5000)), "n": 1}]
    for size in (1000, 1):
        assert rule.by_a_sink(sent, size) == ([("1", "[1]", "1")], [0, 1, 2, 3, 5])
    texts = Rule(only_mysql, "id INT PRIMARY KEY, a JSON, KEY ((CAST(a->'$' AS CHAR(2) ARRAY)))", **keyed("upsert"))
    assert texts.by_a_sink([{"id": 1, "a": ["abc"]}], 1) == ([], [0])


@pytest.mark.parametrize("kind", ["DOUBLE UNSIGNED", "FLOAT UNSIGNED", "DECIMAL(4,2) UNSIGNED", "DOUBLE ZEROFILL"])
def test_a_negative_number_is_parked_where_the_column_has_none(on_mysql: Place, kind: str) -> None:
    rule = Rule(on_mysql, f"id INT PRIMARY KEY, a {kind}", **keyed("upsert"))
    assert rule.check_rule([{"id": 1, "a": -1}, {"id": 1, "a": 1}, {"id": 2, "a": -1}, Gone(id=2)])[1] == [0, 2]


@pytest.mark.parametrize("late", [{"id": 1, "s": "2026-05-01", "e": "2026-05-02", "n": 2}, Gone(id=1)])
def test_a_period_that_ends_before_it_begins_parks_its_record(on_mariadb: Place, late: Sent) -> None:
    rule = Rule(on_mariadb, "id INT PRIMARY KEY, s DATE, e DATE, n INT, PERIOD FOR p (s, e)", **keyed("upsert"))
    _, parked = rule.check_rule([{"id": 1, "s": "2026-05-02", "e": "2026-05-01", "n": 1}, late])
    assert parked == [0]


WIDE = [
    (12, "TEXT", 900, "ROW_FORMAT=COMPACT"),
    (250, "VARCHAR(50)", 50, "ROW_FORMAT=DYNAMIC"),
    (60, "VARCHAR(20)", 20, "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=1"),
]


@pytest.mark.parametrize(("count", "kind", "length", "options"), WIDE)
def test_a_row_that_is_too_large_for_its_page_is_parked(
    on_mysql: Place, count: int, kind: str, length: int, options: str
) -> None:
    names = [f"c{number}" for number in range(count)]
    columns = f"id INT PRIMARY KEY, {', '.join(f'{name} {kind}' for name in names)}"
    rule = Rule(on_mysql, columns, [f"ALTER TABLE {{t}} {options}"], **keyed("upsert"))
    large = {"id": 1, **{name: secrets.token_urlsafe(length)[:length] for name in names}}
    small = {"id": 1, **dict.fromkeys(names, "x")}
    plain, on_mysql.engine = on_mysql.engine, in_session(on_mysql, "innodb_strict_mode = 0")
    try:
        for sent in ([large, small], [large, Gone(id=1)], [small, large]):
            assert len(rule.check_rule(sent)[1]) == 1
    finally:
        on_mysql.engine.dispose()
        on_mysql.engine = plain


@pytest.mark.parametrize("indexes", [True, False])
def test_a_change_that_undo_has_no_page_for_is_parked(on_mysql: Place, indexes: bool) -> None:
    names = [f"c{number}" for number in range(7)]
    columns = ", ".join(f"{name} TEXT" + f", KEY ({name}(768))" * indexes for name in names)
    rule = Rule(on_mysql, f"id INT PRIMARY KEY, {columns}", **keyed("upsert"))
    long, longer, short = ({"id": 1, **dict.fromkeys(names, text)} for text in ("一" * 1000, "二" * 1001, "x"))
    for sent in ([long, longer, short], [long, {"id": 2}, longer], [long, Gone(id=1), short], [longer, Gone(id=1)]):
        assert bool(rule.check_rule(sent, cuts=(1000, 2, 1))[1]) is indexes


def test_rows_that_always_fit_their_page_are_merged(on_mysql: Place) -> None:
    assert looked(on_mysql, f"id VARCHAR(700) PRIMARY KEY, {', '.join(f'c{n} TEXT' for n in range(120))}") is Order.FREE
    assert looked(on_mysql, f"id INT PRIMARY KEY, {', '.join(f'c{n} DECIMAL(60,2)' for n in range(200))}") is Order.FREE
    indexes = ", ".join(f"c{n} VARCHAR(255), KEY (c{n})" for n in range(6))
    assert looked(on_mysql, f"id INT PRIMARY KEY, {indexes}, d JSON, e LONGTEXT") is Order.FREE


@pytest.mark.parametrize("charset", ["cp1251", "koi8r", "cp932", "gbk"])
def test_a_key_that_its_character_set_does_not_have_is_parked(on_mysql: Place, charset: str) -> None:
    columns = f"id VARCHAR(9) CHARACTER SET {charset} PRIMARY KEY, n INT"
    for mode in ("upsert", "update"):
        for odd in (Gone(id="\U0001f600"), {"id": "\U0001f600", "n": 1}):
            rule = Rule(on_mysql, columns, **keyed(mode))
            assert rule.check_rule([odd], cuts=(1,)) == ([], [0])
            rule.check_rule([{"id": "a", "n": 1}, odd, Gone(id="a"), {"id": "b", "n": 2}])


@pytest.mark.parametrize(
    ("kind", "spelled", "label"),
    [
        ("ENUM('a','b')", "a ", "a"),
        ("ENUM('a','b') COLLATE {nopad}", "A ", "a"),
        ("SET('b','a','Ö')", "a,b", "b,a"),
        ("SET('b','a','Ö') COLLATE {nopad}", "ö,A,B,a ", "b,a,Ö"),
        ("SET('b','a')", "", ""),
    ],
)
def test_a_key_of_labels_is_found_however_it_is_spelled(on_mysql: Place, kind: str, spelled: str, label: str) -> None:
    nopad = "utf8mb4_general_nopad_ci" if on_mysql.way == "mariadb" else "utf8mb4_0900_ai_ci"
    columns = f"id {kind.format(nopad=nopad)} PRIMARY KEY, n INT"
    for size in (1000, 1):
        rule = Rule(on_mysql, columns, **keyed("upsert"))
        assert rule.by_a_sink([{"id": spelled, "n": 1}, {"id": label, "n": 2}], size) == ([(label, "2")], [])
        assert rule.by_a_sink([{"id": spelled, "n": 1}, Gone(id=spelled)], size) == ([], [])
        rule = Rule(on_mysql, columns, **keyed("update"))
        assert rule.by_a_sink([{"id": spelled, "n": 5}], size, given=f"('{label}', 1)") == ([(label, "5")], [])


CHARSETS = {
    "latin1": "é",
    "latin2": "ł",
    "cp1251": "я",
    "koi8r": "я",
    "gbk": "中",
    "sjis": "中",
    "utf16": "a",
}


@pytest.mark.parametrize("charset", CHARSETS)
def test_a_text_is_as_long_as_its_column_takes_it_for(on_mysql: Place, charset: str) -> None:
    letter, declared = CHARSETS[charset], f"CHARACTER SET {charset}"
    widest = {"gbk": 127, "sjis": 127, "utf16": 127}.get(charset, 255)
    for kind, most in ((f"VARCHAR(3) {declared}", 3), (f"CHAR(3) {declared}", 3), (f"TINYTEXT {declared}", widest)):
        sent = [{"id": number, "a": letter * number} for number in (1, most, most + 1)]
        for options in ({}, keyed("upsert")):
            rows, parked = Rule(on_mysql, f"id INT PRIMARY KEY, a {kind}", **options).check_rule(sent)
            assert (len(rows), parked) == (2, [2])
    rule = Rule(on_mysql, f"id VARCHAR(3) {declared} PRIMARY KEY, n INT", **keyed("upsert"))
    assert rule.check_rule([{"id": letter * 3, "n": 1}, {"id": letter, "n": 1}, Gone(id=letter * 3)])[0] == [
        (letter, "1")
    ]


@pytest.mark.parametrize("odd", ["1" + "0" * 249 + "e99", '{"' + "a" * 70_000 + '": 1}'])
def test_json_that_mysql_refuses_is_parked_though_a_later_record_has_its_key(only_mysql: Place, odd: str) -> None:
    for size in (1000, 1):
        name = only_mysql.create("id INT PRIMARY KEY, j JSON")
        sink = sink_handler(Sink(Table(name, key="id", mode="upsert")), only_mysql.engine)
        sent = [f'{{"id": 1, "j": {each}}}'.encode() for each in ("1", odd, "2")]
        made, parked = [Record("rule", 0, at, None, each, (), 0) for at, each in enumerate(sent)], set[int]()
        for start in range(0, len(made), size):
            with only_mysql.engine.begin() as conn:
                parked |= write(sink, conn, made[start : start + size])
        assert (only_mysql.rows(name), parked) == ([(1, "2")], {1})


def test_latin1_has_characters_for_all_bytes(on_mysql: Place) -> None:
    texts = ["\x81", "\x8d", "\x8f", "\x90", "\x9d", "€", "\x80", "ł"]
    rows, parked = Rule(on_mysql, "id INT PRIMARY KEY, a VARCHAR(9) CHARACTER SET latin1").check_rule(
        [{"id": number, "a": each} for number, each in enumerate(texts)]
    )
    assert (len(rows), parked) == (6, [6, 7])


# Defaults


DEFAULTS = [
    ("TINYINT DEFAULT (1000)", "KEPT"),
    ("TINYINT DEFAULT (1000 * ABS(-1))", "KEPT"),
    ("CHAR(9) DEFAULT (UUID())", "KEPT"),
    ("VARCHAR(40) DEFAULT (UUID())", "FREE"),
    ("TEXT DEFAULT ('')", "FREE"),
    ("TEXT CHARACTER SET ascii DEFAULT ('n/a')", "FREE"),
    ("VARCHAR(40) DEFAULT ('x')", "FREE"),
    ("JSON DEFAULT ('{}')", "FREE"),
    ("JSON DEFAULT (JSON_ARRAY())", "FREE"),
    ("JSON DEFAULT (JSON_OBJECT())", "FREE"),
    ("DATETIME DEFAULT (NOW())", "FREE"),
    ("TIMESTAMP(3) NULL DEFAULT CURRENT_TIMESTAMP(3)", "FREE"),
    ("DATE DEFAULT (CURDATE())", "FREE"),
    ("VARCHAR(9) DEFAULT '(abs(1'", "FREE"),
    ("INT NOT NULL DEFAULT -5", "FREE"),
    ("BIT(1) NOT NULL DEFAULT b'0'", "KEPT"),
    ("TINYTEXT DEFAULT (REPEAT('x', 300))", "KEPT"),
    ("TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP", "KEPT"),
    ("DECIMAL(4,2) DEFAULT 1.50", "FREE"),
]


def test_an_expression_as_default_keeps_rows_in_order_unless_it_always_fits(on_mysql: Place) -> None:
    for column, order in DEFAULTS:
        if on_mysql.way == "mariadb" and ("1000" in column or "REPEAT" in column):
            continue  # which looks at a default when a table is made
        assert looked(on_mysql, f"id INT PRIMARY KEY, n INT, a {column}").name == order, column
    name = on_mysql.create("id INT, n INT, a TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP")
    assert Target(on_mysql.engine, Table(name)).layout.order is Order.FREE


@pytest.mark.parametrize("mode", ["upsert", "ignore"])
def test_a_record_that_gets_a_default_that_fails_is_parked(on_mysql: Place, mode: str) -> None:
    failing = {"mysql": "TINYINT DEFAULT (1000 * ABS(-1))", "mariadb": "TINYINT DEFAULT (1000 * (n IS NOT NULL))"}
    rule = Rule(on_mysql, f"id INT PRIMARY KEY, n INT, a {failing[on_mysql.way]}", **keyed(mode))
    sent: list[Sent] = [{"id": 1, "n": 1}, {"id": 1, "a": 5}, {"id": 2, "n": 2}, Gone(id=2), {"id": 3, "n": 3, "a": 1}]
    rows, parked = rule.check_rule(sent, cuts=(1000, 2, 1))
    assert (rows, parked) == ([("1", "None", "5"), ("3", "3", "1")], [0, 2])


def test_appended_rows_get_defaults_that_are_expressions_and_are_parked_if_these_fail(on_mysql: Place) -> None:
    failing = {"mysql": "TINYINT DEFAULT (1000 * ABS(-1))", "mariadb": "TINYINT DEFAULT (1000 * (n IS NOT NULL))"}
    columns = f"id INT, n INT, a {failing[on_mysql.way]}, b VARCHAR(9) DEFAULT (CONCAT('x', 'y')), c INT DEFAULT (5)"
    sent = [
        {"id": 1, "n": 1},
        {"id": 2, "n": 2, "a": 5},
        {"id": 3, "n": 3, "a": 1, "b": None},
        {"id": 4, "a": 1, "c": 4},
    ]
    rows, parked = Rule(on_mysql, columns).check_rule(sent)
    assert parked == [0]
    assert rows[0] == ("2", "2", "5", "xy", "5")


# Columns that the server sets by itself


def is_set(conn: Connection, name: str) -> Any:
    return conn.exec_driver_sql(f"SELECT id, a, u IS NULL FROM {name} ORDER BY id").all()


@pytest.mark.parametrize("mode", KEYED)
def test_the_time_of_a_change_is_set_by_each_record_that_is_one(on_mysql: Place, mode: str) -> None:
    column = "u DATETIME NULL DEFAULT NULL ON UPDATE CURRENT_TIMESTAMP"
    rule = Rule(
        on_mysql, f"id INT PRIMARY KEY, a INT, {column}", **keyed(mode, add=("a",) if mode == "accumulate" else ())
    )
    sent: list[Sent] = [
        *({"id": 1, "a": a} for a in (2, 1)),
        *({"id": 2, "a": a} for a in (2, 3)),
        {"id": 3, "a": 3},
        {"id": 4, "a": 1},
        {"id": 4, "a": 1},
        {"id": 5, "a": 1},
        {"id": 5, "u": None},
        {"id": 6, "a": 1},
        Gone(id=6),
        {"id": 6, "a": 1},
    ]
    rows, _ = rule.check_rule(sent, given="(1, 1, NULL), (3, 3, NULL)", seen=is_set)
    if mode in ("upsert", "update"):
        assert rows[0] == (1, 1, 0)


def test_rows_of_a_table_with_the_time_of_a_change_go_by_one_statement(on_mysql: Place) -> None:
    name = on_mysql.create("id INT PRIMARY KEY, a INT, u DATETIME NULL ON UPDATE CURRENT_TIMESTAMP")
    target = Target(on_mysql.engine, Table(name, key="id", mode="upsert"))
    assert target.layout.order is Order.KEPT
    on_mysql.statements.clear()
    on_mysql.put(Table(name, key="id", mode="upsert"), [{"id": n % 5, "a": n} for n in range(100)])
    assert sum(statement.startswith("INSERT") for statement in on_mysql.statements) == 1


def versions(conn: Connection, name: str) -> Any:
    query = f"SELECT id, a, row_end > now(6) FROM {name} FOR SYSTEM_TIME ALL ORDER BY id, row_start, row_end"
    return conn.exec_driver_sql(query).all()


@pytest.mark.parametrize("mode", ["upsert", "update", "ignore"])
def test_each_record_makes_a_version_of_its_row(on_mariadb: Place, mode: str) -> None:
    rule = Rule(on_mariadb, "id INT PRIMARY KEY, a INT", ["ALTER TABLE {t} ADD SYSTEM VERSIONING"], **keyed(mode))
    sent: list[Sent] = [
        *({"id": 1, "a": a} for a in (2, 3, 3)),
        {"id": 2, "a": 1},
        Gone(id=1),
        {"id": 1, "a": 5},
        Gone(id=2),
    ]
    rows, _ = rule.check_rule(sent, given="(7, 7)", seen=versions)
    if mode == "upsert":
        assert len(rows) > 4


def test_appended_rows_have_one_version_each_and_go_in_bulk(on_mariadb: Place) -> None:
    name = on_mariadb.create("id INT PRIMARY KEY, a INT")
    on_mariadb.run(f"ALTER TABLE {name} ADD SYSTEM VERSIONING")
    on_mariadb.put(Table(name), [{"id": 1, "a": 1}, {"id": 2, "a": 2}])
    with on_mariadb.engine.connect() as conn:
        assert [tuple(row) for row in versions(conn, name)] == [(1, 1, 1), (2, 2, 1)]


# Columns that number their rows


@pytest.mark.parametrize("mode", KEYED)
def test_a_number_that_a_record_gives_is_stored_beside_the_key(on_mysql: Place, mode: str) -> None:
    columns = "id INT PRIMARY KEY, a INT, n INT NOT NULL AUTO_INCREMENT, KEY (n)"
    rule = Rule(on_mysql, columns, **keyed(mode, **({"add": ("a",)} if mode == "accumulate" else {})))
    sent: list[Sent] = [
        {"id": 1, "a": 1, "n": 50},
        {"id": 2, "a": 1},
        {"id": 1, "a": 2, "n": 10},
        {"id": 3, "n": 20},
        {"id": 4, "a": 4},
        {"id": 2, "a": 5},
        Gone(id=4),
        {"id": 4, "a": 6, "n": 7},
    ]
    rows, parked = rule.check_rule(sent, given="(9, 9, 9), (2, 2, 2)")
    assert parked == []
    stored = {"upsert": ("1", "2", "10"), "accumulate": ("1", "3", "10"), "ignore": ("1", "1", "50")}
    assert mode == "update" or stored[mode] in rows


@pytest.mark.parametrize("mode", ["upsert", "ignore", "accumulate"])
def test_a_number_that_is_unique_is_the_servers_and_a_record_that_gives_one_is_a_misfit(
    on_mysql: Place, mode: str
) -> None:
    for seq, columns in (
        ("seq", "seq BIGINT AUTO_INCREMENT PRIMARY KEY, id INT NOT NULL UNIQUE, n INT"),
        ("seq", "seq BIGINT NOT NULL AUTO_INCREMENT, id INT PRIMARY KEY, n INT, UNIQUE (seq, n)"),
        ("s`e", "`s``e` BIGINT NOT NULL AUTO_INCREMENT COMMENT '`', id INT PRIMARY KEY, n INT, UNIQUE (`s``e`)"),
    ):
        name = on_mysql.create(columns)
        table = Table(name, key="id", mode=mode, **({"add": ["n"]} if mode == "accumulate" else {}))
        rows = on_mysql.put(table, [{"id": 5, "n": 1}, {"id": 6, "n": 2}, {"id": 6, "n": 1, seq: 1}])
        (misfit,) = rows.misfits
        assert (misfit.place, misfit.column) == (2, seq)
        server = "MariaDB" if on_mysql.way == "mariadb" else "MySQL"
        assert f"{server} numbers it, and it is in a unique index" in misfit.why
        assert [row[1:] for row in on_mysql.rows(name, "id")] == [(5, 1), (6, 2)]
        with pytest.raises(ConfigurationError, match=f"column {seq!r} takes no values"):
            Target(on_mysql.engine, table, columns={"id": "key", seq: ("value", seq)}).read([])
        with pytest.raises(ConfigurationError, match=f"column {seq!r} takes no values"):
            Target(on_mysql.engine, table).fit(pa.record_batch({"id": [7], seq: [1]}))


def test_nothing_is_added_to_a_number_that_is_unique(on_mysql: Place) -> None:
    name = on_mysql.create("seq BIGINT AUTO_INCREMENT PRIMARY KEY, id INT NOT NULL UNIQUE, t TEXT")
    for add, said in (((), "needs a column with numbers beside the key"), (("seq",), "column 'seq' takes no values")):
        with pytest.raises(ConfigurationError, match=said):
            Target(on_mysql.engine, Table(name, key="id", mode="accumulate", add=add)).prepare()


def test_a_number_that_is_unique_is_set_where_rows_are_only_updated(on_mysql: Place) -> None:
    rule = Rule(on_mysql, "seq BIGINT AUTO_INCREMENT PRIMARY KEY, id INT NOT NULL UNIQUE, n INT", **keyed("update"))
    sent = [{"id": 5, "seq": 2}, {"id": 5, "seq": 9}, {"id": 6, "seq": 1, "n": 3}]
    rows, parked = rule.check_rule(sent, given="(1, 5, 0), (2, 6, 0)")
    assert (rows, parked) == ([("9", "5", "0"), ("1", "6", "3")], [0])


@pytest.mark.parametrize("given", range(2, 9))
def test_numbers_that_were_used_up_are_not_those_of_a_later_record(on_mysql: Place, given: int) -> None:
    rule = Rule(on_mysql, "id INT AUTO_INCREMENT PRIMARY KEY, b INT UNIQUE")
    for unnumbered in ({}, {"id": None}, {"id": 0}):
        sent: list[Sent] = [{**unnumbered, "b": 1}, {**unnumbered, "b": 1}, {"id": given, "b": 2}]
        rows, parked = rule.check_rule(sent, cuts=(1000, 3))
        assert (rows, parked) == ([("1", "1"), (str(given), "2")], [1])


def test_rows_that_all_give_their_numbers_or_give_none_are_loaded_at_once(on_mysql: Place) -> None:
    rule = Rule(on_mysql, "id INT AUTO_INCREMENT PRIMARY KEY, b INT")
    target = Target(on_mysql.engine, rule.table())
    for sent, is_mixed in (
        ([{"b": 1}, {"b": 2}], False),
        ([{"id": None, "b": 1}, {"id": 0, "b": 2}, {"b": 2}], False),
        ([{"id": 1, "b": 1}, {"id": 2, "b": 2}], False),
        ([{"id": 1, "b": 1}, {"b": 2}], True),
        ([{"id": 1, "b": 1}, {"id": 0, "b": 2}], True),
    ):
        assert target.read(feed(sent)).mix_numbers(target.layout.counted) is is_mixed
    many = Rule(on_mysql, "id INT NOT NULL AUTO_INCREMENT, b INT, KEY (id)").table()
    assert not Target(on_mysql.engine, many).layout.counted


# Sessions and messages


@pytest.mark.parametrize("mode", ["EMPTY_STRING_IS_NULL", "NO_TABLE_OPTIONS", "NO_FIELD_OPTIONS"])
def test_a_mode_that_changes_values_or_hides_what_a_table_is_like_is_refused(on_mariadb: Place, mode: str) -> None:
    name = on_mariadb.create("id INT PRIMARY KEY, a VARCHAR(9)")
    modes = f"STRICT_TRANS_TABLES,{mode}"
    engine = create_engine(on_mariadb.url, connect_args={"init_command": f"SET SESSION sql_mode = '{modes}'"})
    with pytest.raises(ConfigurationError, match=f"table {name}: the session's sql_mode has {mode}, .* take it out"):
        Target(engine, Table(name)).prepare()
    engine.dispose()


def in_session(place: Place, setting: str) -> Engine:
    return create_engine(place.url, connect_args={"init_command": f"SET SESSION {setting}"})


@pytest.mark.parametrize("limit", [1, 1000])
def test_a_session_that_bounds_the_rows_of_a_query_is_refused(on_mysql: Place, limit: int) -> None:
    name = on_mysql.create("id INT PRIMARY KEY, a INT, n INT")
    engine = in_session(on_mysql, f"sql_select_limit = {limit}")
    for options in ({}, {"evolve": True}, {"create": True, "evolve": True}):
        with pytest.raises(ConfigurationError, match=f"table {name}: the session's sql_select_limit is {limit}, "):
            Target(engine, Table(name, key="id", mode="upsert", **options)).prepare()
    engine.dispose()


def test_a_session_that_refuses_changes_without_an_index_is_refused(on_mysql: Place) -> None:
    name = on_mysql.create("id INT PRIMARY KEY, a INT")
    engine = in_session(on_mysql, "sql_safe_updates = 1")
    with pytest.raises(ConfigurationError, match=f"table {name}: the session's sql_safe_updates is on, "):
        Target(engine, Table(name)).prepare()
    engine.dispose()


@pytest.mark.parametrize("switch", ["sql_notes", "unique_checks", "sql_quote_show_create"])
def test_a_session_that_hides_changes_or_skips_checks_is_refused(on_mysql: Place, switch: str) -> None:
    name = on_mysql.create("id INT PRIMARY KEY, a INT")
    engine = in_session(on_mysql, f"{switch} = 0")
    with pytest.raises(ConfigurationError, match=f"table {name}: the session's {switch} is off, .*; switch it on"):
        Target(engine, Table(name)).prepare()
    engine.dispose()


def test_a_session_that_cannot_send_every_text_is_refused(on_mysql: Place) -> None:
    name = on_mysql.create("id INT PRIMARY KEY, a VARCHAR(9)")
    for charset in ("latin1", "utf8"):
        engine = create_engine(make_url(on_mysql.url).update_query_dict({"charset": charset}))
        with pytest.raises(ConfigurationError, match=f"table {name}: the session's character_set_client is "):
            Target(engine, Table(name)).prepare()
        engine.dispose()


@pytest.mark.parametrize(
    "setting",
    [
        "group_concat_max_len = 4",
        "max_sort_length = 64",
        "max_error_count = 0",
        "sql_auto_is_null = 1",
        "div_precision_increment = 0",
        "sql_big_selects = 0",
        "autocommit = 0",
        "auto_increment_increment = 10",
    ],
)
def test_a_session_with_other_settings_sees_and_writes_the_same(on_mysql: Place, setting: str) -> None:
    longest = "i" * 50
    columns = (
        "id INT NOT NULL, a VARCHAR(9) NOT NULL, d DECIMAL(4,2), n INT NOT NULL AUTO_INCREMENT, "
        f"UNIQUE {longest}_1 (id, a), KEY {longest}_2 (n)"
    )
    filling = "CREATE TRIGGER {t}_b BEFORE INSERT ON {t} FOR EACH ROW SET NEW.a = COALESCE(NEW.a, 'x')"
    table = {"key": ("id", "a"), "mode": "upsert", "tombstones": "delete"}
    rule = Rule(on_mysql, columns, [filling], **table)
    name = rule.table()
    engine = in_session(on_mysql, setting)
    assert Target(engine, name).layout == Target(on_mysql.engine, name).layout
    sent: list[Sent] = [{"id": 1, "a": "x", "d": 1.5}, {"id": 1, "a": "y"}, Gone(id=1, a="y")]
    sent += [{"id": 1, "a": "x", "d": 2}]
    expected = rule.by_a_sink(sent, 1000)
    plain, on_mysql.engine = on_mysql.engine, engine
    try:
        assert rule.by_a_sink(sent, 1000) == expected
    finally:
        on_mysql.engine = plain
        engine.dispose()


@pytest.mark.parametrize("setting", ["max_error_count = 0", "sql_warnings = 0"])
def test_a_load_that_changes_values_is_noticed_also_if_the_session_keeps_no_warnings(
    on_mysql: Place, setting: str
) -> None:
    columns = "id INT, a TINYINT NOT NULL, b INT"
    cutting = "CREATE TRIGGER {t}_b BEFORE INSERT ON {t} FOR EACH ROW SET NEW.a = NEW.b"
    rule = Rule(on_mysql, columns, [cutting])
    engine, plain = in_session(on_mysql, setting), on_mysql.engine
    on_mysql.engine = engine
    try:
        assert rule.by_a_sink([{"id": 1, "a": 1, "b": 1000}, {"id": 2, "a": 1, "b": 5}], 1000)[1] == [0]
    finally:
        on_mysql.engine = plain
        engine.dispose()


def test_a_session_that_quotes_names_otherwise_sees_the_same_table(on_mysql: Place) -> None:
    name = on_mysql.create('id INT PRIMARY KEY, j JSON, `k``"` JSON, n INT NOT NULL AUTO_INCREMENT, KEY (n)')
    modes = "STRICT_TRANS_TABLES,ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES"
    engine = create_engine(on_mysql.url, connect_args={"init_command": f"SET SESSION sql_mode = '{modes}'"})
    table = Table(name, key="id", mode="upsert")
    assert Target(engine, table).layout == Target(on_mysql.engine, table).layout
    engine.dispose()


def test_a_key_without_overlaps_is_refused(on_mariadb: Place) -> None:
    name = on_mariadb.create("id INT, s DATE, e DATE, n INT, PERIOD FOR p (s, e), UNIQUE (id, p WITHOUT OVERLAPS)")
    for mode in ("upsert", "ignore"):
        with pytest.raises(ConfigurationError, match="WITHOUT OVERLAPS"):
            Target(on_mariadb.engine, Table(name, key=("id", "s", "e"), mode=mode)).prepare()


def test_a_refusal_says_which_server_it_is(on_mysql: Place) -> None:
    server = {"mariadb": "MariaDB", "mysql": "MySQL"}[on_mysql.way]
    for columns, said in (
        ("id INT PRIMARY KEY AUTO_INCREMENT, n INT", f"in which {server} gives the value 0 a new number"),
        ("id INT PRIMARY KEY, n INT UNIQUE", f"{server} would take a row"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            Target(on_mysql.engine, Table(on_mysql.create(columns), key="id", mode="upsert")).prepare()
    name = on_mysql.name()
    on_mysql.run(f"CREATE VIEW {name} AS SELECT 1 AS id")
    with pytest.raises(ConfigurationError, match=f"is a view, and {server} does not show"):
        Target(on_mysql.engine, Table(name)).prepare()
