"""Kafka transactions: records to several topics, and offsets, become visible together or not at all."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from enum import Enum
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import Producer as Client
from confluent_kafka import TopicPartition as KafkaPartition

from tidegate.core.positions import KeptOffset
from tidegate.core.records import TopicPartition
from tidegate.errors import CommitUnknown, ProducerError, ProducerFailed, SendAgain, TransactionAborted
from tidegate.kafka.codes import producer_error
from tidegate.kafka.delivery import Reports

__all__ = ["KafkaTransaction", "Transactions"]

_log = logging.getLogger("tidegate")
_GRACE = 1.0  # seconds beyond the timeout that the client may take to notice it
_NO_TRANSACTION = "INVALID_TXN_STATE"
_PAUSE = 0.1  # seconds between the beginnings of two attempts, at least: a call may fail at once


class _Left(Enum):
    """The unanswered request at the end of a transaction, which the next transaction has to finish."""

    COMMIT = "commit"
    ABORT = "abort"


class KafkaTransaction:
    """The open transaction of a producer. Everything that the producer sends meanwhile is part of it."""

    def __init__(self, transactions: Transactions, timeout: float) -> None:
        self._transactions = transactions
        self._timeout = timeout

    def send_offsets(self, positions: Mapping[TopicPartition, int | KeptOffset], consumer: Consumer | Any) -> None:
        """Commit the positions of a consumer's group as part of the transaction.

        ``positions`` has the **next** offset of each partition, optionally with a note. ``consumer`` is the client
        that read the records, or its ``consumer_group_metadata()`` from the time of reading. If it has lost its
        partitions since, the transaction cannot commit and :class:`TransactionAborted` is raised.
        """
        metadata = consumer.consumer_group_metadata() if isinstance(consumer, Consumer) else consumer
        self._transactions.send_offsets(positions, metadata, self._timeout)


class Transactions:
    """Runs the transactions of one producer, one at a time."""

    def __init__(self, client: Client, reports: Reports, renew: Callable[[], tuple[Client, Reports]]) -> None:
        """``renew`` replaces a client that has failed permanently."""
        self._client = client
        self._reports = reports
        self._renew = renew
        self._turn = threading.Lock()
        self._thread: int | None = None
        self._is_ready = False
        self._left: _Left | None = None
        self._is_open = False

    @contextmanager
    def block(self, timeout: float) -> Iterator[KafkaTransaction]:
        """Run a block in a transaction: commit at its end, abort if it raises. Blocks of other threads wait."""
        if self._thread == threading.get_ident():
            raise ProducerError("a transaction of this producer is open on this thread already; they do not nest")
        with self._turn:
            self._thread = threading.get_ident()
            try:
                self._begin(timeout)
                try:
                    yield KafkaTransaction(self, timeout)
                except BaseException:
                    self._abort_quietly(timeout)
                    raise
                self._commit(timeout)
            finally:
                self._thread = None

    def send_offsets(self, positions: Mapping[TopicPartition, int | KeptOffset], metadata: Any, timeout: float) -> None:
        """Commit the group's positions with the open transaction; ``metadata`` is the consumer's group metadata."""
        kept = ((tp, KeptOffset(end) if isinstance(end, int) else end) for tp, end in positions.items())
        offsets = [KafkaPartition(tp.topic, tp.partition, offset, note) for tp, (offset, note) in kept]
        if offsets:
            self._retried(
                "the offsets were not taken",
                lambda left: _bounded(
                    lambda: self._client.send_offsets_to_transaction(offsets, metadata, left), left + _GRACE
                ),
                timeout,
            )

    def abandon(self, timeout: float) -> None:
        """Abort the open transaction, if there is one."""
        if self._is_open:
            self._abort_quietly(timeout)

    def _begin(self, timeout: float) -> None:
        self._settle(timeout)
        if not self._is_ready:
            self._retried("transactions cannot be begun", self._client.init_transactions, timeout)
            self._is_ready = True
        self._retried("a transaction cannot be begun", lambda _: self._client.begin_transaction(), timeout)
        self._is_open = True

    def _settle(self, timeout: float) -> None:
        """Finish the previous transaction if its commit or abort was not answered.

        Calling the same function again makes the client resume the unanswered request.
        """
        aborted: TransactionAborted | None = None
        what = "the transaction before this one is not ended"
        if self._left is _Left.COMMIT:
            try:
                self._retried(what, self._client.commit_transaction, timeout)
                self._left = None
            except TransactionAborted as error:
                self._left, aborted = _Left.ABORT, error
        if self._left is _Left.ABORT:
            try:
                self._retried(what, self._client.abort_transaction, timeout)
            except ProducerFailed as error:
                # The client fails permanently if it aborts a transaction that the broker does not know. A new client
                # with the same id aborts whatever the broker has open.
                if error.code != _NO_TRANSACTION:
                    raise
                self._client, self._reports = self._renew()
                self._is_ready = False
            self._left = None
        if aborted is not None:
            raise TransactionAborted(
                f"the previous transaction, whose commit was not answered, was not committed: {aborted}. This one was "
                "not begun; repeat the previous one first",
                aborted.code,
            ) from aborted

    def _commit(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        if undelivered := self._reports.flush(timeout):
            self._abort_quietly(timeout)
            raise TransactionAborted(
                f"the transaction was aborted: {undelivered} of its records were not delivered within {timeout:g} s; "
                "readers see none of it, and it can be repeated as a whole",
                "_TIMED_OUT",
            )
        try:
            self._retried(
                "the transaction was not committed", self._client.commit_transaction, deadline - time.monotonic()
            )
        except TransactionAborted:
            self._abort_quietly(timeout)
            raise
        except SendAgain as error:
            self._left = _Left.COMMIT
            raise CommitUnknown(
                f"{error}. It is not known whether it was committed; the producer's next transaction finds out first",
                error.code,
            ) from error
        finally:
            self._is_open = False

    def _abort_quietly(self, timeout: float) -> None:
        """Abort without raising. If that fails, the next transaction aborts it, or the broker after its timeout."""
        self._is_open = False
        try:
            self._retried("the transaction was not aborted", self._client.abort_transaction, timeout)
        except ProducerError as error:
            if isinstance(error, (SendAgain, ProducerFailed)):
                self._left = _Left.ABORT
            _log.warning("%s", error)

    def _retried(self, what: str, call: Callable[[float], object], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            began = time.monotonic()
            try:
                call(max(0.1, deadline - began))
                return
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
            self._reports.note(error)
            if error.txn_requires_abort():
                raise TransactionAborted(
                    f"the transaction was aborted: {error.str()} ({error.name()}); readers see none of it, and "
                    "it can be repeated as a whole",
                    error.name(),
                )
            if not error.retriable() or time.monotonic() >= deadline:
                raise producer_error(what, error)
            time.sleep(max(0.0, _PAUSE - (time.monotonic() - began)))


def _bounded(call: Callable[[], object], seconds: float) -> None:
    """Run a call in a thread and stop waiting after ``seconds``.

    ``send_offsets_to_transaction`` may never return: after a lost connection, librdkafka forgets its timeout.
    """
    done: Future[object] = Future()

    def make() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=make, name="tidegate-send-offsets", daemon=True).start()
    try:
        done.result(seconds)
    except FutureTimeout:
        raise SendAgain(
            f"the offsets were not accepted within {seconds:g} s, and the client gave no reason; repeat the "
            "transaction with another producer of the same 'transactional.id', which resolves what this one left open",
            "_TIMED_OUT",
        ) from None
