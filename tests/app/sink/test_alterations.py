"""A table that somebody alters while a sink writes to it: between the reading of a batch and its transaction."""

from __future__ import annotations

import threading

import pytest
from tests.app.sink.shop import GROUP, Shop

from tidegate import ConfigurationError, Delivery, Fail
from tidegate.tables import Evolution


@pytest.fixture
def orders(shop: Shop) -> Shop:
    shop.create("id INTEGER, total DECIMAL(9,3), note VARCHAR(9)")
    shop.send(*({"id": number, "total": f"{number}.125", "note": "n", "later": "l"} for number in range(6)))
    return shop


def altered(shop: Shop, change: str) -> str:
    return f"ALTER TABLE {shop.table} {change}"


def test_a_column_that_was_dropped_gets_no_more_values(orders: Shop) -> None:
    orders.sink(format=orders.once(altered(orders, "DROP COLUMN note"), at=3), batch=2)
    assert orders.rows("id") == [(number,) for number in range(6)]
    assert not orders.letters()


def test_a_column_that_was_dropped_and_is_mapped_stops_the_sink_with_its_name(orders: Shop) -> None:
    read = orders.once(altered(orders, "DROP COLUMN note"), at=3)
    with pytest.raises(ConfigurationError, match=f"{orders.table} has no column 'note'"):
        orders.sink(format=read, columns={"id": "value.id", "note": "value.note"}, batch=2)
    assert orders.rows("id") == [(0,), (1,)]
    assert not orders.letters()


def test_a_column_that_was_added_gets_values_from_then_on(orders: Shop) -> None:
    orders.sink(format=orders.once(altered(orders, "ADD COLUMN later VARCHAR(9)"), at=3), batch=2)
    assert orders.rows("id, later") == [(0, None), (1, None), *((number, "l") for number in range(2, 6))]


def test_at_most_once_loses_nothing_to_a_column_that_was_added(orders: Shop) -> None:
    """Its position has moved by then, so that nobody hands the batch out again."""
    read = orders.once(altered(orders, "ADD COLUMN later VARCHAR(9)"), at=3)
    orders.sink(format=read, batch=2, delivery=Delivery.AT_MOST_ONCE)
    assert orders.rows("id, later") == [(0, None), (1, None), *((number, "l") for number in range(2, 6))]


def test_a_column_that_became_narrower_rounds_nothing(orders: Shop) -> None:
    if orders.database == "sqlite":
        pytest.skip("SQLite has no statement that changes the type of a column")
    change = "ALTER COLUMN total TYPE DECIMAL(9,1)" if orders.database == "postgresql" else "MODIFY total DECIMAL(9,1)"
    orders.sink(format=orders.once(altered(orders, change), at=3), batch=2)
    assert len(orders.rows()) == 2
    assert [offset for offset, _ in orders.letters()] == [2, 3, 4, 5]
    assert all("column 'total'" in error for _, error in orders.letters())


@pytest.mark.parametrize("policy", [{}, {"on_error": Fail()}], ids=["dead letters", "fail"])
def test_a_column_that_was_widened_takes_what_it_did_not_before(shop: Shop, policy: dict[str, Fail]) -> None:
    if shop.database == "sqlite":
        pytest.skip("SQLite has no statement that changes the type of a column")
    shop.create("id INTEGER, note VARCHAR(3)")
    shop.send({"id": 1, "note": "abc"}, {"id": 2, "note": "abcdef"})
    longer = "ALTER COLUMN note TYPE VARCHAR(9)" if shop.database == "postgresql" else "MODIFY note VARCHAR(9)"
    shop.sink(format=shop.once(altered(shop, longer), at=1), **policy)
    assert shop.rows() == [(1, "abc"), (2, "abcdef")]
    assert not shop.letters()


def test_a_table_that_disappears_stops_the_sink_and_parks_nothing(orders: Shop) -> None:
    read = orders.once(f"DROP TABLE {orders.table}", at=3)
    with pytest.raises(ConfigurationError, match=f"there is no table {orders.table}; create it"):
        orders.sink(format=read, batch=2)
    assert not orders.letters()
    assert list(orders.kit.positions(GROUP).values()) == [2]
    orders.create("id INTEGER")
    orders.sink()
    assert orders.rows() == [(number,) for number in range(2, 6)]


