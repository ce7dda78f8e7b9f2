"""The guard: events that are older than a row change nothing, in any cut, as if each were written by itself."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.tables.events import MISSING, cuts, encoded, event, sent
from tests.tables.handlers import sink_handler
from tests.tables.places import Place
from tests.tables.trial import write

from tidegate import ConfigurationError, Record, Table
from tidegate.app.sink import Sink
from tidegate.tables import Target

COLUMNS = "id INTEGER PRIMARY KEY, n INTEGER, big VARCHAR(20), lsn BIGINT"
Row = tuple[int, str | None, int | None, bool]


class Story:
    """Random events, some sent again, and what they leave one by one: the rows, and which events are parked."""

    def __init__(self, seed: str, *, is_soft: bool) -> None:
        self._random = random.Random(seed)
        self._is_soft = is_soft
        self._log: list[tuple[str, int, int]] = []
        self.rows: dict[int, Row] = {0: (0, "old", None, False)}
        self.parked: set[int] = set()
        self.records: list[Record] = []

    def tell(self, count: int) -> None:
        while len(self.records) < count:
            if self._log and self._random.random() < 0.15:  # the connector sends some again
                start = self._random.randrange(len(self._log))
                for each in self._log[start : start + self._random.randint(1, 6)]:
                    self._send(*each)
                continue
            op = self._random.choices("cudtx", (4, 8, 4, 1, 8))[0]
            self._log.append((op, self._random.randrange(4), 10 * len(self._log)))
            self._send(*self._log[-1])

    def _send(self, op: str, key: int, position: int) -> None:
        row = {"id": key, "n": position, "big": MISSING if op == "x" else f"v{position}"}
        after, source = (None if op in "dt" else row), {"lsn": position}
        value = event("u" if op == "x" else op, after, row if op == "d" else None, source=source)
        place = len(self.records)
        self.records.append(Record("t", 0, place, None if op == "t" else encoded({"id": key}), value, (), 0))
        for each in list(self.rows) if op == "t" else [key]:
            self._apply(op, each, position, place)

    def _apply(self, op: str, key: int, position: int, place: int) -> None:
        found = self.rows.get(key)
        if found is None and op == "x":
            self.parked.add(place)
        if found is not None and found[2] is not None and found[2] > position:
            return
        match op, found:
            case "c" | "u", _:
                self.rows[key] = position, f"v{position}", position, False
            case "x", (_, big, _, _):
                self.rows[key] = position, big, position, False
            case "d" | "t", (n, big, _, _) if self._is_soft:
                self.rows[key] = n, big, position, True
            case "d" | "t", (_, _, _, _):
                del self.rows[key]


@pytest.mark.parametrize("is_soft", [False, True])
@pytest.mark.parametrize("number", range(5))
def test_any_cut_leaves_what_guarded_events_leave_one_by_one(database: Place, number: int, is_soft: bool) -> None:
    story = Story(f"{database.way} {number}", is_soft=is_soft)
    story.tell(80)
    deleted, columns = ("deleted", f"{COLUMNS}, deleted BOOLEAN NOT NULL") if is_soft else (None, COLUMNS)
    for size in (1, 9, 80):
        table = Table(database.create(columns), key="id", mode="upsert", soft_delete=deleted, guard="lsn")
        database.run(f"INSERT INTO {table.name} VALUES (0, 0, 'old', NULL{', FALSE' if is_soft else ''})")
        sink = sink_handler(Sink(table, format="debezium"), database.engine, count=lambda: 1)
        parked: set[int] = set()
        for batch in cuts(story.records, size):
            with database.engine.begin() as conn:
                parked |= write(sink, conn, batch)
        listed = f"SELECT id, n, big, lsn, {deleted or 'FALSE'} FROM {table.name}"
        found = {key: (n, big, at, bool(gone)) for key, n, big, at, gone in database.rows_of(listed)}
        assert found == story.rows, f"in batches of {size}"
        assert parked == story.parked, f"in batches of {size}"


def of_partitions(seed: str) -> tuple[list[list[Record]], dict[int, tuple[int, str]]]:
    """The events of two partitions, with truncates in either, and the rows of the source at the end."""
    chance = random.Random(seed)
    logs: list[list[Record]] = [[], []]
    rows: dict[int, tuple[int, str]] = {}

    def send(partition: int, op: str, key: int | None, after: Any = None) -> None:
        value = event(op, after, None if key is None else {"id": key}, source={"lsn": position})
        log = logs[partition]
        log.append(Record("t", partition, len(log), None if key is None else encoded({"id": key}), value, (), 0))

    for position in range(70):
        key = chance.randrange(8)
        match chance.choices("udtx", (10, 3, 2, 5))[0]:
            case "u":
                rows[key] = position, f"v{position}"
                send(key % 2, "u", key, {"id": key, "n": position, "big": f"v{position}"})
            case "x" if key in rows:
                rows[key] = position, rows[key][1]
                send(key % 2, "u", key, {"id": key, "n": position, "big": MISSING})
            case "d" if key in rows:
                del rows[key]
                send(key % 2, "d", key)
            case "t":
                rows.clear()
                send(chance.randrange(2), "t", None)
    return logs, rows


@pytest.mark.parametrize("number", range(5))
def test_truncates_have_an_order_among_the_events_of_other_partitions(database: Place, number: int) -> None:
    chance = random.Random(number)
    (first, second), rows = of_partitions(f"{database.way} {number}")
    for size in (1, 9, 80):
        marks = database.name()
        columns = {"id": "integer", "n": "integer", "big": "text"}
        how: dict[str, Any] = {"key": "id", "mode": "upsert", "create": True, "columns": columns}
        table = Table(database.name(), guard="lsn", guard_table=marks, **how)
        sinks = [sink_handler(Sink(table, format="debezium"), database.engine, count=lambda: 2) for _ in range(2)]
        waiting = [(0, each) for each in cuts(first, size)], [(1, each) for each in cuts(second, size)]
        while any(waiting):
            number_of, batch = chance.choice([each for each in waiting if each]).pop(0)
            with database.engine.begin() as conn:
                assert write(sinks[number_of], conn, batch) == set()
        found = {key: (n, big) for key, n, big in database.rows_of(f"SELECT id, n, big FROM {table.name}")}
        assert found == rows, f"in batches of {size}"
        assert len(database.rows(marks)) == 1


def of_files(number: int, pos: int, server: int = 7, *, op: str = "c", key: int = 1) -> tuple[Any, bytes | None]:
    """An event of a MySQL; n is its position within the file."""
    source = {"file": f"mysql-bin.{number:06}", "pos": pos, "server_id": server}
    return {"id": key}, event(op, None if op == "t" else {"id": key, "n": pos}, source=source)


def with_marks(place: Place) -> Table:
    types = {"id": "integer", "n": "integer"}
    names = {"guard": "at", "guard_table": place.name()}
    return Table(place.name(), key="id", mode="upsert", create=True, columns=types, **names)


def test_positions_in_files_are_compared_by_file_and_then_by_place(database: Place) -> None:
    table = with_marks(database)
    assert put(database, table, sent(of_files(9, 500), of_files(10, 4), of_files(9, 501), of_files(10, 3))) == []
    assert put(database, table, sent(of_files(9, 600))) == []
    assert database.rows(table.name) == [(1, 4, 10 * 10**12 + 4)]
    assert put(database, table, sent(of_files(10, 4, op="t"), of_files(10, 2, key=2), of_files(10, 9, key=3))) == []
    assert database.rows(table.name) == [(3, 9, 10 * 10**12 + 9)]


def test_after_a_change_of_the_server_nothing_is_compared(database: Place) -> None:
    table, others = with_marks(database), [of_files(1, 900, 8), of_files(1, 901, 0)]
    assert put(database, table, sent(of_files(3, 1, 0))) == []  # a snapshot does not name its server
    assert put(database, table, sent(of_files(3, 4))) == []
    whys = put(database, table, sent(*others, of_files(3, 5)))
    assert ["server 7" in why for why in whys] == [True, True]
    assert "is of 8," in whys[0]
    assert "an unknown server" in whys[1]
    assert database.rows(table.name) == [(1, 5, 3 * 10**12 + 5)]
    database.run(f"UPDATE {table.name} SET at = NULL")
    database.run(f"DELETE FROM {table.guard_table}")
    assert put(database, table, sent(*others[:1])) == []
    assert database.rows(table.name) == [(1, 900, 10**12 + 900)]


def test_the_first_snapshot_may_come_after_events_that_name_the_server(database: Place) -> None:
    """In one batch with them, again after a crash, or in another partition."""
    table, snapshot = with_marks(database), [of_files(3, 1, 0, op="r", key=key) for key in (1, 2, 3)]
    changes = [of_files(3, 4, op="u"), of_files(3, 4, op="d", key=2)]
    assert put(database, table, sent(*snapshot[:2], *changes)) == []
    assert put(database, table, sent(*snapshot, *changes)) == []
    assert database.rows(table.name) == [(1, 4, 3 * 10**12 + 4), (3, 1, 3 * 10**12 + 1)]
    [why] = put(database, table, sent(of_files(3, 9, 0, op="r", key=4)))
    assert "an unknown server" in why


def test_a_snapshot_is_not_the_first_if_the_server_is_known(sqlite: Place) -> None:
    table = with_marks(sqlite)
    assert put(sqlite, table, sent(of_files(3, 4))) == []
    [why] = put(sqlite, table, sent(of_files(1, 1, 0, op="r")))
    assert "an unknown server" in why


def test_one_batch_does_not_mix_servers(sqlite: Place) -> None:
    table = with_marks(sqlite)
    whys = put(sqlite, table, sent(of_files(3, 1, 7), of_files(1, 2, 8), of_files(3, 3, 7)))
    assert len(whys) == 1
    assert sqlite.rows(table.name) == [(1, 3, 3 * 10**12 + 3)]


@pytest.mark.parametrize(
    "source",
    [
        {"file": "mysql-bin", "pos": 4, "server_id": 7},
        {"file": "mysql-bin.000003", "pos": 10**12, "server_id": 7},
        {"file": "mysql-bin.9223372", "pos": 4, "server_id": 7},
        {"file": "mysql-bin.000003", "server_id": 7},
        {"file": "mysql-bin.000003", "pos": 4, "server_id": 1 << 63},
    ],
)
def test_a_place_in_files_that_is_none_is_a_misfit(sqlite: Place, source: Any) -> None:
    [why] = put(sqlite, with_marks(sqlite), sent(({"id": 1}, event("c", {"id": 1, "n": 1}, source=source))))
    assert "neither 'lsn' nor 'file' and 'pos'" in why


def test_places_in_files_need_a_table_that_keeps_their_server(sqlite: Place) -> None:
    table = Table(sqlite.create("id INTEGER PRIMARY KEY, n INTEGER, lsn BIGINT"), key="id", mode="upsert", guard="lsn")
    [why] = put(sqlite, table, sent(of_files(3, 1)))
    assert "set guard_table" in why


@pytest.fixture(params=["postgres", "mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The databases with several writers at a time."""
    opened = Place(request.param, request.getfixturevalue(request.param).url)
    yield opened
    opened.engine.dispose()


