"""What records do to the rows of a table, on a real broker and each database."""

from __future__ import annotations

from decimal import Decimal

from tests.app.sink.shop import Shop

from tidegate.observe.events import Committed


def test_a_table_is_created_from_the_first_records_and_grows_with_later_ones(busy_shop: Shop) -> None:
    busy_shop.send({"id": 1, "total": 5}, partition=0)
    busy_shop.sink(into={"create": True, "evolve": True})
    assert busy_shop.rows("id, total") == [(1, 5)]
    busy_shop.send({"id": 2, "total": 6, "note": "new"}, {"id": 3, "Odd name": 1}, partition=0)
    busy_shop.sink(into={"create": True, "evolve": True})
    assert busy_shop.rows("id, total, note") == [(1, 5, None), (2, 6, "new"), (3, None, None)]
    assert not busy_shop.letters()


def test_append_keeps_every_record(busy_shop: Shop) -> None:
    busy_shop.create("id INTEGER, part INTEGER")
    for partition in (0, 1):
        busy_shop.send(*({"id": number} for number in range(50)), partition=partition)
    busy_shop.sink(columns={"id": "value.id", "part": "partition"}, batch=20)
    assert busy_shop.rows(order="2, 1") == [(number, part) for part in (0, 1) for number in range(50)]


def test_upsert_keeps_the_last_record_of_a_key_and_a_tombstone_deletes(busy_shop: Shop) -> None:
    busy_shop.create("id INTEGER PRIMARY KEY, total INTEGER")
    busy_shop.send(
        {"id": 1, "total": 1}, {"id": 2, "total": 2}, {"id": 1, "total": 3}, {"id": 4, "total": 4}, partition=0
    )
    busy_shop.sink(into={"key": "id", "mode": "upsert"})
    assert busy_shop.rows() == [(1, 3), (2, 2), (4, 4)]
    busy_shop.send(None, key=b"1", partition=0)
    busy_shop.send(None, key=b'{"id": 4}', partition=0)
    busy_shop.send({"id": 4, "total": 5}, partition=0)
    busy_shop.send({"id": 5, "total": 5}, partition=0)
    busy_shop.send(None, key=b"5", partition=0)
    busy_shop.send(None, partition=0)  # which row?
    busy_shop.sink(into={"key": "id", "mode": "upsert"})
    assert busy_shop.rows() == [(2, 2), (4, 5)]
    assert busy_shop.letters() == [(9, "DecodingError: a tombstone without a key")]


def test_accumulate_adds_up_exactly_over_batches_and_partitions(busy_shop: Shop) -> None:
    busy_shop.create("customer VARCHAR(10) PRIMARY KEY, orders BIGINT, total DECIMAL(14,2)")
    for partition in (0, 1):
        for number in range(60):
            busy_shop.send({"customer": f"c{number % 3}", "orders": 1, "total": f"{number}.10"}, partition=partition)
    busy_shop.sink(into={"key": "customer", "mode": "accumulate"}, batch=7)
    sums = [sum(Decimal(f"{number}.10") for number in range(60) if number % 3 == each) * 2 for each in range(3)]
    assert [(c, n, Decimal(str(t))) for c, n, t in busy_shop.rows()] == [(f"c{i}", 40, sums[i]) for i in range(3)]


def test_one_transaction_holds_the_records_of_all_partitions(busy_shop: Shop) -> None:
    busy_shop.create("id INTEGER")
    for partition in (0, 1):
        busy_shop.send(*({"id": number} for number in range(30)), partition=partition)
    run = busy_shop.sink()
    advances = [event for event in run.events if isinstance(event, Committed)]
    assert sum(span.records for event in advances for span in event.spans) == 60
    assert len(advances) <= 2, "each record or partition had a transaction of its own"
    assert len(busy_shop.rows()) == 60
