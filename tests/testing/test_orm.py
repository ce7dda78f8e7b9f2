"""SQLAlchemy's ORM in handlers: what a session writes commits with the position, on every database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from tests.testing.shop import Order

from tidegate import App, DeadLetter, Ledger, Span, TopicPartition, open_ledger
from tidegate.errors import TransactionBroken
from tidegate.ledger import Outcome, Result, SqlTransaction
from tidegate.testing import Crash, Step, TestKit


class Base(DeclarativeBase):
    pass


class Bill(Base):
    __tablename__ = "orm_bills"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]


Handler = Callable[[Order, SqlTransaction], None]
SAVEPOINT = "create_savepoint"


def by_begin(order: Order, tx: SqlTransaction) -> None:
    with Session(tx.connection) as session, session.begin():
        session.add(Bill(id=order.id, total=order.total))


def by_commit(order: Order, tx: SqlTransaction) -> None:
    with Session(tx.connection) as session:
        session.add(Bill(id=order.id, total=order.total))
        session.commit()


def in_two_steps(order: Order, tx: SqlTransaction) -> None:
    with Session(tx.connection) as session:
        bill = Bill(id=order.id, total=0)
        session.add(bill)
        session.commit()
        bill.total = order.total  # reads the row again
        session.commit()


def after_a_rollback(order: Order, tx: SqlTransaction) -> None:
    with Session(tx.connection, join_transaction_mode=SAVEPOINT) as session:
        session.add(Bill(id=order.id, total=-1))
        session.flush()
        session.rollback()
        session.add(Bill(id=order.id, total=order.total))
        session.commit()


def after_a_refusal(order: Order, tx: SqlTransaction) -> None:
    with Session(tx.connection, join_transaction_mode=SAVEPOINT) as session:
        session.add(Bill(id=order.id, total=order.total))
        session.commit()
        session.expunge_all()
        with suppress(IntegrityError), session.begin_nested():
            session.add(Bill(id=order.id, total=-1))
        assert session.get_one(Bill, order.id).total == order.total


def by_factory(order: Order, tx: SqlTransaction) -> None:
    factory = sessionmaker(join_transaction_mode=SAVEPOINT, expire_on_commit=False)
    with factory(bind=tx.connection) as session, session.begin():
        session.merge(Bill(id=order.id, total=order.total))


HANDLERS: list[Handler] = [by_begin, by_commit, in_two_steps, after_a_rollback, after_a_refusal, by_factory]


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb", "mysql"])
def ledger(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ledger[SqlTransaction]]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('orm') / 'shop.db'}"
    else:
        url = request.getfixturevalue(request.param).url
    opened = open_ledger(url, prefix="orm_")
    opened.create()
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def empty_table(ledger: Ledger[SqlTransaction]) -> None:
    assert ledger.engine is not None
    Base.metadata.drop_all(ledger.engine)
    Base.metadata.create_all(ledger.engine)


@pytest.fixture
def new_kit(ledger: Ledger[SqlTransaction]) -> Iterator[Callable[[Handler], TestKit]]:
    with ExitStack() as kits:

        def new(handler: Handler) -> TestKit:
            app = App(ledger=ledger)
            app.listener("orders", group=str(uuid.uuid4()), on_error=DeadLetter())(handler)
            return kits.enter_context(TestKit(app))

        yield new


def billed(ledger: Ledger[SqlTransaction]) -> dict[int, int]:
    with Session(ledger.engine) as session:
        return {bill.id: bill.total for bill in session.scalars(select(Bill))}


def group_of(kit: TestKit) -> str:
    return kit.app.listeners[0].spec.group


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_session_writes_in_the_transaction_of_the_listener(
    new_kit: Callable[[Handler], TestKit], ledger: Ledger[SqlTransaction], handler: Handler
) -> None:
    kit = new_kit(handler)
    for number in range(3):
        kit.send("orders", Order(number, 10 * number))
    kit.run(Crash(Step.WRITTEN))
    assert billed(ledger) == {}, "a session's commit() ends a savepoint, and not the transaction"
    kit.run()
    kit.check()
    assert billed(ledger) == {0: 0, 1: 10, 2: 20}
    assert kit.dead_letters(group_of(kit)) == []


def test_a_row_that_a_flush_refuses_is_that_records_fault(
    new_kit: Callable[[Handler], TestKit], ledger: Ledger[SqlTransaction]
) -> None:
    kit = new_kit(by_commit)
    for number in (1, 2, 1, 3):
        kit.send("orders", Order(number, number))
    kit.run()
    kit.check()
    assert billed(ledger) == {1: 1, 2: 2, 3: 3}
    (parked,) = kit.dead_letters(group_of(kit))
    assert parked.letter.record.offset == 2


def test_a_session_that_is_closed_without_commit_writes_nothing(
    new_kit: Callable[[Handler], TestKit], ledger: Ledger[SqlTransaction]
) -> None:
    """As everywhere in SQLAlchemy. The handler has returned, so the position moves on."""

    def forgetful(order: Order, tx: SqlTransaction) -> None:
        with Session(tx.connection) as session:
            session.add(Bill(id=order.id, total=1))
            session.flush()

    kit = new_kit(forgetful)
    kit.send("orders", Order(1))
    kit.run()
    kit.check()
    assert billed(ledger) == {}


def directly(ledger: Ledger[SqlTransaction], handler: Handler) -> Result:
    """In a loop of one's own, the handler runs in no savepoint."""
    orders = TopicPartition("orders", 0)
    claims = ledger.claim(str(uuid.uuid4()), [orders])
    return ledger.transact(claims, [Span(orders, 0, 1, 1)], lambda tx: handler(Order(1, 10), tx))


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_session_writes_in_the_transaction_of_ones_own_loop(ledger: Ledger[SqlTransaction], handler: Handler) -> None:
    assert directly(ledger, handler).outcome is Outcome.COMMITTED
    assert billed(ledger) == {1: 10}


def test_in_ones_own_loop_the_rollback_of_a_session_without_savepoint_is_refused(
    ledger: Ledger[SqlTransaction],
) -> None:
    def roll_back(order: Order, tx: SqlTransaction) -> None:
        with Session(tx.connection) as session:
            session.add(Bill(id=order.id, total=1))
            session.flush()
            session.rollback()

    with pytest.raises(TransactionBroken, match="create_savepoint"):
        directly(ledger, roll_back)
    assert billed(ledger) == {}
