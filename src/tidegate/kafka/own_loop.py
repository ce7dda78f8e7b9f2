"""Bring your own loop: the ledger on a plain consumer that the user polls."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tidegate.core.arguments import argument
from tidegate.core.assignment import Assignment, Reading
from tidegate.core.commands import ClaimPartitions, Command, ReclaimPartitions, ReleaseClaims, SeekTo
from tidegate.core.errors import BrokerUnavailable, Fenced
from tidegate.core.names import check_group, check_topic
from tidegate.core.positions import Identity
from tidegate.core.protocols import SessionTimeout
from tidegate.core.records import Record, TopicPartition
from tidegate.core.spans import Claim, Span
from tidegate.core.start import Earliest, LogOffsets, Start, StartStrategy, Timestamp
from tidegate.kafka.records import as_record
from tidegate.ledger import Ledger

__all__ = ["OwnLoop"]

_SECONDS = 10.0


class OwnLoop:
    """Keeps the positions of a consumer in a ledger; the consumer is polled by whoever made it.

    Making one subscribes the consumer: partitions are claimed when they are assigned, read from where the ledger
    says, and released when they are revoked. Every message goes through :meth:`accept`, and every write through
    :meth:`transaction`. The consumer needs ``enable.auto.commit=false`` and ``auto.offset.reset=error``.
    """

    def __init__(
        self,
        consumer: Consumer,
        ledger: Ledger[Any],
        topics: Sequence[str],
        *,
        group: str,
        start: Start = Earliest(),  # noqa: B008 - a frozen value
        session_timeout: float = 45.0,
    ) -> None:
        self.group = check_group(group)
        self._consumer: Consumer = argument("consumer", Consumer, consumer)
        self._ledger: Ledger[Any] = argument("ledger", Ledger, ledger)
        self._strategy = StartStrategy(start)
        names = [check_topic(topic) for topic in argument("topics", tuple[str, ...], topics)]
        session_timeout = argument("session_timeout", SessionTimeout, session_timeout)
        self._assignment = Assignment(session_timeout, random.Random())  # noqa: S311 - jitter
        self._since = 0
        self._seeks: dict[TopicPartition, int] = {}
        self._error: Exception | None = None
        consumer.subscribe(names, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def accept(self, message: Message | None) -> Record | None:
        """The record of a message, if it may be used: its partition is claimed, and it is not from before a seek.

        To be called with whatever ``poll()`` returned, ``None`` included: this is also where seeks and claims that
        could not be made at once are made up for.
        """
        if self._error is not None:
            raise self._error
        self._obey(self._assignment.tick(time.monotonic()))
        since, self._since = self._since, self._assignment.generation
        record = None
        if message is not None and message.error() is None:
            received = self._assignment.received([as_record(message)], since)
            self._obey(received.commands)
            record = received.records[0] if received.records else None
        if record is not None and record.source in self._seeks:
            record = None
        self._seek()
        return record

    @contextmanager
    def transaction(self, *records: Record) -> Iterator[Any]:
        """A transaction in which these records are stepped over; what the block writes commits with that, or not at
        all.

        The records of a partition are given in order, from its position on, as :meth:`accept` returned them. Raises
        :class:`Fenced` if someone else has the partition by now: go on polling, the position is found again by itself.
        """
        spans = self._spans(records)
        claims = self._claims([span.partition for span in spans])
        try:
            with self._ledger.transaction(claims, spans) as tx:
                yield tx
        except Fenced as fenced:
            self._obey(self._assignment.fenced(fenced.owners))
            self._obey(self._assignment.discarded(claims.keys() - fenced.owners.keys()))
            raise
        except BaseException:
            self._obey(self._assignment.discarded(claims))
            raise
        self._assignment.committed(spans)

    def close(self) -> None:
        """Release what is claimed and leave the group."""
        self._consumer.close()

    def _spans(self, records: Sequence[Record]) -> list[Span]:
        ends: dict[TopicPartition, Span] = {}
        for record in records:
            state = self._assignment.state(record.source)
            start = state.position if isinstance(state, Reading) else record.offset
            known = ends.get(record.source)
            count = known.records + 1 if known else 1
            ends[record.source] = Span(record.source, start, record.offset + 1, count)
        return list(ends.values())

    def _claims(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Claim]:
        claims: dict[TopicPartition, Claim] = {}
        for tp in partitions:
            state = self._assignment.state(tp)
            if not isinstance(state, Reading):
                raise Fenced(f"group {self.group!r}: {tp} is not claimed here any more; drop the record", {tp: None})
            claims[tp] = state.claim
        return claims

    # Rebalances: what is raised here would be swallowed, and the client would begin where it likes

    def _on_assign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        added = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        self._assignment.assigned(added)
        starts: dict[TopicPartition, int] = {}
        try:
            for command in self._assignment.claimed(self._claim(added)):
                if isinstance(command, SeekTo):
                    starts[command.partition] = command.offset
        except Exception as error:
            self._error = error
        places = [KafkaPartition(tp.topic, tp.partition, starts[tp]) for tp in added if tp in starts]
        try:
            consumer.incremental_assign(places)
        except KafkaException:  # the group's protocol is an eager one
            consumer.assign(places)

    def _on_revoke(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        try:
            self._obey(self._assignment.revoked(TopicPartition(tp.topic, tp.partition) for tp in partitions))
        except Exception as error:
            self._error = error
        self._unassign(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._assignment.lost(TopicPartition(tp.topic, tp.partition) for tp in partitions)
        self._unassign(consumer, partitions)

    @staticmethod
    def _unassign(consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        try:
            consumer.incremental_unassign(partitions)
        except KafkaException:
            consumer.unassign()

    # Commands

    def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, ClaimPartitions):
                self._obey(self._assignment.claimed(self._claim(command.partitions)))
            elif isinstance(command, ReclaimPartitions):
                held, owners = self._ledger.reclaim(command.claims, take=command.take)
                self._obey(self._assignment.reclaimed(held, owners, time.monotonic()))
            elif isinstance(command, ReleaseClaims):
                self._ledger.release(command.claims)
            elif isinstance(command, SeekTo):
                self._seeks[command.partition] = command.offset

    def _seek(self) -> None:
        for tp, offset in list(self._seeks.items()):
            try:
                self._consumer.seek(KafkaPartition(tp.topic, tp.partition, offset))
            except KafkaException:
                continue  # not yet: right after an assignment it takes a moment
            del self._seeks[tp]

    def _claim(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Claim]:
        def identities() -> dict[str, Identity]:
            cluster = self._consumer.list_topics(timeout=_SECONDS).cluster_id
            return {tp.topic: Identity(cluster) for tp in partitions}

        try:
            return self._ledger.claim(self.group, partitions, self._starts, identities=identities)
        except KafkaException as error:
            raise BrokerUnavailable(f"the cluster did not answer: {error.args[0].str()}") from error

    def _starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        logs: dict[TopicPartition, LogOffsets] = {}
        start = self._strategy.start
        for tp in partitions:
            low, high = self._consumer.get_watermark_offsets(KafkaPartition(*tp), timeout=_SECONDS)
            at = None
            if isinstance(start, Timestamp):
                (found,) = self._consumer.offsets_for_times([KafkaPartition(*tp, start.at)], timeout=_SECONDS)
                at = found.offset if found.offset >= 0 else None
            logs[tp] = LogOffsets(low, high, at)
        return self._strategy.offsets(partitions, logs)
