"""Delivery reports: a thread of their own serves them, so that nobody has to poll."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from tidegate.kafka.blame import blamed
from tidegate.kafka.errors import BufferFull, ProducerError, producer_error
from tidegate.kafka.outgoing import Outgoing, Undelivered

__all__ = ["Reports"]

_log = logging.getLogger("tidegate")
_TURN = 0.05  # seconds that a turn waits for a report


class Reports:
    """Serves the reports of one client, in the order in which they come."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turned = threading.Condition()
        self._waiting = 0  # threads that want to know of every turn
        self._flushing = 0
        self._ended = False
        self._given_up: list[Undelivered] | None = None
        self._fatal: KafkaError | None = None
        self._thread = threading.Thread(target=self._serve, name="tidegate-delivery-reports", daemon=True)
        self._thread.start()

    def flush(self, timeout: float | None) -> int:
        """Wait until everything is delivered or given up, at most so long; how many records are not."""
        self.refuse_to_wait("flush()")
        with self._turned:
            self._flushing += 1
            self._waiting += 1
            try:
                self._turned.wait_for(lambda: len(self._client) == 0, timeout)
            finally:
                self._flushing -= 1
                self._waiting -= 1
            return len(self._client)

    def once_there_is_room(self, produce: Callable[[], None], seconds: float) -> None:
        """Produce as soon as the buffer takes it; raises :class:`BufferFull` if that is not within ``seconds``."""
        if self._thread is threading.current_thread():  # in a callback: it is this thread that would make room
            seconds = 0
        deadline = time.monotonic() + seconds
        with self._turned:
            self._waiting += 1
            try:
                while (left := deadline - time.monotonic()) > 0:
                    self._turned.wait(left)
                    try:
                        return produce()
                    except BufferError:
                        continue
            finally:
                self._waiting -= 1
        raise BufferFull(
            f"the buffer of the producer stayed full for {seconds:g} s: {len(self._client)} records wait for a broker. "
            "Send less, wait longer ('max_block'), or raise 'queue.buffering.max.messages' and '.max.kbytes'",
            "_QUEUE_FULL",
        )

    def give_up(self, timeout: float) -> list[Undelivered]:
        """Drop everything that is not delivered; what that was."""
        self._given_up = []
        self._client.purge()
        self.flush(timeout)
        given_up, self._given_up = self._given_up, None
        return given_up

    def given_up(self, error: KafkaError, message: Any, record: Outgoing | None = None) -> ProducerError:
        """The error for a record that the client has given up; told by its handle."""
        topic, partition = message.topic(), message.partition()
        where = topic if partition is None or partition < 0 else f"{topic}[{partition}]"
        ours = producer_error(f"{where}: the record was not delivered", error)
        if self._given_up is not None:
            when = None if record is None else record.timestamp
            headers = None if record is None else record.headers
            asked = partition if record is None else record.partition
            whole = Outgoing(topic, message.value(), message.key(), asked, headers, when)
            self._given_up.append(Undelivered(whole, ours, error.code() == KafkaError._PURGE_INFLIGHT))
        return ours

    def note(self, error: KafkaError) -> None:
        """Remember why the client has failed for good, if that is what the error says."""
        if error.fatal():
            self._fatal = error

    def behind(self, error: KafkaError) -> KafkaError:
        """The reason for an error that says no more than that the client has failed for good."""
        return self._fatal if error.code() == KafkaError._FATAL and self._fatal is not None else error

    def refuse_to_wait(self, what: str) -> None:
        """Raise if this is the thread that reports are served on: it would wait for itself."""
        if self._thread is threading.current_thread():
            raise RuntimeError(f"{what} waits for delivery reports, and this callback is one: it would wait for ever")

    def end(self) -> None:
        """Serve no more."""
        self.end_soon()
        self._thread.join()
        for _ in range(2):  # one that has failed for good says so first
            if len(self._client):  # a thread was about to send all the while
                self._client.purge()
                self._turn(self._client.flush)

    def end_soon(self) -> None:
        """Serve no more after this turn."""
        self._ended = True

    def _serve(self) -> None:
        client = self._client
        while not self._ended:
            self._turn(client.flush if self._flushing else client.poll)  # flush sends what lingers
            if self._waiting:
                with self._turned:
                    self._turned.notify_all()

    def _turn(self, serve: Callable[[float], object]) -> None:
        try:
            serve(_TURN)
        except KafkaException as failed:  # the client has failed for good; it says so here, once
            self.note(failed.args[0])
        except Exception as error:
            _log.error("a callback in the settings of the Kafka client failed with %s", blamed(error))
