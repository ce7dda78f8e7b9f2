"""Staged rows: all that were loaded move, or none do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Engine, create_engine, inspect, text

from tidegate.tables import Rows, Table, Target
from tidegate.tables.staging import LostRows, Stage, create_stage, drop_stage, empty_stage, sweep_stages

OWNER = "etl"
FIRST, SECOND, OTHER = 2**63 - 1, 7, 0  # tries of one task, and one of another


@pytest.fixture(params=["mariadb", "mysql", "postgres"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    opened = create_engine(request.getfixturevalue(request.param).url)
    yield opened
    opened.dispose()


def staged(engine: Engine, **options: Any) -> Stage:
    table = Table(f"t{secrets.token_hex(5)}", create=True, columns={"id": "integer"}, **options)
    return create_stage(engine, Target(engine, table).layout, OWNER)


def load(engine: Engine, stage: Stage, attempt: int, ids: list[int]) -> None:
    with engine.begin() as conn:
        stage.load(conn, attempt, 0, Rows(pa.record_batch({"id": pa.array(ids, pa.int64())}), range(len(ids))))


def move(engine: Engine, stage: Stage, attempts: list[int], count: int) -> list[int]:
    try:
        with engine.begin() as conn:
            stage.move(conn, ["id"], attempts, count)
    finally:
        with engine.connect() as conn:
            found = sorted(conn.execute(text(f"SELECT id FROM {stage.layout.table.name}")).scalars())
    return found


def stages(engine: Engine, stage: Stage) -> list[str]:
    return [name for name in inspect(engine).get_table_names() if name.startswith(f"{stage.layout.table.name}_stage_")]


def test_only_the_rows_of_named_attempts_move(engine: Engine) -> None:
    stage = staged(engine)
    load(engine, stage, FIRST, [1, 2])
    load(engine, stage, SECOND, [1, 2])
    load(engine, stage, OTHER, [3])
    assert move(engine, stage, [SECOND, OTHER], 3) == [1, 2, 3]
    assert drop_stage(engine, stage.table)


@pytest.mark.parametrize("options", [{}, {"key": "id", "mode": "upsert"}], ids=["append", "upsert"])
def test_nothing_moves_if_rows_are_gone(engine: Engine, options: dict[str, Any]) -> None:
    stage = staged(engine, **options)
    load(engine, stage, FIRST, [1, 2])
    load(engine, stage, OTHER, [3])
    with engine.begin() as conn:
        conn.execute(text(f"DELETE FROM {stage.table.name} WHERE id = 2"))
    with pytest.raises(LostRows, match="holds 2 of 3 rows"):
        move(engine, stage, [FIRST, OTHER], 3)
    assert empty_stage(engine, stage)
    assert move(engine, stage, [], 0) == []
    assert drop_stage(engine, stage.table)


def test_rows_that_are_gone_are_missed_although_others_count_twice(engine: Engine) -> None:
    table = Table(
        f"t{secrets.token_hex(5)}",
        key="id",
        mode="upsert",
        create=True,
        columns={"id": "integer", "n": "integer"},
    )
    stage = create_stage(engine, Target(engine, table).layout, OWNER)

    def load_and_move(n: int, ids: list[int], *, gone: int) -> None:
        numbers = {"id": pa.array(ids, pa.int64()), "n": pa.array([n] * len(ids), pa.int64())}
        with engine.begin() as conn:
            stage.load(conn, n, 0, Rows(pa.record_batch(numbers), range(len(ids))))
            conn.execute(text(f"DELETE FROM {stage.table.name} WHERE id >= {gone}"))
        with engine.begin() as conn:
            stage.move(conn, ["id", "n"], [n], len(ids))

    load_and_move(1, [1, 2], gone=9)
    with pytest.raises(LostRows, match="holds 2 of 4 rows"):
        load_and_move(2, [1, 2, 3, 4], gone=3)
    assert drop_stage(engine, stage.table)


def test_what_killed_ones_left_behind_is_swept_and_that_of_others_is_not(engine: Engine) -> None:
    stage = staged(engine)
    other = create_stage(engine, stage.layout, "another group")
    sweep_stages(engine, stage.layout.table, OWNER)
    assert stages(engine, stage) == [other.table.name]
    assert drop_stage(engine, other.table)
