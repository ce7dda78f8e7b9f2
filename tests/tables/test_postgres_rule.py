"""PostgreSQL's corners of the rule: a sink leaves what plain statements, each committed by itself, would have left."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from tests.tables.handlers import sink_handler
from tests.tables.trial import write

from tidegate import ConfigurationError, Record, TopicPartition, open_ledger
from tidegate.app.sink import Sink
from tidegate.errors import LedgerDenied
from tidegate.tables import Table, Target
from tidegate.tables.layout import Order

from .oracle import Case, Gone, Sent
from .places import Place, feed
from .test_looking import login
from .through_sinks import Rule as Sunk

FREE, KEPT, SINGLE = Order.FREE, Order.KEPT, Order.SINGLE
UPSERT: dict[str, Any] = {"key": "id", "mode": "upsert"}
APPEND: dict[str, Any] = {}


class Rule(Case):
    """Beside the plain statements stands a sink, with a transaction for each of its batches."""

    def __init__(
        self, place: Place, columns: str, extra: Sequence[str] = (), *, before: Sequence[str] = (), **options: Any
    ) -> None:
        """``before``, ``columns`` and ``extra``: ``{t}`` is the table's name."""
        super().__init__(place, columns, extra, **options)
        self._before = before

    def table(self) -> Table:
        name = self.place.name()
        for statement in (*self._before, f"CREATE TABLE {{t}} ({self._columns})", *self._extra):
            self.place.run(statement.replace("{t}", name))
        return Table(name, **self._options)

    def one_by_one(self, records: Sequence[Sent]) -> tuple[list[Any], list[int]]:
        table, parked = self.table(), []
        with self.place.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            for place, record in enumerate(records):
                try:
                    self._plain(conn, table, record)
                except SQLAlchemyError:
                    parked.append(place)
        return self.found(table), parked

    def in_batches(self, records: Sequence[Sent], size: int) -> tuple[list[Any], list[int]]:
        table, parked = self.table(), set[int]()
        sink = sink_handler(Sink(table), self.place.engine)
        sent = [_record(place, record) for place, record in enumerate(records)]
        for start in range(0, len(sent), size):
            with self.place.engine.begin() as conn:
                parked |= write(sink, conn, sent[start : start + size])
        return self.found(table), sorted(parked)

    def order(self) -> Order:
        return Target(self.place.engine, self.table()).layout.order


def _record(place: int, record: Sent) -> Record:
    if isinstance(record, Gone):
        return Record("rule", 0, place, json.dumps(record).encode(), None, (), 0)
    return Record("rule", 0, place, None, json.dumps(record).encode(), (), 0)


def keyed(mode: str) -> dict[str, Any]:
    return {"key": "id", "mode": mode, "tombstones": "delete"}


# Rows that are too big for a page


@pytest.mark.parametrize(
    ("columns", "extra"),
    [
        ("a text, n int", ["ALTER TABLE {t} ALTER a SET STORAGE PLAIN"]),
        ("n int, " + ", ".join(f"c{number} bigint" for number in range(1100)), []),
        ("n int, " + ", ".join(f"c{number} text" for number in range(500)), []),
    ],
    ids=["plain storage", "many numbers", "many texts"],
)
def test_a_row_that_is_too_big_is_parked_also_if_another_of_its_key_is_not(
    on_postgres: Place, columns: str, extra: list[str]
) -> None:
    case = Rule(on_postgres, f"id int PRIMARY KEY, {columns}", extra, key="id", mode="accumulate", add=("n",))
    if extra:
        big, small = {"a": "x" * 9000}, {"a": "y"}
    else:
        full = 2**60 if "bigint" in columns else "x" * 20
        names = [name.split()[0] for name in columns.split(", ")[1:]]
        big, small = dict.fromkeys(names, full), dict.fromkeys(names)
    found, parked = case.one_by_one([{"id": 1, "n": 5, **big}, {"id": 1, "n": 2, **small}])
    assert (len(found), parked) == (1, [0])
    case.check([{"id": 1, "n": 5, **big}, {"id": 1, "n": 2, **small}], sizes=(10,))


def test_a_row_that_is_too_big_for_an_index_is_parked(on_postgres: Place) -> None:
    def long(count: int) -> str:  # which cannot be compressed by much
        return "".join(random.Random(count).choices("äöüßéèêàáâíìîóòôúùûçñõãæøåëïÿ", k=count))

    case = Rule(on_postgres, "id int, a text, PRIMARY KEY (id) INCLUDE (a)", **UPSERT)
    assert case.one_by_one([{"id": 1, "a": long(9000)}, {"id": 1, "a": "y"}]) == ([("1", "y")], [0])
    case.check([{"id": 1, "a": long(9000)}, {"id": 1, "a": "y"}], sizes=(10,))
    extra = ["CREATE INDEX ON {t} (a, b, c, d)"]
    columns = ", ".join(f"{name} varchar(590)" for name in "abcd")
    records: list[Sent] = [{"id": 1, **dict.fromkeys("abcd", long(590))}, {"id": 1, **dict.fromkeys("abcd", "y")}]
    case = Rule(on_postgres, f"id int PRIMARY KEY, {columns}", extra, **UPSERT)
    assert case.one_by_one(records)[1] == [0]
    case.check(records, sizes=(10,))


def _incompressible(count: int) -> str:
    return "".join(
        random.Random(count).choices("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", k=count)
    )


