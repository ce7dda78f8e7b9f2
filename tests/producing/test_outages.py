"""A broker that cannot be reached for a while, in the middle of a transaction."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator

import pytest
from tests.producing import topics

from tidegate import App, BatchBounds, CommitUnknown, Outgoing, Producer, Record
from tidegate.kafka.transactions import Transactions
from tidegate.observe.observer import Committed, Event
from tidegate.sandbox import Kafka, Proxy


class Line:
    """A broker and the proxy that clients reach it through."""

    def __init__(self, broker: Kafka, proxy: Proxy) -> None:
        self.broker = broker
        self.proxy = proxy
        self.bootstrap = broker.bootstrap


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    broker = Kafka()
    with Proxy(broker.host, broker.port) as proxy, Kafka(port=broker.port, advertised=proxy.address) as started:
        yield Line(started, proxy)


def test_a_commit_without_an_answer_is_settled_before_the_next_transaction(line: Line) -> None:
    topic = topics.create(line.bootstrap)
    settings = {"bootstrap.servers": line.bootstrap, "transactional.id": secrets.token_hex(6), "log_level": 0}
    with Producer(settings) as producer:
        with producer.transaction():  # the first of a broker's life makes its transaction log, which takes its time
            producer.send(topic, b"zeroth")
        with pytest.raises(CommitUnknown, match="is not known"), producer.transaction(timeout=1.5):
            producer.send(topic, b"first").result(10)
            line.proxy.black_hole()
        line.proxy.restore()
        with producer.transaction():
            producer.send(topic, b"second")
    assert topics.values(line.bootstrap, topic) == [b"zeroth", b"first", b"second"]


@pytest.mark.parametrize("seconds", [0.3, 3.0])  # within the time of the transaction, and beyond it
def test_a_copy_goes_on_after_an_outage_in_the_middle_of_a_commit(
    line: Line, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = topics.create(line.bootstrap), topics.create(line.bootstrap)
    with Producer(line.bootstrap) as producer:
        for number in range(60):
            producer.send(source, b"%d" % number)
    commit, done, cut = Transactions._commit, 0, threading.Event()

    def cut_and_commit(transactions: Transactions, timeout: float) -> None:
        if done == 3 and not cut.is_set():
            cut.set()
            line.proxy.cut()
            threading.Timer(seconds, line.proxy.restore).start()
        commit(transactions, timeout)

    monkeypatch.setattr(Transactions, "_commit", cut_and_commit)

    def heard(event: Event) -> None:
        nonlocal done
        done += isinstance(event, Committed)

    settings = {"bootstrap.servers": line.bootstrap, "transaction.timeout.ms": 1000, "log_level": 0}
    app = App(settings, None, observers=[heard])

    @app.listener(source, group=f"g-{source}", batch=BatchBounds(count=10))
    def pass_on(record: Record) -> Outgoing:
        return Outgoing(target, record.value)

    app.run(until_caught_up=True)
    assert cut.is_set()
    assert topics.values(line.bootstrap, target) == [b"%d" % number for number in range(60)]
