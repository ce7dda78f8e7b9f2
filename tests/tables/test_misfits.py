"""Values that do not fit are found before anything is written, named by column, and never told."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate import ConfigurationError
from tidegate.tables import Table, Target

from .places import Place, feed

COLUMNS = {
    "sqlite": "n INTEGER, s SMALLINT, d DECIMAL(5,2), t VARCHAR(3), r DOUBLE, b BLOB, f BOOLEAN, day DATE, "
    "at TIMESTAMPTZ, j JSON, needed TEXT NOT NULL",
    "postgres": "n bigint, s smallint, d numeric(5,2), t varchar(3), r double precision, b bytea, f boolean, day date, "
    "at timestamptz, j jsonb, needed text NOT NULL, u uuid, x text, e4 real",
    "mysql": "n BIGINT, s SMALLINT UNSIGNED, d DECIMAL(5,2), t VARCHAR(3), r DOUBLE, b VARBINARY(4), f BOOLEAN, "
    "day DATE, at DATETIME(3), j JSON, needed TEXT NOT NULL, l VARCHAR(5) CHARACTER SET latin1, ts TIMESTAMP, "
    "u3 VARCHAR(5) CHARACTER SET utf8mb3, tiny TINYTEXT",
}
SECRET = "secret-payload"
EVERYWHERE: list[tuple[str, Any, str]] = [
    ("n", 2**63, "outside of"),
    ("n", -(2**63) - 1, "outside of"),
    ("n", 10**400, "outside of"),
    ("n", SECRET, "expected a whole number, got text"),
    ("n", 1.5, "expected a whole number, got a number"),
    ("n", True, "expected a whole number, got a boolean"),
    ("n", [1], "expected a whole number, got an array"),
    ("d", 1.234, "more than 2 digits after the point"),
    ("d", 1000, "more than 3 digits before the point"),
    ("d", "NaN", "not a finite number"),
    ("d", "Infinity", "not a finite number"),
    ("d", SECRET, "not a decimal number"),
    ("d", True, "expected a decimal number"),
    ("d", {}, "expected a decimal number"),
    ("t", "abcd", "longer than 3 characters"),
    ("t", "\u00e4\u00e4\u00e4\u00e4", "longer than 3 characters"),
    ("t", 5, "expected text, got a whole number"),
    ("t", {"a": SECRET}, "expected text, got an object"),
    ("r", SECRET, "expected a number, got text"),
    ("b", "not base64!", "base64"),
    ("f", 1, "expected a boolean, got a whole number"),
    ("f", "true", "expected a boolean, got text"),
    ("day", "2024-02-30", "not a date"),
    ("day", 20240101, "expected a date"),
    ("at", "2024-01-01T25:00:00Z", "not a timestamp"),
    ("at", "0001-01-01T00:00:00+10:00", "outside of"),
    ("at", "9999-12-31T23:59:59-10:00", "outside of"),
    ("at", SECRET, "not a timestamp"),
    ("needed", None, "needs a value"),
]
ONLY: dict[str, list[tuple[str, Any, str]]] = {
    "sqlite": [],
    "postgres": [
        ("s", 2**15, "outside of -32768 to 32767"),
        ("x", "a\0b", "NUL"),
        ("j", {"a": ["\0"]}, "NUL"),
        ("t", "\0", "NUL"),
        ("u", "not-a-uuid", "not a UUID"),
        ("e4", 1e39, "too large"),
    ],
    "mysql": [
        ("s", -1, "outside of 0 to 65535"),
        ("s", 2**16, "outside of 0 to 65535"),
        ("b", "AAAAAAAA", "longer than 4 bytes"),
        ("l", "\u4e2d", "character set"),
        ("u3", "\U0001f600", "character set"),
        ("tiny", "x" * 256, "longer than 255 bytes"),
        ("ts", "2039-01-01T00:00:00Z", "outside of 1970"),
        ("ts", "1969-12-31T00:00:00Z", "outside of 1970"),
    ],
}


def test_each_kind_of_misfit_is_named_and_the_rest_is_written(database: Place) -> None:
    name = database.create(COLUMNS[database.database])
    cases = EVERYWHERE + ONLY[database.database]
    values: list[Any] = []
    for column, bad, _ in cases:
        values += [{"needed": f"good {len(values)}"}, {"needed": SECRET, column: bad}]
    rows = database.put(Table(name, exact=True), values)
    assert [misfit.place for misfit in rows.misfits] == list(range(1, len(values), 2))
    for misfit, (column, bad, why) in zip(rows.misfits, cases, strict=True):
        assert misfit.column == column, misfit
        assert why in misfit.why, (misfit, bad)
        assert SECRET not in str(misfit)
        assert column in str(misfit)
    assert len(database.rows(name)) == len(cases)
    assert len(rows) == len(cases)
    assert list(rows.places) == list(range(0, len(values), 2))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"needed": "a"} {"needed": "b"}', "not JSON"),
        (b'{"needed": "a",}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"needed": "\xff"}', "not UTF-8"),
        (b'{"needed": "\\ud800"}', "not JSON"),
        (b'{"n": NaN}', "not JSON"),
        (b"null", "expected an object, got null"),
        (b"[]", "expected an object, got an array"),
        (b"5", "expected an object, got a whole number"),
        (b'{"j": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
        (None, "tombstone"),
    ],
    ids=str,
)
def test_a_record_that_is_no_object_is_a_misfit_as_a_whole(sqlite: Place, value: bytes | None, why: str) -> None:
    name = sqlite.create(COLUMNS["sqlite"])
    rows = sqlite.put(Table(name), [{"needed": "before"}, value, {"needed": "after"}])
    (misfit,) = rows.misfits
    assert (misfit.place, misfit.column) == (1, None)
    assert why in misfit.why
    assert [row[-1] for row in sqlite.rows(name, "needed")] == ["after", "before"]


def test_json_that_is_not_utf_8_does_not_fit(sqlite: Place) -> None:
    name = sqlite.create("j JSON")
    rows = sqlite.put(Table(name), [b'{"j": ["\xff"]}', b'{"j": [1]}'])
    assert [(misfit.place, misfit.column) for misfit in rows.misfits] == [(0, "j")]


def test_numbers_that_sqlite_would_round_do_not_fit(sqlite: Place) -> None:
    name = sqlite.create("a NUMERIC, b DECIMAL(20,2)")
    values = [
        b'{"a": 123456789012345}',
        b'{"a": 1234567890123456}',
        b'{"b": 123456789012345.67}',
        b'{"b": 120000000000}',
    ]
    rows = sqlite.put(Table(name), values)
    assert [(misfit.place, misfit.column) for misfit in rows.misfits] == [(1, "a"), (2, "b")]
    assert sqlite.rows(name, "a") == [(None, 120000000000), (123456789012345, None)]


def test_not_a_number_fits_where_the_database_has_it(database: Place) -> None:
    name = database.create("n INTEGER, r DOUBLE PRECISION")
    target = Target(database.engine, Table(name))
    batch = pa.record_batch({"n": [1, 2, 3], "r": [float("nan"), float("inf"), 0.5]})
    found = {misfit.place for misfit in target.fit(batch).misfits}
    assert found == {"postgres": set(), "sqlite": {0}, "mysql": {0, 1}}[database.database]
    database.write(target, target.fit(batch))
    assert len(database.rows(name)) == 3 - len(found)


@pytest.mark.parametrize(
    "nested",
    [
        {"a": float("nan")},
        {"a": None, "b": [1.5, float("-inf")]},
        [{"a": {"b": Decimal("NaN")}}],
        {"a": Decimal("Infinity")},
        (Decimal("sNaN"),),
        {Decimal("NaN"): 1},
        float("inf"),
    ],
    ids=str,
)
def test_nan_and_infinity_inside_of_json_do_not_fit(database: Place, nested: Any) -> None:
    """JSON has no word for them: the one would be null, the other text that no database takes."""
    name = database.create("n INTEGER, j JSON")
    made = iter([{"n": 1, "j": {"a": None}}, {"n": 2, "j": nested}, {"n": 3, "j": [1.5]}])
    target = Target(database.engine, Table(name), format=lambda record: next(made))
    rows = target.read(feed([{}] * 3))
    (misfit,) = rows.misfits
    assert (misfit.place, misfit.column) == (1, "j")
    assert "NaN or Infinity" in misfit.why
    database.write(target, rows)
    assert [row[0] for row in database.rows(name, "n")] == [1, 3]


def test_nan_in_a_nested_column_of_arrow_does_not_fit(sqlite: Place) -> None:
    name = sqlite.create("n INTEGER, j JSON")
    target = Target(sqlite.engine, Table(name))
    batch = pa.record_batch({"n": [1, 2], "j": [{"a": 0.5}, {"a": float("nan")}]})
    assert [(misfit.place, misfit.column) for misfit in target.fit(batch).misfits] == [(1, "j")]


def test_values_of_a_function_are_checked_as_strictly(sqlite: Place) -> None:
    name = sqlite.create("n INTEGER, d DECIMAL(5,2), t TEXT, at TIMESTAMP, b BLOB, j JSON")
    bad: list[dict[str, Any]] = [
        {"n": 1.5},
        {"n": True},
        {"d": 1.5},
        {"d": Decimal("NaN")},
        {"d": Decimal("1.234")},
        {"t": "\ud800"},
        {"t": b"x"},
        {"at": "tomorrow"},
        {"at": 5},
        {"b": "text"},
        {"j": object()},
    ]
    good = {"n": 1, "d": Decimal("1.20"), "t": "x", "at": datetime(2024, 1, 1), "b": b"\0", "j": {"d": Decimal("1.10")}}
    made = iter([*bad, good])
    target = Target(sqlite.engine, Table(name), format=lambda record: next(made))
    rows = target.read(feed([{}] * (len(bad) + 1)))
    assert [(misfit.place, misfit.column) for misfit in rows.misfits] == [
        (i, next(iter(bad[i]))) for i in range(len(bad))
    ]
    sqlite.write(target, rows)
    assert sqlite.rows(name) == [(1, 1.2, "x", "2024-01-01 00:00:00.000000", b"\0", '{"d":1.10}')]


def test_a_timestamp_finer_than_its_column_is_cut_not_rounded(database: Place) -> None:
    kind, digits = {"postgres": ("timestamptz(0)", 0), "mysql": ("DATETIME(3)", 3), "sqlite": ("TIMESTAMP", 6)}[
        database.database
    ]
    name = database.create(f"at {kind}")
    database.put(Table(name), [{"at": "2024-12-31T23:59:59.999999999Z"}, {"at": "1969-12-31T23:59:59.9999999Z"}])
    micro = {0: 0, 3: 999000, 6: 999999}[digits]
    found = [row[0] if isinstance(row[0], datetime) else datetime.fromisoformat(row[0]) for row in database.rows(name)]
    assert [moment.replace(tzinfo=None) for moment in found] == [
        datetime(1969, 12, 31, 23, 59, 59, micro),
        datetime(2024, 12, 31, 23, 59, 59, micro),
    ]


def test_one_bad_value_does_not_change_how_its_neighbours_are_read(sqlite: Place) -> None:
    name = sqlite.create("at TIMESTAMP, d DECIMAL(9,3), n INTEGER, t TEXT")
    good = [
        {"at": "2024-01-01T00:00:00Z", "d": 1.5, "n": 1, "t": "a"},
        {"at": "2024-01-01T02:00:00+02:00", "d": "1.5", "n": 1, "t": "a"},
        {"at": "2024-01-01T00:00:00", "d": "+1.50", "n": 1, "t": "a"},
        {"at": "2024-01-01", "d": "15e-1", "n": 1, "t": "a"},
        {"at": "2024-01-01 00:00:00+00", "d": 1.500, "n": 1, "t": "a"},
    ]
    bad = {"at": "x", "d": "x", "n": 2**70, "t": "a"}
    for batch in ([good[0]], [good[0], good[1]], good, [*good, bad]):
        sqlite.run(f'DELETE FROM "{name}"')
        sqlite.put(Table(name), batch)
        assert set(sqlite.rows(name)) == {("2024-01-01 00:00:00.000000", 1.5, 1, "a")}
        assert len(sqlite.rows(name)) == len([value for value in batch if value is not bad])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_arrow_timestamps_of_any_unit_fit_if_python_has_them(sqlite: Place, unit: str) -> None:
    name = sqlite.create("at TIMESTAMP")
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    ticks = [0, -second, second // 3 * 7, 2**62]
    target = Target(sqlite.engine, Table(name))
    rows = target.fit(pa.record_batch({"at": pa.array(ticks, pa.timestamp(unit))}))
    assert [misfit.place for misfit in rows.misfits] == ([] if unit == "ns" else [3])
    assert [row["at"].isoformat() for row in rows.batch.to_pylist()][:2] == [
        "1970-01-01T00:00:00+00:00",
        "1969-12-31T23:59:59+00:00",
    ]


def test_an_arrow_type_that_can_never_fit_is_refused_with_the_column(sqlite: Place) -> None:
    name = sqlite.create("n INTEGER, d DECIMAL(5,2) NOT NULL")
    target = Target(sqlite.engine, Table(name))
    with pytest.raises(ConfigurationError, match="'d' is decimal\\(5,2\\), the rows have double; convert them first"):
        target.fit(pa.record_batch({"n": [1], "d": [1.5]}))
    with pytest.raises(ConfigurationError, match="needs a column 'd'"):
        target.fit(pa.record_batch({"n": [1]}))


def test_misfits_can_be_looked_up_after_a_part_of_the_batch_was_taken(sqlite: Place) -> None:
    name = sqlite.create("n INTEGER")
    target = Target(sqlite.engine, Table(name))
    rows = target.read(feed([{"n": 0}, {"n": "x"}, {"n": 2}, {"n": 3}]))
    part = rows.between(1, 3)
    assert [misfit.place for misfit in part.misfits] == [1]
    assert part.batch.to_pylist() == [{"n": 2}]
    assert list(part.places) == [2]
    assert len(part) == 1
    assert rows.among([0, 3]).batch.to_pylist() == [{"n": 0}, {"n": 3}]
    assert [misfit.place for misfit in rows.among([0, 1, 3]).misfits] == [1]
    assert len(rows.among([1])) == len(rows.among([])) == 0


def test_records_without_rows_leave_nothing_to_take(sqlite: Place) -> None:
    name = sqlite.create("n INTEGER")
    made = iter([None, {"n": 1}, None])
    rows = Target(sqlite.engine, Table(name), format=lambda record: next(made)).read(feed([{}] * 3))
    assert len(rows.among([0, 2])) == 0
    assert len(rows.among([0, 1, 2])) == 1
