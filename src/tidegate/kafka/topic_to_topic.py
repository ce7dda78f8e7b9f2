"""Topic to topic: positions in Kafka's own group offsets, moved in the Kafka transaction that sends the results."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any

from tidegate.core.delivery import CommitStrategy
from tidegate.core.errors import ConfigurationError, Fenced, NotCommitted
from tidegate.core.positions import KeptOffset
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Move, Span, Work
from tidegate.kafka.admin import Admin
from tidegate.kafka.broker import RecordSource
from tidegate.kafka.config import admin_config
from tidegate.kafka.errors import CommitUnknown, ProducerFenced, RecordRejected, SendAgain, TransactionAborted
from tidegate.kafka.handle import Handle
from tidegate.kafka.outgoing import Outgoing
from tidegate.kafka.positions import KafkaPositions
from tidegate.kafka.producer import Producer
from tidegate.kafka.producer_config import producer_config, safe_config
from tidegate.kafka.source import Source
from tidegate.ledger import Outcome, Reclaimed, Result, StartAt, Transaction

__all__ = ["NotSendable", "Returned", "TopicToTopic"]

_SECONDS = 10.0
"""How long a transaction may take: a process that died leaves one open, which its successor waits for."""

_NOT_A_MEMBER = {
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "FENCED_INSTANCE_ID",
    "STALE_MEMBER_EPOCH",
    "FENCED_MEMBER_EPOCH",
    "REBALANCE_IN_PROGRESS",
}


class NotSendable(ConfigurationError):
    """A handler returned something that is no record for another topic: no fault of the record that it was given."""


class Returned(Transaction):
    """Collects what a handler returns: it is sent when all is done, so that a part of it can be taken back."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.records: list[Outgoing] = []

    def returned(self, value: object) -> None:
        """Take what the handler returned: a record, several, or none."""
        records = [value] if isinstance(value, Outgoing) else value
        # Not any sequence: bytes without a byte in them would be no records at all.
        others = (
            [each for each in records if not isinstance(each, Outgoing)] if isinstance(records, list | tuple) else ()
        )
        if not isinstance(records, list | tuple) or others:
            within = f" with {type(others[0]).__name__} in it" if others else ""
            raise NotSendable(
                f"a handler from topic to topic returns Outgoing(topic, value, …), a list of those or None, and not "
                f"{type(value).__name__}{within}"
            )
        self.records += records

    def _savepoint(self) -> AbstractContextManager[None]:
        return self._undone_if_it_fails()

    @contextmanager
    def _undone_if_it_fails(self) -> Iterator[None]:
        before = len(self.records)
        try:
            yield
        except BaseException:
            del self.records[before:]
            raise