@pytest.mark.parametrize("kind", ["text", "citext", "bytea", "jsonb", "int[]", "jsonb[]"])
def test_a_key_that_is_too_big_for_its_index_is_parked_also_before_its_tombstone(on_postgres: Place, kind: str) -> None:
    big: Any = _incompressible(9000)
    rng = random.Random(7)
    numbers = [rng.randrange(10**9) for _ in range(3000)]
    big, small = {
        "jsonb": ([big], [1]),
        "int[]": (numbers, [1]),
        "jsonb[]": ([rng.randrange(10) for _ in range(3000)], [1]),
        "bytea": (big[:8000], "AAAA"),
    }.get(kind, (big, "x"))
    before = ["CREATE EXTENSION IF NOT EXISTS citext"]
    sent: list[Sent] = [
        {"id": big, "a": 1},
        Gone(id=big),
        {"id": small, "a": 2},
        {"id": big, "a": 3},
        {"id": big, "a": 4},
        Gone(id=big),
    ]
    for number in ("", ", n serial"):
        for mode in ("upsert", "accumulate", "ignore"):
            options = {**keyed(mode), **({"add": ("a",)} if mode == "accumulate" else {})}
            case = Rule(on_postgres, f"id {kind} PRIMARY KEY, a int{number}", before=before, **options)
            assert case.order() is FREE
            for size in (1, 2, 100):
                found, parked = case.in_batches(sent, size)
                assert (len(found), parked) == (1, [0, 3, 4]), (mode, size)


def test_new_rows_are_numbered_in_order_also_if_some_keys_are_deleted_in_between(on_postgres: Place) -> None:
    case = Rule(on_postgres, "id int PRIMARY KEY, a int, n serial", **keyed("accumulate"), add=("a",))
    table = case.table()
    sink = sink_handler(Sink(table), on_postgres.engine)
    records: list[Sent] = [{"id": 1, "a": 1}, {"id": 2, "a": 1}, Gone(id=2), {"id": 2, "a": 1}, {"id": 3, "a": 1}]
    with on_postgres.engine.begin() as conn:
        write(sink, conn, [_record(place, record) for place, record in enumerate(records)])
    assert on_postgres.rows_of(f"SELECT id FROM {table.name} ORDER BY n") == [(1,), (2,), (3,)]


def test_a_table_of_two_hundred_columns_stays_free(on_postgres: Place) -> None:
    columns = ", ".join(f"c{number} {'text' if number % 2 else 'int'}" for number in range(199))
    assert Rule(on_postgres, f"id int PRIMARY KEY, {columns}", **UPSERT).order() is FREE


# Defaults


FAILING = {
    "an expression": "int DEFAULT 1 / 0",
    "a function": "varchar(2) DEFAULT repeat('x', 3)",
    "a long text": "varchar(2) DEFAULT 'abc'",
    "a long char": "char(2) DEFAULT 'abc'",
    "many digits": "numeric(4,2) DEFAULT 12345",
    "a large number": "smallint DEFAULT 100000",
    "a large float": "real DEFAULT 1e300",
    "few bits": "bit(4) DEFAULT B'1'",
    "a text in an array": "varchar(2)[] DEFAULT '{abc}'",
    "null": "int DEFAULT NULL::int NOT NULL",
    "time": "varchar(2) DEFAULT now()",
    "a domain's": "{t}_d",
}


@pytest.mark.parametrize("default", FAILING.values(), ids=FAILING)
def test_a_default_that_fails_parks_its_record_also_if_another_of_its_key_has_the_field(
    on_postgres: Place, default: str
) -> None:
    before = ["CREATE DOMAIN {t}_d AS varchar(2) DEFAULT 'abc'"] if "_d" in default else []
    value: Any = 1 if "int" in default or "num" in default or "real" in default else "1"
    value = "{1}" if "[]" in default else "1111" if "bit" in default else value
    for mode in ("upsert", "ignore"):
        case = Rule(on_postgres, f"id int PRIMARY KEY, a int, n {default}", before=before, **keyed(mode))
        case.check([{"id": 1, "n": value}, {"id": 1, "a": 5}], sizes=(10,))
        case.check([{"id": 1, "a": 5}, {"id": 1, "n": value}, {"id": 2, "a": 5}, Gone(id=2)], sizes=(10,))


ORDINARY = [
    "int DEFAULT 0",
    "int DEFAULT -1",
    "bigint DEFAULT 5",
    "bigint DEFAULT 5000000000",
    "serial",
    "numeric(10,2) DEFAULT 0",
    "numeric(10,2) DEFAULT 0.5",
    "numeric(10,2) DEFAULT -0.5",
    "numeric DEFAULT 1.5",
    "double precision DEFAULT 0",
    "double precision DEFAULT 0.1",
    "text DEFAULT ''",
    "text DEFAULT 'it''s a \\ text'",
    "varchar(9) DEFAULT 'new'",
    "varchar(9) DEFAULT NULL::varchar",
    "char(3) DEFAULT 'EUR'",
    "boolean DEFAULT false",
    "boolean DEFAULT true",
    "date DEFAULT CURRENT_DATE",
    "date DEFAULT '2026-05-01'",
    "timestamptz DEFAULT now()",
    "timestamptz DEFAULT CURRENT_TIMESTAMP",
    "timestamptz(3) DEFAULT CURRENT_TIMESTAMP(3)",
    "timestamp DEFAULT LOCALTIMESTAMP",
    "timestamp DEFAULT (now() AT TIME ZONE 'utc')",
    "timestamptz DEFAULT clock_timestamp()",
    "uuid DEFAULT gen_random_uuid()",
    "text DEFAULT CURRENT_USER",
    "jsonb DEFAULT '{}'",
    "jsonb DEFAULT '{\"a\": [1]}'::jsonb",
    "text[] DEFAULT '{}'",
    "text[] DEFAULT ARRAY[]::text[]",
    "bytea DEFAULT '\\x00'",
]


def test_ordinary_defaults_leave_a_table_free(on_postgres: Place) -> None:
    for default in ORDINARY:
        arrays = "[]" in default  # which only the database judges, with or without a default
        case = Rule(on_postgres, f"id int PRIMARY KEY, n {default}", **UPSERT)
        assert case.order() is (KEPT if arrays else FREE), default


COUNT = "CREATE FUNCTION {t}_f() RETURNS bigint LANGUAGE plpgsql %s AS 'BEGIN RETURN (SELECT count(*) FROM {t}); END'"


