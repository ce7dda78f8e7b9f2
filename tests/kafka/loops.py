"""Loops of one's own, as the documentation shows them, in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer
from tests.app.member.stage import GROUP, PATIENCE, Stage, wait_until

from tidegate import GroupProtocol, Ledger, OwnLoop, Record
from tidegate.errors import LedgerError
from tidegate.observe import Event

BRISK = {"topic.metadata.refresh.interval.ms": 500, "fetch.wait.max.ms": 100}


def settings(stage: Stage, protocol: GroupProtocol = GroupProtocol.COOPERATIVE) -> dict[str, Any]:
    """What a consumer is made with."""
    kafka = {**stage.kafka, **BRISK, "group.id": GROUP, "enable.auto.commit": False, "auto.offset.reset": "error"}
    if protocol is GroupProtocol.CONSUMER:
        return {**kafka, "group.protocol": "consumer"}
    own = {"partition.assignment.strategy": protocol.value, "heartbeat.interval.ms": 500, "session.timeout.ms": 6000}
    return {**kafka, **own}


class Loop:
    """One thread that polls, accepts and writes; ``inside`` is called at the beginning of every block."""

    def __init__(
        self,
        stage: Stage,
        *topics: str,
        protocol: GroupProtocol = GroupProtocol.COOPERATIVE,
        ledger: Ledger[Any] | None = None,
        inside: Callable[[Record], object] = lambda _: None,
        **options: Any,
    ) -> None:
        self._stage = stage
        self._inside = inside
        self._stopping = threading.Event()
        self.events: list[Event] = []
        self.ledger_errors: list[LedgerError] = []
        self.handed: list[int] = []
        self.error: Exception | None = None
        kafka = settings(stage, protocol)
        self.consumer = Consumer(kafka)
        self.loop = OwnLoop(
            self.consumer, ledger or stage.ledger, topics, kafka=kafka, observers=[self.events.append], **options
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
        except Exception as error:
            self.error = error
        finally:
            self.loop.close()

    def _step(self) -> None:
        record = self.loop.accept(self.consumer.poll(0.1))
        if record is None:
            return
        self.handed.append(record.offset)
        try:
            with self.loop.transaction(record) as tx:
                self._inside(record)
                self._stage.write([record], tx)
        except LedgerError as error:
            self.ledger_errors.append(error)

    def told(self, kind: type) -> list[Any]:
        return [event for event in list(self.events) if isinstance(event, kind)]

    def until(self, condition: Callable[[], object], what: str = "the condition") -> None:
        """Wait for something that this loop does."""
        wait_until(lambda: condition() or not self.thread.is_alive(), what)
        assert condition(), f"the loop ended without {what}: {self.error!r}"

    def ended(self) -> None:
        """Wait for an end of its own accord; what it failed with is raised."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), f"it goes on and on; its last events: {self.events[-5:]}"
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self._stopping.set()
        self.ended()
