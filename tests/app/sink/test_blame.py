"""Whose fault an error of the database is, on each database: what parks a record, what never does, and what only does
in company."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import pytest
from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError
from tests.app.sink.till import BAD, Till

from tidegate import Fail
from tidegate.app import HandlerFailed
from tidegate.errors import LedgerBusy, LedgerConflict, LedgerDenied, LedgerUnavailable, WritesRefused

DENIED = (LedgerDenied, DBAPIError)


Expected: TypeAlias = type[Exception] | tuple[type[Exception], ...]


def ids(*numbers: int) -> list[str]:
    return [f'{{"id": {number}, "total": {number}}}' for number in numbers]


def check_parked(till: Till) -> None:
    """The one record is parked, in company and alone."""
    till.write(*ids(1, 2, BAD, 4))
    till.write(*ids(BAD))
    assert till.ids() == [1, 2, 4]
    assert till.parked() == [2, 4]


def check_in_company(till: Till) -> None:
    """It is parked where another one passes, and stops the sink where none does."""
    till.write(*ids(1, 2, BAD, 4, BAD))
    assert till.parked() == [2, 4]
    for alone in ids(BAD), ids(BAD, BAD, BAD):
        with pytest.raises(HandlerFailed, match=r"offset 5: refused with .*No other record passed in its transaction"):
            till.write(*alone)
    assert till.position == 5
    assert till.parked() == [2, 4]
    till.write(*ids(BAD, BAD, 5))
    assert till.ids() == [1, 2, 4, 5]
    assert till.parked() == [2, 4, 5, 6]


def check_never(till: Till, expected: Expected) -> None:
    """Nothing is parked and nothing committed, in company and alone."""
    for batch in ids(1, BAD, 4), ids(BAD):
        with pytest.raises(expected):
            till.write(*batch)
    assert (till.ids(), till.parked(), till.position) == ([], [], 0)


# What a trigger raises: PostgreSQL


@pytest.mark.parametrize("state", ["P0001", "P0004", "22000", "22P02", "23505", "23514", "44000", "54000"])
def test_on_postgres_what_a_trigger_says_about_values_parks_the_record(on_postgres: Till, state: str) -> None:
    on_postgres.create()
    on_postgres.trigger(f"RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'no'")
    check_parked(on_postgres)


@pytest.mark.parametrize("state", ["ZZ001", "U0001", "09000", "38000", "0A000", "42804", "XX000", "45000"])
def test_on_postgres_any_other_code_of_a_trigger_parks_the_record_if_another_one_passes(
    on_postgres: Till, state: str
) -> None:
    on_postgres.create()
    on_postgres.trigger(f"RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'no'")
    check_in_company(on_postgres)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("40001", LedgerConflict),
        ("40P01", LedgerConflict),
        ("55P03", LedgerBusy),
        ("55000", DBAPIError),
        ("57014", DBAPIError),
        ("57P01", LedgerUnavailable),
        ("08006", LedgerUnavailable),
        ("25006", WritesRefused),
        ("53100", WritesRefused),
        ("53200", WritesRefused),
        ("53400", DBAPIError),
        ("58030", WritesRefused),
        ("42501", DENIED),
        ("42P01", DBAPIError),
        ("42703", DBAPIError),
        ("2200H", DBAPIError),
        ("XX001", DBAPIError),
    ],
)
def test_on_postgres_outages_conflicts_rights_and_what_is_missing_never_park(
    on_postgres: Till, state: str, expected: Expected
) -> None:
    on_postgres.create()
    on_postgres.trigger(f"RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'no'")
    check_never(on_postgres, expected)


@pytest.mark.parametrize(("kind", "good", "bad"), [("tsquery", "a & b", "a &"), ("jsonpath", "$.a", "$.")])
@pytest.mark.parametrize("into", [{}, {"key": "id", "mode": "upsert"}], ids=["append", "upsert"])
def test_on_postgres_a_value_whose_own_syntax_is_wrong_is_parked_also_if_it_is_alone(
    on_postgres: Till, kind: str, good: str, bad: str, into: dict[str, Any]
) -> None:
    """PostgreSQL has one code for this and for a statement that is no SQL."""
    on_postgres.create(f"id INTEGER PRIMARY KEY, what {kind}")
    on_postgres.write(*(json.dumps({"id": n, "what": each}) for n, each in enumerate([good, bad, good])), **into)
    on_postgres.write(json.dumps({"id": 7, "what": bad}), **into)
    assert on_postgres.ids() == [0, 2]
    assert on_postgres.parked() == [1, 3]


def test_on_postgres_a_statement_of_a_trigger_that_is_no_sql_never_parks(on_postgres: Till) -> None:
    on_postgres.create()
    on_postgres.trigger("EXECUTE 'SELEC 1'")
    check_never(on_postgres, DBAPIError)


# What a trigger raises: MySQL and MariaDB


@pytest.mark.parametrize(
    "signal",
    [
        "SQLSTATE '45000'",
        "SQLSTATE '45000' SET MYSQL_ERRNO = 5000, MESSAGE_TEXT = 'no'",
        "SQLSTATE '45000' SET MYSQL_ERRNO = 40000, MESSAGE_TEXT = 'no'",
        "SQLSTATE 'ZZ001' SET MESSAGE_TEXT = 'no'",
        "SQLSTATE '22003' SET MYSQL_ERRNO = 5001, MESSAGE_TEXT = 'no'",
        "SQLSTATE '23000' SET MYSQL_ERRNO = 1062, MESSAGE_TEXT = 'no'",
    ],
)
def test_on_mysql_what_a_trigger_says_about_values_parks_the_record(on_mysql: Till, signal: str) -> None:
    on_mysql.create()
    on_mysql.trigger(f"SIGNAL {signal}")
    check_parked(on_mysql)


@pytest.mark.parametrize("state", ["ZZ001", "HY000"])
def test_on_mysql_any_other_code_of_a_trigger_parks_the_record_if_another_one_passes(
    on_mysql: Till, state: str
) -> None:
    on_mysql.create()
    on_mysql.trigger(f"SIGNAL SQLSTATE '{state}' SET MYSQL_ERRNO = 5001, MESSAGE_TEXT = 'no'")
    check_in_company(on_mysql)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1213, LedgerConflict),
        (1205, LedgerBusy),
        (1053, LedgerUnavailable),
        (1114, WritesRefused),
        (1021, WritesRefused),
        (1836, WritesRefused),
        (1142, DENIED),
        (1317, DBAPIError),
        (1969, DBAPIError),
        (1226, DBAPIError),
        (1146, DBAPIError),
        (1054, DBAPIError),
        (1467, LedgerConflict),
        (4084, DBAPIError),
    ],
)
def test_on_mysql_outages_conflicts_rights_and_what_is_missing_never_park(
    on_mysql: Till, number: int, expected: Expected
) -> None:
    on_mysql.create()
    on_mysql.trigger(f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'no'")
    check_never(on_mysql, expected)


@pytest.mark.parametrize(
    "partitions",
    ["LIST (id) (PARTITION few VALUES IN (1, 2, 4, 5))", "RANGE (id % 4) (PARTITION few VALUES LESS THAN (3))"],
)
def test_on_mysql_a_value_that_no_partition_takes_is_parked(on_mysql: Till, partitions: str) -> None:
    on_mysql.sql(f"CREATE TABLE {on_mysql.name} (id INTEGER PRIMARY KEY, total INTEGER) PARTITION BY {partitions}")
    check_parked(on_mysql)
    assert "partition" in on_mysql.errors()[0]


def test_on_postgres_a_value_that_no_partition_takes_is_parked(on_postgres: Till) -> None:
    name = on_postgres.name
    on_postgres.sql(
        f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, total INTEGER) PARTITION BY LIST (id)",
        f"CREATE TABLE {name}_few PARTITION OF {name} FOR VALUES IN (1, 2, 4, 5)",
    )
    check_parked(on_postgres)


# SQLite


def sqlite(tmp_path: Any) -> Till:
    return Till(f"sqlite:///{tmp_path / 'till.db'}")


def test_on_sqlite_what_a_trigger_refuses_is_parked(tmp_path: Any) -> None:
    till = sqlite(tmp_path)
    till.create()
    till.trigger("SELECT RAISE(ABORT, 'no')")
    check_parked(till)
    till.close()


def test_on_sqlite_malformed_json_in_a_trigger_parks_the_record_if_another_one_passes(tmp_path: Any) -> None:
    till = sqlite(tmp_path)
    till.create()
    till.trigger("SELECT json_extract('{', '$.a')")
    check_in_company(till)
    till.close()


def test_on_sqlite_a_trigger_that_needs_what_is_missing_never_parks(tmp_path: Any) -> None:
    till = sqlite(tmp_path)
    till.create()
    till.trigger("INSERT INTO nowhere VALUES (1)")
    check_never(till, DBAPIError)
    till.close()


# On every database: one after the other


def test_a_duplicate_of_a_parked_record_is_not_parked_and_of_two_the_first_one_stays(till: Till) -> None:
    till.create("id INTEGER PRIMARY KEY, total INTEGER CHECK (total < 100)")
    till.write(
        '{"id": 1, "total": 100}',  # parked: so the next one is no duplicate
        '{"id": 1, "total": 1}',
        '{"id": 2, "total": 2}',
        '{"id": 2, "total": 3}',  # a duplicate
        '{"id": 2, "total": 100}',
        '{"id": 3, "total": 100}',
        '{"id": 3, "total": 100}',
        '{"id": 3, "total": 5}',
    )
    assert till.parked() == [0, 3, 4, 5, 6]
    assert till.ids() == [1, 2, 3]


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 16])
def test_letters_do_not_depend_on_where_batches_end(till: Till, cut: int) -> None:
    """A table with a second unique key, a check, a trigger: as plain statements one by one would have it."""
    till.create("id INTEGER PRIMARY KEY, total INTEGER UNIQUE CHECK (total < 100)")
    refuse = {"postgresql": "RAISE EXCEPTION 'no'", "sqlite": "SELECT RAISE(ABORT, 'no')"}
    till.trigger(refuse.get(till.database, "SIGNAL SQLSTATE '45000'"))
    pairs = [(1, 1), (2, 1), (3, 2), (4, 2), (4, 5), (5, 100), (5, 5), (3, 3), (6, 3), (1, 4), (7, 4), (7, 7)]
    rows = [f'{{"id": {number}, "total": {total}}}' for number, total in pairs]
    for start in range(0, len(rows), cut):
        till.write(*rows[start : start + cut])
    assert till.parked() == [1, 2, 4, 5, 7, 9, 11]
    assert till.ids() == [1, 4, 5, 6, 7]


def test_a_record_in_front_of_its_parent_is_parked_and_one_behind_it_is_not(till: Till) -> None:
    if till.database == "sqlite":
        pytest.skip("SQLite leaves foreign keys alone unless a session asks for them")
    till.sql(f"CREATE TABLE {till.name}_p (id INTEGER PRIMARY KEY)", f"INSERT INTO {till.name}_p VALUES (1)")
    till.create(f"id INTEGER PRIMARY KEY, total INTEGER, FOREIGN KEY (total) REFERENCES {till.name}_p (id)")
    till.write('{"id": 1, "total": 1}', '{"id": 2, "total": 2}', '{"id": 2, "total": 1}', '{"id": 3}')
    assert till.parked() == [1]
    assert till.ids() == [1, 2, 3]


def test_a_sink_that_is_to_fail_names_the_record_of_an_uncertain_error(on_postgres: Till) -> None:
    on_postgres.create()
    on_postgres.trigger("RAISE EXCEPTION USING ERRCODE = 'ZZ001', MESSAGE = 'no'")
    with pytest.raises(HandlerFailed, match="offset 2: refused with .*no"):
        on_postgres.write(*ids(1, 2, BAD, 4), policy=Fail())
    assert (on_postgres.ids(), on_postgres.position) == ([], 0)


# Provoked for real


def test_a_right_that_is_taken_away_stops_the_sink_and_parks_nothing(on_postgres: Till) -> None:
    on_postgres.create()
    role = f"{on_postgres.name}_role"
    on_postgres.sql(f"CREATE ROLE {role}", f"CREATE TABLE {on_postgres.name}_log (id INTEGER)")
    on_postgres.trigger(f"SET LOCAL ROLE {role}; INSERT INTO {on_postgres.name}_log VALUES (NEW.id)")
    with pytest.raises(DENIED, match="permission denied"):
        on_postgres.write(*ids(1, BAD, 4))
    assert (on_postgres.ids(), on_postgres.parked(), on_postgres.position) == ([], [], 0)


def test_a_row_that_a_policy_refuses_is_parked_if_another_one_passes(on_postgres: Till) -> None:
    """PostgreSQL calls it a missing right."""
    on_postgres.create()
    role = f"{on_postgres.name}_role"
    tables = [name for name in inspect(on_postgres.engine).get_table_names() if name.startswith(on_postgres.name)]
    on_postgres.sql(
        f"CREATE ROLE {role}",
        f"GRANT ALL ON {', '.join(tables)} TO {role}",
        f"ALTER TABLE {on_postgres.name} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY few ON {on_postgres.name} USING (true) WITH CHECK (id <> {BAD})",
    )
    on_postgres.reopen(f"-c role={role}")
    check_in_company(on_postgres)


def test_a_statement_that_the_server_cancels_parks_nothing(on_postgres: Till) -> None:
    on_postgres.create()
    on_postgres.trigger("PERFORM pg_sleep(20)")
    on_postgres.reopen("-c statement_timeout=1000")
    with pytest.raises(DBAPIError, match="statement timeout"):
        on_postgres.write(*ids(1, BAD, 4))
    assert (on_postgres.ids(), on_postgres.parked(), on_postgres.position) == ([], [], 0)


def test_a_table_that_somebody_has_locked_parks_nothing(on_postgres: Till) -> None:
    on_postgres.create()
    with on_postgres.engine.begin() as conn:
        conn.exec_driver_sql(f"LOCK TABLE {on_postgres.name} IN SHARE MODE")
        with pytest.raises(LedgerBusy):
            on_postgres.write(*ids(1, 2))
    assert (on_postgres.ids(), on_postgres.parked(), on_postgres.position) == ([], [], 0)


def test_a_transaction_that_became_read_only_parks_nothing(on_postgres: Till) -> None:
    on_postgres.create()
    on_postgres.trigger("SET LOCAL transaction_read_only = on; CREATE TEMP TABLE nothing (id INTEGER)")
    with pytest.raises(WritesRefused):
        on_postgres.write(*ids(1, BAD, 4))
    assert (on_postgres.ids(), on_postgres.parked(), on_postgres.position) == ([], [], 0)


def test_on_mysql_a_lock_that_is_not_free_parks_nothing(on_mysql: Till) -> None:
    on_mysql.create()
    on_mysql.sql(f"INSERT INTO {on_mysql.name} VALUES (1, 1)")
    with on_mysql.engine.begin() as conn:
        conn.exec_driver_sql(f"UPDATE {on_mysql.name} SET total = 2 WHERE id = 1")
        with pytest.raises(LedgerBusy):
            on_mysql.write(*ids(2, 1))
    assert (on_mysql.ids(), on_mysql.parked(), on_mysql.position) == ([1], [], 0)


def test_on_mysql_a_server_that_is_read_only_parks_nothing(on_mysql: Till) -> None:
    """As told by its own message: the option itself would hold for every test beside this one."""
    on_mysql.create()
    message = "The server is running with the --read-only option so it cannot execute this statement"
    on_mysql.trigger(f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = '{message}'")
    check_never(on_mysql, WritesRefused)