def test_a_truncate_waits_for_rows_that_are_being_written(server: Place) -> None:
    """Otherwise it would not see them, and they would not know of it."""
    table = with_marks(server)
    older, newer = (Target(server.engine, table, format="debezium") for _ in range(2))
    [row] = [sent(({"id": 1}, event("c", {"id": 1, "n": 1}, source={"lsn": 5})))]
    [truncate] = [sent((None, event("t", source={"lsn": 9})))]
    rows, truncates = older.read(row), newer.read(truncate)
    began = threading.Event()

    def empty() -> None:
        with server.engine.begin() as conn:
            began.set()
            newer.write(conn, truncates)

    thread = threading.Thread(target=empty)
    with server.engine.begin() as conn:
        older.write(conn, rows)
        thread.start()
        assert began.wait(30)
        thread.join(0.5)
        assert thread.is_alive()
    thread.join(30)
    assert server.rows(table.name) == []


@pytest.mark.parametrize("how", [{"guard": None}, {"guard_table": "T"}])
def test_a_guard_table_that_cannot_be_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="guard_table is a table of its own"):
        Table("t", **({"key": "id", "mode": "upsert", "guard": "lsn", "guard_table": "marks"} | how))


def put(place: Place, table: Table, records: Sequence[Record]) -> list[str]:
    target = Target(place.engine, table, format="debezium")
    rows = target.read(records)
    place.write(target, rows)
    return [str(misfit) for misfit in rows.misfits]


