"""`run(until_caught_up=True)`: an empty topic ends it, and what it could never catch up with is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.confidential.login import PLANTED, broker_with_login

from tidegate import App, Record, Transaction
from tidegate.core.policies import GroupProtocol
from tidegate.errors import BrokerUnavailable, ConfigurationError
from tidegate.sandbox import Kafka

from .topic import Topic

GROUP = "counters"


def counting(kafka: str | dict[str, Any], place: Path, topic: str) -> App:
    app = App(kafka=kafka, ledger=f"sqlite:///{place / 'books.db'}")
    assert app.ledger is not None
    app.ledger.create()

    @app.listener(topic, group=GROUP, protocol=GroupProtocol.COOPERATIVE)
    def count(record: Record, tx: Transaction) -> None:
        tx.execute(text("CREATE TABLE IF NOT EXISTS seen (part INTEGER, at INTEGER)"))
        tx.execute(text("INSERT INTO seen VALUES (:part, :at)"), {"part": record.partition, "at": record.offset})

    return app


def test_an_empty_topic_is_caught_up_with_at_once(kafka: Kafka, tmp_path: Path) -> None:
    topic = Topic.create(kafka.bootstrap, partitions=2)
    assert counting(kafka.bootstrap, tmp_path, topic.name).run(until_caught_up=True) == 0


def test_a_topic_that_does_not_exist_is_an_error_that_names_it(kafka: Kafka, tmp_path: Path) -> None:
    app = counting(kafka.bootstrap, tmp_path, "no-such-topic")
    with pytest.raises(ConfigurationError) as raised:
        app.run(until_caught_up=True)
    assert str(raised.value) == (
        "group 'counters': nothing to catch up with: there is no topic 'no-such-topic': create it "
        "(tidegate topics create no-such-topic), or check its name"
    )


def test_a_broker_that_does_not_answer_is_an_error_that_names_its_address(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailable, match="Kafka at localhost:9 does not answer; check the address"):
        counting("localhost:9", tmp_path, "orders").run(until_caught_up=True)


def test_a_broker_that_refuses_the_login_says_so_and_shows_no_password(tmp_path: Path) -> None:
    with broker_with_login() as login:
        wrong = login | {"sasl.password": PLANTED}
        with pytest.raises(BrokerUnavailable) as raised:
            counting(wrong, tmp_path, "orders").run(until_caught_up=True)
    assert f"Kafka at {login['bootstrap.servers']} refuses the login: " in str(raised.value)
    assert "Authentication failed" in str(raised.value)
    assert "check the settings 'security.protocol', 'sasl.*' and 'ssl.*'" in str(raised.value)
    assert PLANTED not in str(raised.value)
