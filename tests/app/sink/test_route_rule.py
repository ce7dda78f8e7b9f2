"""The rule: several tables are what plain statements leave, one record at a time, in order."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from tests.app.sink.depot import Depot

from tidegate import Table
from tidegate.tables import Part, Route

RECORDS = 60
ORDERS, LINES = "orders", "lines"


@pytest.fixture
def depot(url: str) -> Iterator[Depot]:
    """On each database."""
    opened = Depot(url)
    yield opened
    opened.close()


def route(depot: Depot) -> Route:
    """Orders with the lines in them, and single lines; told apart by a header."""
    lines, orders = (
        Table(depot.table(LINES), key=["order_id", "n"], mode="upsert"),
        Table(depot.table(ORDERS), key="id", mode="upsert"),
    )
    return Route([Part(lines, where={"headers.t": LINES}), Part(orders, where={"headers.t": ORDERS})], parent_wait=0)


def records(chance: random.Random) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Kind, key and value of each record: few keys, so that they meet; some refer to nothing, or are refused."""
    found: list[tuple[str, str, dict[str, Any] | None]] = []
    for number in range(RECORDS):
        order = chance.randrange(5)
        if chance.random() < 0.5:
            value = {"id": order, "customer": chance.choice([f"c{number}", f"c{number}", "bad"])}
            found.append((ORDERS, json.dumps({"id": order}), value if chance.random() < 0.7 else None))
        else:
            key = {"order_id": order, "n": chance.randrange(3)}
            line = {**key, "sku": chance.choice([f"s{number}", f"s{number}", f"s{number}", "bad"])}
            found.append((LINES, json.dumps(key), line if chance.random() < 0.8 else None))
    return found


def plainly(depot: Depot, conn: Connection, kind: str, key: str, value: dict[str, Any] | None) -> bool:
    """Carry out one record by a plain statement; return whether the database took it."""
    table = f"plain_{depot.name}_{kind}"
    where = " AND ".join(f"{name} = {number}" for name, number in json.loads(key).items())
    try:
        with conn.begin_nested():
            if value is None:
                conn.exec_driver_sql(f"DELETE FROM {table} WHERE {where}")
                return True
            written = {name: f"'{each}'" if isinstance(each, str) else str(each) for name, each in value.items()}
            if conn.exec_driver_sql(f"SELECT 1 FROM {table} WHERE {where}").first():
                changes = ", ".join(f"{name} = {each}" for name, each in written.items())
                conn.exec_driver_sql(f"UPDATE {table} SET {changes} WHERE {where}")
            else:
                conn.exec_driver_sql(
                    f"INSERT INTO {table} ({', '.join(written)}) VALUES ({', '.join(written.values())})"
                )
    except DBAPIError:
        return False
    return True


def create(depot: Depot, prefix: str, action: str | None) -> None:
    """Create the tables; without an action, also without the foreign key."""
    orders, lines = f"{prefix}_{ORDERS}", f"{prefix}_{LINES}"
    foreign = "" if action is None else f", FOREIGN KEY (order_id) REFERENCES {orders} (id) {action}"
    depot.sql(
        f"CREATE TABLE {orders} (id INTEGER NOT NULL PRIMARY KEY, customer VARCHAR(40) CHECK (customer <> 'bad'))",
        f"CREATE TABLE {lines} (order_id INTEGER NOT NULL, n INTEGER NOT NULL, sku VARCHAR(40) CHECK (sku <> 'bad'), "
        f"PRIMARY KEY (order_id, n){foreign})",
    )


@pytest.fixture
def session(depot: Depot, url: str) -> Iterator[Connection]:
    """A connection beside the sink's, on which a refused statement ends nothing but itself."""
    engine = create_engine(url)
    if depot.database == "sqlite":
        event.listen(engine, "connect", _in_the_hands_of_sqlalchemy)
        event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN"))
    with engine.connect() as conn:
        yield conn
    engine.dispose()


def _in_the_hands_of_sqlalchemy(driver: Any, _: object) -> None:
    driver.isolation_level = None
    driver.execute("PRAGMA foreign_keys = ON")


def write(depot: Depot, given: list[tuple[str, str, dict[str, Any] | None]], batch: int, format: str) -> set[int]:
    """Write the records by a sink; return those that are parked."""
    for kind, key, value in given:
        depot.kit.send("all", event_of(value) if format == "debezium" else value, key=key, headers={"t": kind})
    depot.run("all", route(depot), batch=batch, format=format)
    return {offset for _, offset in depot.parked()}


def event_of(row: dict[str, Any] | None) -> dict[str, Any]:
    """A change event that leaves this row, or none."""
    return {"op": "d", "before": None, "after": None} if row is None else {"op": "c", "before": None, "after": row}


def check(depot: Depot, conn: Connection) -> None:
    """The tables are those that plain statements have left."""
    for name in (ORDERS, LINES):
        plain = conn.exec_driver_sql(f"SELECT * FROM plain_{depot.name}_{name} ORDER BY 1, 2").all()
        assert depot.rows(name) == [tuple(row) for row in plain]


@pytest.mark.parametrize("format", ["json", "debezium"])
@pytest.mark.parametrize(("batch", "action"), [(1, ""), (1, "ON DELETE CASCADE"), (17, "ON DELETE CASCADE")])
def test_in_the_order_of_records_plain_statements_leave_the_same(
    depot: Depot, session: Connection, batch: int, action: str, format: str
) -> None:
    given = records(random.Random(batch))
    create(depot, depot.name, action)
    create(depot, f"plain_{depot.name}", action)
    taken = [plainly(depot, session, kind, key, value) for kind, key, value in given]
    session.commit()
    assert write(depot, given, batch, format) == {at for at, is_taken in enumerate(taken) if not is_taken}
    check(depot, session)


@pytest.mark.parametrize(("seed", "format"), [(2, "json"), (3, "debezium")])
def test_in_the_order_of_foreign_keys_the_records_that_are_taken_leave_what_plain_statements_do(
    depot: Depot, session: Connection, seed: int, format: str
) -> None:
    given = records(random.Random(seed))
    create(depot, depot.name, "")
    create(depot, f"plain_{depot.name}", None)
    parked = write(depot, given, 17, format)
    assert {at for at, (_, _, value) in enumerate(given) if value is not None and "bad" in value.values()} <= parked
    assert len(parked) < RECORDS / 2
    assert all(plainly(depot, session, *each) for at, each in enumerate(given) if at not in parked)
    check(depot, session)