@pytest.mark.parametrize("volatility", ["STABLE", "VOLATILE"])
def test_a_default_by_a_function_of_the_users_is_taken_for_one_record_after_the_other(
    on_postgres: Place, volatility: str
) -> None:
    records: list[Sent] = [{"id": 3}, {"id": 1}, {"id": 2}]
    case = Rule(on_postgres, "id int", ["ALTER TABLE {t} ADD n bigint DEFAULT {t}_f()"], before=[COUNT % volatility])
    assert case.check(records) == [("1", "1"), ("2", "2"), ("3", "0")]
    extra = ["ALTER TABLE {t} ADD n bigint DEFAULT {t}_f()"]
    for mode in ("upsert", "ignore"):
        Rule(on_postgres, "id int PRIMARY KEY", extra, before=[COUNT % volatility], **keyed(mode)).check(records)
    case = Rule(on_postgres, "id int PRIMARY KEY", extra, before=[COUNT % volatility], **keyed("update"))
    assert case.order() is FREE  # which takes no default
    domain = [COUNT % volatility, "CREATE DOMAIN {t}_d AS bigint DEFAULT {t}_f()"]
    Rule(on_postgres, "id int PRIMARY KEY, n {t}_d", before=domain, **UPSERT).check(records)


def test_a_default_of_the_key_is_never_taken(on_postgres: Place) -> None:
    for default in ("{t}_f()", "1 / 0"):
        case = Rule(on_postgres, f"id bigint PRIMARY KEY DEFAULT {default}, n int", before=[COUNT % ""], **UPSERT)
        assert case.order() is FREE


def test_a_default_that_counts_by_a_function_keeps_the_order_of_the_records(on_postgres: Place) -> None:
    before = [
        "CREATE SEQUENCE {t}_s",
        "CREATE FUNCTION {t}_f() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('{t}_s') $$",
    ]
    case = Rule(on_postgres, "id int PRIMARY KEY, n bigint DEFAULT {t}_f()", before=before, **UPSERT)
    assert case.check([{"id": 3}, {"id": 1}, {"id": 2}]) == [("1", "2"), ("2", "3"), ("3", "1")]


@pytest.mark.parametrize("volatility", ["STABLE", "VOLATILE"])
def test_a_default_of_a_views_column_is_taken_for_one_record_after_the_other(
    on_postgres: Place, volatility: str
) -> None:
    for made in (
        ["ALTER TABLE {t}_b ALTER n SET DEFAULT {t}_f()", "CREATE VIEW {t} AS SELECT * FROM {t}_b"],
        ["CREATE VIEW {t} AS SELECT * FROM {t}_b", "ALTER VIEW {t} ALTER n SET DEFAULT {t}_f()"],
    ):
        extra = ["ALTER TABLE {t} RENAME TO {t}_b", *made]
        case = Rule(on_postgres, "id int, n bigint", extra, before=[COUNT % volatility])
        assert case.check([{"id": 1}, {"id": 2}, {"id": 3}]) == [("1", "0"), ("2", "1"), ("3", "2")]


# Identity columns


def test_a_number_for_a_column_that_is_always_numbered_by_the_database_is_parked(on_postgres: Place) -> None:
    always = "GENERATED ALWAYS AS IDENTITY"
    given: list[Sent] = [{"n": 7, "a": 1}, {"a": 2}, {"n": 8, "a": 3}, {"n": None, "a": 4}, {"a": 5}]
    case = Rule(on_postgres, f"n int {always}, a int")
    assert len(case.check(given, sizes=(1, 2, 100))) == 2
    keyed_too: list[Sent] = [{"id": place, **record} for place, record in enumerate(given)]
    for mode in ("upsert", "ignore", "update", "accumulate"):
        extra = ["INSERT INTO {t} (id) SELECT generate_series(0, 4)"]
        case = Rule(on_postgres, f"id int PRIMARY KEY, n int {always}, a int", extra, **keyed(mode))
        found, parked = case.in_batches(keyed_too, 100)
        assert (len(found), parked) == (5, [0, 2, 3])


def test_a_key_that_is_always_numbered_by_the_database_can_be_found_but_not_inserted(on_postgres: Place) -> None:
    columns, extra = "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int", ["INSERT INTO {t} (a) VALUES (1), (2)"]
    case = Rule(on_postgres, columns, extra, **keyed("update"))
    assert case.check([{"id": 1, "a": 5}, {"id": 7, "a": 6}, Gone(id=2)]) == [("1", "5")]
    for mode in ("upsert", "ignore", "accumulate"):
        with pytest.raises(ConfigurationError, match="'id' of the key is an identity column GENERATED ALWAYS"):
            Rule(on_postgres, columns, **keyed(mode)).order()
    table = Rule(on_postgres, columns).table()
    with pytest.raises(ConfigurationError, match="takes no values: an identity column"):
        Target(on_postgres.engine, table, columns={"id": "value.id", "a": "value.a"}).read([])


def test_a_value_for_a_column_of_a_view_that_takes_none_parks_its_record(on_postgres: Place) -> None:
    columns = "a int, n int GENERATED ALWAYS AS IDENTITY, g int GENERATED ALWAYS AS (a + 1) STORED"
    extra = ["ALTER TABLE {t} RENAME TO {t}_b", "CREATE VIEW {t} AS SELECT *, a * 2 AS twice FROM {t}_b"]
    for name in ("n", "g", "twice"):
        case = Rule(on_postgres, columns, extra)
        records: list[Sent] = [{"a": 1, name: 7}, {"a": 2}, {"a": 3, name: 8}]
        assert case.one_by_one(records)[1] == [0, 2]
        for size in (1, 2, 100):
            found, parked = case.in_batches(records, size)
            assert ([row[0] for row in found], parked) == (["2"], [0, 2])


# Numbers


def test_a_decimal_that_is_no_finite_number_is_parked(on_postgres: Place) -> None:
    for kind in ("numeric", "numeric(6,2)"):
        case = Rule(on_postgres, f"id int PRIMARY KEY, a {kind}", **UPSERT)
        records: list[Sent] = [{"id": place, "a": text} for place, text in enumerate(["NaN", "Infinity", "-inf", "1"])]
        for size in (1, 100):
            found, parked = case.in_batches(records, size)
            assert ([row[0] for row in found], parked) == (["3"], [0, 1, 2])


