"""What a running app tells: figures, waits that are told once, a summary, and whose logging it uses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidegate import Span, TopicPartition
from tidegate.app.health import Vitals
from tidegate.app.progress import GroupPlan, Reporter, RunFigures
from tidegate.observe import Claimed, Committed, DeadLettered, LagSeen, LoggingObserver, Observers, Rebalanced
from tidegate.observe.health import ReadPosition
from tidegate.observe.log import StderrHandler, log_by_default

ORDERS = TopicPartition("orders", 0)
PLAN = GroupPlan("billing", "orders", "→ bill", 45.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def bare_logging() -> Iterator[logging.Logger]:
    """Logging that no program has set up. Not a fixture: pytest adds handlers of its own when the test begins."""
    ours, root = logging.getLogger("tidegate"), logging.getLogger()
    before = ours.handlers, ours.level, root.handlers
    ours.handlers, root.handlers = [], []
    ours.setLevel(logging.NOTSET)
    yield ours
    ours.handlers, root.handlers = before[0], before[2]
    ours.setLevel(before[1])


def test_without_logging_of_the_program_lines_go_to_standard_error() -> None:
    with bare_logging() as ours:
        assert isinstance(log_by_default(), StderrHandler)
        assert ours.isEnabledFor(logging.INFO)


@pytest.mark.parametrize("name", ["", "tidegate"])
def test_logging_that_the_program_has_set_up_is_left_alone(name: str) -> None:
    with bare_logging() as ours:
        logging.getLogger(name).addHandler(logging.NullHandler())
        assert log_by_default() is None
        assert ours.level == logging.NOTSET


def test_figures_are_records_letters_and_the_lag_of_what_is_held() -> None:
    figures = RunFigures(["billing"])
    figures(Claimed("billing", (ORDERS,), (5,)))
    figures(LagSeen("billing", ORDERS, 5, 25))
    figures(Committed("billing", (Span(ORDERS, 5, 15, records=10),), 0.1, 1, 0, False))
    figures(DeadLettered("billing", ORDERS, 7, "ValueError: x"))
    found = figures.groups["billing"]
    assert (found.records, found.dead_letters, found.lag) == (10, 1, 10)
    figures(Rebalanced("billing", "revoked", (ORDERS,), 0.0))
    assert found.lag == 0


def test_a_wait_is_told_once_after_two_seconds_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tidegate")
    clock, vitals = Clock(), [Vitals("billing")]
    reporter = Reporter(
        Observers(), [PLAN], "Kafka at x", lambda: vitals, lambda _: "it is slow", is_live=False, clock=clock
    )

    def look(seconds: float) -> list[str]:
        clock.now += seconds
        before = len(caplog.messages)
        reporter._look_for_waits(clock.now)
        return caplog.messages[before:]

    assert look(1.9) == []
    assert look(0.2) == ["group 'billing': waiting: it is slow"]
    assert look(60) == []
    vitals[:] = [Vitals("billing", (ReadPosition("billing", "orders", 0, 1, 1),))]
    assert look(1) == ["group 'billing': it has partitions after 63.1 s"]
    assert look(1) == []


def test_a_burst_of_dead_letters_is_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tidegate")
    clock = Clock()
    observer = LoggingObserver(clock=clock)
    for offset in range(1000):
        observer(DeadLettered("billing", ORDERS, offset, "ValueError: secret" if offset % 10 else "KeyError: 1"))
    assert len(caplog.messages) == 1
    clock.now += 6
    observer(LagSeen("billing", ORDERS, 1000, 1000))
    assert caplog.messages[1:] == [
        "group 'billing': parked 999 more dead letters, from orders[0]@1 to orders[0]@999, after ValueError (900), "
        "KeyError (99)"
    ]
    observer(DeadLettered("billing", ORDERS, 1000, "ValueError: x"))
    observer(DeadLettered("billing", ORDERS, 1001, "ValueError: x"))
    observer.flush()
    assert len(caplog.messages) == 4