def test_a_table_that_is_replaced_by_another_one_is_written_as_it_is_now(orders: Shop) -> None:
    swap = [f"DROP TABLE {orders.table}", f"CREATE TABLE {orders.table} (total VARCHAR(20), id INTEGER)"]
    orders.sink(format=orders.once(swap, at=3), batch=2)
    assert orders.rows(order="2") == [(f"{number}.125", number) for number in range(2, 6)]


def test_a_key_that_is_dropped_stops_an_upsert(shop: Shop) -> None:
    """Without it, MariaDB would take every record for a new row."""
    shop.create("id INTEGER NOT NULL, total INTEGER, CONSTRAINT once UNIQUE (id)")
    shop.send(*({"id": 1, "total": number} for number in range(4)))
    if shop.database == "sqlite":
        drop = [f"DROP TABLE {shop.table}", f"CREATE TABLE {shop.table} (id INTEGER NOT NULL, total INTEGER)"]
    else:
        drop = [altered(shop, "DROP CONSTRAINT once")]
    with pytest.raises(ConfigurationError, match="id may not identify a row"):
        shop.sink(format=shop.once(drop, at=2), into={"key": "id", "mode": "upsert"}, batch=2)
    assert len(shop.rows()) == (0 if shop.database == "sqlite" else 1)
    assert not shop.letters()


FOLLOWS = {
    "widen": {"evolve": Evolution(widen="widen")},
    "all": {"evolve": Evolution(widen="widen", nullable="drop")},
}


def test_a_table_follows_its_records_in_the_middle_of_a_batch(shop: Shop) -> None:
    shop.create("id INTEGER PRIMARY KEY, n SMALLINT, note VARCHAR(3) NOT NULL")
    values = [
        {"id": 1, "n": 1, "note": "a"},
        {"id": 2**40, "n": 70_000, "note": "abcdef"},
        {"id": 3, "n": 3, "note": "c"},
    ]
    shop.send(*values, {"id": 4, "note": None}, {"id": 5, "n": "oops", "note": "e"}, {"id": 6, "n": 6, "note": "f"})
    policy = "widen" if shop.database == "sqlite" else "all"
    shop.sink(into={**FOLLOWS[policy], "key": "id", "mode": "upsert"}, batch=4)
    kept = [] if shop.database == "sqlite" else [(4, None, None)]
    found = [(1, 1, "a"), (3, 3, "c"), *kept, (6, 6, "f"), (2**40, 70_000, "abcdef")]
    assert shop.rows() == found
    assert [offset for offset, _ in shop.letters()] == ([3, 4] if shop.database == "sqlite" else [4])
    assert all("oops" not in error for _, error in shop.letters())


def test_a_column_that_somebody_narrows_meanwhile_is_widened_again(shop: Shop) -> None:
    if shop.database == "sqlite":
        pytest.skip("SQLite has no statement that changes the type of a column")
    shop.create("id INTEGER, n BIGINT")
    shop.send(*({"id": number, "n": 2**40 if number == 5 else number} for number in range(8)))
    change = "ALTER COLUMN n TYPE SMALLINT" if shop.database == "postgresql" else "MODIFY n SMALLINT"
    shop.sink(into=FOLLOWS["widen"], format=shop.once(altered(shop, change), at=4), batch=4)
    assert shop.rows("n") == [(number,) for number in (0, 1, 2, 3, 4, 6, 7, 2**40)]
    assert not shop.letters()


def test_an_alteration_that_waits_for_a_lock_neither_stops_the_sink_nor_parks(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shop.database == "sqlite":
        pytest.skip("SQLite has no statement that changes the type of a column")
    monkeypatch.setattr("tidegate.tables.database.DEFINING", 1)
    shop.create("id INTEGER, n SMALLINT")
    shop.send({"id": 1, "n": 1}, {"id": 2, "n": 2**40})
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with shop._engine.begin() as conn:
            conn.exec_driver_sql(f"INSERT INTO {shop.table} VALUES (0, 0)")
            held.set()
            done.wait(3)  # the sink tries more than once

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    shop.sink(into=FOLLOWS["widen"])
    holder.join()
    assert shop.rows() == [(0, 0), (1, 1), (2, 2**40)]
    assert not shop.letters()
