"""A database that goes silent to one member: others go on with its partitions, and it comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.app.member.stage import Running, Stage, numbered, wait_until

from tidegate.core.policies import GroupProtocol
from tidegate.core.records import TopicPartition
from tidegate.ledger import Ledger, Limits, open_ledger
from tidegate.observe.events import Claimed, Committed, Rebalanced, StoreBack, StoreLost
from tidegate.sandbox import Kafka, Proxy, Redis
from tidegate.sandbox.database import Database

LIMITS = Limits(hold=1.0, lock_wait=2.0, answer=3.0)
SESSION = 6.0
BOUND = LIMITS.answer + SESSION + LIMITS.lock_wait
SLACK = 10.0  # seconds, for a machine that is busy
PARTITIONS = 4


class Distance:
    """A server, and a line to it that may fall silent."""

    def __init__(self, stack: ExitStack, server: Database) -> None:
        self.server = server
        self.proxy = stack.enter_context(Proxy(server.host, server.port))
        self._stack = stack

    @property
    def url(self) -> str:
        return self.server.url_for(port=self.proxy.port)

    def ledger(self, stage: Stage) -> Ledger[object]:
        return self._stack.enter_context(open_ledger(self.url, prefix=f"{stage.name}_", limits=LIMITS))


@pytest.fixture
def far(request: pytest.FixtureRequest) -> Iterator[Distance]:
    with ExitStack() as stack:
        yield Distance(stack, request.getfixturevalue(request.param))


def partitions_of(running: Running) -> set[TopicPartition]:
    """What a member has been given and has not lost."""
    held: set[TopicPartition] = set()
    for event in running.told(Rebalanced):
        held = held | {*event.partitions} if event.kind == "assigned" else held - {*event.partitions}
    return held


@pytest.mark.parametrize(
    ("far", "protocol"),
    [
        *(("postgres", protocol) for protocol in GroupProtocol),
        *((name, GroupProtocol.COOPERATIVE) for name in ("mariadb", "mysql")),
    ],
    indirect=["far"],
)
def test_the_partitions_of_a_member_whose_ledger_is_silent_go_on_elsewhere_until_it_answers(
    far: Distance, protocol: GroupProtocol, kafka: Kafka, stages: Callable[..., Stage]
) -> None:
    stage = stages(kafka.bootstrap, far.server.url, LIMITS)
    topic = stage.topic(PARTITIONS)
    settings = {"protocol": protocol, "session_timeout": SESSION}
    healthy = stage.start(topic, **settings)
    distant = stage.start(topic, ledger=far.ledger(stage), **settings)
    wait_until(lambda: partitions_of(healthy) and partitions_of(distant))
    sent = send(stage, topic, 5)
    wait_until(lambda: len(stage.rows()) == sent and distant.told(Committed))

    far.proxy.black_hole()
    began = time.monotonic()
    sent += send(stage, topic, 5, first=5)
    wait_until(lambda: len(stage.rows()) == sent, "what the silent member had")
    took = time.monotonic() - began
    assert took < BOUND + SLACK
    assert len(partitions_of(healthy)) == PARTITIONS
    assert distant.is_alive and not partitions_of(distant)
    assert "answer" in distant.wait_for(StoreLost).reason

    far.proxy.restore()
    distant.wait_for(StoreBack)
    wait_until(lambda: partitions_of(distant), "its return")
    before = len(distant.told(Committed))
    sent += send(stage, topic, 5, first=10)
    wait_until(lambda: len(stage.rows()) == sent and len(distant.told(Committed)) > before)
    for running in (healthy, distant):
        running.stop()
    for number in range(PARTITIONS):
        assert stage.offsets(topic, number) == list(range(15))
    stage.verify()


def send(stage: Stage, topic: str, count: int, first: int = 0) -> int:
    for number in range(PARTITIONS):
        stage.send(topic, numbered(count, first=first), partition=number)
    return PARTITIONS * count


@pytest.mark.parametrize("far", ["postgres"], indirect=True)
def test_a_member_alone_waits_for_a_silent_ledger_and_loses_nothing(
    far: Distance, kafka: Kafka, stages: Callable[..., Stage]
) -> None:
    stage = stages(kafka.bootstrap, far.server.url, LIMITS)
    topic = stage.topic(PARTITIONS)
    running = stage.start(topic, ledger=far.ledger(stage), session_timeout=SESSION)
    sent = send(stage, topic, 5)
    wait_until(lambda: len(stage.rows()) == sent)

    far.proxy.black_hole()
    sent += send(stage, topic, 5, first=5)
    wait_until(lambda: not partitions_of(running) and running.told(StoreLost))
    assert len(stage.rows()) == sent / 2

    far.proxy.restore()
    wait_until(lambda: len(stage.rows()) == sent)
    running.stop()
    for number in range(PARTITIONS):
        assert stage.offsets(topic, number) == list(range(10))
    assert len(running.told(StoreLost)) == len(running.told(StoreBack)) == 1
    stage.verify()


@pytest.mark.parametrize("far", ["postgres"], indirect=True)
def test_a_member_that_is_assigned_partitions_while_its_ledger_is_silent_leaves_them_to_others(
    far: Distance, kafka: Kafka, stages: Callable[..., Stage]
) -> None:
    stage = stages(kafka.bootstrap, far.server.url, LIMITS)
    topic = stage.topic(PARTITIONS)
    sent = send(stage, topic, 5)
    ledger = far.ledger(stage)
    ledger.read("billing")
    far.proxy.black_hole()
    silent = stage.start(topic, ledger=ledger, session_timeout=SESSION)
    silent.wait_for(Rebalanced, lambda event: event.kind == "lost")

    healthy = stage.start(topic, session_timeout=SESSION)

    wait_until(lambda: len(stage.rows()) == sent)
    assert not silent.told(Claimed)
    for running in (healthy, silent):
        running.stop()
    stage.verify()


PROGRAM = """
    import os
    from tidegate import App, Record, Transaction

    app = App(os.environ["BOOTSTRAP"], os.environ["LEDGER"])

    @app.listener(os.environ["TOPIC"], group=os.environ["TOPIC"])
    def handle(record: Record, tx: Transaction) -> None:
        print("handling", flush=True)
        input()

    app.run()
"""


@pytest.mark.parametrize("name", ["postgres", "mysql", "redis_server"])
def test_sigterm_is_obeyed_within_20_seconds_though_the_ledger_is_silent(
    name: str, kafka: Kafka, stage: Stage, request: pytest.FixtureRequest
) -> None:
    server: Database | Redis = request.getfixturevalue(name)
    topic = stage.topic()
    stage.send(topic, numbered(1))
    with Proxy(server.host, server.port) as proxy:
        env = {"BOOTSTRAP": kafka.bootstrap, "TOPIC": topic, "LEDGER": server.url_for(port=proxy.port)}
        program = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        with program:
            try:
                assert program.stdin is not None and program.stdout is not None
                assert program.stdout.readline() == "handling\n"
                proxy.black_hole()
                began = time.monotonic()
                program.send_signal(signal.SIGTERM)
                _, told = program.communicate("go on\n", timeout=60)  # and commit
                took = time.monotonic() - began
                assert took < 20
            finally:
                program.kill()
    assert program.returncode == 0, told
    assert "has not answered for" in told, told
