"""Events become log lines with a level, a sentence, and fields."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tidegate.core.records import TopicPartition
from tidegate.observe import Claimed, Event, LoggingObserver, Paused, Polled, Rebalanced, StoreBack, StoreLost

from .samples import BILLS, EVENTS, ORDERS, PLANTED


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def logger(kept: Kept) -> Iterator[logging.Logger]:
    logger = logging.Logger("test", logging.DEBUG)
    logger.addHandler(kept)
    yield logger
    logger.removeHandler(kept)


def logged(event: Event, logger: logging.Logger, kept: Kept) -> logging.LogRecord:
    LoggingObserver(logger)(event)
    (record,) = kept.records
    return record


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_is_one_line_with_the_group_and_the_fields(
    event: Event, logger: logging.Logger, kept: Kept
) -> None:
    record = logged(event, logger, kept)
    assert record.__dict__["event"] == type(event).__name__
    assert record.__dict__["group"] == "billing"
    assert {"topic", "partition", "offset"} <= record.__dict__.keys()
    assert "group 'billing'" in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_no_payload_and_no_password_is_logged(event: Event, logger: logging.Logger, kept: Kept) -> None:
    assert PLANTED not in repr(logged(event, logger, kept).__dict__)


@pytest.mark.parametrize(
    ("event", "level", "offset", "text"),
    [
        (
            EVENTS[1],
            "DEBUG",
            30,
            "committed orders[3]@[10, 30), 20 records, in 0.250 s, 2 attempts, 1 without an answer",
        ),
        (EVENTS[2], "INFO", 10, "claimed orders[3]@10"),
        (EVENTS[3], "WARNING", None, "fenced off from orders[3] (owner now: host-77-ab12): someone else claimed it"),
        (EVENTS[4], "INFO", None, "assigned orders[3] in 1.500 s"),
        (EVENTS[5], "DEBUG", 30, "orders[3]@30 is 100 records behind the end"),
        (EVENTS[6], "WARNING", 12, "parked orders[3]@12 as a dead letter after ValidationError"),
        (EVENTS[7], "ERROR", 13, "stepped over orders[3]@[13, 14): skipped after ValueError"),
        (EVENTS[12], "WARNING", 12, "orders[3]@12 is tried again in 0.5 s: 2 attempts, ValueError"),
        (EVENTS[13], "INFO", 10, "2 conflicts with other transactions at orders[3]@[10, 30): deadlock detected at"),
        (EVENTS[8], "ERROR", 14, "lost orders[3]@[14, 20): retention passed the position"),
    ],
)
def test_an_event_of_one_partition_has_it_in_its_fields_and_in_its_text(
    event: Event, level: str, offset: int | None, text: str, logger: logging.Logger, kept: Kept
) -> None:
    record = logged(event, logger, kept)
    assert record.levelname == level
    assert (record.__dict__["topic"], record.__dict__["partition"], record.__dict__["offset"]) == ("orders", 3, offset)
    assert text in record.getMessage()


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (Polled("g", 20, 4096), "DEBUG", "polled 20 records, 4096 bytes"),
        (Paused("g", True), "INFO", "paused by an operator"),
        (Paused("g", False), "INFO", "resumed by an operator"),
        (Rebalanced("g", "revoked", (), 0.0), "INFO", "revoked no partitions"),
        (Claimed("g", (BILLS, ORDERS), (1, 2)), "INFO", "claimed bills[0]@1, orders[3]@2"),
    ],
)
def test_an_event_of_no_or_several_partitions_has_them_in_its_text_only(
    event: Event, level: str, text: str, logger: logging.Logger, kept: Kept
) -> None:
    record = logged(event, logger, kept)
    assert record.levelname == level
    assert text in record.getMessage()
    assert record.__dict__["topic"] is record.__dict__["partition"] is record.__dict__["offset"] is None


def test_a_line_about_many_partitions_stays_short(logger: logging.Logger, kept: Kept) -> None:
    many = tuple(TopicPartition("orders", number) for number in range(1000))
    record = logged(Rebalanced("g", "assigned", many, 0.0), logger, kept)
    assert "orders[7] and 992 more" in record.getMessage()


def test_a_store_that_is_away_is_told_once_however_many_threads_notice(logger: logging.Logger, kept: Kept) -> None:
    observer = LoggingObserver(logger)
    lost, back = StoreLost("g", "ledger", "refused"), StoreBack("g", "ledger", 2.0)
    for event in (lost, lost, lost, back, back, lost):
        observer(event)
    assert [record.levelname for record in kept.records] == ["WARNING", "DEBUG", "DEBUG", "INFO", "DEBUG", "WARNING"]


def test_what_is_below_the_level_is_not_logged(logger: logging.Logger, kept: Kept) -> None:
    logger.setLevel(logging.WARNING)
    LoggingObserver(logger)(Polled("g", 1, 1))
    assert not kept.records


def test_without_a_logger_it_is_the_one_of_tidegate(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tidegate"):
        LoggingObserver()(Paused("g", True))
    assert [record.name for record in caplog.records] == ["tidegate"]
