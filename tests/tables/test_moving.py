"""Rows that were staged change their table as their records, one at a time in order, would have changed it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from tidegate.tables.layout import Order
from tidegate.tables.staging import create_stage, drop_stage

from .oracle import Case, Sent, rows_of
from .places import Place

FOLDED = {"mysql": "VARCHAR(9) COLLATE utf8mb4_general_ci", "postgres": "citext"}
PLAIN = {"mysql": "VARCHAR(9) COLLATE utf8mb4_bin", "postgres": "text"}


@pytest.fixture(params=["mariadb", "mysql", "postgres"])
def server(request: pytest.FixtureRequest) -> Any:
    place = Place(request.param, request.getfixturevalue(request.param).url)
    if place.database == "postgres":
        place.run("CREATE EXTENSION IF NOT EXISTS citext")
    yield place
    place.engine.dispose()


def check(case: Case, batches: list[list[Sent]]) -> None:
    """Each batch is loaded by two tasks, the later rows first, and moved."""
    expected = case.one_by_one([record for batch in batches for record in batch])
    layout, place = case.layout(), case.place
    stage = create_stage(place.engine, layout, "etl")
    names = list(layout.by_name)
    for batch in batches:
        half = len(batch) // 2
        for attempt, start, end in ((2, half, len(batch)), (1, 0, half)):
            rows = replace(rows_of(layout, batch[start:end]), lacking={})
            with place.engine.begin() as conn:
                stage.load(conn, attempt, start, rows)
        with place.engine.begin() as conn:
            stage.move(conn, names, [1, 2], len(batch))
            conn.exec_driver_sql(f"DELETE FROM {stage.table.name}")
    assert (case.found(layout.table), []) == expected
    drop_stage(place.engine, stage.table)


ROWS = st.lists(
    st.lists(
        st.fixed_dictionaries(
            {
                "id": st.sampled_from("abAB"),
                "n": st.none() | st.integers(-3, 3),
                "f": st.none() | st.sampled_from([0.1, 0.2, 1e16, -1e16]),
                "c": st.none() | st.sampled_from("xy"),
            }
        ),
        min_size=1,
        max_size=9,
    ),
    max_size=3,
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batches=ROWS,
    mode=st.sampled_from(["upsert", "ignore", "update", "accumulate"]),
    order=st.sampled_from(Order),
    folds=st.booleans(),
    add=st.sampled_from([("n",), ("n", "f")]),
)
def test_staged_rows_leave_what_their_records_would_have_left(
    server: Place, batches: Any, mode: str, order: Order, folds: bool, add: tuple[str, ...]
) -> None:
    declared = (FOLDED if folds else PLAIN)[server.database]
    case = Case(
        server,
        f"id {declared} PRIMARY KEY, n INTEGER, f DOUBLE PRECISION, c VARCHAR(9)",
        ["INSERT INTO {t} VALUES ('B', 1, 0.7, 'z')"],
        facts={"order": order},
        folds={"id": "::citext"} if folds else {},
        key=("id",),
        mode=mode,
        add=add if mode == "accumulate" else (),
    )
    check(case, batches)


def test_deferred_constraints_judge_each_row_that_was_staged(on_postgres: Place) -> None:
    case = Case(
        on_postgres, "id int PRIMARY KEY, a int UNIQUE DEFERRABLE INITIALLY DEFERRED", key=("id",), mode="upsert"
    )
    with pytest.raises(IntegrityError, match="duplicate key"):
        check(case, [[{"id": 1, "a": 1}, {"id": 2, "a": 1}, {"id": 1, "a": 2}]])


@pytest.mark.parametrize("order", list(Order))
def test_staged_rows_are_appended_in_the_order_of_their_records(server: Place, order: Order) -> None:
    number = {"mysql": "BIGINT AUTO_INCREMENT", "postgres": "bigserial"}[server.database]
    case = Case(server, f"seq {number} PRIMARY KEY, n INTEGER", facts={"order": order, "is_numbered": True})
    layout = case.layout()
    stage = create_stage(server.engine, layout, "etl")
    for attempt, start in ((2, 3), (1, 0)):
        with server.engine.begin() as conn:
            numbers = rows_of(layout, [{"n": n} for n in range(start, start + 3)]).batch.select(["n"])
            stage.load(conn, attempt, start, replace(rows_of(layout, [{}] * 3), batch=numbers, lacking={}))
    with server.engine.begin() as conn:
        stage.move(conn, ["n"], [1, 2], 6)
    assert [row[1] for row in server.rows(layout.table.name, "seq")] == list(range(6))
    drop_stage(server.engine, stage.table)


def test_rows_are_staged_with_columns_that_are_invisible(on_mysql: Place) -> None:
    case = Case(on_mysql, "id INT PRIMARY KEY, n INT INVISIBLE", key=("id",), mode="upsert")
    layout = case.layout()
    stage = create_stage(on_mysql.engine, layout, "etl")
    with on_mysql.engine.begin() as conn:
        stage.load(conn, 1, 0, rows_of(layout, [{"id": 1, "n": 5}, {"id": 2, "n": None}, {"id": 1, "n": 6}]))
        stage.move(conn, ["id", "n"], [1], 3)
    found = on_mysql.rows_of(f"SELECT id, n FROM {layout.table.name} ORDER BY id")
    assert found == [(1, 6), (2, None)]
    drop_stage(on_mysql.engine, stage.table)
