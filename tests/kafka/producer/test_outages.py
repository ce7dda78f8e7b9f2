"""A broker that cannot be reached for a while, in the middle of a transaction."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.kafka.producer import topics

from tidegate import App, BatchBounds, Outgoing, Producer, Record
from tidegate.errors import CommitUnknown, SendAgain, TransactionAborted
from tidegate.kafka.transactions import Transactions
from tidegate.observe.events import Committed, Event
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


@pytest.fixture(autouse=True)
def whole(line: Line) -> Iterator[None]:
    """A test that fails leaves no outage to the next one."""
    yield
    line.proxy.restore()


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


def send_in_one(producer: Producer, topic: str, value: bytes) -> None:
    """As often as the client needs to find its broker again: a record has less time than that may take."""
    for _ in range(9):
        with suppress(TransactionAborted):
            with producer.transaction():
                producer.send(topic, value)
            return
    raise AssertionError(f"{value!r} could not be sent")


@pytest.mark.parametrize("outage", [Proxy.black_hole, Proxy.cut])
@pytest.mark.parametrize("delivered", [0, 1])
def test_a_transaction_whose_records_timed_out_is_known_to_be_aborted_and_the_next_one_commits(
    line: Line, delivered: int, outage: Callable[[Proxy], None]
) -> None:
    topic = topics.create(line.bootstrap)
    settings = {"bootstrap.servers": line.bootstrap, "transactional.id": secrets.token_hex(6), "log_level": 0}
    with Producer({**settings, "message.timeout.ms": 1000}) as producer:
        with producer.transaction():
            producer.send(topic, b"zeroth")
        with pytest.raises(TransactionAborted, match="can be repeated as a whole"), producer.transaction(timeout=0.5):
            for _ in range(delivered):
                producer.send(topic, b"first").result(10)
            outage(line.proxy)
            late = producer.send(topic, b"late")
        with pytest.raises(SendAgain):
            late.result(10)
        with pytest.raises((SendAgain, TransactionAborted)), producer.transaction(timeout=0.5):  # it is away still
            producer.send(topic, b"later")
        line.proxy.restore()
        for value in (b"first", b"late", b"last"):
            send_in_one(producer, topic, value)
    assert topics.values(line.bootstrap, topic) == [b"zeroth", b"first", b"late", b"last"]


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
