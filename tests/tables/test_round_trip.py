"""What goes in comes out: every type, by every way, value by value."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.tables import Table, Target

from .places import Place, feed

COLUMNS = {
    "n": int,
    "flag": bool,
    "small": "decimal(12,2)",
    "big": "decimal(38,9)",
    "free": Decimal,
    "real": float,
    "words": str,
    "raw": bytes,
    "day": date,
    "at": datetime,
    "deep": dict,
}

NASTY = [
    "",
    " ",
    "\\",
    "\\N",
    "\\.",
    "a\\tb",
    "a\tb",
    "a\nb\r\nc\r",
    "\\.\n\\.\n",
    "NULL",
    "null",
    "'single' \"double\" `back`",
    "%s %(x)s %",
    "{a,b}",
    "\u00e4\u4e2d\U0001f600\ufeff\u2028",
    "\x01\x1f\x7f\x1a",
    "x" * 70_000,
]
EXTREMES: list[dict[str, Any]] = [
    dict.fromkeys(COLUMNS),
    {"n": -(2**63), "flag": False, "small": Decimal("-9999999999.99"), "real": 1.7976931348623157e308},
    {"n": 2**63 - 1, "flag": True, "small": Decimal("9999999999.99"), "real": 5e-324},
    {"n": 0, "small": Decimal("0.00"), "big": Decimal("0E-9"), "real": -0.0},
    {"big": Decimal("12345678901234567890123456789.123456789"), "free": Decimal("1234567890123456789012345678.9")},
    {"big": Decimal("-99999999999999999999999999999.999999999"), "free": Decimal("-0.00000000000000000000000001")},
    {"day": date(1, 1, 1), "at": datetime(1, 1, 1, tzinfo=UTC)},
    {"day": date(9999, 12, 31), "at": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)},
    {"at": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=5, minutes=30)))},
    {"day": date(1900, 2, 28), "at": datetime(2024, 10, 27, 2, 30, tzinfo=timezone(timedelta(hours=-11)))},
    {"raw": b""},
    {"raw": bytes(range(256))},
    {"deep": {}},
    {"deep": [1, 2.5, "x", None, {"deep\\er": ["\t\n\\"]}]},
    {"deep": {"\u00e4": "\U0001f600", "n": 12345678901234567890}},
    *({"words": text} for text in NASTY),
]


def as_json(row: dict[str, Any]) -> bytes:
    """A row as a producer would write it."""
    parts = []
    for name, value in row.items():
        match value:
            case Decimal():
                text = str(value)
            case bytes():
                text = json.dumps(base64.b64encode(value).decode())
            case date():
                text = json.dumps(value.isoformat())
            case _:
                text = json.dumps(value)
        parts.append(f"{json.dumps(name)}: {text}")
    return ("{" + ", ".join(parts) + "}").encode()


def stored(value: Any, name: str) -> Any:
    """What a database gave back, as the value that it stands for: drivers differ, values must not."""
    if value is None:
        return None
    match name:
        case "flag":
            return bool(value)
        case "small" | "big" | "free":
            return Decimal(str(value))
        case "day":
            return date.fromisoformat(value) if isinstance(value, str) else value
        case "at":
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        case "raw":
            return bytes(value)
        case "deep":
            return json.loads(value) if isinstance(value, str) else value
    return value


def same(written: dict[str, Any], found: dict[str, Any]) -> bool:
    return all(
        (found[name] is None) == (written.get(name) is None) and stored(found[name], name) == written.get(name)
        for name in COLUMNS
    )


def check_round_trip(place: Place, table: Table, rows: list[dict[str, Any]]) -> None:
    name = table.name
    place.run(f"DELETE FROM {place.quote(name)}")
    numbered = [{**row, "row": number} for number, row in enumerate(rows)]
    read = place.put(table, [as_json(row) for row in numbered])
    assert read.misfits == ()
    names = ["row", *COLUMNS]
    found = [dict(zip(names, row, strict=True)) for row in place.rows(name)]
    assert len(found) == len(rows)
    different = [(row, got) for row, got in zip(rows, found, strict=True) if not same(row, got)]
    assert not different, different[0]


@pytest.fixture
def table(place: Place) -> Table:
    """Created by the place itself, so that its own types are what is tested."""
    name = place.name()
    table = Table(name, create=True, columns={"row": int, **COLUMNS})
    Target(place.engine, table).prepare()
    return Table(name)


def values_of(place: Place) -> st.SearchStrategy[dict[str, Any]]:
    """Any row that the database can hold."""
    forbidden = "\0" if place.database == "postgres" else ""
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=forbidden), max_size=20)
    # Backslashes, tabs and quotes next to each other are where escaping goes wrong.
    text |= st.text(st.sampled_from("\\\t\n\r\"'`,{}N.%sx"), max_size=12)
    small = st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-2))
    # Numbers that JSON readers may keep as floats are no decimals' business.
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=5,
    )
    nested = st.dictionaries(text, json_values, max_size=3) | st.lists(json_values, max_size=3)
    columns: dict[str, st.SearchStrategy[Any]] = {
        "n": st.integers(-(2**63), 2**63 - 1),
        "flag": st.booleans(),
        "small": small,
        "big": st.decimals(-(10**29) + 1, 10**29 - 1, places=9, allow_nan=False),
        "free": st.decimals(-(10**30), 10**30, allow_nan=False, places=20),
        "real": st.floats(allow_nan=False, allow_infinity=False),
        "words": text,
        "raw": st.binary(max_size=20),
        "day": st.dates(),
        "at": st.datetimes(timezones=st.just(UTC)),
        "deep": nested,
    }
    return st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in columns.items()})


def test_extremes_come_back_as_they_went_in(place: Place, table: Table) -> None:
    with_nul = [] if place.database == "postgres" else [{"words": "a\0b"}, {"words": "\0"}]
    check_round_trip(place, table, [*EXTREMES, *with_nul])


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_rows_come_back_as_they_went_in(place: Place, table: Table, data: st.DataObject) -> None:
    check_round_trip(place, table, data.draw(st.lists(values_of(place), min_size=1, max_size=25)))


@pytest.fixture
def keyed(database: Place) -> Table:
    table = Table(database.name(), key="row", mode="upsert", create=True, columns={"row": int, **COLUMNS})
    Target(database.engine, table).prepare()
    return table


def test_upserts_keep_the_same_values(database: Place, keyed: Table) -> None:
    check_round_trip(database, keyed, EXTREMES)
    nothing = dict.fromkeys(COLUMNS)
    database.put(keyed, [as_json({**nothing, **row, "row": number}) for number, row in enumerate(reversed(EXTREMES))])
    found = [dict(zip(["row", *COLUMNS], row, strict=True)) for row in database.rows(keyed.name)]
    assert all(same(row, got) for row, got in zip(reversed(EXTREMES), found, strict=True))


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_rows_come_back_from_an_upsert(database: Place, keyed: Table, data: st.DataObject) -> None:
    check_round_trip(database, keyed, data.draw(st.lists(values_of(database), min_size=1, max_size=25)))


def test_arrow_batches_of_others_keep_the_same_values(place: Place, table: Table) -> None:
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "row": 1,
                "n": 5,
                "small": Decimal("1.5"),
                "words": "a\tb",
                "raw": b"\0",
                "deep": {"a": [Decimal("1.10")]},
            },
            {"row": 2, "n": None, "small": None, "words": None, "raw": None, "deep": None},
        ],
        schema=pa.schema(
            {
                "row": pa.int32(),
                "n": pa.int16(),
                "small": pa.decimal128(5, 1),
                "words": pa.large_string(),
                "raw": pa.large_binary(),
                "deep": pa.struct({"a": pa.list_(pa.decimal128(5, 2))}),
            }
        ),
    )
    target = Target(place.engine, table)
    rows = target.fit(batch)
    assert rows.misfits == ()
    place.write(target, rows)
    (first, second) = (dict(zip(["row", *COLUMNS], row, strict=True)) for row in place.rows(table.name))
    assert same({"n": 5, "small": Decimal("1.5"), "words": "a\tb", "raw": b"\0", "deep": {"a": [1.1]}}, first)
    assert same({}, second)


def test_a_batch_of_no_rows_writes_nothing(place: Place, table: Table) -> None:
    target = Target(place.engine, table)
    place.write(target, target.read(feed([])))
    assert place.rows(table.name) == []


def test_timestamps_are_the_same_moment_whatever_the_sessions_zone_is(database: Place) -> None:
    zoned, bare = {
        "postgres": ("timestamptz", "timestamp"),
        "mysql": ("TIMESTAMP(6) NULL", "DATETIME(6)"),
        "sqlite": ("TIMESTAMPTZ", "TIMESTAMP"),
    }[database.database]
    name = database.create(f"zoned {zoned}, bare {bare}")
    setting = {"postgres": "SET TIME ZONE '{}'", "mysql": "SET SESSION time_zone = '{}'", "sqlite": "SELECT '{}'"}
    target = Target(database.engine, Table(name))
    rows = target.read(feed([{"zoned": "2026-03-29T03:30:00+02:00", "bare": "2026-03-29T03:30:00+02:00"}]))
    with database.engine.begin() as conn:
        conn.exec_driver_sql(setting[database.database].format("+05:30"))
        target.write(conn, rows)
        conn.exec_driver_sql(setting[database.database].format("+00:00"))
        found = [str(value) for value in conn.exec_driver_sql(f"SELECT * FROM {name}").one()]
    assert [text.removesuffix(".000000").replace(".000000+", "+") for text in found] == [
        "2026-03-29 01:30:00" + ("" if database.database == "mysql" else "+00:00"),
        "2026-03-29 01:30:00",
    ]
