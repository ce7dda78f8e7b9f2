"""A broker, a ledger, dashboards over it and one browser for all tests here."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tidegate.core.records import FailedRecord, Record, TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.ledger import Ledger, open_ledger
from tidegate.sandbox import Kafka

from .served import SECONDS, Served

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHOSEN = "hunter2-hunter2-hunter2"
WATCHED = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""


class Place:
    """One ledger and one broker, with topics and groups for a test."""

    def __init__(self, folder: Path, kafka: Kafka) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'shop.db'}"
        self.bootstrap = kafka.bootstrap
        self.ledger: Ledger[Any] = open_ledger(self.url)
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "log_level": 0})

    def topic(self, records: int, partitions: int = 2) -> str:
        """A new topic with so many records in each partition."""
        name = f"orders-{secrets.token_hex(4)}"
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(SECONDS)
        for partition in range(partitions):
            for number in range(records):
                self._producer.produce(name, f"{number}".encode(), partition=partition)
        assert self._producer.flush(SECONDS) == 0
        return name

    def claimed(self, group: str, topic: str, partitions: int = 2) -> dict[TopicPartition, Claim]:
        return self.ledger.claim(group, [TopicPartition(topic, number) for number in range(partitions)])

    def advance(self, claims: dict[TopicPartition, Claim], start: int, end: int) -> None:
        self.ledger.transact(claims, [Span(tp, start, end, end - start) for tp in claims])

    def park(self, value: bytes | None, error: str = "ValueError: no", key: bytes | None = None) -> str:
        """A group with one dead letter; its name."""
        group, topic = new_group(), f"letters-{secrets.token_hex(4)}"
        tp = TopicPartition(topic, 0)
        letter = FailedRecord(Record(topic, 0, 0, key, value, (("trace", b"<b>\xff"),), 1_794_650_000_000), error, 3)
        self.ledger.transact(self.ledger.claim(group, [tp]), [Span(tp, 0, 1, 1)], lambda tx: tx.park(letter))
        return group


def new_group() -> str:
    return f"billing-{secrets.token_hex(4)}"


@pytest.fixture(scope="package")
def place(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("dashboard"), kafka)
    made.ledger.create()
    yield made
    made.ledger.close()


@pytest.fixture(scope="package")
def served(place: Place) -> Iterator[Served]:
    """A dashboard that allows changes."""
    environ = {"TIDEGATE_LEDGER": place.url, "TIDEGATE_KAFKA__BOOTSTRAP": place.bootstrap}
    started = Served.start(place.folder, "--allow-changes", TIDEGATE_DASHBOARD_TOKEN=CHOSEN, **environ)
    started.token = CHOSEN
    yield started
    started.close()


@pytest.fixture(scope="package")
def read_only(place: Place) -> Iterator[Served]:
    """A dashboard that does not, that asks no broker, and whose token was chosen."""
    started = Served.start(place.folder, TIDEGATE_LEDGER=place.url, TIDEGATE_DASHBOARD_TOKEN=CHOSEN)
    started.token = CHOSEN
    yield started
    started.close()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert program, "Chromium is needed here; `make setup` installs it"
    expect.set_options(timeout=SECONDS * 1000)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program)
        yield opened
        opened.close()


def _is_wrong(line: ConsoleMessage) -> bool:
    """An answer such as 404 is told as an error too; tests look at those themselves."""
    return line.type == "error" and not line.text.startswith("Failed to load resource")


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens a page in a browser of its own, logged in. Whatever a page does wrong fails the test."""
    opened: list[Page] = []
    wrong: list[str] = []

    def at(served: Served, path: str = "", **options: Any) -> Page:
        context = browser.new_context(**options)
        context.set_default_timeout(SECONDS * 1000)
        context.add_init_script(WATCHED)
        page = context.new_page()
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if _is_wrong(line) else None)
        page.goto(f"{served.address}login#{served.token}")
        page.wait_for_url(served.address)
        if path:
            page.goto(served.address + path)
        opened.append(page)
        return page

    yield at
    for page in opened:
        wrong += [f"violates {directive}" for directive in page.evaluate("window.violations")]
        page.context.close()
    assert not wrong
