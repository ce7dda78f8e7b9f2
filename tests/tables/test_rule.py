"""The table after any batch is the one that plain statements, one record at a time in order, would have left."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from tidegate.tables.layout import Order
from tidegate.tables.mysql.columns import is_neutral
from tidegate.tables.target import write_rows

from .oracle import Case, Gone, Sent, rows_of
from .places import Place

KEYED = ["upsert", "ignore", "update", "accumulate"]


def keyed(mode: str, **options: Any) -> dict[str, Any]:
    return {
        "key": ("id",),
        "mode": mode,
        "tombstones": "delete",
        **({"add": ("n",)} if mode == "accumulate" else {}),
        **options,
    }


# Fields that records lack


@pytest.mark.parametrize("mode", KEYED)
def test_a_lacked_field_is_the_default_of_a_new_row_and_leaves_an_old_one_as_it_is(database: Place, mode: str) -> None:
    case = Case(
        database,
        "id INTEGER PRIMARY KEY, n INTEGER DEFAULT 5, c VARCHAR(9) DEFAULT 'new' NOT NULL, d INTEGER",
        **keyed(mode),
    )
    case.check(
        [
            {"id": 1, "n": 100},
            {"id": 1},
            {"id": 2, "c": "x"},
            {"id": 2, "n": 37},
            {"id": 1, "d": None},
            {"id": 3, "d": 4},
            {"id": 3, "d": None, "n": None},
            {"id": 3, "n": 1},
            Gone(id=2),
            {"id": 2, "d": 9},
            {"id": 2, "c": "z"},
        ],
        sizes=(1000, 3, 1),
    )


def test_an_applications_own_column_stays_when_no_record_names_it(database: Place) -> None:
    case = Case(database, "id INTEGER PRIMARY KEY, n INTEGER, own VARCHAR(9)", **keyed("upsert"))
    layout = case.layout()
    name = layout.table.name
    database.run(f"INSERT INTO {name} VALUES (1, 1, 'theirs')")
    with database.engine.begin() as conn:
        write_rows(conn, layout, rows_of(layout, [{"id": 1, "n": 2}, {"id": 2, "n": 3}]))
    assert database.rows(name) == [(1, 2, "theirs"), (2, 3, None)]


@pytest.mark.parametrize("order", [Order.FREE, Order.KEPT])
def test_appended_rows_have_their_defaults_and_numbers_in_the_order_of_records(database: Place, order: Order) -> None:
    number = {"mysql": "BIGINT AUTO_INCREMENT", "postgres": "bigserial", "sqlite": "INTEGER"}[database.database]
    case = Case(
        database,
        f"seq {number} PRIMARY KEY, id INTEGER, c VARCHAR(9) DEFAULT 'new', d INTEGER",
        facts={"is_numbered": True, "order": order},
    )
    case.check([{"id": 1}, {"id": 2, "c": None}, {"id": 3, "d": 1}, {"id": 4, "c": "x"}, {"id": 5, "seq": 50}])


def test_new_rows_are_numbered_in_the_order_of_their_records(database: Place) -> None:
    number = {"mysql": "BIGINT AUTO_INCREMENT UNIQUE", "postgres": "bigserial", "sqlite": "INTEGER"}[database.database]
    case = Case(
        database,
        f"id INTEGER PRIMARY KEY, seq {number}, c VARCHAR(9) DEFAULT 'new'",
        facts={"is_numbered": True},
        **keyed("upsert"),
    )
    sent: list[Sent] = [
        {"id": 9},
        {"id": 3, "c": "x"},
        {"id": 5},
        {"id": 9, "c": "y"},
        Gone(id=3),
        {"id": 1},
        {"id": 3},
    ]
    layout = case.layout()
    with database.engine.begin() as conn:
        write_rows(conn, layout, rows_of(layout, sent))
    found = database.rows(layout.table.name, "seq, id" if database.database != "sqlite" else "rowid")
    if database.database != "sqlite":
        assert [row[0] for row in found] == [9, 5, 1, 3]


# Tables on which rows must not be merged


@pytest.mark.parametrize(("mode", "order"), [*((mode, Order.KEPT) for mode in KEYED), ("upsert", Order.SINGLE)])
def test_a_value_that_only_passed_for_a_while_clashes_as_it_did(database: Place, mode: str, order: Order) -> None:
    unique = "" if database.database == "mysql" else ", UNIQUE (u)"
    case = Case(
        database, f"id INTEGER PRIMARY KEY, n INTEGER, u INTEGER{unique}", facts={"order": order}, **keyed(mode)
    )
    case.check(
        [
            {"id": 1, "u": 1},
            {"id": 2, "u": 1},
            {"id": 1, "u": 2},
            {"id": 3, "u": 1},
            {"id": 2, "u": 2},
            Gone(id=1),
            {"id": 4, "u": 2, "n": 1},
            {"id": 4, "n": 2},
            {"id": 1, "u": 2},
            Gone(id=4),
            {"id": 1, "u": 2},
        ]
    )


def test_rows_and_tombstones_fire_triggers_in_the_order_of_records(database: Place) -> None:
    log = database.create(
        "place "
        + ("INTEGER PRIMARY KEY AUTOINCREMENT" if database.database == "sqlite" else "SERIAL")
        + ", what VARCHAR(20)"
    )
    body = {
        "sqlite": "BEGIN INSERT INTO {log} (what) VALUES ('{what}' || {row}.id || '-' || {row}.n); END",
        "mysql": "INSERT INTO {log} (what) VALUES (concat('{what}', {row}.id, '-', {row}.n))",
    }
    if database.database == "postgres":
        database.run(
            f"CREATE FUNCTION f{log}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF TG_OP = 'DELETE' THEN "
            f"INSERT INTO {log} (what) VALUES ('D' || OLD.id || '-' || OLD.n); RETURN OLD; END IF; "
            f"INSERT INTO {log} (what) VALUES (left(TG_OP, 1) || NEW.id || '-' || NEW.n); RETURN NEW; END $$"
        )
        extra = [f"CREATE TRIGGER tr BEFORE INSERT OR UPDATE OR DELETE ON {{t}} FOR EACH ROW EXECUTE FUNCTION f{log}()"]
    else:
        extra = [
            f"CREATE TRIGGER {{t}}{event} AFTER {event} ON {{t}} FOR EACH ROW "
            + body[database.database].format(log=log, what=event[0], row="OLD" if event == "DELETE" else "NEW")
            for event in ("INSERT", "UPDATE", "DELETE")
        ]
    sent = [{"id": 3, "n": 1}, {"id": 1, "n": 2}, {"id": 3, "n": 3}, Gone(id=3), Gone(id=1), {"id": 1, "n": 4}]
    case = Case(database, "id INTEGER PRIMARY KEY, n INTEGER", extra, facts={"order": Order.KEPT}, **keyed("upsert"))
    case.one_by_one(sent)
    one_by_one = [row[1] for row in database.rows(log)]
    case.in_batches(sent, 1000)
    assert [row[1] for row in database.rows(log)] == one_by_one * 2


def test_each_row_has_a_statement_of_its_own_where_a_trigger_looks_at_statements(on_postgres: Place) -> None:
    log = on_postgres.create("place serial, n bigint")
    on_postgres.run(
        f"CREATE FUNCTION f{log}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO {log} (n) "
        "SELECT count(*) FROM news; RETURN NULL; END $$"
    )
    extra = [f"CREATE TRIGGER tr AFTER INSERT ON {{t}} REFERENCING NEW TABLE AS news EXECUTE FUNCTION f{log}()"]
    for options in ({}, keyed("upsert")):
        case = Case(on_postgres, "id INTEGER PRIMARY KEY, n INTEGER", extra, facts={"order": Order.SINGLE}, **options)
        layout = case.layout()
        on_postgres.run(f"TRUNCATE {log}")
        with on_postgres.engine.begin() as conn:
            write_rows(conn, layout, rows_of(layout, [{"id": n, "n": n} for n in range(5)]))
        assert [row[1] for row in on_postgres.rows(log)] == [1] * 5
        assert len(on_postgres.rows(layout.table.name)) == 5


# Sums


@pytest.mark.parametrize("count", [1, 2, 3000])
def test_a_row_that_is_refused_by_itself_raises_its_own_error_and_logs_nothing(
    on_postgres: Place, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    case = Case(
        on_postgres, "id INTEGER PRIMARY KEY, n INTEGER CHECK (n > 0)", facts={"order": Order.SINGLE}, **keyed("upsert")
    )
    layout = case.layout()
    rows = rows_of(layout, [{"id": number, "n": number} for number in range(count)])
    with on_postgres.engine.begin() as conn:
        for _ in range(20):  # answers come while rows are sent, or after
            with pytest.raises(IntegrityError, match="n_check"), conn.begin_nested():
                write_rows(conn, layout, rows)
        write_rows(conn, layout, rows_of(layout, [{"id": 1, "n": 1}]))
    assert on_postgres.rows(layout.table.name) == [(1, 1)]
    assert not caplog.records


@pytest.mark.parametrize("order", [Order.FREE, Order.KEPT, Order.SINGLE])
def test_floats_are_added_one_by_one(database: Place, order: Order) -> None:
    case = Case(database, "id INTEGER PRIMARY KEY, n DOUBLE PRECISION", facts={"order": order}, **keyed("accumulate"))
    sent = [
        {"id": k % 3, "n": n} for k, n in enumerate([1e16, 0.1, 0.3, 1.0, 0.2, 0.1, 1.0, 0.7, -0.3, 1e-9, 1e16, -1e16])
    ]
    case.check(sent, sizes=(1000, 5))
    case.check([{"id": n, "n": n / 7} for n in range(12)] * 3)


def test_sums_that_leave_the_range_on_the_way_fail_where_they_would_have_failed(database: Place) -> None:
    case = Case(database, "id INTEGER PRIMARY KEY, n BIGINT, d DECIMAL(4,2)", **keyed("accumulate", add=("n", "d")))
    most = 2**63 - 1
    if database.database == "sqlite":  # whose own sums are floats then
        layout = case.layout()
        with database.engine.begin() as conn:
            write_rows(conn, layout, rows_of(layout, [{"id": 1, "n": most}]))
        with pytest.raises(Exception, match="does not fit"), database.engine.begin() as conn:
            write_rows(conn, layout, rows_of(layout, [{"id": 1, "n": 5}, {"id": 1, "n": -5}]))
        return
    case.check(
        [
            {"id": 1, "n": most},
            {"id": 1, "n": 5},
            {"id": 1, "n": -5},
            {"id": 2, "n": 1},
            {"id": 2, "n": 2},
            {"id": 2, "d": Decimal("99.99")},
            {"id": 2, "d": Decimal("0.01")},
            {"id": 2, "d": Decimal("-0.01")},
            {"id": 3, "d": Decimal("-1.5"), "n": None},
            {"id": 3, "d": Decimal("1.5"), "n": 3},
            {"id": 3, "n": 4},
        ]
    )


def test_a_sum_that_does_not_fit_fails_although_a_tombstone_deletes_its_row_later(database: Place) -> None:
    case = Case(database, "id INTEGER PRIMARY KEY, n BIGINT", **keyed("accumulate"))
    most = 2**63 - 1
    sent: list[Sent] = [{"id": 1, "n": most}, {"id": 1, "n": most}, Gone(id=1), {"id": 2, "n": 1}, {"id": 1, "n": 3}]
    assert case.in_batches(sent, 1000) == ([("1", "3"), ("2", "1")], [1])


def test_a_lacked_number_counts_as_its_default_and_a_null_as_nothing(database: Place) -> None:
    case = Case(database, "id INTEGER PRIMARY KEY, n INTEGER DEFAULT 100, c INTEGER", **keyed("accumulate"))
    assert case.check([{"id": 1, "c": 1}, {"id": 1, "n": 5}, {"id": 2, "n": None}, {"id": 2, "n": 7}, {"id": 2}]) == [
        ("1", "105", "1"),
        ("2", "7", "None"),
    ]


# Modes


@pytest.mark.parametrize("order", list(Order))
def test_ignore_keeps_the_first_record_of_a_key(database: Place, order: Order) -> None:
    case = Case(database, "id INTEGER PRIMARY KEY, n INTEGER, c INTEGER", facts={"order": order}, **keyed("ignore"))
    found = case.check(
        [
            {"id": 1, "n": 1},
            {"id": 1, "n": 2, "c": 2},
            {"id": 2, "c": 1},
            Gone(id=1),
            {"id": 1, "n": 3},
            {"id": 1, "n": 4},
        ]
    )
    assert found == [("1", "3", "None"), ("2", "None", "1")]


@pytest.mark.parametrize("order", list(Order))
def test_update_changes_rows_that_are_there_and_inserts_none(database: Place, order: Order) -> None:
    case = Case(
        database, "id INTEGER PRIMARY KEY, n INTEGER NOT NULL, c INTEGER", facts={"order": order}, **keyed("update")
    )
    layout = case.layout()
    name = layout.table.name
    database.run(f"INSERT INTO {name} VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3)")
    sent = [
        {"id": 1, "n": 5},
        {"id": 1, "c": 6},
        {"id": 2, "n": 5},
        Gone(id=2),
        {"id": 2, "n": 6},
        {"id": 3},
        {"id": 4, "n": 1},
    ]
    with database.engine.begin() as conn:
        write_rows(conn, layout, rows_of(layout, sent))
    assert database.rows(name) == [(1, 5, 6), (3, 3, 3)]


def test_ignore_is_no_excuse_for_what_does_not_fit(database: Place) -> None:
    columns = "id INTEGER PRIMARY KEY, n INTEGER CHECK (n > 0)"
    case = Case(database, columns, facts={"order": Order.KEPT}, **keyed("ignore"))
    assert case.check([{"id": 1, "n": 0}, {"id": 1, "n": 1}, {"id": 2, "n": -1}, {"id": 3, "n": 3}]) == [
        ("1", "1"),
        ("3", "3"),
    ]


# Keys that the database takes for the same


FOLDED = {
    "sqlite": {"nocase": ("TEXT COLLATE NOCASE", ""), "rtrim": ("TEXT COLLATE RTRIM", "")},
    "mysql": {
        "ci": ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "utf8mb4_general_ci"),
        "char": ("CHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "utf8mb4_bin"),
        "of a language": ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_turkish_ci", "utf8mb4_turkish_ci"),
    },
    "postgres": {
        "citext": ("citext", "::citext"),
        "char": ("char(9)", "::bpchar"),
        "collation": ("text COLLATE nocase", "::text COLLATE nocase"),
        "inet": ("inet", "::inet"),
        "numeric": ("numeric", "::numeric"),
    },
}
SPELLED = {
    "inet": ["10.0.0.1", "10.0.0.1/32", "10.0.0.2"],
    "numeric": ["1.0", "1.00", "2"],
    "rtrim": ["a", "a ", "b"],
    "char": ["a", "a ", "b"],
}


@pytest.fixture
def folding(database: Place) -> Place:
    if database.database == "postgres":
        database.run("CREATE EXTENSION IF NOT EXISTS citext")
        database.run(
            "CREATE COLLATION IF NOT EXISTS nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    return database


@pytest.mark.parametrize(
    ("mode", "order"), [*((mode, Order.FREE) for mode in KEYED), ("upsert", Order.KEPT), ("accumulate", Order.SINGLE)]
)
def test_keys_are_the_same_if_their_index_says_so(folding: Place, mode: str, order: Order) -> None:
    for kind, (declared, compared) in FOLDED[folding.database].items():
        one, same, other = SPELLED.get(kind, ["a", "A", "b"])
        case = Case(
            folding,
            f"id {declared} PRIMARY KEY, n INTEGER, c VARCHAR(9)",
            facts={"order": order},
            folds={"id": compared},
            **keyed(mode),
        )
        case.check(
            [
                {"id": one, "n": 1},
                {"id": same, "n": 2},
                {"id": other, "n": 3},
                Gone(id=same),
                {"id": same, "n": 4, "c": "x"},
                {"id": other, "c": "y"},
                {"id": one, "n": 5},
                Gone(id=other),
                {"id": one, "n": -2},
            ],
            sizes=(1000, 4),
        )


def test_printable_ascii_is_told_apart_by_case_and_blanks_alone_in_the_usual_collations(on_mysql: Place) -> None:
    """For all of them: keys of other texts, and in other collations, are written in the order of their records."""
    listed = "information_schema.collation_character_set_applicability"
    name = "full_collation_name" if on_mysql.way == "mariadb" else "collation_name"
    characters = [chr(number) for number in range(32, 127)]
    texts = [f"x{character}y" for character in characters]
    with on_mysql.engine.connect() as conn:
        found = conn.exec_driver_sql(f"SELECT {name}, character_set_name FROM {listed}").all()
        usual = {collation: charset for collation, charset in found if is_neutral(collation)}
        assert len(usual) > 10
        for collation, charset in usual.items():
            conn.exec_driver_sql(
                f"CREATE TEMPORARY TABLE w (a VARCHAR(9) CHARACTER SET {charset} COLLATE {collation}, KEY (a))"
            )
            conn.exec_driver_sql(f"INSERT INTO w VALUES {', '.join(['(%s)'] * len(texts))}", tuple(texts))
            same = conn.exec_driver_sql("SELECT group_concat(hex(a)) FROM w GROUP BY a").scalars().all()
            assert len(same) >= 69, collation
            for group in same:
                assert len({bytes.fromhex(each).lower() for each in group.split(",")}) == 1, (collation, group)
            assert conn.exec_driver_sql("SELECT count(*) FROM w WHERE a = 'xy'").scalar() == 0, collation
            conn.exec_driver_sql("DROP TEMPORARY TABLE w")


def test_keys_of_two_spellings_among_others_are_written_in_their_order(folding: Place) -> None:
    """Most keys of a batch have one spelling; the rest are told apart by the database."""
    declared, compared = next(iter(FOLDED[folding.database].values()))
    spelled = ["k1", "k2", "K1", "k3", "k2", "k4 ", "K3", "k5", "k5", "k6"]
    sent: list[Sent] = [{"id": key, "n": n} for n, key in enumerate(spelled)]
    sent[6:6] = [Gone(id="K2"), Gone(id="k6")]
    for mode in KEYED:
        case = Case(folding, f"id {declared} PRIMARY KEY, n INTEGER", folds={"id": compared}, **keyed(mode))
        case.check(sent)


def test_two_columns_of_which_one_folds_are_one_key(folding: Place) -> None:
    declared, compared = next(iter(FOLDED[folding.database].values()))
    case = Case(
        folding,
        f"a INTEGER, id {declared}, n INTEGER, PRIMARY KEY (a, id)",
        folds={"id": compared},
        **keyed("upsert", key=("a", "id")),
    )
    case.check(
        [{"a": 1, "id": "x", "n": 1}, {"a": 2, "id": "X", "n": 2}, {"a": 1, "id": "X", "n": 3}, Gone(a=2, id="x")]
    )


LONG = Decimal("123456789012345678901234567890.12")
STORED = {
    "mysql": {
        "float": ("FLOAT", 0.1, 0.1),
        "binary": ("BINARY(4)", b"ab", b"ab\0"),
        "char": ("CHAR(4)", "ab", "ab "),
        "decimal": ("DECIMAL(38,2)", LONG, LONG),
        "time": ("TIME", "01:00:00", "01:00"),
    },
    "postgres": {
        "real": ("real", 0.1, 0.1),
        "char": ("char(4)", "ab", "ab "),
        "double": ("double precision", float("nan"), float("nan")),
    },
    "sqlite": {"real": ("REAL", 0.1, 0.1), "decimal": ("DECIMAL(9,2)", Decimal("1.50"), Decimal("1.50"))},
}


@pytest.mark.parametrize("mode", ["upsert", "update"])
def test_a_tombstone_deletes_its_row_in_this_batch_and_in_a_later_one(database: Place, mode: str) -> None:
    for kind, (declared, inserted, deleted) in STORED[database.database].items():
        case = Case(database, f"id {declared} PRIMARY KEY, n INTEGER", **keyed(mode))
        layout = case.layout()
        name = layout.table.name
        there = rows_of(layout, [{"id": inserted, "n": 1}])
        with database.engine.begin() as conn:
            write_rows(conn, replace(layout, table=replace(layout.table, mode="upsert")), there)
            write_rows(conn, layout, rows_of(layout, [{"id": deleted, "n": 2}]))
        assert [row[1] for row in database.rows(name)] == [2], kind
        with database.engine.begin() as conn:
            write_rows(conn, layout, rows_of(layout, [Gone(id=deleted)]))
        assert database.rows(name) == [], kind
        with database.engine.begin() as conn:
            write_rows(conn, layout, rows_of(layout, [{"id": inserted, "n": 1}, Gone(id=deleted)]))
        assert database.rows(name) == [], kind


# Values that a cast would cut


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    ("declared", "fits", "long"),
    [
        ("varchar(3)[]", "{abc}", "{abcd}"),
        ("bit(4)", "1010", "10101"),
        ("bit(4)", "1010", "1"),
        ("bit(4)[]", "{1010}", "{1}"),
        ("char(3)", "abc", "abcd"),
        ("char(3)[]", "{abc}", "{abcd}"),
        ("varbit(3)", "10", "1010"),
        ("varchar(3)", "abc", "abcd"),
    ],
)
def test_what_does_not_fit_is_refused_and_never_cut(
    on_postgres: Place, mode: str, declared: str, fits: str, long: str
) -> None:
    options = keyed("upsert") if mode == "upsert" else {}
    case = Case(on_postgres, f"id INTEGER PRIMARY KEY, v {declared}", **options)
    found, parked = case.in_batches([{"id": 1, "v": fits}, {"id": 2, "v": long}, {"id": 3, "v": None}], 1000)
    assert parked == [1]
    assert [row[0] for row in found] == ["1", "3"]


# Ways in


def test_rows_are_inserted_where_the_table_takes_no_bulk(database: Place) -> None:
    case = Case(database, "id INTEGER PRIMARY KEY, c VARCHAR(9) DEFAULT 'new'", facts={"takes_bulk": False})
    database.statements.clear()
    case.check([{"id": 1}, {"id": 2, "c": None}, {"id": 3, "c": "x"}])
    assert not [each for each in database.statements if each.startswith(("COPY", "LOAD"))]
    if database.database == "postgres":
        assert any("unnest" in each for each in database.statements)


def test_columns_that_no_record_has_are_in_no_statement(database: Place) -> None:
    case = Case(database, "id INTEGER PRIMARY KEY, n INTEGER, odd VARCHAR(9)", **keyed("upsert"))
    layout = case.layout()
    database.statements.clear()
    with database.engine.begin() as conn:
        write_rows(conn, layout, rows_of(layout, [{"id": 1, "n": 1}, Gone(id=2), {"id": 3}]))
    assert not [each for each in database.statements if "odd" in each]


# All of it at random


VALUES = {
    "n": st.none() | st.integers(-3, 3),
    "d": st.none() | st.sampled_from([Decimal("-60.25"), Decimal("0.50"), Decimal("60.25")]),
    "f": st.none() | st.sampled_from([0.1, 0.2, 1e16, -1e16]),
    "c": st.none() | st.sampled_from(["", "x", "y"]),
}
RECORDS = st.lists(
    st.builds(lambda key: Gone(id=key), st.sampled_from("abAB"))
    | st.builds(
        lambda key, fields: {"id": key, **fields},
        st.sampled_from("abAB"),
        st.fixed_dictionaries({}, optional=VALUES),
    ),
    max_size=14,
)
TEXT_KEYS = {
    "sqlite": ("TEXT", "TEXT COLLATE NOCASE"),
    "postgres": ("text", "citext"),
    "mysql": ("VARCHAR(9) COLLATE utf8mb4_bin", "VARCHAR(9) COLLATE utf8mb4_general_ci"),
}


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    records=RECORDS,
    mode=st.sampled_from(KEYED),
    order=st.sampled_from(Order),
    folds=st.booleans(),
    numbered=st.booleans(),
    size=st.sampled_from([2, 5, 1000]),
)
def test_any_batch_leaves_what_its_records_would_have_left(
    folding: Place, records: Any, mode: str, order: Order, folds: bool, numbered: bool, size: int
) -> None:
    declared = TEXT_KEYS[folding.database][folds]
    case = Case(
        folding,
        f"id {declared} PRIMARY KEY, n INTEGER DEFAULT 2, d DECIMAL(4,2), f DOUBLE PRECISION, "
        "c VARCHAR(9) DEFAULT 'new'",
        facts={"order": order, "is_numbered": numbered},
        folds={"id": {"postgres": "::citext", "mysql": "utf8mb4_general_ci", "sqlite": ""}[folding.database]}
        if folds
        else {},
        **keyed(
            mode,
            **(
                {"add": ("n", "f") if folding.database == "sqlite" else ("n", "d", "f")} if mode == "accumulate" else {}
            ),
        ),
    )
    case.check(records, sizes=(size,))
