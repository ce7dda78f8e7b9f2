"""Fields that records lack, that the table lacks, and that are spelled otherwise."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import event

from tidegate import ConfigurationError, Record, Table
from tidegate.spark.executor import Kept
from tidegate.spark.rows import Made
from tidegate.tables import CsvFormat, Rows, Target
from tidegate.tables.registry import database_of
from tidegate.tables.writer import GuardedWriter

from .places import Place, feed, records

COLUMNS = "id INTEGER NOT NULL PRIMARY KEY, state VARCHAR(9) DEFAULT 'new' NOT NULL, note VARCHAR(9) DEFAULT 'x'"


def lacking(rows: Rows) -> Mapping[str, list[bool]]:
    return {name: mask.to_pylist() for name, mask in rows.lacking.items()}


def whys(rows: Rows) -> dict[int, str]:
    return {misfit.place: str(misfit) for misfit in rows.misfits}


def test_a_field_that_a_record_lacks_is_no_null(database: Place) -> None:
    name = database.create(COLUMNS)
    rows = Target(database.engine, Table(name, key="id", mode="upsert")).read(
        feed(
            [
                {"id": 1},
                {"id": 2, "state": None},
                {"id": 3, "state": "old", "note": None},
                {"note": "y"},
                {"id": None},
                {"id": 6, "note": "z"},
            ]
        )
    )
    assert rows.places == [0, 2, 5]
    assert lacking(rows) == {"state": [True, False, True], "note": [True, False, False]}
    assert whys(rows) == {
        1: "column 'state': null, and the column needs a value; a record without the field gets the default",
        3: "column 'id': missing, and the column needs a value",
        4: "column 'id': null, and the column needs a value",
    }
    database.write(Target(database.engine, Table(name, key="id", mode="upsert")), rows)
    assert [row[:2] for row in database.rows(name)] == [(1, "new"), (3, "old"), (6, "new")]


def test_nothing_is_lacking_where_all_fields_are_there(sqlite: Place) -> None:
    rows = Target(sqlite.engine, Table(sqlite.create(COLUMNS))).read(feed([{"id": 1, "state": "a", "note": None}]))
    assert rows.lacking == {}


def test_a_field_inside_of_a_null_is_null_and_one_inside_of_nothing_is_missing(sqlite: Place) -> None:
    name = sqlite.create("id INTEGER, city TEXT, odd TEXT")
    columns = {"id": "value.id", "city": "value.address.city", "odd": ("value", "address", 'a"b')}
    given: list[dict[str, Any]] = [
        {"id": 1, "address": {"city": "Ulm", 'a"b': "c"}},
        {"id": 2, "address": {"city": None}},
        {"id": 3, "address": {}},
        {"id": 4, "address": None},
        {"id": 5},
    ]
    expected = {"city": [False, False, True, False, True], "odd": [False, True, True, False, True]}
    assert lacking(Target(sqlite.engine, Table(name), columns=columns).read(records(*given))) == expected

    def made(record: Record) -> dict[str, Any]:
        return given[record.offset - 70]

    assert lacking(Target(sqlite.engine, Table(name), columns=columns, format=made).read(records(*given))) == expected


def test_a_function_lacks_the_fields_that_its_rows_do_not_have(sqlite: Place) -> None:
    name = sqlite.create(COLUMNS)

    def made(record: Record) -> list[dict[str, Any]]:
        return [{"id": record.offset}, {"id": record.offset + 1, "note": None, "state": "s"}]

    rows = Target(sqlite.engine, Table(name), format=made).read(records({}))
    assert lacking(rows) == {"state": [True, False], "note": [True, False]}


def test_what_kafka_knows_is_null_and_never_missing(sqlite: Place) -> None:
    name = sqlite.create("id INTEGER, trace TEXT, part INTEGER, of_key INTEGER")
    columns = {"id": "value.id", "trace": "headers.trace", "part": "partition", "of_key": "key.id"}
    target = Target(sqlite.engine, Table(name), columns=columns)
    rows = target.read([*records({"id": 1}, key=b'{"id": 1}'), *records({"id": 2}, key=b'{"no": 1}')])
    assert lacking(rows) == {"of_key": [False, True]}


def test_a_line_of_csv_lacks_nothing_and_a_short_one_is_a_misfit(sqlite: Place) -> None:
    name = sqlite.create("id INTEGER, note TEXT")
    rows = Target(sqlite.engine, Table(name), format=CsvFormat(["id", "note"])).read(records(b"1,", b"2"))
    assert rows.lacking == {}
    assert whys(rows) == {1: "a line with 1 fields instead of 2"}


def test_of_a_tombstone_only_the_key_counts(sqlite: Place) -> None:
    name = sqlite.create(COLUMNS)
    rows = Target(sqlite.engine, Table(name, key="id", mode="upsert")).read(
        [*records({"id": 1, "state": "a", "note": "b"}), *records(None, key=b"1")]
    )
    assert (rows.lacking, rows.tombstones.to_pylist()) == ({}, [False, True])


def test_rows_that_wait_on_disk_keep_what_they_lack(sqlite: Place) -> None:
    name = sqlite.create(COLUMNS)
    rows = Target(sqlite.engine, Table(name, key="id", mode="upsert")).read(
        [*records({"id": 1}, {"id": 2, "note": None}), *records(None, key=b"1")]
    )
    writer = GuardedWriter(
        database_of(sqlite.engine), Target(sqlite.engine, Table(name, key="id", mode="upsert")).layout, None
    )
    kept = Kept(most=0)
    kept.add(Made(3, rows, [], None), writer.planned(rows, sqlite.engine.connect))
    found = list(kept.steps())
    kept.close()
    assert found == list(writer.planned(rows, sqlite.engine.connect))
    assert [(step.deletes, step.batch.to_pylist()) for step in found] == [
        (False, [{"id": 2, "note": None}]),
        (False, [{"id": 1}]),
        (True, [{"id": 1}]),
    ]


def test_a_record_with_none_of_the_tables_fields_is_a_misfit(database: Place) -> None:
    name = database.create("id INTEGER, total INTEGER")
    envelope = {"schema": {"type": "struct"}, "payload": {"id": 1, "total": 2}}
    rows = database.put(
        Table(name), [{}, {"other": 1}, envelope, {"schema": None, "payload": {}}, {"id": 5}, {"id": None}]
    )
    found = whys(rows)
    assert sorted(found) == [0, 1, 2, 3]
    assert found[0] == found[1] == "the record has none of the fields that columns come from: id, total"
    assert "Kafka Connect's envelope" in found[2] == found[3]
    assert sorted(database.rows(name), key=str) == [(5, None), (None, None)]


def test_a_function_that_makes_rows_of_nothing_is_told_so(sqlite: Place) -> None:
    name = sqlite.create("id INTEGER")
    rows = Target(sqlite.engine, Table(name), format=lambda record: {}).read(records({"id": 1}))
    assert whys(rows) == {0: "the record has none of the fields that columns come from: id"}


def test_a_value_without_fields_may_do_where_the_key_has_some(sqlite: Place) -> None:
    name = sqlite.create("id INTEGER, note TEXT, place INTEGER")
    by_key = Target(sqlite.engine, Table(name), columns={"id": "key", "note": "value.note"})
    envelope: dict[str, Any] = {"schema": {}, "payload": {}}
    rows = by_key.read(records({}, envelope, key=b"7"))
    assert (rows.batch.to_pylist(), list(whys(rows))) == ([{"id": 7, "note": None}], [1])
    by_place = Target(sqlite.engine, Table(name), columns={"place": "offset", "note": "value.note"})
    assert whys(by_place.read(records({}))) == {0: "the record has none of the fields that columns come from: note"}
    whole = Target(sqlite.engine, Table(name), columns={"id": "value.id", "note": "value"})
    assert whole.read(records({"x": 1})).misfits == ()


def test_an_envelope_makes_no_table_and_no_columns(database: Place) -> None:
    envelope = {"schema": {"type": "struct"}, "payload": {"id": 1}}
    table = Table(database.name(), create=True, evolve=True)
    rows = database.put(table, [envelope])
    assert "Kafka Connect's envelope" in whys(rows)[0]
    rows = database.put(table, [envelope, {"id": 1}])
    assert "Kafka Connect's envelope" in whys(rows)[0]
    assert database.rows(table.name) == [(1,)]
    rows = database.put(table, [{"schema": "v1", "payload": 5, "id": 2}])
    assert rows.misfits == ()
    assert [column.name for column in Target(database.engine, table).layout.columns] == ["id", "schema", "payload"]
    assert database.put(table, [{"schema": "v2", "payload": 6}]).misfits == ()


SPELLED = "id INTEGER, total INTEGER, city VARCHAR(9), state VARCHAR(9) DEFAULT 'new'"


@pytest.mark.parametrize("unknown", ["ignore", "refuse"])
@pytest.mark.parametrize("own", [False, True])
def test_a_field_is_found_whatever_the_case_of_its_letters(sqlite: Place, own: bool, unknown: str) -> None:
    name = sqlite.create(SPELLED)
    given: list[dict[str, Any]] = [
        {"id": 1, "total": 1},
        {"ID": 2, "Total": None},
        {"Id": 3, "CITY": "Ulm", "total": 3},
        {"total": 4},
        {"ID": 5, "Id": 6},
    ]

    def made(record: Record) -> dict[str, Any]:
        return given[record.offset - 70]

    target = Target(sqlite.engine, Table(name, unknown=unknown), format=made if own else "json")
    rows = target.read(records(*given))
    assert [list(row.values())[:3] for row in rows.batch.to_pylist()] == [
        [1, 1, None],
        [2, None, None],
        [3, 3, "Ulm"],
        [None, 4, None],
    ]
    assert lacking(rows) == {
        "id": [False, False, False, True],
        "city": [True, True, False, True],
        "state": [True] * 4,
    }
    assert whys(rows) == {4: "several fields are 'id' but for case, and none is so exactly"}
    exact = Target(sqlite.engine, Table(name, ignore_case=False), format=made if own else "json").read(records(*given))
    assert list(whys(exact)) == [1, 4]


def test_the_field_that_is_spelled_like_the_column_comes_first(sqlite: Place) -> None:
    name = sqlite.create("id INTEGER")
    both: list[dict[str, Any]] = [{"ID": 1, "id": 2}, {"id": 3, "ID": "four"}]
    assert Target(sqlite.engine, Table(name)).read(feed(both)).batch.column("id").to_pylist() == [2, 3]
    assert Target(sqlite.engine, Table(name, evolve=True)).read(feed(both)).batch.column("id").to_pylist() == [2, 3]
    refused = Target(sqlite.engine, Table(name, unknown="refuse")).read(feed(both))
    assert list(whys(refused)) == [0, 1]


def test_a_field_that_fits_two_columns_but_for_case_is_neither(on_postgres: Place) -> None:
    name = on_postgres.create('"id" INTEGER, "ID" INTEGER, "n" INTEGER')
    rows = Target(on_postgres.engine, Table(name)).read(feed([{"Id": 1, "n": 1}, {"ID": 2, "N": 2}]))
    assert rows.batch.to_pylist() == [{"id": None, "ID": None, "n": 1}, {"id": None, "ID": 2, "n": 2}]


def test_names_inside_of_objects_and_names_that_are_escaped_are_found_too(sqlite: Place) -> None:
    name = sqlite.create('id INTEGER, city TEXT, "a/B" TEXT, "é" TEXT')
    columns = {"id": "value.id", "city": "value.address.city", "a/B": "value.a/B", "é": "value.é"}
    values = [
        b'{"Id": 1, "Address": {"CITY": "Ulm"}}',
        b'{"\\u0049D": 2, "address": {"City": "Bonn"}}',
        b'{"id": 3, "A\\/b": "x", "\\u00e9": "y"}',
        '{"id": 4, "É": "not A to Z"}'.encode(),
    ]
    together = Target(sqlite.engine, Table(name), columns=columns).read(feed(values))
    found = [list(row.values()) for row in together.batch.to_pylist()]
    assert found == [[1, "Ulm", None, None], [2, "Bonn", None, None], [3, None, "x", "y"], [4, None, None, None]]
    one_by_one = [Target(sqlite.engine, Table(name), columns=columns).read(feed([value])) for value in values]
    assert [list(row.values()) for rows in one_by_one for row in rows.batch.to_pylist()] == found
    assert {name: mask.to_pylist() for name, mask in together.lacking.items()} == {
        "city": [False, False, True, True],
        "a/B": [True, True, False, True],
        "é": [True, True, False, True],
    }


def test_fields_that_no_column_comes_from_are_refused_by_name_if_asked_for(sqlite: Place) -> None:
    name = sqlite.create("id INTEGER, city TEXT, twice INTEGER GENERATED ALWAYS AS (id * 2) STORED")
    given: list[dict[str, Any]] = [{"id": 1}, {"id": 2, "new": 5}, {"id": 3, "new": None}, {"ID": 4, "twice": 9}]
    why = "field 'new': no column comes from it, and the table has unknown='refuse'"
    table = Table(name, unknown="refuse")
    assert whys(Target(sqlite.engine, table).read(feed(given))) == {1: why, 2: why}
    assert Target(sqlite.engine, Table(name)).read(feed(given)).misfits == ()
    own = Target(sqlite.engine, table, format=lambda record: given[record.offset - 70])
    assert whys(own.read(records(*given))) == {1: why, 2: why}
    nested = Target(sqlite.engine, table, columns={"id": "value.id", "city": "value.address.city"})
    rows = nested.read(feed([{"id": 1, "address": {"city": "Ulm", "zip": 5}}, {"id": 2, "Address": {"City": "Ulm"}}]))
    assert whys(rows) == {0: why.replace("new", "address.zip")}
    whole = Target(sqlite.engine, table, columns={"id": "value.id", "city": "value"})
    assert whole.read(feed(given)).misfits == ()
    with pytest.raises(ConfigurationError, match="choose one"):
        Table(name, evolve=True, unknown="refuse")


ODD = {
    "sqlite": ["", " ", "a\0b", "a\nb"],
    "postgres": ["", " ", "a\0b", "x" * 64, "ü" * 32, "ctid", "xmin", "tableoid", "cmax"],
    "mysql": ["", " ", "a\0b", "x" * 65, "trailing ", "💧", "DB_ROW_ID", "FTS_DOC_ID"],
}
FINE = {
    "sqlite": ["rowid", "oid", "_rowid_", "x" * 100, "trailing ", 'quo"te', "back\\slash", "perc%ent", "💧"],
    "postgres": ["rowid", "x" * 63, "trailing ", " leading", 'quo"te', "back\\slash", "perc%ent", "💧", "order"],
    "mysql": ["rowid", "ü" * 64, " leading", 'quo"te', "back\\slash", "perc%ent", "tick`", "_rowid", "ctid"],
}


@pytest.mark.parametrize("create", [False, True])
def test_a_name_that_no_column_can_have_is_its_records_misfit(database: Place, create: bool) -> None:
    name = database.name() if create else database.create("id INTEGER")
    table = Table(name, create=create, evolve=True)
    odd = [{"id": number, field: 1, f"lost{number}": 1} for number, field in enumerate(ODD[database.database])]
    nulls = [{"id": 100, field: None} for field in ODD[database.database]]
    rows = database.put(table, [*odd, *nulls, {"id": 200, "good": 1}])
    assert list(whys(rows)) == list(range(len(odd)))
    assert all(str(misfit).startswith("field ") for misfit in rows.misfits)
    assert [column.name for column in Target(database.engine, table).layout.columns] == ["id", "good"]
    assert len(database.rows(name)) == len(nulls) + 1
    assert list(whys(database.put(table, odd[:1]))) == [0]


def test_the_first_record_with_such_a_name_alone_makes_no_table_and_stops_nothing(database: Place) -> None:
    table = Table(database.name(), create=True)
    assert "field ''" in whys(database.put(table, [{"": 1, "id": 1}]))[0]
    assert database.put(table, [{"id": 1}]).misfits == ()
    assert database.rows(table.name) == [(1,)]


@pytest.mark.parametrize("create", [False, True])
def test_a_name_that_a_column_can_have_is_one(database: Place, create: bool) -> None:
    name = database.name() if create else database.create("id INTEGER PRIMARY KEY")
    table = Table(name, key="id", mode="upsert", create=create, evolve=True)
    names = FINE[database.database]
    for number in (1, 2):
        rows = database.put(table, [{"id": number, **dict.fromkeys(names, number)}, {"id": 3, names[0]: 3}])
        assert rows.misfits == ()
    assert [column.name for column in Target(database.engine, table).layout.columns] == ["id", *names]
    assert database.rows(name, database.quote("id")) == [
        (1, *[1] * len(names)),
        (2, *[2] * len(names)),
        (3, 3, *[None] * (len(names) - 1)),
    ]


@pytest.mark.parametrize("create", [False, True])
def test_a_record_with_thousands_of_new_fields_adds_none_of_them(database: Place, create: bool) -> None:
    name = database.name() if create else database.create("id INTEGER")
    flood = {"id": 1, **{f"f{number}": number for number in range(2200)}}
    table = Table(name, create=create, evolve=True, most_columns=4)
    rows = database.put(
        table, [flood, {"id": 2, "a": 1, "b": 2}, {"id": 3, "c": 3}, {"id": 4, "d": 4}, {"id": 5, "A": 6}]
    )
    assert list(whys(rows)) == [0, 3]
    assert whys(rows)[3] == "field 'd': the table may have 4 columns at most: see most_columns"
    assert [column.name for column in Target(database.engine, table).layout.columns] == ["id", "a", "b", "c"]
    assert database.rows(name) == [(2, 1, 2, None), (3, None, None, 3), (5, 6, None, None)]


def test_a_table_is_not_made_without_a_column_that_is_null_in_the_first_records(database: Place) -> None:
    table = Table(database.name(), create=True)
    columns = {"id": "value.id", "note": "value.note"}
    found = whys(database.put(table, [{"id": 1, "note": None}, {"id": 2}], columns=columns))
    assert list(found) == [0, 1]
    assert "no record shows the type of its column 'note'; declare it" in found[0]
    assert whys(database.put(table, [{"id": 3, "note": None}, {"id": 4, "note": "a"}], columns=columns)) == {}
    assert database.rows(table.name) == [(3, None), (4, "a")]


def test_a_record_that_could_make_a_table_of_too_many_columns_says_so(sqlite: Place) -> None:
    flood = {f"f{number}": number for number in range(5)}
    found = whys(sqlite.put(Table(sqlite.name(), create=True, most_columns=4), [flood]))
    assert "the table does not exist yet, and may have 4 columns at most: see most_columns" in found[0]


def test_a_column_that_the_database_has_no_room_for_is_its_records_misfit(database: Place) -> None:
    many = {"sqlite": 40, "postgres": 1600, "mysql": 1017}[database.database]
    if database.database == "sqlite":  # which has room for 2,000 otherwise
        event.listen(database.engine, "connect", lambda conn, _: conn.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, many))
    name = database.create(", ".join(f"c{number} INTEGER" for number in range(many)))
    rows = database.put(Table(name, evolve=True, most_columns=9999), [{"c0": 1}, {"c0": 2, "new": 2}])
    assert list(whys(rows)) == [1]
    assert "field 'new'" in whys(rows)[1]


@pytest.mark.parametrize("ignore_case", [False, True])
def test_new_fields_that_differ_in_case_alone_are_one_column_or_a_misfit(database: Place, ignore_case: bool) -> None:
    name = database.create("id INTEGER")
    table = Table(name, evolve=True, ignore_case=ignore_case)
    rows = database.put(table, [{"id": 1, "Foo": 1}, {"id": 2, "foo": 2}, {"ID": 3}])
    assert [column.name for column in Target(database.engine, table).layout.columns] == ["id", "Foo"]
    if ignore_case:
        assert database.rows(name) == [(1, 1), (2, 2), (3, None)]
    else:
        assert list(whys(rows)) == [1, 2]
        assert "in case alone" in whys(rows)[1]


def test_a_source_whose_field_was_null_so_far_waits_for_its_column(database: Place) -> None:
    name = database.create("id INTEGER")
    target = Target(database.engine, Table(name, evolve=True), columns={"id": "value.id", "city": "value.address.city"})
    for city in (None, "Ulm"):
        rows = target.read(records({"id": 1, "address": {"city": city}}))
        assert rows.misfits == ()
        database.write(target, rows)
    assert sorted(database.rows(name), key=str) == [(1, "Ulm"), (1, None)]


def keyed(target: Target, *keys: bytes | None) -> Rows:
    return target.read([Record("orders", 0, place, key, None) for place, key in enumerate(keys)])


def deleted(rows: Rows) -> list[dict[str, Any]]:
    return [
        {name: row[name] for name in ("a", "b")}
        for row, gone in zip(rows.batch.to_pylist(), rows.tombstones.to_pylist(), strict=True)
        if gone
    ]


def test_a_tombstone_names_its_row_by_the_fields_that_the_key_comes_from(sqlite: Place) -> None:
    name = sqlite.create("a INTEGER, b INTEGER, note TEXT, PRIMARY KEY (a, b)")
    table = Table(name, key=["a", "b"], mode="upsert")
    plain = keyed(Target(sqlite.engine, table), b'{"a": 1, "b": 2}', b'{"A": 3, "B": 4}', b'{"a": 5}', b"6", None)
    assert deleted(plain) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert list(whys(plain)) == [2, 3, 4]
    mapped = Target(sqlite.engine, table, columns={"a": "value.order.no", "b": "value.line", "note": "value.note"})
    rows = keyed(mapped, b'{"no": 1, "line": 2}', b'{"NO": 3, "Line": 4}', b'{"a": 5, "b": 6}')
    assert deleted(rows) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert list(whys(rows)) == [2]
    alike = Target(sqlite.engine, table, columns={"a": "value.x.id", "b": "value.y.id"})
    rows = keyed(alike, b'{"x": {"id": 1}, "y": {"id": 2}}', b'{"id": 3}')
    assert deleted(rows) == [{"a": 1, "b": 2}]
    assert list(whys(rows)) == [1]
    exact = keyed(
        Target(sqlite.engine, Table(name, key=["a", "b"], mode="upsert", ignore_case=False)), b'{"A": 1, "b": 2}'
    )
    assert list(whys(exact)) == [0]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("mode", ["append", "upsert", "accumulate", "ignore", "update"])
@pytest.mark.parametrize("tombstones", ["delete", "refuse", "ignore", None])
def test_a_tombstone_deletes_is_refused_or_is_ignored(
    sqlite: Place, mode: str, tombstones: str | None, own: bool
) -> None:
    name = sqlite.create("id INTEGER PRIMARY KEY, n INTEGER")
    sqlite.run(f"INSERT INTO {name} VALUES (1, 1)")
    if mode == "append" and tombstones == "delete":
        with pytest.raises(ConfigurationError, match="mode 'append' has no row for a tombstone"):
            Table(name, key="id", mode=mode, tombstones=tombstones)
        return
    asked: list[Any] = []

    def made(record: Record) -> dict[str, Any] | None:
        asked.append(record.value)
        return None if record.value is None else {"id": 2, "n": 2}

    table = Table(name, key="id", mode=mode, tombstones=tombstones)
    target = Target(sqlite.engine, table, format=made if own else "json")
    rows = target.read([*records(None, key=b"1"), *records({"id": 2, "n": 2})])
    sqlite.write(target, rows)
    deletes = (tombstones or ("delete" if mode == "upsert" else "refuse")) == "delete"
    asks = own and tombstones is None and not deletes
    assert (None in asked) == asks
    refuses = not deletes and tombstones != "ignore" and not asks
    assert whys(rows) == ({0: "a tombstone, and the table does not delete"} if refuses else {})
    assert sqlite.rows(name) == [*([] if deletes else [(1, 1)]), *([] if mode == "update" else [(2, 2)])]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("tombstones", ["delete", "refuse", "ignore"])
def test_tombstones_before_there_is_a_table_pass(database: Place, tombstones: str, own: bool) -> None:
    table = Table(database.name(), key="id", mode="upsert", create=True, tombstones=tombstones)

    def made(record: Record) -> dict[str, Any]:
        assert record.value is not None
        return {"id": 2}

    target = Target(database.engine, table, format=made if own else "json")
    rows = target.read(records(None, key=b"1"))
    database.write(target, rows)
    assert (len(rows), len(rows.misfits)) == (0, int(tombstones == "refuse"))
    database.write(target, target.read([*records(None, key=b"1"), *records({"id": 2})]))
    assert database.rows(table.name) == [(2,)]


def test_tombstones_of_an_archive_are_rows_unless_told_otherwise(sqlite: Place) -> None:
    name = sqlite.create("key TEXT, value TEXT")
    for tombstones, count, misfits in ((None, 1, 0), ("ignore", 0, 0), ("refuse", 0, 1)):
        target = Target(sqlite.engine, Table(name, tombstones=tombstones), columns={"key": "key", "value": "value"})
        rows = target.read(records(None, key=b"1"))
        assert (len(rows), len(rows.misfits)) == (count, misfits)


def test_a_table_is_created_with_the_keys_own_spelling(database: Place) -> None:
    table = Table(database.name(), key="id", mode="upsert", create=True)
    assert database.put(table, [{"ID": 1, "Total": 2}, {"id": 3, "total": 4}]).misfits == ()
    assert {column.name for column in Target(database.engine, table).layout.columns} == {"id", "Total"}
    assert sorted(sorted(row) for row in database.rows(table.name)) == [[1, 2], [3, 4]]
    exact = Table(database.name(), key="id", mode="upsert", create=True, ignore_case=False)
    assert list(whys(database.put(exact, [{"ID": 1}]))) == [0]