# Domains


DOMAINS = {
    "an array": ("int[]", [[1, 2], "{3}", None], "{4,x}"),
    "an array of a domain": ("{t}_i[]", [[1], "{2}"], "{-1}"),
    "a composite": ("{t}_c", ["(1,x)"], "(x,1)"),
    "an enum": ("{t}_e", ["a", "b"], "c"),
    "a range": ("int4range", ["[1,5)"], "[5,1)"),
    "a multirange": ("int4multirange", ["{[1,5)}"], "{[5,1)}"),
    "an hstore": ("hstore", [{"a": 1}, "b=>2"], "="),
    "a name": ("regtype", ["integer"], "nosuch"),
    "bits": ("bit(3)", ["101"], "1"),
}


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize(("base", "good", "bad"), DOMAINS.values(), ids=DOMAINS)
def test_a_column_of_a_domain_is_written(on_postgres: Place, base: str, good: list[Any], bad: str, depth: int) -> None:
    before = [
        "CREATE EXTENSION IF NOT EXISTS hstore",
        "CREATE DOMAIN {t}_i AS int CHECK (VALUE > 0)",
        "CREATE TYPE {t}_c AS (a int, b text)",
        "CREATE TYPE {t}_e AS ENUM ('a', 'b')",
        f"CREATE DOMAIN {{t}}_0 AS {base}",
        "CREATE DOMAIN {t}_1 AS {t}_0",
    ]
    kind = [base, "{t}_0", "{t}_1"][depth]
    for settings in (APPEND, UPSERT):
        case = Rule(on_postgres, f"id int PRIMARY KEY, a {kind}", before=before, **settings)
        records: list[Sent] = [{"id": place, "a": value} for place, value in enumerate([*good, bad, *good, bad])]
        for size in (1, 2, 100):
            found, parked = case.in_batches(records, size)
            assert parked == [len(good), 2 * len(good) + 1]
            nulls = [row for row in found if row[1] == "None"]
            assert (len(found), len(nulls)) == (2 * len(good), 2 * good.count(None))


# Values that only the database can read


NAMES = {
    "regclass": ("pg_class", ["nosuch", "a.b", "a.b.c", "a.b.c.d", '"', "", "pg_class x"]),
    "regclass[]": ("{pg_class}", ["{nosuch}", ["nosuch"]]),
    "regtype": ("integer", ["nosuch", "a b c", "int4(", "x.y"]),
    "regproc": ("version", ["nosuch", "abs"]),
    "regprocedure": ("version()", ["nosuch", "abs(nosuch)", "abs(int"]),
    "regoper": ("pg_catalog.|/", ["nosuch", "+"]),
    "regoperator": ("+(int4,int4)", ["+", "+(int4,nosuch)"]),
    "regrole": ("pg_monitor", ["nosuch", "a.b"]),
    "regnamespace": ("pg_catalog", ["nosuch", "a.b"]),
    "regcollation": ('"C"', ["nosuch"]),
    "regconfig": ("simple", ["nosuch"]),
    "regdictionary": ("simple", ["nosuch"]),
    "hstore": ("a=>1", ["=", "a=>", "a", '"']),
    "tsquery": ("a", ["a &"]),
    "jsonpath": ("$.a", ["$$$"]),
    "xml": ("<a/>", ["<a"]),
    "txid_snapshot": ("1:5:", ["5:1:"]),
    "interval": ("1 day", ["zz"]),
}


@pytest.mark.parametrize("settings", [APPEND, UPSERT], ids=["append", "upsert"])
@pytest.mark.parametrize(("kind", "good", "bad"), [(kind, *values) for kind, values in NAMES.items()], ids=NAMES)
def test_a_text_that_the_type_cannot_read_parks_its_record_whatever_the_cut(
    on_postgres: Place, settings: dict[str, Any], kind: str, good: str, bad: list[Any]
) -> None:
    before = ["CREATE EXTENSION IF NOT EXISTS hstore"]
    case = Rule(on_postgres, f"id int PRIMARY KEY, a {kind}", before=before, **settings)
    records: list[Sent] = [{"id": place, "a": value} for place, value in enumerate([good, *bad, good])]
    for size in (1, 100):
        found, parked = case.in_batches(records, size)
        assert parked == list(range(1, len(bad) + 1))
        assert len(found) == 2


@pytest.mark.parametrize("settings", [APPEND, UPSERT], ids=["append", "upsert"])
def test_a_missing_table_in_a_trigger_is_no_fault_of_a_record(on_postgres: Place, settings: dict[str, Any]) -> None:
    for body in ("LOCK TABLE nosuch", "PERFORM ''nosuch''::text::regclass", "EXECUTE ''SELECT FROM nosuch''"):
        extra = [
            f"CREATE FUNCTION {{t}}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body}; RETURN NEW; END'",
            "CREATE TRIGGER g BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_f()",
        ]
        case = Rule(on_postgres, "id int PRIMARY KEY, a regclass", extra, **settings)
        with pytest.raises(DBAPIError):
            case.in_batches([{"id": 1, "a": "pg_class"}], 1)


# Foreign keys, which are checked at the end of a statement


@pytest.mark.parametrize("settings", [APPEND, UPSERT], ids=["append", "upsert"])
def test_a_trigger_that_writes_what_another_record_refers_to_comes_too_late_for_it(
    on_postgres: Place, settings: dict[str, Any]
) -> None:
    body = "BEGIN INSERT INTO {t}_p VALUES (NEW.id) ON CONFLICT DO NOTHING; RETURN NEW; END"
    extra = [
        f"CREATE FUNCTION {{t}}_f() RETURNS trigger LANGUAGE plpgsql AS '{body}'",
        "CREATE TRIGGER g BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_f()",
    ]
    before = ["CREATE TABLE {t}_p (id int PRIMARY KEY)"]
    case = Rule(on_postgres, "id int PRIMARY KEY, r int REFERENCES {t}_p", extra, before=before, **settings)
    assert case.check([{"id": 1, "r": 2}, {"id": 2, "r": 1}, {"id": 3, "r": 3}]) == [("3", "3")]


