"""The audit of the demo, and its verdict."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from demo.audit import Audit, audit, verdict
from demo.feed import Fed
from demo.orders import Order, orders
from demo.watch import count_rows
from tidegate import Delivery

FED = Fed(3, Decimal("6.06"))


def database(path: Path, ids: list[int], amount: str = "2.02") -> Path:
    file = path / "orders.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (id BIGINT, amount DECIMAL(12,2))")
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [(number, amount) for number in ids])
        connection.commit()
    return file


def test_an_order_says_its_amount_with_two_digits() -> None:
    assert Order(1, 2, 1230).value() == b'{"id": 1, "customer": 2, "amount": 12.30}'
    assert json.loads(Order(1, 2, 5).value()) == {"id": 1, "customer": 2, "amount": 0.05}


def test_the_orders_are_the_same_each_time() -> None:
    assert list(orders(50)) == list(orders(50))
    assert [order.number for order in orders(50)] == list(range(50))


@pytest.mark.parametrize(
    ("ids", "rows", "lost", "twice", "total"),
    [
        ([0, 1, 2], 3, 0, 0, "6.06"),
        ([0, 1], 2, 1, 0, "4.04"),
        ([0, 1, 1, 2], 4, 0, 1, "8.08"),
        ([0, 1, 1], 3, 1, 1, "6.06"),
    ],
)
def test_orders_are_counted_and_added_up_exactly(
    tmp_path: Path, ids: list[int], rows: int, lost: int, twice: int, total: str
) -> None:
    file = database(tmp_path, ids)
    found = audit(Delivery.EXACTLY_ONCE, file, FED)
    assert found == Audit(Delivery.EXACTLY_ONCE, FED, rows, lost, twice, Decimal(total))
    assert found.exact == (ids == [0, 1, 2])
    assert count_rows(file) == rows


def test_rows_are_none_where_there_is_no_table_yet(tmp_path: Path) -> None:
    assert count_rows(tmp_path / "none.db") == 0
    sqlite3.connect(tmp_path / "empty.db").close()
    assert count_rows(tmp_path / "empty.db") == 0


def found(delivery: Delivery, lost: int = 0, twice: int = 0, total: str = "6.06") -> Audit:
    return Audit(delivery, FED, 3 - lost + twice, lost, twice, Decimal(total))


GOOD = [
    found(Delivery.EXACTLY_ONCE),
    found(Delivery.AT_LEAST_ONCE, twice=1, total="8.08"),
    found(Delivery.AT_MOST_ONCE, lost=1, total="4.04"),
]


def test_a_good_outcome_has_nothing_to_say_against_it() -> None:
    assert verdict(GOOD) is None


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (found(Delivery.EXACTLY_ONCE, lost=1), "exactly once was not"),
        (found(Delivery.EXACTLY_ONCE, twice=1), "exactly once was not"),
        (found(Delivery.EXACTLY_ONCE, total="6.05"), "exactly once was not"),
        (found(Delivery.AT_LEAST_ONCE), "the kills met nothing"),
        (found(Delivery.AT_MOST_ONCE), "the kills met nothing"),
        (found(Delivery.AT_LEAST_ONCE, lost=1, twice=1), "neither may happen"),
        (found(Delivery.AT_MOST_ONCE, lost=1, twice=1), "neither may happen"),
    ],
)
def test_a_bad_outcome_is_told(bad: Audit, said: str) -> None:
    outcome = [bad if bad.delivery is good.delivery else good for good in GOOD]
    assert said in str(verdict(outcome))