class TopicToTopic(KafkaPositions):
    """Stands where a ledger stands. What a handler returns and the positions are one Kafka transaction.

    The fence is the group's: a commit carries the generation under which the partition is held, and the broker refuses
    it once another member has it. A position that may be in an unfinished transaction is not told by the broker before
    that is settled.
    """

    def __init__(self, kafka: Mapping[str, Any], group: str) -> None:
        super().__init__(CommitStrategy.SYNCHRONOUS)
        prefix = kafka.get("transactional.id", f"tidegate-{group}")
        self._settings = {
            "transaction.timeout.ms": int(_SECONDS * 1000),
            **safe_config(producer_config(kafka)),
            # Of its own for each consumer: two with the same id would fence each other off for ever.
            "transactional.id": f"{prefix}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        }
        # By then the broker has aborted it: to wait any longer for a broker that was away is of no use.
        self._timeout = int(self._settings["transaction.timeout.ms"]) / 1000
        self._group = group
        self._kafka = dict(kafka)
        self._producer: Producer | None = None
        self._claims = count(1)
        self._held: dict[TopicPartition, int] = {}

    def claim(
        self, group: str, partitions: Iterable[TopicPartition], start_at: StartAt = 0, **options: Any
    ) -> dict[TopicPartition, Claim]:
        """See :meth:`KafkaPositions.claim`; whoever works under an older claim is fenced off."""
        wanted = list(partitions)
        for tp in wanted:
            self._held.pop(tp, None)
        number = next(self._claims)
        claims = super().claim(group, wanted, start_at, **options)
        self._held.update(dict.fromkeys(claims, number))
        return {tp: claim._replace(epoch=number) for tp, claim in claims.items()}

    def reclaim(self, claims: Mapping[TopicPartition, Claim], *, take: bool = False) -> Reclaimed:
        """Go on from where the broker says that the group is, once nothing of this process is open there."""
        self._open()
        self._reached.update((tp, kept.offset) for tp, kept in self._committed(claims).items())
        return Reclaimed({tp: claim._replace(position=self._reached[tp]) for tp, claim in claims.items()}, {})

    def transact(
        self,
        claims: Mapping[TopicPartition, Claim],
        spans: Iterable[Span],
        handler: Callable[[Any], object] | None = None,
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
    ) -> Result:
        """Run the handler; send what it returned and move the positions in one transaction."""
        work = Work.of(claims, spans, move=move, note=note)
        returned = Returned(work)
        if handler is not None:
            handler(returned)
        ends = {step.span.partition: step.span.end for step in work.steps}
        metadata = self._metadata(claims, work)
        producer = self._open()
        handles: list[Handle] = []
        try:
            with producer.transaction(self._timeout) as transaction:
                handles += [_sent(producer, record) for record in returned.records]
                transaction.send_offsets(self._kept(ends), metadata)
        except TransactionAborted as error:
            if error.code in _NOT_A_MEMBER:
                raise _fenced(work) from error
            for handle in handles:
                if isinstance(handle.error, RecordRejected):  # it would be rejected again
                    raise handle.error from error
            raise NotCommitted(f"{work}: {error}") from error
        except (CommitUnknown, ProducerFenced, SendAgain) as error:
            self._drop()
            raise NotCommitted(f"{work}: {error}") from error
        self._reached.update(ends)
        return Result(Outcome.COMMITTED, 1, 0)

    def attach(self, source: RecordSource) -> None:
        """The consumer whose group the offsets belong to; it has to be a real one."""
        if not isinstance(source, Source):
            raise ConfigurationError(
                "a listener from topic to topic needs Kafka's own transactions, which the test kit does not have; test "
                "the function by itself, or the app on a broker"
            )
        super().attach(source)
        source.tells_generations = True
        self._of_group = source

    def close(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _metadata(self, claims: Mapping[TopicPartition, Claim], work: Work) -> Any:
        """The generation of the group in which the partitions are held.

        It is asked for first: a partition that was lost is taken off the list before its loser can get into a new
        generation, and one that came back has another claim.
        """
        metadata = self._of_group.group_metadata(work.partitions)
        if metadata is None or any(self._held.get(tp) != claims[tp].epoch for tp in work.partitions):
            raise _fenced(work)
        return metadata

    def _committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        """Asked of a new client: the consumer lets no other thread in while one of them polls, and a client that has
        once lost its connection may not find the coordinator of a group again.
        """
        return Admin(admin_config(self._kafka)).group_offsets(self._group, partitions)

    def _open(self) -> Producer:
        """The producer, once whatever its predecessor of the same id left open is settled."""
        if self._producer is None:
            producer = Producer(self._settings)
            try:
                with producer.transaction(max(_SECONDS, self._timeout)):
                    pass
            except (TransactionAborted, CommitUnknown, ProducerFenced, SendAgain) as error:
                producer.close(0)
                raise NotCommitted(str(error)) from error
            except BaseException:
                producer.close(0)
                raise
            self._producer = producer
        return self._producer

    def _drop(self) -> None:
        if self._producer is not None:
            self._producer.close(0)
            self._producer = None


def _sent(producer: Producer, record: Outgoing) -> Handle:
    return producer.send(
        record.topic,
        record.value,
        key=record.key,
        partition=record.partition,
        headers=record.headers,
        timestamp=record.timestamp,
    )


def _fenced(work: Work) -> Fenced:
    return Fenced(
        f"{work}: another member of the group has the partitions by now; nothing was sent",
        dict.fromkeys(work.partitions, None),
    )
