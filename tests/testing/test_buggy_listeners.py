"""Listeners with a bug: the kit has to catch each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, insert, text
from tests.testing.shop import VISITS, Order, Shop

from tidegate import Record
from tidegate.errors import TransactionBroken
from tidegate.ledger import SqlTransaction
from tidegate.testing import CheckFailed, Fence, LostAnswer, Rebalance, Step, TestKit, crash_everywhere

NewShop = Callable[..., Shop]


def visit(order: Order, tx: SqlTransaction) -> None:
    tx.execute(insert(VISITS).values(order_id=order.id))


def test_an_effect_on_a_list_is_caught(new_shop: NewShop) -> None:
    mails: list[int] = []

    def bill_and_mail(order: Order, tx: SqlTransaction) -> None:
        visit(order, tx)
        mails.append(order.id)

    def make() -> TestKit:
        mails.clear()
        return new_shop(handler=bill_and_mail, orders=2).kit

    def check(kit: TestKit) -> None:
        assert mails == [0, 1]

    with pytest.raises(CheckFailed, match=r"fails after 1 of 7 faults") as failed:
        crash_everywhere(make, check)
    assert "Crash(Step.WRITTEN): AssertionError" in str(failed.value)
    assert isinstance(failed.value.__cause__, AssertionError)
    with make() as kit:
        kit.run(LostAnswer(committed=False))
        assert mails == [0, 1, 0, 1], "without a crash as well: a transaction may be run again"


def test_an_effect_through_a_second_connection_is_caught(new_shop: NewShop, tmp_path: Path) -> None:
    elsewhere = create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    with elsewhere.begin() as connection:
        connection.execute(text("CREATE TABLE stock (order_id INTEGER)"))

    def bill_and_take_from_stock(order: Order, tx: SqlTransaction) -> None:
        visit(order, tx)
        with elsewhere.begin() as connection:
            connection.execute(text("INSERT INTO stock VALUES (:id)"), {"id": order.id})

    def make() -> TestKit:
        with elsewhere.begin() as connection:
            connection.execute(text("DELETE FROM stock"))
        return new_shop(handler=bill_and_take_from_stock, orders=2).kit

    def check(kit: TestKit) -> None:
        with elsewhere.connect() as connection:
            assert list(connection.scalars(text("SELECT order_id FROM stock"))) == [0, 1]

    with pytest.raises(CheckFailed, match="Step.WRITTEN"):
        crash_everywhere(make, check)
    elsewhere.dispose()


def test_an_effect_on_a_file_is_caught(new_shop: NewShop, tmp_path: Path) -> None:
    report = tmp_path / "report.txt"

    def report_all(records: list[Record], tx: SqlTransaction) -> None:
        with report.open("a") as file:
            file.writelines(f"{record.offset}\n" for record in records)

    def make() -> TestKit:
        report.write_text("")
        return new_shop(handler=report_all, orders=3).kit

    with pytest.raises(CheckFailed, match="Step.WRITTEN"):
        crash_everywhere(make, lambda _: _assert_equal(report.read_text(), "0\n1\n2\n"))


def test_offsets_kept_by_hand_are_caught(new_shop: NewShop, tmp_path: Path) -> None:
    """A file says what was done before the database does: after a crash, the record is taken for done, and lost."""
    done = tmp_path / "done.txt"
    shops: list[Shop] = []

    def bill_what_is_new(record: Record, tx: SqlTransaction) -> None:
        if record.offset > int(done.read_text()):
            tx.execute(insert(VISITS).values(order_id=record.offset))
            done.write_text(str(record.offset))

    def make() -> TestKit:
        done.write_text("-1")
        shops.append(new_shop(handler=bill_what_is_new, orders=2))
        return shops[-1].kit

    with pytest.raises(CheckFailed, match=r"Crash\(Step.WRITTEN\)"):
        crash_everywhere(make, lambda _: _assert_equal(shops[-1].visits(), [0, 1]))


def test_a_memory_of_what_was_seen_is_caught(new_shop: NewShop) -> None:
    """It does not know that what it remembers was rolled back."""
    seen: set[int] = set()
    shops: list[Shop] = []

    def bill_once(order: Order, tx: SqlTransaction) -> None:
        if order.id not in seen:
            seen.add(order.id)
            visit(order, tx)

    def make() -> TestKit:
        seen.clear()
        shops.append(new_shop(handler=bill_once, orders=1))
        return shops[-1].kit

    with pytest.raises(CheckFailed, match="Step.WRITTEN"):
        crash_everywhere(make, lambda _: shops[-1].check(1))


def test_a_commit_of_ones_own_is_caught_at_once(new_shop: NewShop) -> None:
    def bill_and_commit(order: Order, tx: SqlTransaction) -> None:
        visit(order, tx)
        tx.connection.commit()

    shop = new_shop(handler=bill_and_commit, orders=1)
    with pytest.raises(TransactionBroken, match="the handler ended the transaction"):
        shop.kit.run()
    assert shop.visits() == []


def test_a_check_that_fails_without_a_fault_is_no_fault_of_a_fault(new_shop: NewShop) -> None:
    with pytest.raises(AssertionError) as failed:
        crash_everywhere(lambda: new_shop(handler=visit, orders=1).kit, lambda _: _assert_equal(1, 2))
    assert not isinstance(failed.value, CheckFailed)


def test_the_right_listener_is_not_accused(new_shop: NewShop) -> None:
    shops: list[Shop] = []

    def make() -> TestKit:
        shops.append(new_shop(handler=visit, orders=2))
        return shops[-1].kit

    assert {fault.step for fault in crash_everywhere(make, lambda _: shops[-1].check(2))} == set(Step)


def test_a_pool_that_returns_what_to_write_is_not_accused_and_one_with_an_effect_of_its_own_is(
    new_shop: NewShop,
) -> None:
    shops: list[Shop] = []
    mails: list[int] = []
    write = insert(VISITS)

    def compute(order: Order) -> object:
        return write, {"order_id": order.id}

    def compute_and_mail(order: Order) -> object:
        mails.append(order.id)
        return write, {"order_id": order.id}

    def make(handler: Callable[..., object]) -> TestKit:
        mails.clear()
        shops.append(new_shop(handler=handler, orders=4, workers=2, ordering="key"))
        return shops[-1].kit

    def check_mails(kit: TestKit) -> None:
        assert sorted(mails) == [0, 1, 2, 3]

    tried = crash_everywhere(lambda: make(compute), lambda _: shops[-1].check(4))
    assert {fault.step for fault in tried} == set(Step)
    for fault in (Fence(Step.POLLED), LostAnswer(committed=False), Rebalance(Step.POLLED, to_another=True, lost=True)):
        make(compute).run(fault)
        shops[-1].check(4)
    with pytest.raises(CheckFailed, match=r"Crash\(Step.WRITTEN\)"):
        crash_everywhere(lambda: make(compute_and_mail), check_mails)


def _assert_equal(found: object, wanted: object) -> None:
    assert found == wanted
