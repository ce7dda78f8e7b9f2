"""What does not fit its table, under every policy and on each database."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.app.sink.shop import GROUP, TOPIC, Shop

from tidegate import Backoff, DeadLetter, Delivery, Fail, Retry, Skip, TopicPartition
from tidegate.app import HandlerFailed
from tidegate.observe.events import Retried, Skipped

ORDERS = TopicPartition(TOPIC, 0)
GOOD = [{"id": number, "total": number} for number in range(1, 6)]
MISFIT = {"id": 7, "total": "lots"}
TWICE = {"id": 3, "total": 8}  # only the database knows that there is a 3
HASTY = Backoff(first=0.001, most=0.001)
PATIENT = Backoff(first=0.06, most=0.06)  # longer than a transaction waits


@pytest.fixture
def orders(shop: Shop) -> Shop:
    shop.create("id INTEGER PRIMARY KEY, total INTEGER")
    return shop


def test_misfits_are_dead_letters_that_say_which_column_and_why_and_the_rest_commits(orders: Shop) -> None:
    orders.send(GOOD[0], MISFIT, b"[]", b"not JSON", GOOD[1], None, {"total": 1}, {"id": 1 << 40, "total": 1})
    orders.sink()
    assert orders.rows()[:2] == [(1, 1), (2, 2)]
    errors = dict(orders.letters())
    assert errors[1] == "DecodingError: column 'total': expected a whole number, got text"
    assert "an object" in errors[2]
    assert "not JSON" in errors[3]
    assert "a tombstone, and the table does not delete" in errors[5]
    if orders.database == "sqlite":  # which numbers such a key by itself, and has 64 bits for any integer
        assert orders.rows()[2:] == [(3, 1), (1 << 40, 1)]
    else:
        assert errors[6] == "DecodingError: column 'id': missing, and the column needs a value"
        assert errors[7] == "DecodingError: column 'id': a number outside of -2147483648 to 2147483647"
        assert len(orders.rows()) == 2


def test_misfits_are_skipped_if_that_is_asked_for(orders: Shop) -> None:
    orders.send(GOOD[0], MISFIT, GOOD[1])
    run = orders.sink(on_error=Skip())
    assert orders.rows() == [(1, 1), (2, 2)]
    (skipped,) = [event for event in run.events if isinstance(event, Skipped)]
    assert skipped.span.start == 1
    assert "column 'total'" in skipped.reason
    assert not orders.letters()


def test_a_misfit_is_not_tried_again_for_it_would_not_get_better(orders: Shop) -> None:
    orders.send(GOOD[0], MISFIT)
    run = orders.sink(on_error=Retry(3, HASTY, then=DeadLetter()))
    assert not [event for event in run.events if isinstance(event, Retried)]
    assert [offset for offset, _ in orders.letters()] == [1]


@pytest.mark.parametrize("bad", [MISFIT, TWICE], ids=["found before", "found by the database"])
def test_a_sink_that_stops_names_the_record_and_why(orders: Shop, bad: dict[str, Any]) -> None:
    orders.send(*GOOD, bad)
    with pytest.raises(HandlerFailed) as failed:
        orders.sink(on_error=Fail())
    assert failed.value.offset == 5
    assert f"sink into {orders.table}, group '{GROUP}', {TOPIC}[0] offset 5: " in str(failed.value)
    assert ("column 'total'" if bad is MISFIT else "IntegrityError") in str(failed.value)
    assert "The position stays in front of it" in str(failed.value)
    assert orders.rows() == []
    assert orders.kit.positions(GROUP)[ORDERS] == 0


@pytest.mark.parametrize(
    ("bad", "said", "position"),
    [(MISFIT, "The position stays in front of it", 4), (TWICE, "At most once, the position has moved already", 5)],
    ids=["found before", "found by the database"],
)
def test_at_most_once_a_sink_that_stops_says_whether_the_position_has_moved(
    orders: Shop, bad: dict[str, Any], said: str, position: int
) -> None:
    orders.send(*GOOD[:4], bad)
    with pytest.raises(HandlerFailed, match=f"offset 4.*{said}"):
        orders.sink(on_error=Fail(), delivery=Delivery.AT_MOST_ONCE)
    assert orders.kit.positions(GROUP)[ORDERS] == position


@pytest.mark.parametrize("policy", [DeadLetter(), Skip(), Retry(1, HASTY, then=DeadLetter())], ids=str)
def test_what_the_database_refuses_is_narrowed_down_and_the_rest_commits(orders: Shop, policy: Any) -> None:
    orders.send(*GOOD, TWICE, {"id": 9, "total": 9}, TWICE, MISFIT, {"id": 10, "total": 10})
    run = orders.sink(on_error=policy)
    assert orders.rows() == [(n, n) for n in (1, 2, 3, 4, 5, 9, 10)]
    stepped = [event.span.start for event in run.events if isinstance(event, Skipped)]
    assert [offset for offset, _ in orders.letters()] + stepped == [5, 7, 8]


def test_checks_and_foreign_keys_are_dead_letters_as_well(shop: Shop) -> None:
    if shop.database == "sqlite":
        pytest.skip("SQLite leaves foreign keys alone unless a session asks for them")
    shop.create("id INTEGER PRIMARY KEY", f"{shop.name}_customers")
    shop.sql(f"INSERT INTO {shop.name}_customers VALUES (1)")
    shop.create(
        "id INTEGER PRIMARY KEY, total INTEGER, customer INTEGER, CHECK (total < 100), "
        f"FOREIGN KEY (customer) REFERENCES {shop.name}_customers (id)"
    )
    shop.send(
        {"id": 1, "total": 1, "customer": 1},
        {"id": 2, "total": 100, "customer": 1},
        {"id": 3, "total": 1, "customer": 2},
        {"id": 4, "total": 4, "customer": 1},
    )
    shop.sink()
    assert shop.rows("id") == [(1,), (4,)]
    assert [offset for offset, _ in shop.letters()] == [1, 2]


def test_a_record_that_was_given_up_is_not_written_when_its_batch_is_run_again(shop: Shop) -> None:
    """Two bad records wait in turn; while the second one does, the first would have become a good one."""
    shop.create("id INTEGER PRIMARY KEY, total INTEGER")
    shop.sql(f"INSERT INTO {shop.table} VALUES (2, 0)")
    shop.sql(f"INSERT INTO {shop.table} VALUES (4, 0)")

    reads: list[int] = []

    def read(record: Any) -> Any:
        reads.append(record.offset)
        if reads.count(0) == 3 and record.offset == 0:  # the first one was given up, and the second one waits
            shop.sql(f"DELETE FROM {shop.table} WHERE id = 2")
        return json.loads(record.value)

    shop.send(*GOOD)
    shop.sink(on_error=Retry(1, PATIENT, then=DeadLetter()), format=read)
    assert [offset for offset, _ in shop.letters()] == [1, 3]
    assert shop.rows() == [(1, 1), (3, 3), (4, 0), (5, 5)]


def test_a_sum_that_overflows_its_column_is_the_fault_of_the_record_that_makes_it_so(shop: Shop) -> None:
    shop.create("customer INTEGER PRIMARY KEY, total BIGINT")
    most = (1 << 63) - 1
    shop.sql(f"INSERT INTO {shop.table} VALUES (1, {most - 10})")
    shop.send(*({"customer": 1, "total": number} for number in (7, 5, 3)), {"customer": 2, "total": most})
    shop.send({"customer": 2, "total": most})
    shop.sink(into={"key": "customer", "mode": "accumulate"})
    assert [offset for offset, _ in shop.letters()] == [1, 4]
    assert shop.rows() == [(1, most), (2, most)]


def test_a_record_of_several_rows_is_written_as_a_whole_or_not_at_all(shop: Shop) -> None:
    shop.create("id INTEGER PRIMARY KEY, total INTEGER")
    shop.send(b"1 2", b"3 2 4", b"5 x", b"6")
    shop.sink(format=lambda record: [{"id": int(each), "total": 0} for each in record.value.split()])
    assert shop.rows("id") == [(1,), (2,), (6,)]
    assert [offset for offset, _ in shop.letters()] == [1, 2]