def test_the_column_is_made_and_is_no_field(sqlite: Place) -> None:
    types = {"id": "integer", "n": "integer"}
    table = Table(sqlite.name(), key="id", mode="upsert", create=True, columns=types, guard="lsn")
    assert put(sqlite, table, sent(({"id": 1}, event("c", {"id": 1, "n": 2, "lsn": 5}, source={"lsn": 1 << 62})))) == []
    assert sqlite.rows(table.name) == [(1, 2, 1 << 62)]


def test_an_event_without_a_position_is_a_misfit(sqlite: Place) -> None:
    table = Table(sqlite.create(COLUMNS), key="id", mode="upsert", guard="lsn")
    sources = ({"lsn": None}, {"file": None, "pos": 4}, None, {"lsn": "7"}, {"lsn": 1 << 63}, {"lsn": -1 - (1 << 63)})
    for op in ("c", "t"):
        events = sent(*((None, event(op, {"id": 1}, source=source)) for source in sources))
        whys = put(sqlite, table, events)
        assert len(whys) == len(sources)
        assert all("the event has neither 'lsn' nor" in why for why in whys)
    assert sqlite.rows(table.name) == []


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"mode": "append", "key": ()}, "guard goes with mode='upsert'"),
        ({"tombstones": "ignore"}, "guard goes with mode='upsert'"),
        ({"guard": "id"}, "column of its own"),
        ({"soft_delete": "lsn"}, "column of its own"),
    ],
)
def test_a_guard_that_cannot_be_is_refused(how: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Table("t", **({"key": "id", "mode": "upsert", "guard": "lsn"} | how))


def test_a_guard_is_for_change_events(sqlite: Place) -> None:
    table = Table(sqlite.create(COLUMNS), key="id", mode="upsert", guard="lsn")
    with pytest.raises(ConfigurationError, match="use format='debezium'"):
        Sink(table)
    with pytest.raises(ConfigurationError, match="use format='debezium'"):
        Target(sqlite.engine, table).read([])


def test_a_column_that_is_too_small_is_refused(database: Place) -> None:
    table = Table(database.create("id INTEGER PRIMARY KEY, lsn VARCHAR(9)"), key="id", mode="upsert", guard="lsn")
    with pytest.raises(ConfigurationError, match="'lsn' is no BIGINT"):
        Target(database.engine, table, format="debezium").prepare()
