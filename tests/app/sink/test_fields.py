"""Fields of records and columns of tables, through sinks: whatever the batches, the same rows and dead letters."""

from __future__ import annotations

import pytest
from tests.app.sink.shop import Shop

GOOD = [{"id": 1, "state": "old"}, {"ID": 2}, {"id": 1, "note": "b"}, {"id": 1, "note": None}]


@pytest.mark.parametrize("batch", [1, 2, None])
def test_rows_and_letters_do_not_depend_on_batches(shop: Shop, batch: int | None) -> None:
    shop.create("id INTEGER PRIMARY KEY, state VARCHAR(9) DEFAULT 'new' NOT NULL, note VARCHAR(9) DEFAULT 'x'")
    envelope = {"schema": {"type": "struct"}, "payload": {"id": 9}}
    bad = [{}, envelope, {"id": 3, "": 1, "more": 1}, {"id": 4, "state": None}, {"note": "c"}, {"Id": 5, "iD": 6}]
    for good, refused in zip([*GOOD, None, None], bad, strict=True):
        if good is not None:
            shop.send(good)
        shop.send(refused)
    shop.send({"id": 7, "state": "s", "note": "n", "more": 7})
    shop.send(None, key=b'{"ID": 2}')
    shop.sink(into={"key": "id", "mode": "upsert", "evolve": True}, batch=batch)
    assert shop.rows("id, state, note, more") == [(1, "old", None, None), (7, "s", "n", 7)]
    assert [offset for offset, _ in shop.letters()] == [1, 3, 5, 7, 8, 9]


@pytest.mark.parametrize("batch", [1, None])
def test_nothing_stops_before_there_is_a_table(shop: Shop, batch: int | None) -> None:
    shop.send(None, key=b"1")
    shop.send({}, b"rubbish", {"id": None}, {"": 5, "id": 1})
    shop.send({"schema": None, "payload": {"id": 1}})
    shop.sink(into={"key": "id", "mode": "upsert", "create": True}, batch=batch)
    assert [offset for offset, _ in shop.letters()] == [1, 2, 3, 4, 5]
    shop.send({"id": 1})
    shop.send(None, key=b"1")
    shop.send({"id": 2})
    shop.sink(into={"key": "id", "mode": "upsert", "create": True}, batch=batch)
    assert shop.rows() == [(2,)]


def test_tombstones_are_passed_over_if_asked_for(shop: Shop) -> None:
    shop.create("id INTEGER PRIMARY KEY")
    shop.send({"id": 1})
    shop.send(None, key=b"1")
    shop.send(None)
    shop.sink(into={"key": "id", "mode": "upsert", "tombstones": "ignore"})
    assert (shop.rows(), shop.letters()) == ([(1,)], [])
