"""Names are quoted, always: reserved words, mixed case, quotes, anything."""

from __future__ import annotations

import pytest

from tidegate import ConfigurationError
from tidegate.tables import Table, Target

from .places import Place

NAMES = ["order", "user", "Mixed Case", "values", "a.b", "semi;colon--", "%s", "%(x)s", "50%", "\u00e4\u4e2d", ":bind"]


@pytest.mark.parametrize("mode", ["append", "upsert", "accumulate"])
def test_any_name_works(place: Place, mode: str) -> None:
    names = [*NAMES, "quo'te", 'dou"ble', "back`tick", "back\\slash"]
    table_name = f'{place.name()} "select`'
    key = "select"
    columns = {key: int, **dict.fromkeys(names, int), "by tes": bytes}
    table = Table(table_name, key=key, mode=mode, create=True, columns=columns)
    value = {key: 1, **{name: number for number, name in enumerate(names)}, "by tes": "AAE="}
    place.put(table, [value])
    assert place.rows(table_name) == [(1, *range(len(names)), b"\0\1")]
    if mode != "append":
        place.put(table, [value])
        factor = 2 if mode == "accumulate" else 1
        assert place.rows(table_name) == [(1, *(factor * number for number in range(len(names))), b"\0\1")]
    place.run(f"DROP TABLE {place.quote(table_name)}")


def test_a_table_of_another_schema_is_reached(database: Place) -> None:
    schema = "main" if database.database == "sqlite" else database.name()
    if database.database != "sqlite":
        database.run(f"CREATE SCHEMA {database.quote(schema)}")
    table = Table("order", schema=schema, key="id", mode="upsert", create=True, columns={"id": int, "t": str})
    database.put(table, [{"id": 1, "t": "a"}, {"id": 1, "t": "b"}])
    with database.engine.connect() as conn:
        found = conn.exec_driver_sql(f"SELECT * FROM {database.quote(schema)}.{database.quote('order')}").all()
    assert found == [(1, "b")]
    assert str(table) == f"{schema}.order"


def test_names_that_differ_in_case_stay_apart_where_the_database_tells_them_apart(on_postgres: Place) -> None:
    name = on_postgres.create('"id" integer, "ID" integer')
    on_postgres.put(Table(name), [{"id": 1, "ID": 2}])
    assert on_postgres.rows(name) == [(1, 2)]


@pytest.mark.parametrize("name", ["", "a\0b", "line\nbreak"])
def test_a_name_that_no_database_has_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a table"):
        Table(name)


def test_no_table_and_no_column_are_said_by_name(sqlite: Place) -> None:
    with pytest.raises(ConfigurationError, match="there is no table orders; create it, or set create=True"):
        Target(sqlite.engine, Table("orders")).prepare()
    name = sqlite.create("id INTEGER PRIMARY KEY")
    with pytest.raises(ConfigurationError, match="has no column 'total' that can be written to"):
        Target(sqlite.engine, Table(name, columns={"total": int})).prepare()
    with pytest.raises(ConfigurationError, match="'id' is declared as text, and in the database it is INTEGER"):
        Target(sqlite.engine, Table(name, columns={"id": str})).prepare()


def test_a_column_that_the_database_fills_itself_is_named_as_such(database: Place) -> None:
    name = database.create("n INTEGER, id INTEGER GENERATED ALWAYS AS (n + 1) STORED UNIQUE")
    refused_key = Table(name, key="id", mode="upsert"), None, "name a key that records have"
    refused_column = Table(name, columns={"id": int}), None, "leave it out of the columns"
    refused_source = Table(name), {"id": "value.id", "n": "value.n"}, "leave it out of the columns"
    for table, columns, way_out in (refused_key, refused_column, refused_source):
        with pytest.raises(ConfigurationError, match=f"table {name}: column 'id' is GENERATED ALWAYS: .*; {way_out}"):
            Target(database.engine, table, columns=columns).read([])


def test_an_identity_that_takes_no_values_is_named_as_such(on_postgres: Place) -> None:
    name = on_postgres.create("id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int")
    with pytest.raises(ConfigurationError, match="column 'id' of the key is an identity column GENERATED ALWAYS"):
        Target(on_postgres.engine, Table(name, key="id", mode="upsert")).prepare()
