"""Records into rows: field mapping, Kafka's metadata, tombstones, CSV and functions of one's own."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from tidegate import ConfigurationError, Record
from tidegate.tables import CsvFormat, Feed, JsonFormat, OwnFormat, Rows, Table, Target, json_format

from .places import Place, feed, records


def read(place: Place, made_of: str, values: list[Any], table: dict[str, Any] | None = None, **options: Any) -> Rows:
    name = place.create(made_of)
    given = values if values and isinstance(values[0], Record) else feed(values)
    return Target(place.engine, Table(name, **(table or {})), **options).read(given)


def listed(rows: Rows) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.batch.to_pylist()
    return found


def test_fields_are_taken_by_their_paths(sqlite: Place) -> None:
    rows = read(
        sqlite,
        "id INTEGER, city TEXT, whole JSON, id_again TEXT, odd TEXT",
        [
            {"id": 1, "address": {"city": "Ulm", "zip": "1"}, "a.b": "x"},
            {"id": 2, "address": None},
            {"id": 3, "address": {"city": None}},
            {"id": 4},
            {"id": 5, "address": "Ulm"},
            {"id": 6, "address": {"city": 5}},
        ],
        columns={
            "id": "value.id",
            "city": "value.address.city",
            "whole": "value.address",
            "odd": ("value", "a.b"),
        },
    )
    assert [(row["id"], row["city"], row["odd"]) for row in listed(rows)] == [
        (1, "Ulm", "x"),
        (2, None, None),
        (3, None, None),
        (4, None, None),
        (6, "5", None),
    ]
    assert json.loads(listed(rows)[0]["whole"]) == {"city": "Ulm", "zip": "1"}
    assert [str(misfit) for misfit in rows.misfits] == [
        "field 'address': expected an object, got text",
    ]


def test_what_kafka_knows_of_a_record_can_be_columns(sqlite: Place) -> None:
    headers = (("trace", b"a"), ("trace", b"b"), ("raw", b"\xff"), ("none", None))
    record = Record("orders", 3, 70, b"k", b'{"id": 1}', headers, 1_700_000_000_123)
    rows = read(
        sqlite,
        "id INTEGER, t TEXT, p INTEGER, o BIGINT, at TIMESTAMP, ms BIGINT, k BLOB, kt TEXT, h JSON, trace TEXT, v JSON",
        [record, record._replace(key=None, headers=(), timestamp=None)],
        columns={
            "id": "value.id",
            "t": "topic",
            "p": "partition",
            "o": "offset",
            "at": "timestamp",
            "ms": "timestamp",
            "k": "key",
            "kt": "key",
            "h": "headers",
            "trace": "headers.trace",
            "v": "value",
        },
    )
    first, second = listed(rows)
    assert first["at"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert json.loads(first["h"]) == [["trace", "a"], ["trace", "b"], ["raw", {"base64": "/w=="}], ["none", None]]
    picked = {name: first[name] for name in ("id", "t", "p", "o", "ms", "k", "kt", "trace", "v")}
    assert picked == {
        "id": 1,
        "t": "orders",
        "p": 3,
        "o": 70,
        "ms": 1_700_000_000_123,
        "k": b"k",
        "kt": "k",
        "trace": "b",
        "v": '{"id": 1}',
    }
    assert [second[name] for name in ("at", "ms", "k", "kt", "trace")] == [None] * 5


def test_fields_of_the_key_are_taken_by_their_paths(sqlite: Place) -> None:
    made = [Record("t", 0, place, key, b'{"n": 1}') for place, key in enumerate([b'{"id": 7}', b'{"id": "x"}', b"{"])]
    rows = read(sqlite, "id INTEGER, n INTEGER", made, columns={"id": "key.id", "n": "value.n"})
    assert listed(rows) == [{"id": 7, "n": 1}]
    assert [(misfit.place, misfit.column) for misfit in rows.misfits] == [(1, "id"), (2, None)]
    assert all(misfit.why.startswith("key: ") for misfit in rows.misfits)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"id": "id"}, "a source begins with one of value, key"),
        ({"id": "offset.x"}, "offset has nothing inside of it"),
        ({"id": "value..x"}, "has an empty name"),
        ({"id": "headers.a.b"}, "taken as a whole"),
        ({"nope": "value.x"}, "has no column 'nope'"),
        ({"id": "topic"}, "'id' is integer, and topic needs text"),
        ({"t": "value.t"}, "column 'id' needs a value in every row"),
    ],
)
def test_a_mapping_that_cannot_work_is_refused_before_the_first_record(
    sqlite: Place, columns: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        read(sqlite, "id INTEGER NOT NULL, t TEXT", [{}], columns=columns)


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (b"5", [5]),
        (b'{"id": 5}', [5]),
        (b'{"id": 5, "more": 1}', [5]),
        (b"five", "not a whole number"),
        (b'"5"', [5]),
        (b'{"id": "x"}', "expected a whole number"),
        (b"{}", "needs a value"),
        (None, "without a key"),
    ],
)
def test_a_tombstone_names_its_row_by_its_key(sqlite: Place, key: bytes | None, found: Any) -> None:
    name = sqlite.create("id INTEGER PRIMARY KEY, t TEXT NOT NULL")
    target = Target(sqlite.engine, Table(name, key="id", mode="upsert"))
    rows = target.read([Record("t", 0, 0, b"4", b'{"id": 4, "t": "x"}'), Record("t", 0, 1, key, None)])
    if isinstance(found, str):
        assert [misfit.place for misfit in rows.misfits] == [1]
        assert found in rows.misfits[0].why
        assert rows.tombstones.to_pylist() == [False]
    else:
        assert rows.misfits == ()
        assert rows.tombstones.to_pylist() == [False, True]
        assert [row["id"] for row in listed(rows)] == [4, *found]


@pytest.mark.parametrize("key", [b"abc", b'"abc"', b'{"id": "abc"}'])
def test_a_text_key_is_the_same_bare_or_as_json(sqlite: Place, key: bytes) -> None:
    rows = read(sqlite, "id TEXT PRIMARY KEY", [Record("t", 0, 0, key, None)], {"key": "id", "mode": "upsert"})
    assert listed(rows) == [{"id": "abc"}]


def test_a_tombstone_of_a_key_of_two_columns_needs_both(sqlite: Place) -> None:
    keys = [b'{"a": 1, "b": "x"}', b'{"a": 1}', b"1"]
    rows = read(
        sqlite,
        "a INTEGER NOT NULL, b TEXT NOT NULL, c TEXT, PRIMARY KEY (a, b)",
        [Record("t", 0, place, key, None) for place, key in enumerate(keys)],
        {"key": ("a", "b"), "mode": "upsert"},
    )
    assert listed(rows) == [{"a": 1, "b": "x", "c": None}]
    assert [misfit.place for misfit in rows.misfits] == [1, 2]


def test_a_tombstone_deletes_by_what_its_key_columns_come_from(sqlite: Place) -> None:
    made = [
        Record("t", 0, 0, b"k1", b'{"n": 1}'),
        Record("t", 0, 1, b"k1", None),
        Record("t", 0, 2, b"k2", b'{"n": 2}'),
    ]
    name = sqlite.create("k TEXT PRIMARY KEY, n INTEGER")
    target = Target(sqlite.engine, Table(name, key="k", mode="upsert"), columns={"k": "key", "n": "value.n"})
    sqlite.write(target, target.read(made))
    assert sqlite.rows(name) == [("k2", 2)]


def test_without_deleting_a_tombstone_of_whole_values_is_a_row(sqlite: Place) -> None:
    rows = read(sqlite, "k TEXT, v BLOB", [Record("t", 0, 0, b"k", None)], columns={"k": "key", "v": "value"})
    assert listed(rows) == [{"k": "k", "v": None}]


def test_csv_is_read_line_by_line(sqlite: Place) -> None:
    values = [
        b"1,abc,2.50,true,2024-01-01",
        b'2,"a,""b""\n",,0,',
        b",,,,",
        b'3,unclosed ",1,1,',
        b'4,"unclosed,1,1,',
        b"5,short",
        b"6,x,1.234,true,",
        b"7,x,1,maybe,",
        b"x,x,1,1,",
        b"\xff,x,1,1,",
        b"",
        b"8,a\nb,1,1,",
    ]
    rows = read(
        sqlite,
        "id INTEGER, t TEXT, d DECIMAL(9,2), f BOOLEAN, day DATE",
        values,
        format=CsvFormat(["id", "t", "d", "f", "day"]),
    )
    assert [row["id"] for row in listed(rows)] == [1, 2, None, 3]
    assert listed(rows)[1]["t"] == 'a,"b"\n'
    assert str(listed(rows)[0]["d"]) == "2.50"
    assert {misfit.place: misfit.column for misfit in rows.misfits} == {
        4: None,
        5: None,
        6: "d",
        7: "f",
        8: "id",
        9: None,
        10: None,
        11: None,
    }


def test_csv_with_another_delimiter_and_a_part_of_its_fields(sqlite: Place) -> None:
    form = CsvFormat(["a", "b", "c"], delimiter=";")
    rows = read(sqlite, "x INTEGER", [b"1;2;3"], format=form, columns={"x": "value.c"})
    assert listed(rows) == [{"x": 3}]
    with pytest.raises(ConfigurationError, match="the CSV's fields are a, b, c"):
        read(sqlite, "x INTEGER", [b"1;2;3"], format=form, columns={"x": "value.d"})


def test_a_function_makes_rows_or_none_of_a_record(sqlite: Place) -> None:
    def split(record: Record) -> Any:
        match record.value:
            case b"none":
                return None
            case b"error":
                raise ValueError("secret")
            case b"wrong":
                return ["text"]
            case value:
                return [{"t": word, "n": number} for number, word in enumerate(str(value, "utf-8").split())]

    made = records(b"a b", b"none", b"error", b"wrong", b"c \xe2\x82\xac", b"")
    rows = read(
        sqlite,
        "t TEXT, n INTEGER, o INTEGER",
        made,
        format=split,
        columns={"t": "value.t", "n": "value.n", "o": "offset"},
    )
    assert [(row["t"], row["n"], row["o"]) for row in listed(rows)] == [
        ("a", 0, 70),
        ("b", 1, 70),
        ("c", 0, 74),
        ("\u20ac", 1, 74),
    ]
    assert list(rows.places) == [0, 0, 4, 4]
    assert [misfit.place for misfit in rows.misfits] == [2, 3]
    assert "secret" not in str(rows.misfits)


def test_one_bad_row_of_a_record_takes_its_other_rows_with_it(sqlite: Place) -> None:
    rows = read(
        sqlite,
        "n INTEGER",
        records(b"1", b"2"),
        format=lambda record: [{"n": 1}, {"n": int(record.value) if record.value == b"2" else "x"}],
    )
    assert listed(rows) == [{"n": 1}, {"n": 2}]
    assert [misfit.place for misfit in rows.misfits] == [0]


def test_a_function_is_not_asked_about_tombstones_that_delete(sqlite: Place) -> None:
    made = [Record("t", 0, 0, b"1", b"x"), Record("t", 0, 1, b"1", None), Record("t", 0, 2, b"2", b"y")]
    name = sqlite.create("id INTEGER PRIMARY KEY, t TEXT")

    def row(record: Record) -> dict[str, Any]:
        assert record.value is not None
        return {"id": int(record.key or b"0"), "t": record.value.decode()}

    target = Target(sqlite.engine, Table(name, key="id", mode="upsert"), format=OwnFormat(row))
    sqlite.write(target, target.read(made))
    assert sqlite.rows(name) == [(2, "y")]


def test_fields_without_a_column_are_left_out(sqlite: Place) -> None:
    assert listed(read(sqlite, "id INTEGER", [{"id": 1, "more": {"x": 1}}])) == [{"id": 1}]


def test_a_layout_and_a_feed_are_all_that_an_executor_needs(sqlite: Place) -> None:
    name = sqlite.create("id INTEGER PRIMARY KEY, t TEXT")
    layout = pickle.loads(pickle.dumps(Target(sqlite.engine, Table(name)).layout))
    sqlite.statements.clear()
    target = Target(sqlite.engine, layout.table, format=JsonFormat(), layout=layout)
    rows = target.read(Feed(value=[b'{"id": 1, "t": "x"}']))
    assert sqlite.statements == []
    sqlite.write(target, rows)
    assert sqlite.rows(name) == [(1, "x")]


MANY: list[Any] = [
    {"id": 1, "city": "Ulm", "more": 1},
    {"id": "x", "city": "Ulm"},
    {"id": 3, "at": "2026-01-02T03:04:05Z"},
    b"no object",
    {"ID": 5, "city": None},
    {"id": 6, "city": 7, "at": "no time"},
    {"id": None, "city": "Bonn"},
    {"city": "Ulm"},
]


@pytest.mark.parametrize("unknown", ["ignore", "refuse"])
@pytest.mark.parametrize("at_once", [1, 3, 7])
def test_records_that_are_read_in_parts_make_the_same_rows(
    sqlite: Place, monkeypatch: pytest.MonkeyPatch, at_once: int, unknown: str
) -> None:
    """Places, misfits and missing fields are those of the whole, wherever a part ends."""
    made_of, table = "id INTEGER, city TEXT DEFAULT 'none', at TIMESTAMP", {"unknown": unknown}
    whole = read(sqlite, made_of, MANY * 2, table)
    monkeypatch.setattr(json_format, "_AT_ONCE", at_once)
    parts = read(sqlite, made_of, MANY * 2, table)
    assert parts.batch.equals(whole.batch)
    assert list(parts.places) == list(whole.places)
    assert parts.misfits == whole.misfits
    assert len(whole.misfits) > 2
    assert {name: mask.to_pylist() for name, mask in parts.lacking.items()} == {
        name: mask.to_pylist() for name, mask in whole.lacking.items()
    }
    assert set(whole.lacking) == {"city", "id", "at"}
    assert {misfit.column for misfit in whole.misfits} >= {"id", "at"}


@pytest.mark.parametrize("choice", ["xml", 5])
def test_an_unknown_format_is_refused(sqlite: Place, choice: Any) -> None:
    with pytest.raises(ConfigurationError, match="format"):
        Target(sqlite.engine, Table("x"), format=choice)