def test_a_trigger_that_deletes_what_refers_to_another_record_comes_too_late_for_it(on_postgres: Place) -> None:
    body = "BEGIN DELETE FROM {t}_c WHERE id = OLD.id - 1; RETURN OLD; END"
    extra = [
        "CREATE TABLE {t}_c (id int REFERENCES {t})",
        "INSERT INTO {t} VALUES (1), (2)",
        "INSERT INTO {t}_c VALUES (1)",
        f"CREATE FUNCTION {{t}}_f() RETURNS trigger LANGUAGE plpgsql AS '{body}'",
        "CREATE TRIGGER g BEFORE DELETE ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_f()",
    ]
    case = Rule(on_postgres, "id int PRIMARY KEY", extra, **UPSERT)
    assert case.check([Gone(id=1), Gone(id=2)]) == [("1",)]


@pytest.mark.parametrize("settings", [APPEND, UPSERT], ids=["append", "upsert"])
def test_a_partition_inherits_a_foreign_key_of_its_parent_to_itself(
    on_postgres: Place, settings: dict[str, Any]
) -> None:
    parent = "CREATE TABLE {t}_p (id int PRIMARY KEY, r int REFERENCES {t}_p) PARTITION BY RANGE (id)"
    between = "CREATE TABLE {t}_m PARTITION OF {t}_p FOR VALUES FROM (0) TO (50) PARTITION BY RANGE (id)"
    for above, name in (([], "{t}_p"), ([between], "{t}_m")):
        before = [parent, *above]
        extra = ["DROP TABLE {t}", f"CREATE TABLE {{t}} PARTITION OF {name} FOR VALUES FROM (0) TO (10)"]
        case = Rule(on_postgres, "id int", extra, before=before, **settings)
        assert case.order() is SINGLE
        assert case.check([{"id": 1, "r": 2}, {"id": 2, "r": 1}, {"id": 3, "r": 3}, {"id": 20, "r": 3}]) == [("3", "3")]


UNREAD = {
    **{kind: (good, bad[0]) for kind, (good, bad) in NAMES.items()},
    "inet": ("10.0.0.1", "x"),
    "int[]": ("{1}", "{x}"),
    "time": ("12:00", "25:00"),
    "money": ("1", "x"),
    "int4range": ("[1,2)", "[2,1)"),
    "{t}_c": ("(1)", "(x)"),
}


@pytest.mark.parametrize(("kind", "good", "bad"), [(kind, *values) for kind, values in UNREAD.items()], ids=UNREAD)
def test_an_update_of_no_row_parks_a_text_that_the_type_cannot_read(
    on_postgres: Place, kind: str, good: str, bad: str
) -> None:
    before = ["CREATE EXTENSION IF NOT EXISTS hstore", "CREATE TYPE {t}_c AS (a int)"]
    extra = ["INSERT INTO {t} VALUES (1, NULL)"]
    case = Rule(on_postgres, f"id int PRIMARY KEY, a {kind}", extra, before=before, **keyed("update"))
    records: list[Sent] = [{"id": 1, "a": good}, {"id": 2, "a": bad}, {"id": 3, "a": good}, {"id": 4, "a": bad}]
    for size in (1, 2, 100):
        found, parked = case.in_batches(records, size)
        assert (len(found), parked) == (1, [1, 3])
        assert found[0][1] != "None"


def test_an_update_of_no_row_parks_json_beyond_the_limits(on_postgres: Place) -> None:
    table = Rule(on_postgres, "id int PRIMARY KEY, a jsonb", **keyed("update")).table()
    sink = sink_handler(Sink(table), on_postgres.engine)
    values = [b'{"id": 1, "a": 1}', b'{"id": 2, "a": 1e200000}']
    with on_postgres.engine.begin() as conn:
        assert write(
            sink, conn, [Record("rule", 0, place, None, value, (), 0) for place, value in enumerate(values)]
        ) == {1}


@pytest.mark.parametrize(
    ("kind", "good", "bad"), [("interval", "1 day", "zz"), ("inet", "10.0.0.1", "x"), ("int4range", "[1,2)", "[2,1)")]
)
def test_a_tombstone_of_no_row_is_parked_if_the_type_cannot_read_its_key(
    on_postgres: Place, kind: str, good: str, bad: str
) -> None:
    case = Rule(on_postgres, f"id {kind} PRIMARY KEY, a int", **UPSERT)
    for size in (1, 100):
        assert case.in_batches([Gone(id=bad)], size) == ([], [0])
        assert case.in_batches([Gone(id=good), Gone(id=bad), Gone(id=good)], size) == ([], [1])


# Children


def test_a_child_that_inherits_judges_each_record(on_postgres: Place) -> None:
    extra = ["CREATE TABLE {t}_c (CHECK (a > 0)) INHERITS ({t})", "INSERT INTO {t}_c VALUES (1, 1)"]
    case = Rule(on_postgres, "id int PRIMARY KEY, a int", extra, key="id", mode="update")
    assert case.one_by_one([{"id": 1, "a": -1}, {"id": 1, "a": 5}]) == ([("1", "5")], [0])
    assert case.check([{"id": 1, "a": -1}, {"id": 1, "a": 5}]) == [("1", "5")]


def test_a_trigger_of_a_child_fires_for_each_record(on_postgres: Place) -> None:
    before = ["CREATE TABLE {t}_seen (n serial)"]
    body = "BEGIN INSERT INTO {t}_seen DEFAULT VALUES; RETURN NEW; END"
    extra = [
        "CREATE TABLE {t}_c () INHERITS ({t})",
        f"CREATE FUNCTION {{t}}_f() RETURNS trigger LANGUAGE plpgsql AS '{body}'",
        "CREATE TRIGGER g AFTER UPDATE ON {t}_c FOR EACH ROW EXECUTE FUNCTION {t}_f()",
        "INSERT INTO {t}_c VALUES (1, 1)",
    ]
    case = Rule(on_postgres, "id int PRIMARY KEY, a int", extra, before=before, key="id", mode="update")
    assert case.order() is SINGLE
    table = case.table()
    on_postgres.put(table, [{"id": 1, "a": 2}, {"id": 1, "a": 3}])
    assert on_postgres.rows(f"{table.name}_seen") == [(1,), (2,)]


