"""Append, upsert, accumulate and delete, against a model in Python, on every database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from tidegate import ConfigurationError, Record
from tidegate.tables import DoesNotFit, Mode, Table, Target

from .places import Place, feed

FAST = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


def record(key: Any, value: dict[str, Any] | None) -> Record:
    return Record("t", 0, 0, json.dumps(key).encode(), None if value is None else json.dumps(value).encode())


def write(place: Place, table: Table, batches: Sequence[Sequence[Record]]) -> None:
    target = Target(place.engine, table)
    for batch in batches:
        rows = target.read(batch)
        assert rows.misfits == ()
        place.write(target, rows)


# Two key columns, one of them text, so that order and case of keys matter.
EVENTS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([(1, "a"), (1, "A"), (2, "a"), (2, "")]),
            st.none() | st.tuples(st.none() | st.integers(-50, 50), st.none() | st.sampled_from(["x", "y", ""])),
        ),
        max_size=12,
    ),
    max_size=4,
)


def as_records(batches: Any) -> list[list[Record]]:
    return [
        [
            record({"a": key[0], "b": key[1]}, None if content is None else _value(key, content))
            for key, content in batch
        ]
        for batch in batches
    ]


def _value(key: tuple[int, str], content: tuple[int | None, str | None]) -> dict[str, Any]:
    total = None if content[0] is None else str(Decimal(content[0]) / 100)
    return {"a": key[0], "b": key[1], "n": content[0], "total": total, "note": content[1]}


COLUMNS = {"a": int, "b": str, "n": int, "total": "decimal(20,2)", "note": str}


def stored(place: Place, name: str) -> dict[tuple[int, str], tuple[int | None, Decimal | None, str | None]]:
    return {(a, b): (n, None if d is None else Decimal(str(d)), note) for a, b, n, d, note in place.rows(name)}


@FAST
@given(batches=EVENTS)
def test_upsert_keeps_the_last_record_of_each_key(database: Place, batches: Any) -> None:
    name = database.name()
    write(database, Table(name, key=("a", "b"), mode="upsert", create=True, columns=COLUMNS), as_records(batches))
    model: dict[Any, Any] = {}
    for key, content in (event for batch in batches for event in batch):
        if content is None:
            model.pop(key, None)
        else:
            n = content[0]
            model[key] = (n, None if n is None else Decimal(n) / 100, content[1])
    if batches:
        assert stored(database, name) == model
    database.run(f"DROP TABLE IF EXISTS {database.quote(name)}")


def plus(old: Any, new: Any) -> Any:
    return old if new is None else new if old is None else old + new


@FAST
@given(batches=EVENTS)
def test_accumulate_adds_what_each_key_was_given(database: Place, batches: Any) -> None:
    name = database.name()
    table = Table(name, key=("a", "b"), mode=Mode.ACCUMULATE, tombstones="delete", create=True, columns=COLUMNS)
    write(database, table, as_records(batches))
    model: dict[Any, Any] = {}
    for key, content in (event for batch in batches for event in batch):
        if content is None:
            model.pop(key, None)
        else:
            n, total, _ = model.get(key, (None, None, None))
            more = None if content[0] is None else Decimal(content[0]) / 100
            model[key] = (plus(n, content[0]), plus(total, more), content[1])
    if batches:
        assert stored(database, name) == model
    database.run(f"DROP TABLE IF EXISTS {database.quote(name)}")


def test_sums_are_exact_where_floats_are_not(database: Place) -> None:
    name = database.name()
    columns = {"id": int, "cents": "decimal(12,2)", "long": "decimal(38,10)", "n": int}
    table = Table(name, key="id", mode="accumulate", create=True, columns=columns)
    value = {"id": 1, "cents": 0.1, "long": "1234567890123456789012345678.0000000001", "n": 2**60 + 1}
    write(database, table, [[record(1, value)] * 3, [record(1, value)]])
    ((_, cents, long, n),) = database.rows(name)
    assert Decimal(str(cents)) == Decimal("0.40")
    assert Decimal(str(long)) == Decimal("4938271560493827156049382712.0000000004")
    assert n == 4 * (2**60 + 1)


def test_a_sum_out_of_range_is_an_error_and_never_wraps(database: Place) -> None:
    name = database.name()
    table = Table(name, key="id", mode="accumulate", create=True, columns={"id": int, "n": int})
    target = Target(database.engine, table)
    half = {"id": 1, "n": 2**62}
    rows = target.read(feed([half, half]))
    with pytest.raises(DoesNotFit, match="column 'n'"):
        database.write(target, rows)
    database.write(target, rows.between(0, 1))
    with pytest.raises(Exception, match="(?i)range|fit"):
        database.write(target, rows.between(1, 2))
    assert database.rows(name) == [(1, 2**62)]


def test_accumulate_adds_to_the_named_columns_only(database: Place) -> None:
    name = database.create("id INTEGER PRIMARY KEY, hits INTEGER, price DECIMAL(9,2), name VARCHAR(20)")
    table = Table(name, key="id", mode="accumulate", add="hits")
    for price in (1, 2):
        database.put(table, [{"id": 7, "hits": 1, "price": price, "name": f"at {price}"}] * 2)
    ((_, hits, price, label),) = database.rows(name)
    assert (hits, Decimal(str(price)), label) == (4, 2, "at 2")


def test_append_keeps_every_record_and_a_duplicate_is_the_databases_error(database: Place) -> None:
    name = database.create("id INTEGER PRIMARY KEY, t VARCHAR(9)")
    database.put(Table(name), [{"id": 1, "t": "a"}, {"id": 2, "t": "b"}])
    with pytest.raises(IntegrityError):
        database.put(Table(name), [{"id": 3}, {"id": 2}, {"id": 4}])
    assert database.rows(name) == [(1, "a"), (2, "b")]


def test_rows_with_nothing_but_a_key_are_upserted(database: Place) -> None:
    name = database.create("id INTEGER PRIMARY KEY")
    for _ in range(2):
        database.put(Table(name, key="id", mode="upsert"), [{"id": 1}, {"id": 1}, {"id": 2}])
    assert database.rows(name) == [(1,), (2,)]


def test_columns_left_out_keep_their_value_and_defaults_are_the_databases(database: Place) -> None:
    number = {"mysql": "BIGINT AUTO_INCREMENT", "postgres": "bigserial", "sqlite": "INTEGER"}[database.database]
    name = database.create(
        f"seq {number} PRIMARY KEY, id INTEGER NOT NULL UNIQUE, state VARCHAR(9) DEFAULT 'new' NOT NULL, "
        "kept VARCHAR(9) DEFAULT 'kept', twice INTEGER GENERATED ALWAYS AS (id * 2) STORED"
    )
    database.put(Table(name), [{"id": 1}, {"id": 2, "state": "old", "kept": "x"}, {"id": 3, "seq": 50}])
    found = {row[1]: row[2:] for row in database.rows(name)}
    assert found == {1: ("new", "kept", 2), 2: ("old", "x", 4), 3: ("new", "kept", 6)}
    assert (50, 3) in [row[:2] for row in database.rows(name)]


def test_a_table_whose_key_is_not_unique_is_refused(database: Place) -> None:
    name = database.create("a INTEGER NOT NULL, b INTEGER NOT NULL, c INTEGER, PRIMARY KEY (a, b)")
    with pytest.raises(ConfigurationError, match="a may not identify a row; mode 'upsert' needs a primary key"):
        Target(database.engine, Table(name, key="a", mode="upsert")).prepare()
    assert Target(database.engine, Table(name, key=("b", "a"), mode="upsert")).prepare() is not None


def test_mysql_refuses_a_second_unique_index_that_would_catch_other_rows(database: Place) -> None:
    name = database.create("id INTEGER PRIMARY KEY, email VARCHAR(20) UNIQUE")
    table = Table(name, key="id", mode="upsert")
    if database.database == "mysql":
        with pytest.raises(ConfigurationError, match="beside its key it has the unique index 'email'"):
            Target(database.engine, table).prepare()
    else:
        database.put(table, [{"id": 1, "email": "a"}])
        with pytest.raises(IntegrityError):
            database.put(table, [{"id": 2, "email": "a"}])


def test_a_number_of_its_own_beside_the_key_is_left_to_mysql(on_mysql: Place) -> None:
    name = on_mysql.create("seq BIGINT AUTO_INCREMENT PRIMARY KEY, id INTEGER UNIQUE NOT NULL, t VARCHAR(9)")
    table = Table(name, key="id", mode="upsert")
    on_mysql.put(table, [{"id": 5, "t": "a"}, {"id": 6, "t": "b"}])
    on_mysql.put(table, [{"id": 6, "t": "c"}])
    assert on_mysql.put(table, [{"id": 6, "t": "d", "seq": 1}]).misfits
    assert [row[1:] for row in on_mysql.rows(name)] == [(5, "a"), (6, "c")]


def test_keys_that_mysql_takes_for_the_same_are_handled_in_their_order(on_mysql: Place) -> None:
    name = on_mysql.create("id VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, n INTEGER")
    for mode, left in (("upsert", [("A", 3)]), ("accumulate", [("A", 7)])):
        on_mysql.run(f"DELETE FROM {name}")
        table = Table(name, key="id", mode=mode, tombstones="delete")
        batch = [("a", 1), ("A ", 2), ("a", None), ("A", 4), ("a", 3)]
        write(on_mysql, table, [[record(key, None if n is None else {"id": key, "n": n}) for key, n in batch]])
        assert on_mysql.rows(name) == left


def test_keys_of_a_table_made_for_us_are_told_apart_byte_for_byte(database: Place) -> None:
    name = database.name()
    table = Table(name, key="id", mode="upsert", create=True, columns={"id": str, "n": int})
    keys = ["a", "A", "a ", "\u00e4", "a\u0308", ""]
    write(database, table, [[record(key, {"id": key, "n": n}) for n, key in enumerate(keys)]])
    assert {row[0]: row[1] for row in database.rows(name)} == {key: n for n, key in enumerate(keys)}
    write(database, table, [[record(key, None) for key in ("a ", "A")]])
    assert {row[0] for row in database.rows(name)} == {"a", "\u00e4", "a\u0308", ""}
