"""A commit of Kafka's own offsets that a thread waits for while another one polls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

__all__ = ["PendingCommit"]


class PendingCommit:
    """It is sent without waiting, for the client would let nobody poll meanwhile, and while the group rebalances the
    answer comes only if somebody does. The answer is told where the consumer is polled.
    """

    def __init__(self, offsets: Sequence[KafkaPartition]) -> None:
        self._offsets = list(offsets)
        self._done: Future[None] = Future()

    def send(self, commit: Callable[..., Any]) -> None:
        """Send it."""
        commit(offsets=self._offsets, asynchronous=True)

    def answered(self, error: Any, partitions: Sequence[KafkaPartition]) -> None:
        """The client's answer to some commit: is it this one?"""
        told = {(tp.topic, tp.partition, tp.offset): tp.error for tp in partitions}
        if all((tp.topic, tp.partition, tp.offset) in told for tp in self._offsets):
            self._settle(error or next(filter(None, told.values()), None))

    def make_now(self, commit: Callable[..., Any]) -> None:
        """Commit here and now: for the thread that polls, in a callback, where no answer would be told."""
        if self._done.done():
            return
        try:
            commit(offsets=self._offsets, asynchronous=False)
        except KafkaException as exception:
            self._settle(exception.args[0])
        else:
            self._settle(None)

    def wait(self) -> None:
        """Wait for the answer; raises the client's exception if it is an error."""
        self._done.result()

    def _settle(self, error: Any) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(KafkaException(error))