def test_a_child_that_a_trigger_creates_is_no_alteration(on_postgres: Place) -> None:
    body = (
        "BEGIN EXECUTE format(''CREATE TABLE IF NOT EXISTS {t}_%s () INHERITS ({t})'', NEW.id); "
        "EXECUTE format(''INSERT INTO {t}_%s VALUES (%s)'', NEW.id, NEW.id); RETURN NULL; END"
    )
    extra = [
        f"CREATE FUNCTION {{t}}_f() RETURNS trigger LANGUAGE plpgsql AS '{body}'",
        "CREATE TRIGGER g BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_f()",
    ]
    Rule(on_postgres, "id int PRIMARY KEY", extra, **UPSERT).check([{"id": 1}, {"id": 2}, {"id": 1}])


# Checks that look at other rows


@pytest.mark.parametrize("settings", [APPEND, UPSERT], ids=["append", "upsert"])
@pytest.mark.parametrize("volatility", ["STABLE", "VOLATILE"])
def test_a_check_by_a_function_that_reads_the_table_judges_each_record(
    on_postgres: Place, settings: dict[str, Any], volatility: str
) -> None:
    before = [COUNT % volatility]
    domain = [*before, "CREATE DOMAIN {t}_d AS int CHECK ({t}_f() < 2)", "CREATE DOMAIN {t}_e AS {t}_d"]
    cases = [
        Rule(on_postgres, "id int PRIMARY KEY, CHECK ({t}_f() < 2)", before=before, **settings),
        Rule(on_postgres, "id {t}_d PRIMARY KEY", before=domain, **settings),
        Rule(on_postgres, "id {t}_e PRIMARY KEY", before=domain, **settings),
        Rule(on_postgres, "id int PRIMARY KEY, n {t}_e[]", before=domain, **settings),
        Rule(
            on_postgres,
            "id int PRIMARY KEY, n {t}_c",
            before=[*domain, "CREATE TYPE {t}_c AS (n {t}_d)"],
            **settings,
        ),
        Rule(
            on_postgres,
            "id int PRIMARY KEY, CHECK (id <~> 2)",
            before=[
                "DROP OPERATOR IF EXISTS <~> (int, int) CASCADE",
                "CREATE FUNCTION {t}_g(int, int) RETURNS bool LANGUAGE plpgsql "
                f"{volatility} AS 'BEGIN RETURN (SELECT count(*) FROM {{t}}) < $2; END'",
                "CREATE OPERATOR <~> (LEFTARG = int, RIGHTARG = int, FUNCTION = {t}_g)",
            ],
            **settings,
        ),
        Rule(
            on_postgres,
            "id int PRIMARY KEY) PARTITION BY RANGE (id",
            ["CREATE TABLE {t}_1 PARTITION OF {t} (CHECK ({t}_f() < 2)) FOR VALUES FROM (0) TO (9)"],
            before=before,
            **settings,
        ),
    ]
    for case in cases:
        value = {"n": "{1}" if "[]" in case._columns else "(1)"} if "n {t}" in case._columns else {}
        assert len(case.check([{"id": 1, **value}, {"id": 2, **value}, {"id": 3, **value}])) == 2


@pytest.mark.parametrize("settings", [APPEND, UPSERT], ids=["append", "upsert"])
def test_a_built_in_function_that_reads_the_table_is_called_for_each_record(
    on_postgres: Place, settings: dict[str, Any]
) -> None:
    size = "length(query_to_xml('SELECT 1 FROM {t}', true, false, '')::text)"
    domain = [f"CREATE DOMAIN {{t}}_d AS int CHECK (VALUE > 0 AND {size} < 150)"]
    records: list[Sent] = [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}]
    for case in (
        Rule(on_postgres, "id int PRIMARY KEY", [f"ALTER TABLE {{t}} ADD CHECK ({size} < 150)"], **settings),
        Rule(on_postgres, "id {t}_d PRIMARY KEY", before=domain, **settings),
    ):
        assert 0 < len(case.check(records)) < 4
    case = Rule(on_postgres, "id int PRIMARY KEY", [f"ALTER TABLE {{t}} ADD n int DEFAULT {size}"], **settings)
    assert len({row[1] for row in case.check(records)}) == 4


def test_a_check_by_an_immutable_function_keeps_the_order_and_no_more(on_postgres: Place) -> None:
    before = ["CREATE FUNCTION {t}_f(a int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT a > 0'"]
    case = Rule(on_postgres, "id int PRIMARY KEY, CHECK ({t}_f(id))", before=before, **UPSERT)
    assert case.order() is KEPT


def test_a_view_with_a_check_option_judges_each_record(on_postgres: Place) -> None:
    extra = [
        "ALTER TABLE {t} RENAME TO {t}_b",
        "CREATE VIEW {t} AS SELECT * FROM {t}_b WHERE (SELECT count(*) FROM {t}_b) < 2 WITH CHECK OPTION",
    ]
    case = Rule(on_postgres, "id int", extra)
    records: list[Sent] = [{"id": 1}, {"id": 2}, {"id": 3}]
    assert case.one_by_one(records)[1]
    case.check(records)


