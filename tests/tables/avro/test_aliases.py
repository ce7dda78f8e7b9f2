"""Avro's aliases: a field that was renamed goes into the column of its former name, on both ways of reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine
from tests.tables.avro.values import Schemas, records, values_of
from tests.tables.ways import columns, compared

from tidegate.tables import Feed, SchemaFormat, Table, Target
from tidegate.tables.format import FieldMatch, NewFields, Unmatched

OLD = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}, {"name": "town", "type": "string"}]}
NEW = {
    "type": "record",
    "name": "O",
    "fields": [{"name": "id", "type": "long"}, {"name": "city", "type": "string", "aliases": ["place", "town"]}],
}
LATER = {**NEW, "fields": [*NEW["fields"], {"name": "zip", "type": ["null", "int"], "default": None}]}


def put(table: Table, schemas: Schemas, values: Sequence[tuple[int, Any]], engine: Any, **more: Any) -> Any:
    form = SchemaFormat("avro", registry=schemas, **more.pop("form", {}))  # type: ignore[arg-type]
    target = Target(engine, table, format=form, **more)
    rows = target.read(Feed(value=[value and schemas.bytes_of(number, value) for number, value in values]))
    with engine.begin() as conn:
        target.write(conn, rows)
    return rows


@pytest.fixture
def engine(tmp_path: Any) -> Any:
    opened = create_engine(f"sqlite:///{tmp_path}/rows.db")
    yield opened
    opened.dispose()


def found(engine: Any, table: str = "t") -> list[Mapping[str, Any]]:
    with engine.connect() as conn:
        return [dict(row) for row in conn.exec_driver_sql(f"SELECT * FROM {table} ORDER BY id").mappings()]


VALUES = [(1, {"id": 1, "town": "a"}), (2, {"id": 2, "city": "b"}), (1, {"id": 3, "town": "c"})]


@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize("column", ["town", "TOWN"])
def test_a_renamed_field_goes_into_the_column_of_its_former_name(engine: Any, evolve: bool, column: str) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql(f"CREATE TABLE t (id INTEGER, {column} TEXT)")
    assert put(Table("t", evolve=evolve), Schemas(OLD, NEW), VALUES, engine).misfits == ()
    assert found(engine) == [{"id": 1, column: "a"}, {"id": 2, column: "b"}, {"id": 3, column: "c"}]


@pytest.mark.parametrize("size", [1, 4])
def test_a_table_that_is_created_and_follows_gets_no_column_of_the_new_name(engine: Any, size: int) -> None:
    values = [*VALUES, (3, {"id": 4, "city": "d", "zip": 5})]
    for at in range(0, len(values), size):
        table = Table("t", create=True, evolve=True)
        assert put(table, Schemas(OLD, NEW, LATER), values[at : at + size], engine).misfits == ()
    towns = [(row["town"], row["zip"]) for row in found(engine)]
    assert towns == [("a", None), ("b", None), ("c", None), ("d", 5)]
    assert set(found(engine)[0]) == {"id", "town", "zip"}


def test_a_column_of_the_new_name_takes_the_field_and_the_former_name_stays_for_others(engine: Any) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE t (id INTEGER, town TEXT, city TEXT, place TEXT)")
    put(Table("t"), Schemas(OLD, NEW), VALUES[:2], engine)
    rows = [(row["town"], row["city"], row["place"]) for row in found(engine)]
    assert rows == [("a", None, None), (None, "b", None)]


def test_an_alias_that_another_field_has_as_its_name_counts_for_nothing(engine: Any) -> None:
    both = {**NEW, "fields": [*NEW["fields"], {"name": "town", "type": "string"}]}
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE t (id INTEGER, town TEXT)")
    put(Table("t"), Schemas(both), [(1, {"id": 1, "city": "new", "town": "old"})], engine)
    assert found(engine) == [{"id": 1, "town": "old"}]
    refused = put(Table("t", unknown="refuse"), Schemas(both), [(1, {"id": 2, "city": "n", "town": "o"})], engine)
    assert "field 'city'" in str(refused.misfits)
    assert put(Table("t", unknown="refuse"), Schemas(NEW), [(1, {"id": 3, "city": "n"})], engine).misfits == ()


INNER = {"type": "record", "name": "A", "fields": [{"name": "town", "type": "string", "aliases": ["city"]}]}
NESTED = {
    "type": "record",
    "name": "O",
    "fields": [{"name": "id", "type": "long"}, {"name": "home", "type": ["null", INNER], "aliases": ["address"]}],
}


def test_nested_fields_have_former_names_too(engine: Any) -> None:
    values = [(1, {"id": 1, "home": {"town": "a"}}), (1, {"id": 2, "home": None})]
    paths = {"id": "value.id", "city": "value.address.city"}
    put(Table("t", create=True), Schemas(NESTED), values, engine, columns=paths)
    assert found(engine) == [{"id": 1, "city": "a"}, {"id": 2, "city": None}]
    for column in ("address_city", "home_city", "address_town", "home_town"):
        with engine.begin() as conn:
            conn.exec_driver_sql(f"CREATE TABLE {column} (id INTEGER, {column} TEXT)")
        put(Table(column, evolve=True), Schemas(NESTED), values, engine, form={"flatten": "_"})
        assert found(engine, column) == [{"id": 1, column: "a"}, {"id": 2, column: None}]


def test_what_a_renamed_field_holds_may_need_a_wider_column(engine: Any) -> None:
    from tidegate.tables import Evolution

    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE t (id INTEGER, town VARCHAR(2))")
    table = Table("t", evolve=Evolution(widen="widen"))
    assert put(table, Schemas(NEW), [(1, {"id": 1, "city": "abcdef"})], engine).misfits == ()
    assert found(engine) == [{"id": 1, "town": "abcdef"}]


@st.composite
def aliased(draw: st.DrawFn) -> tuple[Any, list[Any], list[tuple[str, ...]]]:
    """A schema whose fields have aliases, some of them names of other fields; values; and paths by any of the names."""
    schema, _ = draw(records())
    names = ["f0", "f1", "F0", "a", "b", "A"]

    def with_aliases(tree: Any) -> Any:
        if isinstance(tree, list):
            return [with_aliases(each) for each in tree]
        if isinstance(tree, dict) and tree.get("type") == "record":
            fields = [
                {
                    **each,
                    "type": with_aliases(each["type"]),
                    "aliases": draw(st.lists(st.sampled_from(names), max_size=2)),
                }
                for each in tree["fields"]
            ]
            return {**tree, "fields": fields}
        return tree

    schema = with_aliases(schema)
    paths = [(name,) for name in names] + [(one, two) for one in names for two in names]
    return schema, draw(st.lists(values_of(schema), min_size=1, max_size=4)), paths


@settings(max_examples=80, deadline=None)
@given(aliased(), st.data())
def test_both_ways_of_reading_agree_about_aliases(drawn: Any, data: st.DataObject) -> None:
    schema, values, paths = drawn
    schemas = Schemas(schema)
    wanted = data.draw(columns(paths))
    unmatched = data.draw(st.sampled_from(list(Unmatched)))
    watch = FieldMatch(data.draw(st.booleans()), unmatched)
    flatten = data.draw(st.sampled_from([None, "_"]))
    form = SchemaFormat("avro", flatten=flatten, registry=schemas)  # type: ignore[arg-type]
    feed = Feed(value=[schemas.bytes_of(1, value) for value in values])
    by_columns, by_rows = form.reader(wanted, watch=watch), form.reader(wanted, watch=watch)
    try:
        expected = compared(by_rows._read_rows(feed))  # type: ignore[attr-defined]
    except NewFields:
        with pytest.raises(NewFields):
            by_columns.read(feed)
        return
    assert compared(by_columns.read(feed)) == expected
