"""Change events: samples of a real Debezium, and random events, in any cut, beside the same events one by one."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from hashlib import md5
from typing import Any

import pytest
from tests.tables.events import MISSING, Story, cuts, encoded, event, samples, sent
from tests.tables.handlers import sink_handler
from tests.tables.places import Place
from tests.tables.trial import write

from tidegate import ConfigurationError, Record, Table
from tidegate.app.sink import Sink
from tidegate.tables import DebeziumFormat, Target

HINT = "REPLICA IDENTITY FULL"


def put(place: Place, table: Table, records: Sequence[Record], **how: Any) -> list[str]:
    """Write what fits, and return why the others do not."""
    target = Target(place.engine, table, **{"format": "debezium"} | how)
    rows = target.read(records)
    place.write(target, rows)
    return [str(misfit) for misfit in rows.misfits]


def shown(place: Place, table: Table, columns: str, order: str = "1") -> list[tuple[Any, ...]]:
    return place.rows_of(f"SELECT {columns} FROM {table.name} ORDER BY {order}")


def test_a_table_is_made_from_the_schemas_of_the_events(database: Place) -> None:
    table = Table(database.name(), key=["id"], mode="upsert", create=True, evolve=True)
    assert put(database, table, samples("enveloped", "orders", "00")) == []
    [row] = database.rows_of(f"SELECT total, day, tm, iv, hs, big, doc, customer, {_raw(database)} FROM {table.name}")
    assert Decimal(str(row[0])) == Decimal("12.50")
    assert str(row[1]) == "2024-01-02"
    assert row[2:5] == ("03:04:05.678901", "26:03:04", "1010")
    assert Decimal(str(row[5])) == Decimal("123456789012345678901234567890.123456789")
    assert json.loads(row[6]) if isinstance(row[6], str) else row[6] == {"k": 1}
    assert row[7:] == ("alice", b"\x00\xff")


def _raw(place: Place) -> str:
    return "raw"


def test_without_schemas_the_types_of_the_columns_decide(database: Place) -> None:
    columns = {
        "id": "integer",
        "total": "decimal(12,2)",
        "day": "date",
        "big": "decimal(50,9)",
        "at_local": "timestamp(us)",
        "doc": "json",
    }
    table = Table(database.name(), key=["id"], mode="upsert", create=True, columns=columns)
    assert put(database, table, samples("plain", "orders", "00")) == []
    [row] = shown(database, table, "total, day, big, at_local")
    assert Decimal(str(row[0])) == Decimal("12.50")
    assert str(row[1]) == "2024-01-02"
    assert Decimal(str(row[2])) == Decimal("123456789012345678901234567890.123456789")
    assert str(row[3])[:26] == "2024-01-02 03:04:05.678901"


@pytest.mark.parametrize("format", ["debezium", "connect-json"])
def test_a_table_cannot_be_made_from_records_without_a_schema_which_says_how_to_get_one(
    sqlite: Place, format: str
) -> None:
    table = Table(sqlite.name(), key=["id"], mode="upsert", create=True)
    values = {"debezium": event("c", {"id": 1}), "connect-json": encoded({"schema": None, "payload": {"id": 1}})}
    [why] = put(sqlite, table, sent(({"id": 1}, values[format])), format=format)
    assert "the records have no schema" in why
    assert "schemas.enable=true" in why


def test_without_a_schema_nothing_is_guessed(sqlite: Place) -> None:
    table = Table(sqlite.name(), key=["id"], mode="upsert", create=True)
    [why] = put(sqlite, table, samples("plain", "orders", "01"))
    assert "does not exist" in why
    times = Table(sqlite.create("id INTEGER PRIMARY KEY, at_local TIMESTAMP, big NUMERIC"), key="id", mode="upsert")
    [why] = put(sqlite, times, samples("plain", "orders", "00"))
    assert "declare what it counts" in why
    [why] = put(sqlite, times, sent(({"id": 1}, event("c", {"id": 1, "big": "BOI="}))))
    assert "schemas.enable=true" in why


def test_text_of_a_decimal_is_base64_unless_it_is_declared_as_digits(sqlite: Place) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, n DECIMAL(12,2)"), key="id", mode="upsert")
    records = sent(({"id": 1}, event("c", {"id": 1, "n": "1234"})))
    assert put(sqlite, table, records) == []
    assert sqlite.rows(table.name) == [(1, float(int.from_bytes(base64.b64decode("1234"), signed=True)) / 100)]
    assert put(sqlite, table, records, format=DebeziumFormat(decimals="digits")) == []
    assert sqlite.rows(table.name) == [(1, 1234)]


def test_the_steps_of_a_real_source_leave_its_rows(database: Place) -> None:
    """Insert, update, a change of the key, deletes, a savepoint that is rolled back, a column that is added."""
    table = Table(database.name(), key=["id"], mode="upsert", create=True, columns={"id": "integer", "status": "text"})
    steps = ["00", "01", "02", "03", "04", "11", "12", "13"]
    assert put(database, table, samples("plain", "orders", *steps)) == []
    expected = {1: "new", 30: "new", 31: "new", 41: None, 50: None}
    found = dict(shown(database, table, "id, status"))
    assert 2 not in found
    assert 20 not in found
    assert 32 not in found
    assert found.items() >= {key: expected[key] for key in (1, 41, 50)}.items()


def test_a_delete_takes_its_key_from_the_key_of_the_record(sqlite: Place) -> None:
    """The rest of `before` is made up: the customer is an empty text."""
    table = Table(sqlite.create("id INTEGER, customer TEXT PRIMARY KEY"), key="customer", mode="upsert")
    sqlite.run(f"INSERT INTO {table.name} VALUES (7, ''), (20, 'bob')")
    [why] = put(sqlite, table, samples("plain", "orders", "04"))
    assert "message.key.columns" in why
    assert sorted(sqlite.rows(table.name)) == [(7, ""), (20, "bob")]


def test_a_key_that_is_not_that_of_the_source_changes_as_delete_and_create(sqlite: Place) -> None:
    table = Table(sqlite.create("code TEXT PRIMARY KEY, id INTEGER"), key="code", mode="upsert")
    one, two = {"code": "a", "id": 1}, {"code": "b", "id": 1}
    events = [({"id": 1}, event("c", one)), ({"id": 1}, event("u", two, one))]
    assert put(sqlite, table, sent(*events)) == []
    assert sqlite.rows(table.name) == [("b", 1)]
    [why] = put(sqlite, table, sent(({"id": 1}, event("u", one))))
    assert HINT in why


def test_a_table_without_a_key_has_whole_rows(sqlite: Place) -> None:
    table = Table(sqlite.create("a INTEGER PRIMARY KEY, b TEXT"), key="a", mode="upsert")
    records = samples("plain", "keyless", "10")
    assert [record.key for record in records if record.value] == [None] * 3
    names = json.loads(records[0].value or b"")["after"]
    table = Table(sqlite.create(", ".join(f"{name} TEXT" for name in names) + ", UNIQUE (a)"), key="a", mode="upsert")
    assert put(sqlite, table, records) == []
    assert sqlite.rows(table.name) == []


def test_an_unavailable_value_stays_as_it_is(database: Place) -> None:
    table = Table(
        database.name(),
        key=["id"],
        mode="upsert",
        create=True,
        columns={"id": "integer", "n": "integer", "big": "text not null"},
    )
    assert put(database, table, samples("plain", "toasty", "05")) == []
    [(before,)] = shown(database, table, "big")
    assert put(database, table, samples("plain", "toasty", "06")) == []
    assert shown(database, table, "id, n, big") == [(1, 2, before)]
    assert put(database, table, samples("plain", "toasty", "07")) == []
    assert shown(database, table, "id") == []


@pytest.mark.parametrize(
    "value",
    [
        MISSING,
        base64.b64encode(MISSING.encode()).decode(),
        [MISSING],
        list(MISSING.encode()),
        {MISSING: MISSING},
    ],
    ids=["text", "bytes", "texts", "numbers", "map"],
)
def test_an_unavailable_value_of_a_new_row_is_refused(sqlite: Place, value: Any) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, big TEXT"), key="id", mode="upsert")
    for op in "cr":
        [why] = put(sqlite, table, sent(({"id": 1}, event(op, {"id": 1, "big": value}))))
        assert "column 'big'" in why
        assert HINT in why


def test_the_text_of_a_placeholder_within_a_longer_value_is_a_value(sqlite: Place) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, big TEXT"), key="id", mode="upsert")
    assert put(sqlite, table, sent(({"id": 1}, event("c", {"id": 1, "big": f"see {MISSING}"})))) == []
    assert sqlite.rows(table.name) == [(1, f"see {MISSING}")]
    own = DebeziumFormat(placeholder="none")
    assert put(sqlite, table, sent(({"id": 1}, event("u", {"id": 1, "big": "none"}))), format=own) == []
    assert sqlite.rows(table.name) == [(1, f"see {MISSING}")]


OTHERS = {
    "heartbeat": {"ts_ms": 1794777154163},
    "begin": {"status": "BEGIN", "id": "749:26922296", "event_count": None, "data_collections": None, "ts_ms": 1},
    "schema change": {
        "source": {"server": "a"},
        "databaseName": "b",
        "ddl": "CREATE TABLE c (id INT)",
        "tableChanges": [],
    },
    "message": {"op": "m", "ts_ms": 1, "message": {"prefix": "p", "content": "YQ=="}},
    "tombstone": None,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_changes_no_row_is_passed_over(sqlite: Place, name: str) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY"), key="id", mode="upsert")
    sqlite.run(f"INSERT INTO {table.name} VALUES (1)")
    for value in [OTHERS[name]] + ([] if OTHERS[name] is None else [{"schema": {}, "payload": OTHERS[name]}]):
        assert put(sqlite, table, sent(({"id": 1}, encoded(value)))) == []
    assert sqlite.rows(table.name) == [(1,)]


def test_the_topic_of_transactions_is_passed_over(sqlite: Place) -> None:
    table = Table(sqlite.create("id TEXT PRIMARY KEY"), key="id", mode="upsert")
    for kind in ("plain", "enveloped"):
        records = samples(kind, "transaction")
        assert records
        assert put(sqlite, table, records) == []
    assert sqlite.rows(table.name) == []


@pytest.mark.parametrize(
    "value", [b"{", b"[]", b'{"id":1}', b'{"op":"x","after":{"id":1}}', b'{"op":"c","after":null}']
)
def test_what_is_no_event_is_refused(sqlite: Place, value: bytes) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY"), key="id", mode="upsert")
    assert len(put(sqlite, table, sent(({"id": 1}, value)))) == 1
    assert sqlite.rows(table.name) == []


def test_special_values(on_postgres: Place) -> None:
    table = Table(
        on_postgres.create(
            "id int PRIMARY KEY, at timestamptz, local timestamp, ratio float8, b bit(4), p point, n numeric[]"
        ),
        key="id",
        mode="upsert",
    )
    kinds = [
        {"field": "id", "type": "int32"},
        {"field": "local", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "b", "type": "bytes", "name": "io.debezium.data.Bits", "parameters": {"length": "4"}},
        {"field": "p", "type": "struct", "name": "io.debezium.data.geometry.Point", "fields": []},
        {
            "field": "n",
            "type": "array",
            "items": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
        },
    ]
    kinds += [
        {"field": "at", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        {"field": "ratio", "type": "double"},
    ]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": kinds}]}
    first = {"id": 1, "at": "infinity", "local": 9223372036825200000, "ratio": "NaN", "b": "Cg==", "n": ["AJY=", None]}
    second = {"id": 2, "at": "-infinity", "local": -9223372036832400000, "ratio": "-Infinity"}
    second |= {"p": {"x": 1.0, "y": 2.5, "wkb": "AQEAAAAAAAAAAADwPwAAAAAAAARA", "srid": None}}
    values = [encoded({"schema": schema, "payload": {"op": "c", "after": row}}) for row in (first, second)]
    assert put(on_postgres, table, sent(*(({"id": 1}, value) for value in values))) == []
    found = on_postgres.rows_of(
        f"SELECT at::text, local::text, ratio::text, b::text, p::text, n::text FROM {table.name} ORDER BY id"
    )
    assert found == [
        ("infinity", "infinity", "NaN", "1010", None, "{1.50,NULL}"),
        ("-infinity", "-infinity", "-Infinity", None, "(1,2.5)", None),
    ]


def test_an_infinite_date_is_refused_as_its_number_does_not_tell_which(database: Place) -> None:
    table = Table(database.name(), key=["id"], mode="upsert", create=True, columns={"id": "integer", "day": "date"})
    whys = put(database, table, samples("plain", "orders", "15"))
    assert whys == ["column 'day': a time outside of the years 1 to 9999"]


@pytest.mark.parametrize(
    "how", [{}, {"key": "id", "mode": "update"}, {"key": "id", "mode": "upsert", "tombstones": "ignore"}]
)
def test_a_table_that_cannot_delete_is_refused(sqlite: Place, how: Any) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY"), **how)
    with pytest.raises(ConfigurationError, match="change events need mode='upsert'"):
        Target(sqlite.engine, table, format="debezium").read([])


def test_a_truncate_empties_the_table_between_the_rows(database: Place) -> None:
    table = Table(database.create("id INTEGER PRIMARY KEY, n INTEGER"), key="id", mode="upsert")
    assert put(database, table, samples("plain", "nothing")) == []
    rows = [({"id": number}, event("c", {"id": number, "n": 0})) for number in range(3)]
    [truncate] = [record.value for record in samples("plain", "orders", "14")]
    events = [*rows, (None, truncate), ({"id": 1}, event("c", {"id": 1, "n": 5})), (None, truncate), rows[2]]
    assert put(database, table, sent(*events)) == []
    assert database.rows(table.name) == [(2, 0)]


@pytest.mark.parametrize("partitions", [0, 1, 3])
def test_a_sink_truncates_only_if_its_group_reads_one_partition(sqlite: Place, partitions: int) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY"), key="id", mode="upsert")
    sqlite.run(f"INSERT INTO {table.name} VALUES (1)")
    sink = sink_handler(Sink(table, format="debezium"), sqlite.engine, count=lambda: partitions)
    records = sent((None, event("t")), ({"id": 2}, event("c", {"id": 2})))
    with sqlite.engine.begin() as conn:
        parked = write(sink, conn, records)
    assert parked == (set() if partitions == 1 else {0})
    assert sqlite.rows(table.name) == ([(2,)] if partitions == 1 else [(1,), (2,)])


@pytest.mark.parametrize("number", range(6))
def test_any_cut_leaves_what_the_events_leave_one_by_one(database: Place, number: int) -> None:
    story = Story(f"{database.way} {number}")
    story.tell(60)
    assert story.parked
    for size in (1, 7, 60):
        table = Table(database.create("id INTEGER PRIMARY KEY, n INTEGER, big VARCHAR(20)"), key="id", mode="upsert")
        sink = sink_handler(Sink(table, format="debezium"), database.engine, count=lambda: 1)
        parked: set[int] = set()
        for batch in cuts(story.records, size):
            with database.engine.begin() as conn:
                parked |= write(sink, conn, batch)
        found = {key: (n, big) for key, n, big in database.rows(table.name)}
        assert found == story.rows, f"in batches of {size}"
        assert parked == story.parked, f"in batches of {size}"


@pytest.mark.parametrize("number", range(3))
def test_any_cut_leaves_deleted_rows_marked(database: Place, number: int) -> None:
    story = Story(f"soft {database.way} {number}", is_soft=True)
    story.tell(60)
    assert any(b'"op":"d"' in (record.value or b"") for record in story.records)
    for size in (1, 7, 60):
        columns = "id INTEGER PRIMARY KEY, n INTEGER, big VARCHAR(20), deleted BOOLEAN NOT NULL"
        table = Table(database.create(columns), key="id", mode="upsert", soft_delete="deleted")
        sink = sink_handler(Sink(table, format="debezium"), database.engine, count=lambda: 1)
        parked: set[int] = set()
        for batch in cuts(story.records, size):
            with database.engine.begin() as conn:
                parked |= write(sink, conn, batch)
        found = {key: (n, big, bool(deleted)) for key, n, big, deleted in database.rows(table.name)}
        assert found == story.kept, f"in batches of {size}"
        assert parked == story.parked, f"in batches of {size}"


def test_the_column_of_deleted_rows_is_made_and_refused(sqlite: Place) -> None:
    made = Table(sqlite.name(), key="id", mode="upsert", create=True, columns={"id": "integer"}, soft_delete="gone")
    records = sent(({"id": 1}, event("c", {"id": 1})), ({"id": 2}, event("c", {"id": 2, "gone": True})))
    assert put(sqlite, made, [*records, *sent(({"id": 1}, event("d", None, {"id": 1})))]) == []
    assert sqlite.rows(made.name) == [(1, 1), (2, 0)]
    for columns, why in (
        ("id INTEGER PRIMARY KEY", "no column 'gone'"),
        ("id INTEGER PRIMARY KEY, gone TEXT", "no bool"),
    ):
        table = Table(sqlite.create(columns), key="id", mode="upsert", soft_delete="gone")
        with pytest.raises(ConfigurationError, match=why):
            Target(sqlite.engine, table, format="debezium").prepare()
    with pytest.raises(ConfigurationError, match="has no source"):
        Target(sqlite.engine, made, columns={"id": "value.id", "gone": "value.x"}).read([])
    for how in (
        {"mode": "append"},
        {"mode": "upsert", "tombstones": "ignore"},
        {"mode": "upsert", "soft_delete": "id"},
    ):
        with pytest.raises(ConfigurationError, match="soft_delete|in the key"):
            Table("t", **({"key": "id", "soft_delete": "gone"} | how))


def test_tombstones_mark_rows_too(sqlite: Place) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, gone BOOLEAN"), key="id", mode="upsert", soft_delete="gone")
    records = sent((1, b'{"id":1}'), (2, b'{"id":2}'), (1, None), (3, None))
    assert put(sqlite, table, records, format="json") == []
    assert sqlite.rows(table.name) == [(1, 1), (2, 0)]


CONNECT: Mapping[str, Any] = {
    "type": "struct",
    "fields": [
        {"field": "id", "type": "int32"},
        {"field": "n", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
        {"field": "d", "type": "int32", "name": "org.apache.kafka.connect.data.Date"},
        {"field": "t", "type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"},
        {"field": "c", "type": "int32", "name": "org.apache.kafka.connect.data.Time"},
    ],
}


def test_the_envelope_of_connect_is_opened(database: Place) -> None:
    table = Table(database.name(), key=["id"], mode="upsert", create=True)
    row = {"id": 1, "n": "BOI=", "d": 19724, "t": 1704164645678, "c": 11045678}
    values = [{"schema": CONNECT, "payload": row}, {"schema": None, "payload": {"id": 2}}, {"id": 3}]
    records = sent(*(({"schema": {"type": "int32"}, "payload": 1}, encoded(value)) for value in values))
    whys = put(database, table, records, format="connect-json")
    assert len(whys) == 1
    assert "schemas.enable=true" in whys[0]
    first, second = shown(database, table, "id, n, d, t, c")
    assert Decimal(str(first[1])) == Decimal("12.50")
    assert [str(value)[:23] for value in first[2:]] == ["2024-01-02", "2024-01-02 03:04:05.678", "03:04:05.678000"]
    assert second == (2, None, None, None, None)


def test_a_tombstone_of_connect_has_its_key_in_an_envelope(sqlite: Place) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY"), key="id", mode="upsert")
    sqlite.run(f"INSERT INTO {table.name} VALUES (1), (2), (3)")
    keys = [{"schema": {"type": "int32"}, "payload": 1}, {"schema": {"type": "struct"}, "payload": {"id": 2}}]
    assert put(sqlite, table, sent(*((key, None) for key in keys)), format="connect-json") == []
    assert sqlite.rows(table.name) == [(3,)]


def test_fields_of_several_schemas_keep_their_records(sqlite: Place) -> None:
    """A column that is added changes the schema in the middle of a batch, and back for what was on its way."""
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, d DATE, more TEXT"), key="id", mode="upsert")
    days = {"type": "struct", "fields": CONNECT["fields"][2:3]}
    text = {"type": "struct", "fields": [{"field": "d", "type": "string"}, {"field": "more", "type": "string"}]}
    rows = [{"id": n, "d": 19724 + n} if n % 2 else {"id": n, "d": "2024-01-02", "more": f"m{n}"} for n in range(6)]
    values = [encoded({"schema": days if n % 2 else text, "payload": row}) for n, row in enumerate(rows)]
    values[3] = encoded({"schema": days, "payload": {"id": 3, "d": "no date"}})
    whys = put(sqlite, table, sent(*((None, value) for value in values)), format="connect-json")
    assert len(whys) == 1
    found = sqlite.rows(table.name)
    assert [row[0] for row in found] == [0, 1, 2, 4, 5]
    assert [row[1] for row in found] == [
        "2024-01-02",
        str(date.fromordinal(date(2024, 1, 3).toordinal())),
        "2024-01-02",
        "2024-01-02",
        "2024-01-07",
    ]
    assert [row[2] for row in found] == ["m0", None, "m2", "m4", None]


@pytest.mark.parametrize(
    "missing",
    [[base64.b64encode(MISSING.encode()).decode()], [str(uuid.UUID(bytes=md5(MISSING.encode()).digest(), version=3))]],
    ids=["bytea[]", "uuid[]"],
)
def test_an_unavailable_array_stays_as_it_is(sqlite: Place, missing: list[str]) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, n INTEGER, v TEXT"), key="id", mode="upsert")
    sqlite.run(f"INSERT INTO {table.name} VALUES (1, 1, 'long')")
    assert put(sqlite, table, sent(({"id": 1}, event("u", {"id": 1, "n": 2, "v": missing})))) == []
    assert sqlite.rows(table.name) == [(1, 2, "long")]


def test_an_unavailable_value_that_no_column_takes_does_not_matter(sqlite: Place) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, n INTEGER"), key="id", mode="upsert")
    assert put(sqlite, table, sent(({"id": 1}, event("c", {"id": 1, "n": 2, "big": MISSING})))) == []
    assert put(sqlite, table, sent(({"id": 2}, event("u", {"id": 2, "n": 3, "big": MISSING})))) == []
    assert sqlite.rows(table.name) == [(1, 2), (2, 3)]


def test_an_empty_operation_is_a_misfit(sqlite: Place) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY"), key="id", mode="upsert")
    [why] = put(sqlite, table, sent(({"id": 1}, event("", {"id": 1}))))
    assert "operation is unknown" in why


def envelope(fields: list[dict[str, Any]], **payload: Any) -> bytes | None:
    return encoded({"schema": {"type": "struct", "fields": fields}, "payload": payload})


def test_a_number_out_of_range_is_a_misfit_whatever_comes_beside_it(sqlite: Place) -> None:
    fields = [{"field": "id", "type": "int64"}, {"field": "x", "type": "double"}, {"field": "s", "type": "string"}]
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, x DOUBLE, s TEXT"), key="id", mode="upsert")
    far = (envelope(fields, id=1, x=0, s="a") or b"").replace(b'"x":0', b'"x":1e999')
    records = sent((None, far), (None, envelope(fields, id=2, x=1, s="NaN")))
    [why] = put(sqlite, table, records, format="connect-json")
    assert "out of range" in why
    assert sqlite.rows(table.name) == [(2, 1.0, "NaN")]


@pytest.mark.parametrize("name", [5, None, ["a"]])
def test_a_schema_that_is_none_stops_nothing(sqlite: Place, name: Any) -> None:
    fields = [{"field": "id", "type": "int64"}, {"field": name, "type": "string"}]
    table = Table(sqlite.create("id INTEGER PRIMARY KEY"), key="id", mode="upsert")
    put(sqlite, table, sent((None, envelope(fields, id=1)), (None, envelope(fields[:1], id=2))), format="connect-json")
    assert (2,) in sqlite.rows(table.name)


def test_json_in_text_that_is_no_number_is_a_misfit(sqlite: Place) -> None:
    fields = [{"field": "id", "type": "int64"}, {"field": "n", "type": "string", "name": "io.debezium.data.Json"}]
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, n INTEGER"), key="id", mode="upsert")
    far = (envelope(fields, id=1, n=0) or b"").replace(b'"n":0', b'"n":1e9999')
    records = sent((None, far), (None, envelope(fields, id=2, n=2)))
    assert len(put(sqlite, table, records, format="connect-json")) == 1
    assert [row[0] for row in sqlite.rows(table.name)] == [2]


def test_a_field_called_as_the_column_that_marks_deletions_makes_no_column(sqlite: Place) -> None:
    for name in ("deleted", "Deleted"):
        table = Table(sqlite.name(), key="id", mode="upsert", create=True, soft_delete="deleted")
        fields = [{"field": "id", "type": "int64"}, {"field": name, "type": "string"}]
        put(sqlite, table, sent((None, envelope(fields, id=1, **{name: "no"}))), format="connect-json")
        assert put(sqlite, table, sent((None, envelope(fields[:1], id=2))), format="connect-json") == []
        assert 2 in [row[0] for row in sqlite.rows(table.name)]