@pytest.mark.parametrize("settings", [APPEND, UPSERT], ids=["append", "upsert"])
def test_a_policy_that_reads_the_table_judges_each_record(on_postgres: Place, settings: dict[str, Any]) -> None:
    records: list[Sent] = [{"id": 1}, {"id": 2}, {"id": 3}]
    with login(on_postgres) as (user, engine):
        extra = [
            "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
            f"GRANT ALL ON {{t}} TO {user}",
            "CREATE POLICY p ON {t} USING (true) WITH CHECK ({t}_f() < 2)",
        ]
        case = Rule(on_postgres, "id int PRIMARY KEY", extra, before=[COUNT % "STABLE"], **settings)
        table = case.table()
        target = Target(engine, table)
        assert target.layout.order is SINGLE
        sink = sink_handler(Sink(table), engine)
        with engine.begin() as conn:
            assert write(sink, conn, [_record(place, record) for place, record in enumerate(records)]) == {2}
        assert on_postgres.rows(table.name) == [(1,), (2,)]


# Deferred constraints


def test_deferred_constraints_judge_each_record(on_postgres: Place) -> None:
    late = "DEFERRABLE INITIALLY DEFERRED"
    unique = f"id int PRIMARY KEY, a int UNIQUE {late}"
    records: list[Sent] = [{"id": 1, "a": 1}, {"id": 2, "a": 1}, {"id": 1, "a": 2}]
    for mode in ("upsert", "ignore", "accumulate"):
        Rule(on_postgres, unique, **keyed(mode), add=("a",) if mode == "accumulate" else ()).check(records)
    Rule(on_postgres, f"id int, a int UNIQUE {late}").check(records)
    odd = f'id int PRIMARY KEY, a int, CONSTRAINT "{{t}} %s\'"" ü" UNIQUE (a) {late}'
    Rule(on_postgres, odd, **UPSERT).check(records)
    exclusion = f"id int PRIMARY KEY, a int, EXCLUDE USING btree (a WITH =) {late}"
    Rule(on_postgres, exclusion, **UPSERT).check(records)


def test_deferred_foreign_keys_judge_each_record(on_postgres: Place) -> None:
    late = "DEFERRABLE INITIALLY DEFERRED"
    before = ["CREATE TABLE {t}_p (id int PRIMARY KEY)", "INSERT INTO {t}_p VALUES (1)"]
    columns = f"id int PRIMARY KEY, a int REFERENCES {{t}}_p {late}"
    for mode in ("upsert", "ignore"):
        case = Rule(on_postgres, columns, before=before, **keyed(mode))
        case.check([{"id": 1, "a": 1}, {"id": 2, "a": 7}, {"id": 2, "a": 1}, {"id": 3, "a": 7}, Gone(id=3)])
    Rule(on_postgres, columns, before=before).check([{"id": 1, "a": 1}, {"id": 2, "a": 7}, {"id": 3, "a": 1}])
    itself = f"id int PRIMARY KEY, a int REFERENCES {{t}} {late}"
    Rule(on_postgres, itself, **UPSERT).check([{"id": 1, "a": 2}, {"id": 2, "a": 2}, {"id": 1, "a": 2}])
    referred = [f"CREATE TABLE {{t}}_c (id int REFERENCES {{t}} {late})", "INSERT INTO {t} VALUES (1, 1)"]
    case = Rule(on_postgres, "id int PRIMARY KEY, a int", [*referred, "INSERT INTO {t}_c VALUES (1)"], **UPSERT)
    case.check([{"id": 2, "a": 1}, Gone(id=1), {"id": 1, "a": 5}])


def test_a_deferred_constraint_trigger_judges_each_record(on_postgres: Place) -> None:
    body = "BEGIN IF NEW.a < 0 THEN RAISE check_violation; END IF; RETURN NULL; END"
    extra = [
        f"CREATE FUNCTION {{t}}_f() RETURNS trigger LANGUAGE plpgsql AS '{body}'",
        "CREATE CONSTRAINT TRIGGER g AFTER INSERT OR UPDATE ON {t} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION {t}_f()",
    ]
    case = Rule(on_postgres, "id int PRIMARY KEY, a int", extra, **UPSERT)
    assert case.check([{"id": 1, "a": 1}, {"id": 2, "a": -1}, {"id": 2, "a": 3}]) == [("1", "1"), ("2", "3")]


def test_deferred_constraints_of_other_tables_stay_deferred(on_postgres: Place) -> None:
    late = "DEFERRABLE INITIALLY DEFERRED"
    other = on_postgres.create(f"id int PRIMARY KEY, a int UNIQUE {late}")
    table = Rule(on_postgres, f"id int PRIMARY KEY, a int UNIQUE {late}", **UPSERT).table()
    target = Target(on_postgres.engine, table)
    with on_postgres.engine.begin() as conn:
        conn.exec_driver_sql(f"INSERT INTO {other} VALUES (1, 1), (2, 1)")
        target.write(conn, target.read(feed([{"id": 1, "a": 1}])))
        conn.exec_driver_sql(f"UPDATE {other} SET a = id")
    assert on_postgres.rows(other) == [(1, 1), (2, 2)]


# Infinite dates


MODES = ("upsert", "ignore", "update", "accumulate")


@pytest.mark.parametrize(("kind", "modes"), [("date", MODES), ("timestamp", MODES[:1]), ("timestamptz", MODES[:1])])
def test_infinity_is_a_key(on_postgres: Place, kind: str, modes: Sequence[str]) -> None:
    records: list[Sent] = [
        {"id": "infinity", "n": 1},
        {"id": "-infinity", "n": 2},
        {"id": "infinity", "n": 3},
        {"id": "2026-05-01", "n": 4},
        Gone(id="-infinity"),
    ]
    extra = ["INSERT INTO {t} VALUES ('infinity', 0)"]
    for mode in modes:
        options = {**keyed(mode), **({"add": ("n",)} if mode == "accumulate" else {})}
        for other in ("", ", UNIQUE (n)"):
            case = Rule(on_postgres, f"id {kind} PRIMARY KEY, n int{other}", extra, **options)
            expected = _texts(case, records, None)
            assert other or not expected[1]
            for size in (10, 2):
                assert _texts(case, records, size) == expected, (mode, size)
    both = {"key": ("id", "n"), "mode": "upsert", "tombstones": "delete"}
    case = Rule(on_postgres, f"id {kind}, n int, PRIMARY KEY (id, n)", **both)
    found, parked = _texts(case, [*records[:3], Gone(id="infinity", n=1)], 10)
    assert (len(found), parked) == (2, [])


