"""Whose fault an error is, by its code: what the ledger tries again or refuses is never a record's."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import exc

from tidegate import ConfigurationError
from tidegate.errors import LedgerDenied
from tidegate.ledger.blame import Blame, described, fault_of
from tidegate.ledger.sql import mysql, postgres


def of_postgres(state: str) -> Exception:
    return type("Raised", (psycopg.errors.OperationalError,), {"sqlstate": state})("no")


def of_mysql(number: int, state: str = "HY000", kind: Any = pymysql.err.OperationalError) -> Exception:
    error: Exception = kind(number, "no")
    error.sqlstate = state  # type: ignore[attr-defined]
    return error


def of_sqlite(code: int, text: str = "no") -> Exception:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def wrapped(error: Exception) -> exc.DBAPIError:
    made = exc.DBAPIError.instance("INSERT", None, error, Exception)
    assert isinstance(made, exc.DBAPIError)
    made.__cause__ = error
    return made


def follow(error: exc.DBAPIError, earlier: Exception) -> None:
    """Have an error raised while another one is handled."""
    assert error.orig is not None
    error.orig.__context__ = earlier


OTHER_STATES = {"55P03", "25P02", "42501", "42P01", "2200H"}


@pytest.mark.parametrize(
    "state", sorted({*postgres._CONFLICT, *postgres._GONE, *postgres._NOT_WRITABLE, *OTHER_STATES})
)
def test_what_the_ledger_makes_something_of_on_postgres_is_no_records_fault(state: str) -> None:
    assert fault_of(wrapped(of_postgres(state))).blame is Blame.DATABASE


@pytest.mark.parametrize("number", sorted(mysql._NEVER_ABOUT_VALUES))
def test_what_the_ledger_makes_something_of_on_mysql_is_no_records_fault(number: int) -> None:
    for state in ("HY000", "45000", "22003", "23000"):
        assert fault_of(wrapped(of_mysql(number, state))).blame is Blame.DATABASE


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (of_mysql(1526), Blame.RECORD),
        (of_mysql(1748), Blame.RECORD),
        (of_mysql(1713), Blame.RECORD),
        (of_mysql(3854), Blame.RECORD),
        (pymysql.err.OperationalError(1267, "(cp1251_bin,IMPLICIT) and (utf8mb4_bin,COERCIBLE)"), Blame.RECORD),
        (pymysql.err.OperationalError(1267, "(cp1251_bin,IMPLICIT) and (latin1_bin,IMPLICIT)"), Blame.UNCERTAIN),
        (of_mysql(4025, "23000"), Blame.RECORD),
        (of_mysql(3819), Blame.RECORD),
        (of_mysql(1644, "45000"), Blame.RECORD),
        (of_mysql(-25536, "45000", pymysql.err.InternalError), Blame.RECORD),  # 40000, which PyMySQL reads with a sign
        (of_mysql(5001, "ZZ001"), Blame.UNCERTAIN),
        (of_mysql(2013), Blame.DATABASE),
        (of_mysql(0), Blame.DATABASE),
        (pymysql.err.ProgrammingError("nan can not be used with MySQL"), Blame.RECORD),
        (pymysql.err.InterfaceError("closed"), Blame.DATABASE),
        (psycopg.OperationalError("the connection is lost"), Blame.DATABASE),
        (psycopg.DataError("text cannot contain NUL"), Blame.RECORD),
        (psycopg.ProgrammingError("cannot adapt type"), Blame.RECORD),
        (of_sqlite(sqlite3.SQLITE_CONSTRAINT_TRIGGER), Blame.RECORD),
        (
            of_sqlite(sqlite3.SQLITE_CONSTRAINT | 12 << 8),
            Blame.RECORD,
        ),
        (of_sqlite(sqlite3.SQLITE_TOOBIG), Blame.RECORD),
        (of_sqlite(sqlite3.SQLITE_MISMATCH), Blame.RECORD),
        (of_sqlite(sqlite3.SQLITE_ERROR, "malformed JSON"), Blame.UNCERTAIN),
        (of_sqlite(sqlite3.SQLITE_ERROR, "no such table: orders"), Blame.DATABASE),
        (of_sqlite(sqlite3.SQLITE_ERROR, 'near "SELEC": syntax error'), Blame.DATABASE),
        (of_sqlite(sqlite3.SQLITE_BUSY), Blame.DATABASE),
        (of_sqlite(sqlite3.SQLITE_FULL), Blame.DATABASE),
        (of_sqlite(sqlite3.SQLITE_READONLY), Blame.DATABASE),
        (of_sqlite(sqlite3.SQLITE_IOERR), Blame.DATABASE),
        (of_sqlite(sqlite3.SQLITE_INTERRUPT), Blame.DATABASE),
        (of_sqlite(sqlite3.SQLITE_CORRUPT), Blame.DATABASE),
    ],
    ids=str,
)
def test_every_error_has_its_fault(error: Exception, blame: Blame) -> None:
    assert fault_of(error).blame is blame
    assert fault_of(wrapped(error)).blame is blame


def test_of_a_chain_the_databases_part_counts_and_of_that_the_first() -> None:
    deadlock, uncertain = wrapped(of_mysql(1213)), wrapped(of_mysql(5001))
    after = wrapped(of_mysql(1305))  # the savepoint is gone
    follow(after, deadlock)
    assert fault_of(after) == (Blame.DATABASE, deadlock)
    follow(uncertain, after)
    assert fault_of(uncertain) == (Blame.DATABASE, deadlock)
    handlers = ValueError("it did not work")
    handlers.__cause__ = wrapped(of_mysql(5001))
    assert fault_of(handlers) == (Blame.UNCERTAIN, handlers.__cause__)
    assert fault_of(ValueError("no")).blame is Blame.RECORD


def test_what_was_told_already_is_not_told_again_by_its_cause() -> None:
    denied = LedgerDenied("GRANT INSERT")
    denied.__cause__ = wrapped(of_mysql(1142))
    assert fault_of(denied) == (Blame.DATABASE, denied)
    assert fault_of(ConfigurationError("no such column")).blame is Blame.DATABASE


def test_no_character_of_a_text_that_cannot_be_encoded_is_told() -> None:
    with pytest.raises(UnicodeEncodeError) as failed:
        "pl\u00e4nted \u6f22".encode("latin-1")
    assert described(failed.value) == "UnicodeEncodeError: latin-1: ordinal not in range(256)"
