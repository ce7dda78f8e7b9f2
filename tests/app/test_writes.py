"""What a pool's handler may return, and how it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, create_engine, event, insert, select, text, update

from tidegate import Outgoing, TopicPartition, Transaction
from tidegate.app.writes import NotWritable, Write, carry_out, writes
from tidegate.core.work import Claim, Span, Work
from tidegate.ledger import SqlTransaction

T = Table("t", MetaData(), Column("id", Integer), Column("n", Integer))
INSERT = insert(T)
TP = TopicPartition("orders", 0)
WORK = Work.of({TP: Claim("g", TP, 0, 1, "me")}, [Span(TP, 0, 1, 1)])


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        T.create(connection)
        yield connection
    engine.dispose()


def rows(connection: Connection) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(select(T))]


def raises(_: object) -> None:
    raise AssertionError


STATEMENT = text("DELETE FROM t")
ONE = {"id": 1}


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, []),
        ([], []),
        (STATEMENT, [Write(STATEMENT)]),
        ((INSERT, ONE), [Write(INSERT, ONE)]),
        ((INSERT, [ONE, ONE]), [Write(INSERT, ONE), Write(INSERT, ONE)]),
        ((INSERT, []), []),
        ([INSERT, []], [Write(INSERT)]),
        ([INSERT, [STATEMENT]], [Write(INSERT), Write(STATEMENT)]),
        ((INSERT, STATEMENT), [Write(INSERT), Write(STATEMENT)]),
        (raises, [Write(raises)]),
        ([None, (INSERT, ONE), [raises]], [Write(INSERT, ONE), Write(raises)]),
    ],
)
def test_what_a_handler_returns_is_taken_as_writes_in_their_order(returned: object, expected: list[Write]) -> None:
    assert list(writes(returned)) == expected


@pytest.mark.parametrize(
    "returned", [1, "INSERT", {"id": 1}, [INSERT, ONE], (INSERT, (1, 2)), dict, (n for n in ()), Outgoing("t")]
)
def test_what_nothing_can_carry_out_is_refused_without_a_word_about_its_content(returned: object) -> None:
    with pytest.raises(
        NotWritable, match=r"^the handler returned (int|str|dict|type|generator|Outgoing); it may return None, "
    ):
        writes(returned)


def test_one_statement_with_many_parameters_goes_to_the_database_as_one(connection: Connection) -> None:
    executed: list[bool] = []
    event.listen(connection, "before_cursor_execute", lambda *given: executed.append(given[-1]))
    carry_out([Write(INSERT, {"id": number, "n": 0}) for number in range(100)], SqlTransaction(WORK, connection))
    assert executed == [True]
    assert len(rows(connection)) == 100


def test_parameters_of_other_names_are_written_by_themselves(connection: Connection) -> None:
    given = [{"id": 1}, {"id": 2, "n": 2}, {"n": 3, "id": 3}, {"id": 4}]
    carry_out(writes([(INSERT, given)]), SqlTransaction(WORK, connection))
    assert rows(connection) == [(1, None), (2, 2), (3, 3), (4, None)]


def test_the_order_is_kept_between_statements(connection: Connection) -> None:
    double = update(T).values(n=T.c.n * 2)
    given = [(INSERT, {"id": 1, "n": 1}), double, (INSERT, {"id": 2, "n": 1}), double, lambda tx: tx.execute(double)]
    carry_out(writes(given), SqlTransaction(WORK, connection))
    assert rows(connection) == [(1, 8), (2, 4)]


def test_a_statement_that_returns_rows_is_run_for_each_of_its_parameters(connection: Connection) -> None:
    calls: list[int] = []
    raw: Any = connection.connection.driver_connection
    raw.create_function("call", 1, calls.append)
    carry_out([Write(text("SELECT call(:n)"), {"n": n}) for n in range(3)], SqlTransaction(WORK, connection))
    # What is not fetched may not be run by SQLite, so this says that it is no executemany(), which would refuse it.
    assert calls == [0, 1, 2]


def test_a_statement_is_refused_where_there_is_no_sql_database() -> None:
    with pytest.raises(NotWritable, match="no SQL database"):
        carry_out(writes(STATEMENT), Transaction(WORK))
