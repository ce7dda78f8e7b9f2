"""The watch goes on looking, whatever is away, and pages do not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text
from tests.ports import refused_port

from tidegate.core.records import TopicPartition
from tidegate.kafka.cluster import Survey
from tidegate.ledger import MemoryLedger, open_ledger
from tidegate.web.watch import DashboardWatch

from .conftest import Place
from .served import SECONDS, Served

TP = TopicPartition("orders", 0)


@contextmanager
def looking(watch: DashboardWatch) -> Iterator[Callable[[Callable[[], object]], None]]:
    """A watch at work; what it gives waits, look by look, until something is so."""
    turned = threading.Condition()

    def turn() -> None:
        with turned:
            turned.notify_all()

    def wait_until(condition: Callable[[], object]) -> None:
        with turned:
            assert turned.wait_for(condition, SECONDS)

    watch.start()
    end = watch.listen(turn)
    try:
        yield wait_until
    finally:
        end()
        watch.stop()


def test_a_kafka_that_is_away_is_said_to_be_and_the_ledger_is_shown() -> None:
    ledger = MemoryLedger()
    ledger.claim("billing", [TP], 17)
    survey = Survey({"bootstrap.servers": f"127.0.0.1:{refused_port()}", "log_level": 0}, seconds=0.3)
    watch = DashboardWatch(ledger, survey, every=0.1)
    with looking(watch) as wait_until:
        wait_until(lambda: "cannot be asked" in (watch.summaries().summaries.kafka or ""))
        status = watch.group_now("billing").status
        assert "cannot be asked" in (status.kafka or "")
        assert [(row.committed, row.lag_records) for row in status.partitions] == [(17, None)]


def test_a_ledger_that_goes_away_leaves_what_was_seen_last_and_the_reason(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with open_ledger(url) as ledger:
        ledger.claim("billing", [TP], 17)
        watch = DashboardWatch(ledger, None, every=0.1)
        with looking(watch) as wait_until:
            wait_until(lambda: watch.group("billing"))
            engine = create_engine(url)
            with engine.begin() as connection:
                connection.execute(text("DROP TABLE tidegate_positions"))
            engine.dispose()
            wait_until(lambda: watch.summaries().trouble and (seen := watch.group("billing")) and seen.trouble)
            assert [each.group for each in watch.summaries().summaries.groups] == ["billing"]
            seen = watch.group("billing")
            assert seen is not None
            assert seen.status.partitions[0].committed == 17


def test_many_groups_are_shown_in_pages(read_only: Served, place: Place) -> None:
    for number in range(60):
        place.ledger.claim(f"many-{number:03}", [TopicPartition("many", 0)])
    cookie = read_only.log_in()
    # What was claimed just now is there from the next look on.
    with looking(DashboardWatch(place.ledger, None)) as wait_until:
        wait_until(lambda: "of 60" in read_only.ask("/?q=many-0&sort=name", cookie=cookie).text)
    first = read_only.ask("/?q=many-0&sort=name", cookie=cookie).text
    assert first.count('<tr data-key="many-0') == 50
    second = read_only.ask("/?q=many-0&sort=name&page=2", cookie=cookie).text
    assert second.count('<tr data-key="many-0') == 10
    assert 'data-key="many-059"' in second
    beyond = read_only.ask("/?q=many-0&sort=name&page=99", cookie=cookie).text
    assert 'data-key="many-059"' in beyond
