"""LOAD DATA LOCAL never corrupts silently: every row as it was sent, or the database's own error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from tidegate import open_ledger
from tidegate.sandbox import Database, MariaDB, MySQL
from tidegate.tables import DoesNotFit, Rows, Table, Target
from tidegate.tables.mysql.writer import can_load, load

from .places import Place, feed


@pytest.fixture(params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def place(server: Database) -> Iterator[Place]:
    opened = Place(way_of(server), server.url)
    yield opened
    opened.engine.dispose()


def way_of(server: Database) -> str:
    return type(server).__name__.lower()


def inserted(place: Place) -> list[str]:
    return [statement for statement in place.statements if statement.startswith("INSERT")]


def test_rows_go_in_by_load_data_and_not_by_insert(place: Place) -> None:
    name = place.create("id INTEGER PRIMARY KEY, t TEXT, b BLOB")
    place.put(Table(name), [{"id": number, "t": "x\ty", "b": "AAE="} for number in range(5000)])
    assert inserted(place) == []
    assert place.rows(name)[4999] == (4999, "x\ty", b"\0\1")


def test_what_load_data_itself_would_do_to_such_rows_is_what_the_check_is_for(place: Place) -> None:
    name = place.create("id INTEGER PRIMARY KEY, t VARCHAR(3)")
    statement = f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE `{name}`"
    with place.engine.begin() as conn:
        loaded = load(conn, statement, memoryview(b"1\tabc\n1\tdup\n2\tlong one\nx\tabc\n"))
    assert loaded.rows < 4
    assert loaded.warnings > 0
    assert ("lon" in [row[1] for row in place.rows(name)]) and (0 in [row[0] for row in place.rows(name)])


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("id INTEGER PRIMARY KEY", [{"id": 1}, {"id": 2}, {"id": 1}]),
        ("id INTEGER, t TIME", [{"id": 1, "t": "12:00:00"}, {"id": 2, "t": "900:00:00"}]),
        ("id INTEGER, CHECK (id < 10)", [{"id": 1}, {"id": 10}]),
        ("id INTEGER, k VARCHAR(9) CHARACTER SET koi8r", [{"id": 1, "k": "\u4e2d"}]),
    ],
    ids=["duplicate", "garbage", "check", "characters"],
)
def test_what_only_the_server_can_tell_is_its_error_and_nothing_is_written(
    place: Place, columns: str, values: list[dict[str, object]]
) -> None:
    name = place.create(columns)
    target = Target(place.engine, Table(name))
    rows = target.read(feed(values))
    assert rows.misfits == ()
    with place.engine.begin() as conn:
        conn.exec_driver_sql(f"INSERT INTO `{name}` (id) VALUES (7)")
        with pytest.raises(DBAPIError):
            target.write(conn, rows)
    assert [row[0] for row in place.rows(name)] == [7]
    assert inserted(place)


def test_a_foreign_key_that_leads_nowhere_is_an_error(place: Place) -> None:
    parent = place.create("id INTEGER PRIMARY KEY")
    name = place.create(f"id INTEGER, p INTEGER, FOREIGN KEY (p) REFERENCES `{parent}` (id)")
    with pytest.raises(IntegrityError):
        place.put(Table(name), [{"id": 1, "p": None}, {"id": 2, "p": 9}])
    assert place.rows(name) == []


def test_a_trigger_that_refuses_is_an_error(place: Place) -> None:
    name = place.create("id INTEGER")
    place.run(
        f"CREATE TRIGGER `{name}_t` BEFORE INSERT ON `{name}` FOR EACH ROW "
        "BEGIN IF NEW.id = 2 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no two'; END IF; END"
    )
    with pytest.raises(DBAPIError, match="no two"):
        place.put(Table(name), [{"id": 1}, {"id": 2}])
    assert place.rows(name) == []


@pytest.mark.parametrize("way", ["", "-insert"])
def test_a_column_that_was_made_narrower_meanwhile_rounds_nothing(server: Database, way: str) -> None:
    place = Place(way_of(server) + way, server.url)
    name = place.create("id INTEGER, d DECIMAL(9,4)")
    target = Target(place.engine, Table(name))
    rows = target.read(feed([{"id": 1, "d": "1.2345"}]))
    place.run(f"ALTER TABLE `{name}` MODIFY d DECIMAL(9,2)")
    with pytest.raises(DoesNotFit, match="the server would have changed a value"):
        place.write(target, rows)
    assert place.rows(name) == []
    place.engine.dispose()


def test_the_server_never_chooses_what_is_sent(place: Place, server: Database) -> None:
    name = place.create("line TEXT")
    with open_ledger(server.url) as ledger, ledger.engine.connect() as conn:
        assert can_load(conn)
        driver = conn.connection.dbapi_connection
        with pytest.raises(RuntimeError, match="local_infile option is false"):
            driver.cursor().execute(f"LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE {name}")
        conn.invalidate()
    assert place.rows(name) == []


def test_rows_larger_than_a_packet_are_sent_in_parts(place: Place) -> None:
    name = place.create("id INTEGER, t LONGTEXT")
    place.put(Table(name), [{"id": 1, "t": "\\" * 3_000_000}, {"id": 2, "t": "y" * 1_000_000}])
    assert [(row[0], len(row[1])) for row in place.rows(name)] == [(1, 3_000_000), (2, 1_000_000)]
    assert inserted(place) == []


def test_timestamps_are_utc_whatever_the_sessions_zone_is(place: Place) -> None:
    name = place.create("id INTEGER, ts TIMESTAMP(6) NULL, dt DATETIME(6)")
    target = Target(place.engine, Table(name))
    moment = "2024-10-27T00:30:00.123456Z"  # which comes twice where clocks are set back
    with place.engine.begin() as conn:
        conn.exec_driver_sql("SET SESSION time_zone = '+05:30'")
        target.write(conn, target.read(feed([{"id": 1, "ts": moment, "dt": moment}])))
        assert conn.exec_driver_sql("SELECT @@SESSION.time_zone").scalar() == "+05:30"
        conn.exec_driver_sql("SET SESSION time_zone = '+00:00'")
        _, stamp, wall = conn.exec_driver_sql(f"SELECT * FROM `{name}`").one()
    assert stamp.isoformat() == wall.isoformat() == "2024-10-27T00:30:00.123456"


def test_a_session_that_is_not_strict_is_refused(place: Place, server: Database) -> None:
    name = place.create("id INTEGER")
    engine = create_engine(f"{server.url}&sql_mode=NO_ENGINE_SUBSTITUTION")
    with pytest.raises(Exception, match="sql_mode is not strict"):
        Target(engine, Table(name)).prepare()
    engine.dispose()


@pytest.mark.parametrize("kind", [MariaDB, MySQL])
def test_a_server_that_does_not_allow_it_is_written_to_all_the_same(kind: type[Database]) -> None:
    with kind(settings={"local-infile": False}) as server:
        place = Place(way_of(server), server.url)
        name = place.create("id INTEGER PRIMARY KEY, t TEXT, b BLOB")
        for base in (0, 1000):
            place.put(Table(name), [{"id": base + number, "t": "x\ty\\", "b": "AAE="} for number in range(1000)])
        assert len(place.rows(name)) == 2000
        assert place.rows(name)[1999] == (1999, "x\ty\\", b"\0\1")
        assert inserted(place)
        place.engine.dispose()


def test_a_deadlock_during_the_load_is_told_as_what_it_is(place: Place) -> None:
    name = place.create("id INTEGER PRIMARY KEY")
    target = Target(place.engine, Table(name))
    one, two = (target.read(feed([{"id": number}])) for number in (1, 2))
    met = threading.Barrier(2)

    def run(first: Rows, second: Rows) -> int:
        with place.engine.connect() as conn:
            target.write(conn, first)
            met.wait()
            try:
                target.write(conn, second)
            except DBAPIError as error:
                assert error.orig is not None
                return int(error.orig.args[0])
            finally:
                conn.rollback()
        return 0

    with ThreadPoolExecutor(2) as pool:
        codes = [pool.submit(run, one, two), pool.submit(run, two, one)]
        assert sorted(code.result() for code in codes) == [0, 1213]