def _texts(case: Rule, records: Sequence[Sent], size: int | None) -> tuple[list[Any], list[int]]:
    """What is there, with the dates as text, because Python has no infinite ones; and what was parked."""
    case.found = lambda table: case.place.rows_of(f'SELECT id::text, n FROM "{table.name}" ORDER BY id, n')  # type: ignore[method-assign]
    return case.one_by_one(records) if size is None else case.in_batches(records, size)


def test_infinity_is_an_element_of_an_array(on_postgres: Place) -> None:
    for kind in ("date", "timestamp", "timestamptz"):
        name = on_postgres.create(f"id int PRIMARY KEY, a {kind}[]")
        rows = on_postgres.put(Table(name, **UPSERT), [{"id": 1, "a": ["infinity", "-infinity", None, "2026-05-01"]}])
        assert not rows.misfits
        found = on_postgres.rows_of(f"SELECT a = '{{infinity,-infinity,NULL,2026-05-01 00:00Z}}' FROM {name}")
        assert found == [(True,)]


# Settings of the session


def refused_with(place: Place, name: str, settings: str, **options: Any) -> str:
    engine = create_engine(place.url, connect_args={"options": settings})
    try:
        with pytest.raises(ConfigurationError, match=name) as refused:
            Target(engine, Table(name, **options)).prepare()
    finally:
        engine.dispose()
    return str(refused.value)


@pytest.mark.parametrize("settings", [APPEND, UPSERT], ids=["append", "upsert"])
def test_sessions_that_change_what_is_sent_are_refused_by_name(on_postgres: Place, settings: dict[str, Any]) -> None:
    name = on_postgres.create("id int PRIMARY KEY, a text[], t text")
    assert "array_nulls" in refused_with(on_postgres, name, "-c array_nulls=off", **settings)
    assert "client_encoding=utf8" in refused_with(on_postgres, name, "-c client_encoding=LATIN1", **settings)


def test_a_session_whose_times_the_driver_cannot_read_is_refused_by_name(on_postgres: Place) -> None:
    url = on_postgres.engine.url.update_query_dict({"options": "-c datestyle=SQL,DMY"})
    with (
        open_ledger(url.render_as_string(hide_password=False)) as ledger,
        pytest.raises(ConfigurationError, match="DateStyle is 'SQL, DMY'"),
    ):
        ledger.claim("billing", [TopicPartition("orders", 0)], start_at=0)


def test_a_database_in_another_encoding_is_written_to_in_utf8(on_postgres: Place) -> None:
    name = on_postgres.name()
    with on_postgres.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    url = on_postgres.engine.url.set(database=name).render_as_string(hide_password=False)
    before = Place("postgres", url)
    before.create("id int PRIMARY KEY, a text", "t")
    assert "client_encoding=utf8" in refused_with(before, "t", "")
    place = Place("postgres", url + "?client_encoding=utf8")
    for settings in (APPEND, UPSERT):
        case = Rule(place, "id int PRIMARY KEY, a text", **settings)
        records = [{"id": 1, "a": "é"}, {"id": 2, "a": "漢"}, {"id": 2, "a": "ü"}]
        assert case.check(records) == [("1", "é"), ("2", "ü")]
    for kind, size in itertools.product(("json", "jsonb"), (1000, 1)):
        sunk = Sunk(place, f"id int PRIMARY KEY, a {kind}", **UPSERT)
        sent = [{"id": 1, "a": {"é": 1}}, {"id": 2, "a": ["漢"]}, {"id": 2, "a": 5}]
        rows, parked = sunk.by_a_sink(sent, size)
        assert (rows, parked) == ([("1", "{'é': 1}"), ("2", "5")], [1] if kind == "jsonb" else [])
    before.engine.dispose()
    place.engine.dispose()


# Rights


def test_a_right_that_is_missing_beside_the_table_is_named(on_postgres: Place) -> None:
    name = on_postgres.name()
    on_postgres.run(f"CREATE FUNCTION {name}_f() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'")
    on_postgres.run(f"REVOKE EXECUTE ON FUNCTION {name}_f FROM public")
    on_postgres.run(f"CREATE TABLE {name} (id serial PRIMARY KEY, n int DEFAULT {name}_f(), a int)")
    with login(on_postgres, f"INSERT ON {name}") as (user, engine):

        def refusal() -> str:
            with pytest.raises(LedgerDenied, match=f"table {name}: ") as refused, engine.begin() as conn:
                target = Target(engine, Table(name))
                target.write(conn, target.read(feed([{"a": 1}])))
            return str(refused.value)

        assert refusal().endswith(f'It takes GRANT EXECUTE ON FUNCTION "{name}_f" TO "{user}"')
        on_postgres.run(f"GRANT EXECUTE ON FUNCTION {name}_f TO {user}")
        assert refusal().endswith(f'It takes GRANT USAGE ON SEQUENCE "{name}_id_seq" TO "{user}"')
        on_postgres.run(f"GRANT USAGE ON SEQUENCE {name}_id_seq TO {user}")
        on_postgres.run(f"REVOKE INSERT ON {name} FROM {user}")
        on_postgres.run(f"GRANT INSERT (id) ON {name} TO {user}")
        assert refusal().endswith(f'It takes GRANT INSERT ON "{name}" TO "{user}"')


@pytest.mark.parametrize("kind", ["serial", "int GENERATED BY DEFAULT AS IDENTITY"])
def test_numbers_that_were_used_up_are_not_those_of_a_later_record(on_postgres: Place, kind: str) -> None:
    rule = Rule(on_postgres, f"id {kind} PRIMARY KEY, b int UNIQUE")
    for given in range(2, 8):
        sent: list[Sent] = [{"b": 1}, {"b": 1}, {"id": given, "b": 2}, {"b": 3}, {"b": 4}]
        assert rule.in_batches(sent, 1000) == rule.one_by_one(sent)
