"""The errors that Tidegate raises. Messages say what happened, to which group and partition, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.core.records import TopicPartition

__all__ = [
    "AlreadyDone",
    "BrokerUnavailable",
    "BufferFull",
    "ChangeRefused",
    "CommitRefused",
    "CommitUnknown",
    "ConfigurationError",
    "Fenced",
    "HeldTooLong",
    "IdentityChanged",
    "InvalidArgument",
    "InvalidName",
    "LedgerBusy",
    "LedgerConflict",
    "LedgerDenied",
    "LedgerError",
    "LedgerUnavailable",
    "ListenerStopped",
    "NotCommitted",
    "PipelineStopped",
    "PositionMissing",
    "PositionsMoved",
    "ProducerClosed",
    "ProducerError",
    "ProducerFailed",
    "ProducerFenced",
    "RecordRejected",
    "RegistryUnavailable",
    "SchemaError",
    "SchemaRefused",
    "SendAgain",
    "SerializationError",
    "StatementTooLong",
    "TidegateError",
    "TransactionAborted",
    "TransactionBroken",
    "WritesRefused",
]


class TidegateError(Exception):
    """Base class of all errors that Tidegate raises on purpose."""


class ConfigurationError(TidegateError):
    """An argument or a setting is invalid: an unknown URL scheme, a missing driver, a value out of range."""


class InvalidName(ConfigurationError):
    """The name of a group, topic or deployment is not valid in Kafka or cannot be stored in the ledger."""


class BrokerUnavailable(TidegateError):
    """The Kafka cluster did not answer or refused the login."""


class RegistryUnavailable(TidegateError):
    """The schema registry did not answer, or refused the login."""


class SchemaRefused(TidegateError):
    """The schema registry refuses a schema: it is invalid, or not compatible with earlier versions of its subject."""


class ListenerStopped(TidegateError):
    """A listener cannot continue; the message says why and what to do."""


class PipelineStopped(TidegateError):
    """A pipeline cannot continue; the message says why and what to do."""


class LedgerError(TidegateError):
    """Base class of the errors of a ledger."""


class LedgerUnavailable(LedgerError):
    """The database did not answer, refused the login, or was lost and did not come back in time."""


class WritesRefused(LedgerUnavailable):
    """The database answers but refuses writes at present: it is read-only, or its disk or memory is full."""


class LedgerDenied(LedgerError):
    """The login lacks a permission that the ledger needs, or the process may not write the database file."""


class LedgerBusy(LedgerError):
    """A lock was not acquired in time, or conflicts continued for too long (:class:`LedgerConflict`)."""


class LedgerConflict(LedgerBusy):
    """Conflicts with other transactions (deadlocks, serialization failures) did not end. Nothing was written; retry.

    ``conflicts`` counts the attempts that met a conflict.
    """

    conflicts = 1


class CommitRefused(LedgerError):
    """The database refused the COMMIT because of the written data: a deferred constraint or a constraint trigger.

    Nothing was committed. The driver's error is the ``__cause__``.
    """


class SchemaError(LedgerError):
    """The ledger's tables are missing, or their schema is older or newer than this version of Tidegate expects."""


class PositionMissing(LedgerError):
    """A partition has no stored position and no known start, or its position was deleted."""


class IdentityChanged(LedgerError):
    """The position was stored for something else: the topic was recreated, the cluster replaced, or the checkpoint of a
    query is another one than the position's, or of another time."""


class TransactionBroken(LedgerError):
    """The handler ended the transaction, or used something that the store forbids in it. Nothing was committed."""


class HeldTooLong(LedgerError):
    """The handler left its transaction idle for longer than ``hold``, so the database ended it. Nothing was written.

    A retry of the same work would take just as long. ``seconds`` is how long the transaction was idle.
    """

    def __init__(self, where: str, way_out: str, *, seconds: float, hold: float) -> None:
        super().__init__(
            f"{where}: the handler left its transaction idle for {seconds:.1f} s, and the database ends one that is so "
            f"for longer than hold ({hold:g} s); nothing was written. {way_out}, or open the ledger with "
            f"limits=Limits(hold={math.ceil(seconds * 1.3)}, lock_wait={math.ceil(seconds * 2)})"
        )
        self.seconds = seconds
        self.hold = hold


class StatementTooLong(LedgerError):
    """A statement of the handler ran longer than the limit ``answer``. Nothing was written.

    A retry of the same work would take just as long.
    """


class NotCommitted(LedgerError):
    """The transaction was rolled back, but not because of an error of the caller; run the block again."""


class AlreadyDone(LedgerError):
    """The same work was already committed; skip the block."""


class Fenced(LedgerError):
    """A position was claimed by another owner or edited. Nothing was written.

    If an earlier COMMIT got no answer, its outcome is unknown; the stored position shows it, so continue from there.
    ``owners`` has the current owner of each partition that did not match (``None`` if it has none, as after an edit).
    """

    def __init__(self, message: str, owners: Mapping[TopicPartition, str | None]) -> None:
        super().__init__(message)
        self.owners = dict(owners)


class ProducerError(TidegateError):
    """Base class of the errors of a producer. ``code`` is the name of the error in Kafka or librdkafka, if any."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class SendAgain(ProducerError):
    """The record was not acknowledged in time. This is retriable: sending it again may succeed."""


class BufferFull(SendAgain):
    """The producer's buffer stayed full for ``max_block`` seconds, so the record was not accepted."""


class RecordRejected(ProducerError):
    """The record is refused, and sending it again does not help. Other records are not affected."""


class InvalidArgument(RecordRejected, ConfigurationError):
    """An argument of a record is invalid: a partition as text, a negative timestamp."""


class SerializationError(RecordRejected):
    """A key or value could not be serialized."""


class ProducerFailed(ProducerError):
    """The producer failed and can send nothing any more."""


class ProducerClosed(ProducerFailed):
    """The producer is closed."""


class ProducerFenced(ProducerFailed):
    """Another producer started with the same transactional id, or the transaction exceeded its timeout."""


class TransactionAborted(ProducerError):
    """The transaction was aborted, and none of its records is visible. The whole transaction can be retried."""


class CommitUnknown(ProducerError):
    """Kafka did not answer the commit, so it is unknown whether the transaction was committed."""


class ChangeRefused(ConfigurationError):
    """A change by an operator is invalid: beyond the end of the log, in the wrong direction, of an unknown group."""


class PositionsMoved(TidegateError):
    """The positions have changed since the preview. Nothing was changed; make a new preview."""
