"""What is known of a table before the first row: how rows may be written to it, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from tidegate import ConfigurationError, Record
from tidegate.errors import LedgerDenied
from tidegate.tables import Layout, Table, Target
from tidegate.tables.layout import Order
from tidegate.tables.registry import database_of
from tidegate.tables.shape import shape_of

from .places import Place, feed

FREE, KEPT, SINGLE = Order.FREE, Order.KEPT, Order.SINGLE
UPSERT: dict[str, Any] = {"key": "id", "mode": "upsert"}
APPEND: dict[str, Any] = {}


def looked(place: Place, name: str, **settings: Any) -> Layout:
    return Target(place.engine, Table(name, **settings)).layout


def refusal(place: Place, name: str, **settings: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        Target(place.engine, Table(name, **settings)).prepare()
    said = str(refused.value)
    assert name in said
    return said


# The order in which rows may be written

FUNCTION = "CREATE FUNCTION {0}_f() RETURNS trigger LANGUAGE plpgsql {1} AS 'BEGIN RETURN NEW; END'"
ORDERS: dict[str, list[tuple[str, str, list[str], dict[str, Any], Order]]] = {
    "postgres": [
        ("a plain table", "id int PRIMARY KEY, a text", [], UPSERT, FREE),
        ("a table without a key", "id int, a text", [], APPEND, FREE),
        ("another unique column", "id int PRIMARY KEY, a text UNIQUE", [], UPSERT, KEPT),
        (
            "a partial unique index",
            "id int PRIMARY KEY, a int",
            ["CREATE UNIQUE INDEX ON {0} (a) WHERE a > 1"],
            UPSERT,
            KEPT,
        ),
        ("another one that is deferrable", "id int PRIMARY KEY, a int UNIQUE DEFERRABLE", [], UPSERT, SINGLE),
        ("the same as it is appended to", "id int PRIMARY KEY, a int UNIQUE DEFERRABLE", [], APPEND, KEPT),
        ("a check", "id int PRIMARY KEY, a int CHECK (a > 0)", [], UPSERT, KEPT),
        ("an exclusion", "id int PRIMARY KEY, a int4range, EXCLUDE USING gist (a WITH &&)", [], UPSERT, KEPT),
        (
            "a foreign key",
            "id int PRIMARY KEY, a int",
            ["CREATE TABLE {0}_p (id int PRIMARY KEY)", "ALTER TABLE {0} ADD FOREIGN KEY (a) REFERENCES {0}_p"],
            UPSERT,
            KEPT,
        ),
        (
            "a foreign key to it",
            "id int PRIMARY KEY, a int",
            ["CREATE TABLE {0}_c (id int REFERENCES {0})"],
            UPSERT,
            KEPT,
        ),
        ("a foreign key to itself", "id int PRIMARY KEY, a int REFERENCES {0}", [], UPSERT, SINGLE),
        ("a foreign key to itself, appended", "id int PRIMARY KEY, a int REFERENCES {0}", [], APPEND, SINGLE),
        ("a generated column", "id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (1 / a) STORED", [], UPSERT, KEPT),
        ("an index that may fail", "id int PRIMARY KEY, a text", ["CREATE INDEX ON {0} ((a::int))"], UPSERT, KEPT),
        ("an index with a size", "id int PRIMARY KEY, a text", ["CREATE INDEX ON {0} (a)"], UPSERT, KEPT),
        (
            "a short index",
            "id int PRIMARY KEY, a varchar(99), b numeric(9,2)",
            ["CREATE INDEX ON {0} (a, b)"],
            UPSERT,
            FREE,
        ),
        (
            "a long index",
            "id int PRIMARY KEY, a varchar(500), b varchar(500)",
            ["CREATE INDEX ON {0} (a, b)"],
            UPSERT,
            KEPT,
        ),
        ("a key that includes a text", "id int, a text, PRIMARY KEY (id) INCLUDE (a)", [], UPSERT, KEPT),
        ("a key of texts", "id varchar(9), a text, PRIMARY KEY (id)", [], UPSERT, FREE),
        ("a type that is read as text", "id int PRIMARY KEY, a inet", [], UPSERT, KEPT),
        ("such a type as the key", "id inet PRIMARY KEY, a int", [], UPSERT, FREE),
        ("a domain", "id int PRIMARY KEY, a {0}_d", ["CREATE DOMAIN {0}_d AS int"], UPSERT, FREE),
        (
            "a domain with a check",
            "id int PRIMARY KEY, a {0}_d",
            ["CREATE DOMAIN {0}_i AS int CHECK (value > 0)", "CREATE DOMAIN {0}_d AS {0}_i"],
            UPSERT,
            KEPT,
        ),
        (
            "a key with a check of its domain",
            "id {0}_d PRIMARY KEY, a int",
            ["CREATE DOMAIN {0}_d AS inet CHECK (value <> '10.0.0.1')"],
            UPSERT,
            KEPT,
        ),
        (
            "a trigger before each row",
            "id int PRIMARY KEY, a int",
            [FUNCTION.format("{0}", ""), "CREATE TRIGGER g BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION {0}_f()"],
            UPSERT,
            KEPT,
        ),
        (
            "one that reads as of the statement",
            "id int PRIMARY KEY, a int",
            [
                FUNCTION.format("{0}", "STABLE"),
                "CREATE TRIGGER g BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION {0}_f()",
            ],
            UPSERT,
            SINGLE,
        ),
        (
            "a trigger after each row",
            "id int PRIMARY KEY, a int",
            [FUNCTION.format("{0}", ""), "CREATE TRIGGER g AFTER INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION {0}_f()"],
            APPEND,
            SINGLE,
        ),
        (
            "a trigger for a statement",
            "id int PRIMARY KEY, a int",
            [FUNCTION.format("{0}", ""), "CREATE TRIGGER g BEFORE UPDATE ON {0} EXECUTE FUNCTION {0}_f()"],
            UPSERT,
            SINGLE,
        ),
        (
            "a trigger that is off",
            "id int PRIMARY KEY, a int",
            [
                FUNCTION.format("{0}", ""),
                "CREATE TRIGGER g AFTER INSERT ON {0} EXECUTE FUNCTION {0}_f()",
                "ALTER TABLE {0} DISABLE TRIGGER g",
            ],
            UPSERT,
            FREE,
        ),
        (
            "a trigger for TRUNCATE",
            "id int PRIMARY KEY, a int",
            [FUNCTION.format("{0}", ""), "CREATE TRIGGER g AFTER TRUNCATE ON {0} EXECUTE FUNCTION {0}_f()"],
            UPSERT,
            FREE,
        ),
        ("a rule", "id int, a int", ["CREATE RULE r AS ON INSERT TO {0} DO ALSO NOTHING"], APPEND, SINGLE),
        (
            "a rule for deletes",
            "id int PRIMARY KEY, a int",
            ["CREATE RULE r AS ON DELETE TO {0} DO INSTEAD NOTHING"],
            UPSERT,
            SINGLE,
        ),
        (
            "partitions",
            "id int PRIMARY KEY, a int) PARTITION BY RANGE (id",
            ["CREATE TABLE {0}_1 PARTITION OF {0} FOR VALUES FROM (0) TO (9)"],
            UPSERT,
            KEPT,
        ),
        (
            "a partition with a trigger",
            "id int PRIMARY KEY, a int) PARTITION BY RANGE (id",
            [
                "CREATE TABLE {0}_1 PARTITION OF {0} FOR VALUES FROM (0) TO (9)",
                FUNCTION.format("{0}", ""),
                "CREATE TRIGGER g AFTER INSERT ON {0}_1 FOR EACH ROW EXECUTE FUNCTION {0}_f()",
            ],
            UPSERT,
            SINGLE,
        ),
        (
            "row-level security",
            "id int PRIMARY KEY, a int",
            ["ALTER TABLE {0} ENABLE ROW LEVEL SECURITY"],
            UPSERT,
            FREE,
        ),
    ],
    "mysql": [
        ("a plain table", "id INT PRIMARY KEY, a TEXT, j JSON", [], UPSERT, FREE),
        ("a table without a key", "id INT, a TEXT", [], APPEND, FREE),
        (
            "words in names and texts",
            "id INT PRIMARY KEY, `CHECK (` INT DEFAULT 5 COMMENT 'it''s a FOREIGN KEY `'",
            [],
            UPSERT,
            FREE,
        ),
        ("a check", "id INT PRIMARY KEY, a INT, CHECK (a > 0)", [], UPSERT, KEPT),
        (
            "a foreign key",
            "id INT PRIMARY KEY, a INT",
            ["CREATE TABLE {0}_p (id INT PRIMARY KEY)", "ALTER TABLE {0} ADD FOREIGN KEY (a) REFERENCES {0}_p (id)"],
            UPSERT,
            KEPT,
        ),
        (
            "a foreign key to it",
            "id INT PRIMARY KEY, a INT",
            ["CREATE TABLE {0}_c (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES {0} (id))"],
            UPSERT,
            KEPT,
        ),
        ("a generated column", "id INT PRIMARY KEY, a INT, b INT GENERATED ALWAYS AS (1 / a) STORED", [], UPSERT, KEPT),
        (
            "a trigger",
            "id INT PRIMARY KEY, a INT",
            ["CREATE TRIGGER {0}_g AFTER INSERT ON {0} FOR EACH ROW SET @x = 1"],
            UPSERT,
            KEPT,
        ),
        (
            "partitions",
            "id INT PRIMARY KEY, a INT) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9)",
            [],
            UPSERT,
            KEPT,
        ),
        ("a type that is read as text", "id INT PRIMARY KEY, a ENUM('x')", [], UPSERT, KEPT),
        (
            "a character set that Python has not",
            "id INT PRIMARY KEY, a VARCHAR(9) CHARACTER SET big5",
            [],
            UPSERT,
            KEPT,
        ),
        ("a float with bounds", "id INT PRIMARY KEY, a FLOAT(7,4)", [], UPSERT, KEPT),
        ("a number beside the key", "n INT AUTO_INCREMENT UNIQUE, id INT PRIMARY KEY", [], UPSERT, KEPT),
    ],
    "sqlite": [
        ("a plain table", "id INTEGER PRIMARY KEY, a TEXT", [], UPSERT, FREE),
        ("a key without row numbers", "id TEXT PRIMARY KEY, a TEXT) WITHOUT ROWID --(", [], UPSERT, FREE),
        ("another unique column", "id INTEGER PRIMARY KEY, a TEXT UNIQUE", [], UPSERT, KEPT),
        ("a check", "id INTEGER PRIMARY KEY, a INTEGER check(a > 0)", [], UPSERT, KEPT),
        ("a generated column", "id INTEGER PRIMARY KEY, a TEXT, b AS (json(a))", [], UPSERT, KEPT),
        (
            "an index that may fail",
            "id INTEGER PRIMARY KEY, a TEXT",
            ["CREATE INDEX {0}_i ON {0} (json(a))"],
            UPSERT,
            KEPT,
        ),
        ("a foreign key", "id INTEGER PRIMARY KEY, a INTEGER REFERENCES other", [], UPSERT, SINGLE),
        ("a foreign key, appended", "id INTEGER PRIMARY KEY, a INTEGER REFERENCES other", [], APPEND, KEPT),
        (
            "a foreign key to it",
            "id INTEGER PRIMARY KEY, a INTEGER",
            ["CREATE TABLE {0}_c (id REFERENCES {0})"],
            UPSERT,
            SINGLE,
        ),
        ("a foreign key to itself", "id INTEGER PRIMARY KEY, a INTEGER REFERENCES {0}", [], UPSERT, SINGLE),
        (
            "a trigger",
            "id INTEGER PRIMARY KEY, a INTEGER",
            ["CREATE TRIGGER {0}_g AFTER INSERT ON {0} BEGIN SELECT 1; END"],
            UPSERT,
            KEPT,
        ),
    ],
}


def test_the_order_of_rows_is_free_only_where_nothing_can_tell(database: Place) -> None:
    for case, columns, more, settings, order in ORDERS[database.database]:
        name = database.name()
        before = [statement for statement in more if statement.startswith("CREATE DOMAIN")]
        for statement in before:
            database.run(statement.format(name))
        database.create(columns.replace("{0}", name), name)
        for statement in more:
            if statement not in before:
                database.run(statement.replace("{0}", name))
        assert looked(database, name, **settings).order is order, case


def test_a_column_that_numbers_its_rows_is_found_unless_it_is_given(database: Place) -> None:
    numbers = {
        "postgres": ["serial", "int GENERATED BY DEFAULT AS IDENTITY", "int GENERATED ALWAYS AS IDENTITY"],
        "mysql": ["INT AUTO_INCREMENT"],
        "sqlite": ["INTEGER"],
    }
    for number in numbers[database.database]:
        name = database.create(f"n {number} PRIMARY KEY, id INTEGER NOT NULL UNIQUE, a INTEGER")
        assert looked(database, name).is_numbered
        assert looked(database, name, **UPSERT).is_numbered
    assert not looked(
        database, database.create("id INTEGER NOT NULL UNIQUE, a INTEGER DEFAULT 5"), **UPSERT
    ).is_numbered
    if database.database != "mysql":  # which refuses it
        given = database.create(f"id {numbers[database.database][0]} PRIMARY KEY, a INTEGER")
        assert not looked(database, given, **UPSERT).is_numbered


def test_a_null_is_the_next_number_where_the_database_says_so(database: Place) -> None:
    numbered = {"sqlite": "id INTEGER PRIMARY KEY", "mysql": "id INTEGER AUTO_INCREMENT PRIMARY KEY"}
    name = database.create(numbered.get(database.database, "id SERIAL PRIMARY KEY") + ", a INTEGER")
    sent = [{"a": 10}, {"id": None, "a": 20}, {"id": 7, "a": 30}, {"id": None, "a": 40}, {"a": 50}]
    rows = database.put(Table(name), sent)
    if database.database == "postgres":
        assert [misfit.place for misfit in rows.misfits] == [1, 3]
        return
    assert rows.misfits == ()
    assert database.rows(name) == [(1, 10), (2, 20), (7, 30), (8, 40), (9, 50)]
    for settings in (UPSERT, {**UPSERT, "mode": "ignore"}) if database.database == "sqlite" else ():
        assert len(database.put(Table(name, **settings), [{"id": None, "a": 1}]).misfits) == 1  # it finds the row


def test_a_trigger_may_fill_a_column_that_is_not_null(database: Place) -> None:
    """The database looks for nulls once its triggers have run, and refuses what is left."""
    name = database.create("id INTEGER PRIMARY KEY, n INTEGER NOT NULL, m INTEGER")
    assert [misfit.place for misfit in database.put(Table(name), [{"id": 1, "n": None}]).misfits] == [0]
    if database.database == "sqlite":
        return  # whose triggers change no values
    if database.database == "mysql":
        database.run(f"CREATE TRIGGER {name}_g BEFORE INSERT ON {name} FOR EACH ROW SET NEW.n = COALESCE(NEW.n, NEW.m)")
    else:
        fill = "BEGIN NEW.n = COALESCE(NEW.n, NEW.m); RETURN NEW; END"
        database.run(f"CREATE FUNCTION {name}_f() RETURNS trigger LANGUAGE plpgsql AS '{fill}'")
        database.run(f"CREATE TRIGGER g BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION {name}_f()")
    for number, settings in enumerate((APPEND, UPSERT)):
        rows = database.put(Table(name, **settings), [{"id": number, "n": None, "m": 7}])
        assert rows.misfits == ()
        with pytest.raises(DBAPIError, match="null"):
            database.put(Table(name, **settings), [{"id": number + 5, "n": None}])
    assert database.rows(name) == [(0, 7, 7), (1, 7, 7)]


def test_a_field_that_is_lacked_is_no_zero_because_there_is_a_trigger(on_mysql: Place) -> None:
    name = on_mysql.create("id INT, n INT NOT NULL, t VARCHAR(9) NOT NULL DEFAULT 'd', a INT")
    on_mysql.run(f"CREATE TRIGGER {name}_g BEFORE INSERT ON {name} FOR EACH ROW SET NEW.a = NEW.a + 1")
    for refused in ({"a": 1}, {"id": 2}, {"id": 2, "n": None}, {"id": 2, "n": 2, "t": None}):
        for before in ([], [{"id": 1, "n": 1}]):
            with pytest.raises(DBAPIError):
                on_mysql.put(Table(name), [*before, refused])
    on_mysql.statements.clear()
    on_mysql.put(Table(name), [{"id": 1, "n": 1, "a": 1}, {"id": 2, "n": 2}])
    assert on_mysql.rows(name) == [(1, 1, "d", 2), (2, 2, "d", None)]
    assert not any(each.startswith("INSERT") for each in on_mysql.statements)  # they are loaded


# Keys that the database takes for the same

SAME: dict[str, list[tuple[str, list[Any], bool]]] = {
    "postgres": [
        ("text", ["a", "A"], False),
        ("varchar(9)", ["a", "a "], False),
        ('text COLLATE "C"', ["a", "A"], False),
        ("text COLLATE {ci}", ["a", "A"], True),
        ("varchar(9) COLLATE {ci}", ["a", "A"], True),
        ("citext", ["a", "A"], True),
        ("char(4)", ["a", "a "], True),
        ("numeric", [1.0, "1.00"], True),
        ("numeric(9,2)", [1.0, "1.00"], False),
        ("real", [0.1, 0.100000001], True),
        ("double precision", [0.0, -0.0], True),
        ("inet", ["10.0.0.1", "10.0.0.1/32"], True),
        ("cidr", ["10.0.0.0/8", "10/8"], True),
        ("time", ["01:00", "01:00:00"], True),
        ("time(0)", ["01:00", "01:00:00"], True),
        ("timetz", ["01:00+00", "01:00:00+00"], True),
        ("interval", ["60 min", "1 hour"], True),
        ("integer[]", ["{1}", "{ 1}"], True),
        ("varchar(3)[]", ["{a}", '{"a"}'], True),
        ("macaddr", ["08:00:2b:01:02:03", "08002b010203"], True),
        ("bit(4)", ["1010", "1011"], True),
        ("jsonb", [{"a": 1, "b": 2}, {"b": 2, "a": 1}], True),
        ("uuid", ["00000000-0000-0000-0000-00000000000A", "0000000000000000000000000000000a"], False),
        ("{mood}", ["sad", "happy"], False),
        ("timestamptz(0)", ["2026-05-01T12:00:00.1Z", "2026-05-01T14:00:00.2+02:00"], False),
        ("date", ["2026-05-01", "2026-05-02"], False),
        ("bigint", [1, 2], False),
        ("boolean", [True, False], False),
    ],
    "mysql": [
        ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", ["a", "A"], True),
        ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", ["a", "a "], True),
        ("VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin", ["a", "a "], True),
        ("CHAR(9) CHARACTER SET utf8mb4 COLLATE {bin}", ["a", "b"], False),
        ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE {bin}", ["a", "A"], False),
        ("ENUM('a', 'b')", ["a", "A"], True),
        ("SET('a', 'b')", ["a,b", "b,a"], True),
        ("YEAR", ["99", "1999"], True),
        ("TIME", ["01:00", "01:00:00"], True),
        ("BINARY(3)", ["YQ==", "YQA="], True),
        ("VARBINARY(3)", ["YQ==", "YQA="], False),
        ("FLOAT", [0.1, 0.100000001], True),
        ("DECIMAL(9,2)", [1.0, "1.00"], False),
        ("DATETIME", ["2026-05-01T12:00:00.1Z", "2026-05-01T12:00:00.2Z"], False),
        ("BIT(4)", ["1", "2"], True),
        ("BIGINT", [1, 2], False),
    ],
    "sqlite": [
        ("TEXT", ["a", "A"], False),
        ("TEXT COLLATE NOCASE", ["a", "A"], True),
        ("TEXT COLLATE RTRIM", ["a", "a "], True),
        ("", ["a", "A"], True),
        ("REAL", [1, 1.5], True),
        ("NUMERIC", [1.0, "1.00"], True),
        ("DECIMAL(9,2)", [1.0, "1.00"], False),
        ("DECIMAL_TEXT", ["1", "2"], False),
        ("JSON", [1, 2], True),
        ("JSON_TEXT", [1, 2], False),
        ("BLOB", ["YQ==", "YQA="], False),
        ("DATE", ["2026-05-01", "2026-05-02"], False),
        ("INTEGER", [1, 2], False),
    ],
}
MARIADB: list[tuple[str, list[Any], bool]] = [
    ("INET6", ["::1", "0::1"], True),
    ("UUID", ["00000000-0000-0000-0000-00000000000A", "0000000000000000000000000000000a"], False),
]


def test_a_key_folds_where_its_index_takes_other_values_for_the_same(database: Place) -> None:
    """Which the database itself says: two such values, one after the other, are one row."""
    words = {"bin": "utf8mb4_nopad_bin" if database.way == "mariadb" else "utf8mb4_0900_bin"}
    if database.database == "postgres":
        words = {"ci": database.name(), "mood": database.name()}
        database.run("CREATE EXTENSION IF NOT EXISTS citext")
        database.run(
            f"CREATE COLLATION {words['ci']} (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
        database.run(f"CREATE TYPE {words['mood']} AS ENUM ('sad', 'happy')")
    always = {"", "REAL", "JSON", "BIT(4)", "bit(4)"}  # taken to fold, whether these values do or not
    for kind, values, folds in SAME[database.database] + (MARIADB if database.way == "mariadb" else []):
        name = database.create(f"id {kind.format(**words)} NOT NULL PRIMARY KEY, n INTEGER")
        target = Target(database.engine, Table(name, **UPSERT))
        assert target.layout.by_name["id"].folds is folds, kind
        assert not target.layout.by_name["n"].folds
        if folds and kind not in always:
            for value in values:
                database.write(target, target.read(feed([{"id": value, "n": 1}])))
            assert len(database.rows(name)) == 1, kind


def test_what_postgres_compares_is_a_cast_without_a_length(on_postgres: Place) -> None:
    ci = on_postgres.name()
    on_postgres.run("CREATE EXTENSION IF NOT EXISTS citext")
    on_postgres.run(f"CREATE COLLATION {ci} (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    for kind, compared in [
        (f"varchar(9) COLLATE {ci}", f"::text COLLATE public.{ci}"),
        ("citext", "::citext"),
        ("char(4)", "::bpchar"),
        ("varchar(3)[]", "::character varying[]"),
        ("bit(4)", '::"bit"'),
        ("time(0)", "::time(0) without time zone"),
        ("inet", "::inet"),
        ("text", ""),
    ]:
        name = on_postgres.create(f"id {kind} PRIMARY KEY")
        assert looked(on_postgres, name, **UPSERT).by_name["id"].compared == compared
    name = on_postgres.create("id text, n integer")
    on_postgres.run(f"CREATE UNIQUE INDEX ON {name} (id COLLATE {ci})")
    column = looked(on_postgres, name, **UPSERT).by_name["id"]
    assert column.folds
    assert column.compared == f"::text COLLATE public.{ci}"


def test_an_index_of_a_collation_of_its_own_folds(sqlite: Place) -> None:
    name = sqlite.create("id TEXT, n INTEGER")
    sqlite.run(f"CREATE UNIQUE INDEX {name}_i ON {name} (id COLLATE NOCASE)")
    assert looked(sqlite, name, **UPSERT).by_name["id"].folds
    target = Target(sqlite.engine, Table(name, **UPSERT))
    sqlite.write(target, target.read(feed([{"id": "a", "n": 1}])))
    sqlite.write(target, target.read([Record("t", 0, 1, b'"A"', None)]))
    assert sqlite.rows(name) == []


def test_an_operator_class_that_compares_in_its_own_way_has_each_row_by_itself(on_postgres: Place) -> None:
    name = on_postgres.create("id text, n integer")
    on_postgres.run(f"CREATE UNIQUE INDEX ON {name} (id text_pattern_ops)")
    assert looked(on_postgres, name, **UPSERT).order is FREE
    own = on_postgres.name()
    on_postgres.run(
        f"CREATE OPERATOR CLASS {own} FOR TYPE text USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, "
        "OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 bttextcmp(text, text)"
    )
    name = on_postgres.create("id text, n integer")
    on_postgres.run(f"CREATE UNIQUE INDEX ON {name} (id {own})")
    assert looked(on_postgres, name, **UPSERT).order is SINGLE


# Refused before the first row


def test_an_index_that_cannot_tell_rows_apart_is_refused_by_name(on_postgres: Place) -> None:
    for more, why in [
        ("CREATE UNIQUE INDEX {0}_i ON {0} (id) WHERE n > 0", "'{0}_i' is partial"),
        ("ALTER TABLE {0} ADD CONSTRAINT {0}_i UNIQUE (id) DEFERRABLE", "'{0}_i' is deferrable"),
        (
            "ALTER TABLE {0} ADD CONSTRAINT {0}_i PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED",
            "'{0}_i' is deferrable",
        ),
        ("CREATE UNIQUE INDEX {0}_i ON {0} (lower(id))", "id may not identify a row; mode 'upsert' needs"),
        ("CREATE UNIQUE INDEX {0}_i ON {0} (id, n)", "id may not identify a row; mode 'upsert' needs"),
        ("CREATE INDEX {0}_i ON {0} (id)", "id may not identify a row; mode 'upsert' needs"),
    ]:
        name = on_postgres.create("id text, n integer")
        on_postgres.run(more.format(name))
        assert why.format(name) in refusal(on_postgres, name, **UPSERT)
        Target(on_postgres.engine, Table(name)).prepare()
    name = on_postgres.create("id text, n integer")
    on_postgres.run(f"CREATE UNIQUE INDEX ON {name} (id) INCLUDE (n)")
    assert looked(on_postgres, name, **UPSERT).order is FREE


def test_an_index_that_is_not_valid_is_no_key(on_postgres: Place) -> None:
    name = on_postgres.create("id integer, n integer")
    on_postgres.run(f"INSERT INTO {name} VALUES (1, 1), (1, 2)")
    engine = on_postgres.engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(Exception, match="could not create unique index"), engine.connect() as conn:
        conn.exec_driver_sql(f"CREATE UNIQUE INDEX CONCURRENTLY {name}_i ON {name} (id)")
    assert f"'{name}_i' is not valid" in refusal(on_postgres, name, **UPSERT)


def test_a_deferrable_index_beside_the_key_on_its_columns_is_refused(on_postgres: Place) -> None:
    """PostgreSQL would refuse every ON CONFLICT."""
    name = on_postgres.create("id integer PRIMARY KEY, n integer, CONSTRAINT later UNIQUE (id) DEFERRABLE")
    assert "'later' on the same columns, which is deferrable" in refusal(on_postgres, name, **UPSERT)


def test_an_index_of_beginnings_is_no_key(on_mysql: Place) -> None:
    name = on_mysql.create("id VARCHAR(30), n INTEGER, UNIQUE KEY start (id(3))")
    assert "'start' has only the beginnings of values" in refusal(on_mysql, name, **UPSERT)
    Target(on_mysql.engine, Table(name)).prepare()
    on_mysql.run(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
    assert "the unique index 'start'" in refusal(on_mysql, name, **UPSERT)


@pytest.mark.parametrize("mode", ["upsert", "accumulate", "ignore"])
def test_a_second_unique_index_is_refused_where_it_would_be_taken_for_the_key(on_mysql: Place, mode: str) -> None:
    name = on_mysql.create("id INTEGER PRIMARY KEY, n INTEGER, UNIQUE KEY other (n)")
    assert "beside its key it has the unique index 'other'" in refusal(on_mysql, name, key="id", mode=mode)
    Target(on_mysql.engine, Table(name)).prepare()
    if on_mysql.way == "mysql":
        name = on_mysql.create("id INTEGER PRIMARY KEY, n INTEGER, UNIQUE KEY twice ((n * 2))")
        assert "beside its key it has the unique index 'twice'" in refusal(on_mysql, name, key="id", mode=mode)


def test_a_second_unique_index_refuses_its_clashes_where_rows_are_only_updated(on_mysql: Place) -> None:
    name = on_mysql.create("id INTEGER PRIMARY KEY, n INTEGER, UNIQUE KEY other (n)")
    on_mysql.run(f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
    table = Table(name, key="id", mode="update")
    assert looked(on_mysql, name, key="id", mode="update").order is KEPT
    with pytest.raises(IntegrityError):
        on_mysql.put(table, [{"id": 1, "n": 2}])
    on_mysql.put(table, [{"id": 2, "n": 3}, {"id": 1, "n": 2}, {"id": 5, "n": 5}])
    assert on_mysql.rows(name) == [(1, 2), (2, 3)]


def test_a_key_that_numbers_its_rows_is_refused_unless_0_is_a_value_like_others(on_mysql: Place) -> None:
    name = on_mysql.create("id INTEGER PRIMARY KEY AUTO_INCREMENT COMMENT 'it''s', n INTEGER")
    assert "the AUTO_INCREMENT column 'id', in which" in refusal(on_mysql, name, **UPSERT)
    assert looked(on_mysql, name).is_numbered
    modes = "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO"
    engine = create_engine(on_mysql.url, connect_args={"init_command": f"SET SESSION sql_mode = '{modes}'"})
    place = Place(f"{on_mysql.way}-insert", on_mysql.url)
    place.engine = engine
    for _ in range(2):
        place.put(Table(name, **UPSERT), [{"id": 0, "n": 5}])
    assert place.rows(name) == [(0, 5)]
    engine.dispose()


def test_a_foreign_table_is_refused_also_as_a_partition(on_postgres: Place) -> None:
    server, name = on_postgres.name(), on_postgres.name()
    on_postgres.run("CREATE EXTENSION IF NOT EXISTS postgres_fdw")
    on_postgres.run(f"CREATE SERVER {server} FOREIGN DATA WRAPPER postgres_fdw")
    on_postgres.run(f"CREATE FOREIGN TABLE {name} (id integer) SERVER {server}")
    assert "is a foreign table" in refusal(on_postgres, name)
    name = on_postgres.create("id integer) PARTITION BY RANGE (id")
    on_postgres.run(f"CREATE FOREIGN TABLE {name}_f PARTITION OF {name} FOR VALUES FROM (0) TO (9) SERVER {server}")
    assert f"{name}_f is a foreign table" in refusal(on_postgres, name)


def test_partitions_without_transactions_are_refused(on_mysql: Place) -> None:
    if on_mysql.way == "mysql":
        pytest.skip("MySQL has no partitions but InnoDB's")
    name = on_mysql.name()
    on_mysql.run(
        f"CREATE TABLE {name} (id INTEGER) ENGINE=MyISAM PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9))"
    )
    assert "its engine MyISAM has no transactions" in refusal(on_mysql, name)


def test_an_unlogged_table_is_warned_of_once(on_postgres: Place, caplog: pytest.LogCaptureFixture) -> None:
    name = on_postgres.name()
    on_postgres.run(f"CREATE UNLOGGED TABLE {name} (id integer PRIMARY KEY)")
    with caplog.at_level(logging.WARNING, "tidegate"):
        for _ in range(3):
            looked(on_postgres, name)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        f"table {name} is UNLOGGED: a crash of the server empties it, while the position stays; run ALTER TABLE "
        f'"{name}" SET LOGGED'
    )


def test_a_name_that_is_too_long_is_not_cut(on_postgres: Place, on_mysql: Place) -> None:
    long = "ü" * 32
    on_postgres.create("id integer", ("ü" * 31))
    on_postgres.run(f'DROP TABLE "{"ü" * 31}"')
    for settings in ({}, {"create": True, "columns": {"id": int}}):
        said = refusal(on_postgres, long, **settings)
        assert f"the name of table {long!r} has 64 bytes, and there may be 63" in said
    assert "the name of column" in refusal(on_postgres, "t", create=True, columns={long: int})
    assert "the name of schema" in refusal(on_postgres, "t", schema=long)
    on_mysql.create("id INTEGER", long)
    on_mysql.put(Table(long), [{"id": 1}])
    on_mysql.run(f"DROP TABLE {long}")
    assert "has 65 characters, and there may be 64" in refusal(on_mysql, "x" * 65)


# Views, rules, row-level security


def test_a_view_takes_rows_that_are_appended_and_no_keys(on_postgres: Place) -> None:
    base = on_postgres.create("id serial PRIMARY KEY, a text, n integer DEFAULT 7")
    view = on_postgres.name()
    on_postgres.run(f"CREATE VIEW {view} AS SELECT id, a FROM {base} WHERE a <> 'hidden'")
    layout = looked(on_postgres, view)
    assert (layout.takes_bulk, layout.order, layout.is_numbered) == (False, KEPT, True)
    assert "is a view, and mode 'upsert' needs the unique index of a table" in refusal(on_postgres, view, **UPSERT)
    on_postgres.run(FUNCTION.format(base, ""))
    on_postgres.run(f"CREATE TRIGGER g AFTER INSERT ON {base} FOR EACH ROW EXECUTE FUNCTION {base}_f()")
    assert looked(on_postgres, view).order is SINGLE
    on_postgres.run(f"CREATE VIEW {view}_2 AS SELECT count(*) AS id FROM {base}")
    assert "is a view that cannot be inserted into" in refusal(on_postgres, f"{view}_2")
    on_postgres.run(f"CREATE MATERIALIZED VIEW {view}_3 AS SELECT id FROM {base}")
    assert "is a materialized view" in refusal(on_postgres, f"{view}_3")


def test_a_view_of_mysql_is_refused(on_mysql: Place) -> None:
    base, view = on_mysql.create("id INTEGER PRIMARY KEY"), on_mysql.name()
    on_mysql.run(f"CREATE VIEW {view} AS SELECT id FROM {base}")
    assert "does not show whether the tables behind it have transactions" in refusal(on_mysql, view)


def test_a_view_of_sqlite_takes_rows_by_a_trigger_alone(sqlite: Place) -> None:
    base, view = sqlite.create("id INTEGER PRIMARY KEY"), sqlite.name()
    sqlite.run(f"CREATE VIEW {view} AS SELECT id FROM {base}")
    assert "is a view, which takes no rows in mode 'append'" in refusal(sqlite, view)
    sqlite.run(
        f"CREATE TRIGGER {view}_i INSTEAD OF INSERT ON {view} BEGIN INSERT INTO {base} VALUES (NEW.id + 10); END"
    )
    sqlite.put(Table(view), [{"id": 1}, {"id": 2}])
    assert sqlite.rows(base) == [(11,), (12,)]
    assert "is a view, which takes no rows in mode 'upsert'" in refusal(sqlite, view, **UPSERT)


def test_a_virtual_table_of_sqlite_takes_no_keys(sqlite: Place) -> None:
    name = sqlite.name()
    sqlite.run(f"CREATE VIRTUAL TABLE {name} USING fts5(id, a)")
    assert "is a virtual table" in refusal(sqlite, name, **UPSERT)


def test_rules_are_for_single_rows_and_not_for_keys(on_postgres: Place) -> None:
    name = on_postgres.create("id integer PRIMARY KEY, n integer")
    on_postgres.run(f"CREATE RULE r AS ON INSERT TO {name} DO ALSO NOTHING")
    assert not looked(on_postgres, name).takes_bulk
    assert "has rules, with which PostgreSQL has no ON CONFLICT" in refusal(on_postgres, name, **UPSERT)
    on_postgres.run(f"ALTER TABLE {name} DISABLE RULE r")
    assert looked(on_postgres, name, **UPSERT).takes_bulk


# Rights


@contextmanager
def login(place: Place, *grants: str) -> Iterator[tuple[str, Engine]]:
    """Somebody who may do no more than this."""
    name = place.name()
    if place.database == "postgres":
        place.run(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    else:
        place.run(f"CREATE USER {name} IDENTIFIED BY 'secret'")
    for grant in grants:
        place.run(f"GRANT {grant} TO {name}")
    engine = create_engine(place.engine.url.set(username=name, password="secret"))
    try:
        yield name, engine
    finally:
        engine.dispose()


@pytest.mark.parametrize(
    "settings", [APPEND, UPSERT, {"key": "id", "mode": "accumulate"}], ids=["append", "upsert", "accumulate"]
)
@pytest.mark.parametrize("server", ["postgres", "mariadb", "mysql"])
def test_a_missing_right_is_named_with_its_grant(
    server: str, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    place = Place(server, request.getfixturevalue(server).url)
    name = place.create("id INTEGER PRIMARY KEY, n INTEGER")
    at = f'"{name}"' if server == "postgres" else f"`{name}`"
    rights = "INSERT" if settings is APPEND else "SELECT, INSERT, UPDATE, DELETE"
    with login(place, f"SELECT ON {name}") as (user, engine):
        with pytest.raises(LedgerDenied, match=f"table {name}") as refused:
            Target(engine, Table(name, **settings)).prepare()
        assert "GRANT " in str(refused.value)
        assert f" ON {at} TO " in str(refused.value)
        assert user in str(refused.value)
        place.run(f"GRANT {rights} ON {name} TO {user}")
        target = Target(engine, Table(name, **settings))
        rows = target.read(feed([{"id": 1, "n": 5}]))
        with engine.begin() as conn:
            target.write(conn, rows)
        place.run(f"REVOKE INSERT ON {name} FROM {user}")
        with pytest.raises(LedgerDenied, match="GRANT"), engine.begin() as conn:
            target.write(conn, rows)
    place.engine.dispose()


def test_the_right_to_create_is_missed_by_name(on_postgres: Place) -> None:
    schema = on_postgres.name()
    on_postgres.run(f"CREATE SCHEMA {schema}")
    on_postgres.run(f"CREATE TABLE {schema}.orders (id integer)")
    table = Table("orders", schema=schema)
    with login(on_postgres) as (user, engine):
        with pytest.raises(
            LedgerDenied, match=f'permission denied for schema {schema}.*GRANT USAGE ON SCHEMA "{schema}"'
        ):
            Target(engine, table).prepare()
        on_postgres.run(f"GRANT USAGE ON SCHEMA {schema} TO {user}")
        with pytest.raises(LedgerDenied, match=f'GRANT USAGE, CREATE ON SCHEMA "{schema}" TO "{user}"'):
            Target(engine, Table("new", schema=schema, create=True, columns={"id": int})).prepare()
        on_postgres.run(f"GRANT INSERT ON {schema}.orders TO {user}")
        with pytest.raises(LedgerDenied, match="must be owner of table orders.*ownership"):
            Target(engine, Table("orders", schema=schema, evolve=True, columns={"id": int, "n": int})).prepare()


def test_a_table_that_may_not_be_seen_is_not_taken_for_one_that_is_not_there(on_mysql: Place) -> None:
    hidden, other = on_mysql.create("id INTEGER"), on_mysql.create("id INTEGER")
    with login(on_mysql, f"INSERT ON {other}") as (_, engine):
        Target(engine, Table(other)).prepare()
        with pytest.raises(LedgerDenied, match=f"denied to user .*{hidden}"):
            Target(engine, Table(hidden)).prepare()


def test_triggers_that_a_login_may_not_see_are_reckoned_with(on_mysql: Place) -> None:
    name = on_mysql.create("id INTEGER PRIMARY KEY, n INTEGER")
    with login(on_mysql, f"SELECT, INSERT, UPDATE, DELETE ON {name}") as (user, engine):
        assert Target(engine, Table(name, **UPSERT)).layout.order is KEPT
        on_mysql.run(f"GRANT TRIGGER ON {name} TO {user}")
        assert Target(engine, Table(name, **UPSERT)).layout.order is FREE


def test_row_level_security_is_written_to_by_insert_for_those_whom_it_concerns(on_postgres: Place) -> None:
    name = on_postgres.create("id integer PRIMARY KEY, owner text")
    on_postgres.run(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
    on_postgres.run(f"CREATE POLICY own ON {name} USING (owner = current_user) WITH CHECK (owner = current_user)")
    assert looked(on_postgres, name).takes_bulk
    with login(on_postgres, f"SELECT, INSERT, UPDATE, DELETE ON {name}") as (user, engine):
        target = Target(engine, Table(name, **UPSERT))
        assert (target.layout.takes_bulk, target.layout.order) == (False, SINGLE)
        with engine.begin() as conn:
            target.write(conn, target.read(feed([{"id": 1, "owner": user}])))
        # A row that a policy refuses lacks no right.
        with pytest.raises(Exception, match="violates row-level security policy") as refused, engine.begin() as conn:
            target.write(conn, target.read(feed([{"id": 2, "owner": "nobody"}])))
        assert not isinstance(refused.value, LedgerDenied)


# Its shape

ALTERED: dict[str, list[str]] = {
    "postgres": [
        "CREATE UNIQUE INDEX {0}_i ON {0} (n)",
        "CREATE INDEX {0}_j ON {0} (a)",
        "DROP INDEX {0}_i",
        FUNCTION.replace("{1}", ""),
        "CREATE TRIGGER g AFTER INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION {0}_f()",
        "ALTER TABLE {0} DISABLE TRIGGER g",
        "DROP TRIGGER g ON {0}",
        "CREATE RULE r AS ON DELETE TO {0} DO INSTEAD NOTHING",
        "ALTER TABLE {0} DISABLE RULE r",
        "ALTER TABLE {0} ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE {0} FORCE ROW LEVEL SECURITY",
        "ALTER TABLE {0} SET UNLOGGED",
        "ALTER TABLE {0} SET LOGGED",
        "ALTER TABLE {0} ADD CONSTRAINT {0}_c CHECK (n > 0)",
        "ALTER TABLE {0} DROP CONSTRAINT {0}_c",
        "CREATE TABLE {0}_c (id integer REFERENCES {0})",
        "DROP TABLE {0}_c",
        "ALTER TABLE {0} ALTER n SET DEFAULT 5",
        "ALTER TABLE {0} ALTER n SET DEFAULT 6",
        'ALTER TABLE {0} ALTER a TYPE text COLLATE "C"',
        "ALTER TABLE {0} ALTER n SET NOT NULL",
        "ALTER TABLE {0} ADD FOREIGN KEY (n) REFERENCES {0}",
        "ALTER TABLE {0} ALTER a SET STORAGE PLAIN",
        "ALTER TABLE {0} ADD CONSTRAINT {0}_g FOREIGN KEY (n) REFERENCES {0} DEFERRABLE",
        "ALTER TABLE {0} ALTER CONSTRAINT {0}_g DEFERRABLE INITIALLY DEFERRED",
        "ALTER DOMAIN {0}_d SET DEFAULT 5",
        "ALTER DOMAIN {0}_d ADD CHECK (value > 0)",
        "ALTER TYPE {0}_e ADD VALUE 'happy'",
        "ALTER TYPE {0}_e RENAME VALUE 'happy' TO 'glad'",
        "ALTER TYPE {0}_l ADD VALUE 'happy'",
        "ALTER DOMAIN {0}_inner ADD CHECK (value > 0)",
        "ALTER DOMAIN {0}_inner SET NOT NULL",
    ],
    "mysql": [
        "CREATE UNIQUE INDEX {0}_i ON {0} (n)",
        "DROP INDEX {0}_i ON {0}",
        "CREATE TRIGGER {0}_g AFTER INSERT ON {0} FOR EACH ROW SET @x = 1",
        "DROP TRIGGER {0}_g",
        "ALTER TABLE {0} MODIFY a VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
        "ALTER TABLE {0} ADD CONSTRAINT {0}_c CHECK (n > 0)",
        "ALTER TABLE {0} ENGINE=MyISAM",
        "ALTER TABLE {0} ENGINE=InnoDB",
    ],
    "sqlite": [
        "CREATE UNIQUE INDEX {0}_i ON {0} (n)",
        "DROP INDEX {0}_i",
        "CREATE TRIGGER {0}_g AFTER INSERT ON {0} BEGIN SELECT 1; END",
        "DROP TRIGGER {0}_g",
        "CREATE TABLE {0}_c (id references {0})",
        "DROP TABLE {0}_c",
    ],
}


def test_the_shape_shows_every_alteration(database: Place) -> None:
    name = database.name()
    columns = "id INTEGER PRIMARY KEY, n INTEGER, a VARCHAR(9)"
    if database.database == "postgres":
        database.run(f"CREATE DOMAIN {name}_d AS integer")
        database.run(f"CREATE TYPE {name}_e AS ENUM ('sad')")
        database.run(f"CREATE TYPE {name}_l AS ENUM ('sad')")
        for outer, inner in (("inner", "integer"), ("middle", f"{name}_inner"), ("outer", f"{name}_middle")):
            database.run(f"CREATE DOMAIN {name}_{outer} AS {inner}")
        columns += f", d {name}_d, e {name}_e, l {name}_l[], o {name}_outer"
    database.create(columns, name)
    table = Table(name, **UPSERT)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        shape = shape_of(conn, table)
        for statement in ALTERED[database.database]:
            database.run(statement.format(name))
            if statement.startswith("CREATE FUNCTION"):
                continue
            before, shape = shape, shape_of(conn, table)
            assert shape != before, statement
            assert shape == shape_of(conn, table)
            assert database_of(conn).has_shape(conn, table, shape, is_written=True)
            assert not database_of(conn).has_shape(conn, table, before, is_written=True), statement


@pytest.mark.parametrize("kind", ["{0}_e", "{0}_e[]", "{0}_c", "{0}_d", "{0}_d[]", "citext"])
def test_the_shape_of_a_table_with_types_of_users_shows_nothing_of_other_tables(on_postgres: Place, kind: str) -> None:
    """Or else whoever creates a table makes each sink on such a table read its records again."""
    name = on_postgres.name()
    on_postgres.run("CREATE EXTENSION IF NOT EXISTS citext")
    on_postgres.run(f"CREATE TYPE {name}_e AS ENUM ('sad')")
    on_postgres.run(f"CREATE TYPE {name}_c AS (a integer)")
    on_postgres.run(f"CREATE DOMAIN {name}_d AS integer CHECK (value > 0)")
    on_postgres.create(f"id integer PRIMARY KEY, v {kind.format(name)}", name)
    with on_postgres.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        before = shape_of(conn, Table(name))
        on_postgres.create("id integer PRIMARY KEY, n integer CHECK (n > 0)", f"{name}_other")
        on_postgres.run(f"CREATE DOMAIN {name}_f AS integer CHECK (value > 0)")
        assert shape_of(conn, Table(name)) == before


def test_the_shape_of_a_partitioned_table_and_of_a_view_shows_what_is_behind_them(on_postgres: Place) -> None:
    name = on_postgres.create("id integer PRIMARY KEY, n integer) PARTITION BY RANGE (id")
    on_postgres.run(f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (0) TO (9)")
    on_postgres.run(f"CREATE VIEW {name}_v AS SELECT * FROM {name}")
    with on_postgres.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for looks_at in (name, f"{name}_v"):
            before = shape_of(conn, Table(looks_at))
            on_postgres.run(f"ALTER TABLE {name}_1 ADD CHECK (n > 0)")
            assert shape_of(conn, Table(looks_at)) != before


def test_the_engine_is_looked_at_on_a_new_connection_before_anything_is_written(on_mysql: Place) -> None:
    name = on_mysql.create("id INTEGER PRIMARY KEY")
    table = Table(name)
    with on_mysql.engine.connect() as conn:
        shape = shape_of(conn, table)
        assert database_of(conn).has_shape(conn, table, shape, is_written=False)
        conn.rollback()
        on_mysql.run(f"ALTER TABLE {name} ENGINE=MyISAM")
        assert database_of(conn).has_shape(conn, table, shape, is_written=False)  # asked a moment ago
        assert not database_of(conn).has_shape(conn, table, shape, is_written=True)
        with on_mysql.engine.connect() as another:
            assert not database_of(another).has_shape(another, table, shape, is_written=False)
