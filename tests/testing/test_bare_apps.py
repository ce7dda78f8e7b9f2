"""In tests, an app needs no broker, and nothing waits: time in which a listener is idle is skipped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import insert
from tests.testing.shop import BILLS, VISITS, Order, bill, metadata

from tidegate import App, Backoff, ConfigurationError, DeadLetter, Retry, Table
from tidegate.ledger import SqlTransaction, Transaction
from tidegate.observe import Rebalanced
from tidegate.testing import Fence, Rebalance, Step, TestKit, fault_everywhere
from tidegate.testing.watched import IdleTime

MakeKit = Callable[..., TestKit]


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TIDEGATE_KAFKA", "TIDEGATE_LEDGER", "TIDEGATE_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_an_app_that_names_nothing_runs_on_the_ledger_of_a_kit(make_kit: MakeKit) -> None:
    app = App()
    app.listener("orders", group="billing", on_error=DeadLetter())(bill)
    kit = make_kit(app)
    metadata.create_all(kit.engine)
    kit.send("orders", Order(1, 10))
    kit.send("orders", b"no order")
    kit.run()
    kit.check()
    with kit.engine.connect() as connection:
        assert connection.execute(BILLS.select()).all() == [(1, 10)]
    assert len(kit.dead_letters("billing")) == 1


def test_an_app_that_names_nothing_needs_no_ledger_for_handlers_without_sql() -> None:
    app, seen = App(), list[int]()

    @app.listener("orders", group="billing")
    def count(order: Order, tx: Transaction) -> None:
        seen.append(order.id)

    with TestKit(app) as kit:
        kit.send("orders", Order(7))
        kit.run(Fence(Step.POLLED))
        kit.check()
    assert seen == [7]


def test_outside_of_tests_it_asks_for_a_broker() -> None:
    app = App()
    app.listener("orders", group="billing")(bill)
    with pytest.raises(ConfigurationError, match="no broker is named; pass kafka="):
        app.run()


def test_a_sink_still_has_to_name_its_kind_of_database() -> None:
    with pytest.raises(ConfigurationError, match="needs a ledger in SQLite"):
        App().sink("orders", into=Table("orders"))


def test_a_retry_in_an_hour_is_not_waited_for(make_kit: MakeKit) -> None:
    app, tries = App(), list[int]()

    @app.listener("orders", group="billing", on_error=Retry(3, Backoff(first=3600, most=3600)))
    def bill_at_last(order: Order, tx: SqlTransaction) -> None:
        tries.append(order.id)
        if tries.count(order.id) <= 2:
            raise ConnectionError("the till is closed")
        tx.execute(insert(VISITS).values(order_id=order.id))

    kit = make_kit(app)
    metadata.create_all(kit.engine)
    kit.send("orders", Order(1))
    kit.send("orders", Order(2))
    kit.run()
    kit.check()
    with kit.engine.connect() as connection:
        assert list(connection.scalars(VISITS.select().with_only_columns(VISITS.c.order_id))) == [1, 2]
    assert min(tries.count(1), tries.count(2)) >= 3


def test_a_member_without_partitions_does_not_wait_for_its_next_look(
    make_kit: MakeKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its looks at the ledger are an hour apart, and it still notices at once that another member has finished."""
    monkeypatch.setattr("tidegate.app.member._WATCH", 3600.0)
    app = App()
    app.listener("orders", group="billing")(bill)
    kit = make_kit(app, batch=1)
    metadata.create_all(kit.engine)
    for number in range(5):
        kit.send("orders", Order(number))
    run = kit.run(Rebalance(Step.ADVANCED, 2, to_another=True))
    kit.check()
    assert any(isinstance(event, Rebalanced) and event.kind == "revoked" for event in run.events)


def test_faults_everywhere_on_five_records_wait_for_nothing(make_kit: MakeKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait that a listener plans is an hour long: with one of them waited for, this would not end."""
    monkeypatch.setattr("tidegate.app.member._WATCH", 3600.0)
    app = App()
    app.listener("orders", group="billing")(bill)

    def make() -> TestKit:
        kit = make_kit(app)
        metadata.create_all(kit.engine)
        for number in range(5):
            kit.send("orders", Order(number))
        return kit

    def check(kit: TestKit) -> None:
        with kit.engine.connect() as connection:
            assert sorted(connection.scalars(VISITS.select().with_only_columns(VISITS.c.order_id))) == [*range(5)]

    assert len(fault_everywhere(make, check)) > 30


def test_idle_polls_skip_more_and_more_time_and_a_record_ends_that() -> None:
    clock = IdleTime()
    skipped = []
    for polled in (clock.skip, clock.skip, clock.skip, clock.arrived, clock.skip):
        before = clock.monotonic()
        polled()
        skipped.append(round(clock.monotonic() - before))
    assert skipped == [1, 2, 4, 0, 1]
    for _ in range(100):
        clock.skip()
    assert clock.monotonic() < time.monotonic() + 100 * 600 + 100, "a clock does not run away"


def test_another_thread_has_a_clock_of_its_own() -> None:
    clock = IdleTime()
    clock.skip()
    worker = clock.worker("handler")
    job = worker.submit(clock.monotonic)
    assert worker.has_ended(job, 60)
    assert job.result() <= time.monotonic() < clock.monotonic()
    worker.close()
