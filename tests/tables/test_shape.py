"""The cached shape of a table."""

from __future__ import annotations

import secrets

import pytest
from sqlalchemy import create_engine, text

from tidegate.tables import Table
from tidegate.tables.registry import database_of
from tidegate.tables.shape import shape_of


@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_tables_of_one_name_in_two_schemas_are_looked_at_each_by_itself(
    server: str, request: pytest.FixtureRequest
) -> None:
    name, engine = f"shape_{secrets.token_hex(4)}", create_engine(request.getfixturevalue(server).url)
    here, there = Table(name), Table(name, schema=f"{name}_there")
    with engine.begin() as conn:
        conn.execute(text(f"CREATE DATABASE {name}_there"))
        try:
            conn.execute(text(f"CREATE TABLE {name} (id INT PRIMARY KEY) ENGINE=InnoDB"))
            conn.execute(text(f"CREATE TABLE {name}_there.{name} (id INT PRIMARY KEY) ENGINE=InnoDB"))
            shape = shape_of(conn, there)
            assert shape_of(conn, here) == shape
            conn.execute(text(f"ALTER TABLE {name}_there.{name} ENGINE=MyISAM"))
            assert database_of(conn).has_shape(conn, here, shape, is_written=False)
            assert not database_of(conn).has_shape(conn, there, shape, is_written=False)
        finally:
            conn.execute(text(f"DROP DATABASE {name}_there"))
    engine.dispose()
