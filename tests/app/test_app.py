"""What an app refuses when a listener is registered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidegate import (
    App,
    Backoff,
    ConfigurationError,
    DeadLetter,
    Limits,
    Record,
    Retry,
    TopicPartition,
    Transaction,
    open_ledger,
)
from tidegate.ledger import SqlTransaction
from tidegate.ledger.redis.transaction import RedisTransaction


@pytest.fixture
def app() -> App:
    return App("localhost:9092", open_ledger("memory://", limits=Limits(hold=1, lock_wait=2)))


def ignore(record: Record) -> None: ...


def test_a_listener_is_kept_with_its_settings(app: App) -> None:
    app.listener(["orders", "refunds"], group="billing", threads=2)(ignore)
    (listener,) = app.listeners
    assert listener.function is ignore
    assert listener.spec.topics.subscription == ["orders", "refunds"]
    assert listener.spec.threads == 2


@pytest.mark.parametrize("pattern", [re.compile(r"orders\..*"), r"^orders\..*"])
def test_a_pattern_is_a_subscription(app: App, pattern: str) -> None:
    app.listener(pattern, group="billing")(ignore)
    assert app.listeners[0].spec.topics.subscription == [r"^orders\..*"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"topics": "orders", "group": ""}, "group name is empty"),
        ({"topics": "no topic", "group": "g"}, "not a Kafka topic name"),
        ({"topics": None, "group": "g"}, "one of the three"),
        ({"topics": "orders", "group": "g", "partitions": [TopicPartition("orders", 0)]}, "one of the three"),
        ({"topics": "^(", "group": "g"}, "not a regular expression"),
        ({"topics": "orders", "group": "g", "colour": "blue"}, "no argument 'colour'"),
        ({"topics": "orders", "group": "g", "threads": 0}, "threads: expected a whole number from 1 to 1000"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_said(app: App, arguments: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        app.listener(**arguments)(ignore)  # type: ignore[arg-type]
    assert not app.listeners


@pytest.mark.parametrize(
    ("url", "own", "other"),
    [
        ("sqlite:///shop.db", SqlTransaction, RedisTransaction),
        ("redis://localhost:1/0", RedisTransaction, SqlTransaction),
    ],
)
def test_a_function_that_takes_the_transaction_of_another_store_is_refused(url: str, own: type, other: type) -> None:
    def handle(record: Record, tx: Transaction) -> None: ...

    app = App("localhost:9092", open_ledger(url))
    for taken in (Transaction, own):
        handle.__annotations__["tx"] = taken
        app.listener("orders", group="billing")(handle)
    handle.__annotations__["tx"] = other
    told = rf"handle.* takes a {other.__name__}.*{url.partition(':')[0]}.* are a {own.__name__}"
    with pytest.raises(ConfigurationError, match=told):
        app.listener("orders", group="billing")(handle)
    assert len(app.listeners) == 2


def test_retries_may_wait_for_longer_than_a_transaction_may_be_idle(app: App) -> None:
    app.listener("orders", group="g", on_error=Retry(3, Backoff(first=60, most=3600), then=DeadLetter()))(ignore)
    assert app.listeners


def test_an_app_without_listeners_does_not_run(app: App) -> None:
    with pytest.raises(ConfigurationError, match="no listener"):
        app.run()


def test_an_app_that_knows_no_broker_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = App(ledger="memory://")
    app.listener("orders", group="g")(ignore)
    for attempt in (app.run, lambda: app.replay("g"), lambda: app.producer):
        with pytest.raises(ConfigurationError, match="no broker is named"):
            attempt()


def test_what_is_not_said_comes_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidegate.toml").write_text(
        'kafka = "broker:9092"\nledger = "memory://"\n[listener]\nthreads = 3\n[listener.batch]\ncount = 7\n'
    )
    app = App()
    app.listener("orders", group="g", threads=2)(ignore)
    spec = app.listeners[0].spec
    assert app.kafka["bootstrap.servers"] == "broker:9092"
    assert (spec.threads, spec.batch.count) == (2, 7)


def test_client_settings_that_would_break_the_guarantee_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="enable.auto.commit"):
        App({"bootstrap.servers": "broker:9092", "enable.auto.commit": True}, "memory://")
