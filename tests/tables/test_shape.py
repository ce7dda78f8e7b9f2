"""The cached shape of a table."""

from __future__ import annotations

import secrets

import pytest
from sqlalchemy import create_engine, text
from tests.tables.places import Place

from tidegate.tables import Feed, Route, Table
from tidegate.tables.registry import database_of
from tidegate.tables.router import Router
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


def test_the_shapes_of_many_tables_are_those_of_each(database: Place) -> None:
    is_postgres, first = database.database == "postgres", database.name()
    tables = [Table(first + suffix) for suffix in ("", ' a"b%s', "_parts", "_gone")]
    for table, in_parts in zip(tables[:3], ("", "", " PARTITION BY RANGE (id)"), strict=True):
        database.run(f"CREATE TABLE {database.quote(table.name)} (id INT NOT NULL, n INT){in_parts * is_postgres}")
    if is_postgres:
        tables.append(Table(f"{first}_view"))
        database.run(f'CREATE VIEW "{first}_view" AS SELECT id FROM "{first}"')

    def first_altered(known: list[tuple[Table, str | None]]) -> int | None:
        with database.engine.begin() as conn:
            found = database_of(conn).first_altered(conn, known, is_written=True)
            each = [database_of(conn).has_shape(conn, *one, is_written=True) for one in known]
        assert found == next((place for place, same in enumerate(each) if not same), None)
        return found

    with database.engine.connect() as conn:
        known = [(table, shape_of(conn, table)) for table in tables]
    assert len({shape for _, shape in known}) == len(known)
    assert first_altered(known) is None
    assert first_altered([]) is None
    assert first_altered([known[0], (tables[1], "another"), (tables[2], "another")]) == 1
    for place in (2, 1):
        database.run(f"ALTER TABLE {database.quote(tables[place].name)} ADD COLUMN more INT")
        assert first_altered(known) == place
    assert first_altered(known[:1]) is None


def test_a_route_notices_that_one_of_its_tables_was_altered(database: Place) -> None:
    names = [database.create("id INT NOT NULL") for _ in range(3)]
    router = Router(database.engine, Route([Table(name) for name in names]))

    def altered() -> Table | None:
        draft = router.draft(Feed([b'{"id": 1, "more": 2}']))
        if database.database != "sqlite":
            database.run(f"ALTER TABLE {database.quote(names[1])} ADD COLUMN c{len(database.statements)} INT")
        with database.engine.begin() as conn:
            if database.database == "sqlite":
                conn.exec_driver_sql(f"ALTER TABLE {names[1]} ADD COLUMN c{len(database.statements)} INT")
            found = draft.altered(conn, is_written=False)
            draft.write(conn, draft.rows)
            return found or draft.altered(conn, is_written=True)

    for _ in range(2):  # after the first alteration the table is known as it is then
        assert altered() == Table(names[1])
    draft = router.draft(Feed([b'{"id": 1}']))
    with database.engine.begin() as conn:
        assert draft.altered(conn, is_written=False) is None
        draft.write(conn, draft.rows)
        assert draft.altered(conn, is_written=True) is None
