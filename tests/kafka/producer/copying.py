"""A process that copies a topic to another one, and dies by its own hand at a given step."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from tests.kafka.producer import topics
from tests.processes import die

from tidegate import App, BatchBounds, GroupProtocol, Outgoing, Record
from tidegate.kafka.consumer import GroupConsumer
from tidegate.kafka.delivery import Reports
from tidegate.kafka.offsets import TopicToTopic
from tidegate.kafka.transactions import Transactions
from tidegate.observe.events import Committed, Event


@dataclass(frozen=True)
class Copy:
    """What is to be copied, and when to die: when ``step`` is reached for the ``turn``-th time, or a while later."""

    bootstrap: str
    source: str
    target: str
    step: str | None = None
    turn: int = 1
    delay: float = 0.0
    leave_after: int | None = None
    freezes: bool = False
    """Stop at the step, to be continued, instead of dying."""
    protocol: GroupProtocol = GroupProtocol.COOPERATIVE

    @property
    def group(self) -> str:
        return f"copy-{self.source}"

    def positions(self) -> dict[int, int]:
        """Where the group is."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group, "log_level": 0})
        numbers = topics.leaders(consumer, self.source)
        found = consumer.committed([KafkaPartition(self.source, number) for number in numbers], timeout=30)
        consumer.close()
        return {each.partition: each.offset for each in found}


class Steps:
    """Counts the steps that were reached, and dies at the one that is fatal."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._reached: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reached(self, step: str) -> None:
        with self._lock:
            self._reached[step] += 1
            is_fatal = step == self._copy.step and self._reached[step] == self._copy.turn
        if is_fatal and self._copy.freezes:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif is_fatal and self._copy.delay:
            threading.Thread(target=self._strike, daemon=True).start()
        elif is_fatal:
            die()

    def _strike(self) -> None:
        time.sleep(self._copy.delay)
        die()

    def watch(self, owner: type, method: str, *, before: str | None = None, after: str | None = None) -> None:
        """Let a method of a class tell the steps before and after it."""
        inner: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(inner)
        def told(*arguments: Any, **options: Any) -> Any:
            if before:
                self.reached(before)
            result = inner(*arguments, **options)
            if after:
                self.reached(after)
            return result

        setattr(owner, method, told)


def copy(order: Copy) -> None:
    steps = Steps(order)
    steps.watch(TopicToTopic, "claim", before="claiming", after="claimed")
    steps.watch(GroupConsumer, "fetch", after="polled")
    steps.watch(TopicToTopic, "transact", after="acknowledged")
    steps.watch(Transactions, "_begin", before="beginning", after="begun")
    steps.watch(Transactions, "send_offsets", before="sent", after="offsets")
    steps.watch(Transactions, "_commit", before="flushing", after="committed")
    steps.watch(Reports, "flush", after="committing")
    steps.watch(TopicToTopic, "release", before="releasing")
    commits = 0

    def observe(event: Event) -> None:
        nonlocal commits
        if isinstance(event, Committed):
            commits += 1
            if commits == order.leave_after:
                app.stop()

    settings = {"bootstrap.servers": order.bootstrap, "log_level": 0, "transaction.timeout.ms": 1000}
    app = App(settings, None, observers=[observe])

    @app.listener(
        order.source,
        group=order.group,
        batch=BatchBounds(count=5),
        session_timeout=0.6 if order.leave_after is None else 3.0,  # who is to leave must still be a member then
        protocol=order.protocol,
        kafka={} if order.protocol is GroupProtocol.CONSUMER else {"heartbeat.interval.ms": 150},
        on_assigned=lambda _: steps.reached("assigned"),
        on_revoked=lambda _: steps.reached("revoked"),
    )
    def pass_on(record: Record) -> Outgoing:
        steps.reached("handling")
        return Outgoing(order.target, record.value, key=record.key, partition=record.partition)

    app.run()
    os._exit(0)  # without waiting for threads of the client
