"""Errors are part of the interface: what happened, to which group, topic, partition and offset, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.core.records import TopicPartition

__all__ = [
    "AlreadyDone",
    "BrokerUnavailable",
    "ConfigurationError",
    "Fenced",
    "IdentityChanged",
    "InvalidName",
    "LedgerBusy",
    "LedgerDenied",
    "LedgerError",
    "LedgerUnavailable",
    "ListenerStopped",
    "NotCommitted",
    "PipelineStopped",
    "PositionMissing",
    "SchemaError",
    "TidegateError",
    "TransactionBroken",
]


class TidegateError(Exception):
    """Base of every error that Tidegate raises on purpose."""


class ConfigurationError(TidegateError):
    """Something was asked for that cannot be: an unknown URL scheme, a missing driver, a value out of range."""


class InvalidName(ConfigurationError):
    """A group or topic name that Kafka or the ledger cannot hold."""


class BrokerUnavailable(TidegateError):
    """The Kafka cluster did not answer, or refused the login."""


class ListenerStopped(TidegateError):
    """A listener cannot go on: what happened, and what to do."""


class PipelineStopped(TidegateError):
    """A pipeline cannot go on: what happened, and what to do."""


class LedgerError(TidegateError):
    """Base of the errors of a ledger."""


class LedgerUnavailable(LedgerError):
    """The database did not answer, refused the login, or went away and stayed away."""


class LedgerDenied(LedgerError):
    """The database is read-only, or the login lacks a right that the ledger needs."""


class LedgerBusy(LedgerError):
    """A lock was not to be had within the bound, or conflicts went on for longer than the bound."""


class SchemaError(LedgerError):
    """The ledger's tables are missing, older or newer than this version of Tidegate."""


class PositionMissing(LedgerError):
    """A partition has no stored position and no start was given for it."""


class IdentityChanged(LedgerError):
    """The topic was recreated, or the cluster replaced, since the position was stored."""


class TransactionBroken(LedgerError):
    """The handler ended the transaction, or asked for what the store refuses in it: nothing of it was committed."""


class NotCommitted(LedgerError):
    """The transaction was rolled back through no fault of the caller; run the block again."""


class AlreadyDone(LedgerError):
    """This very piece of work was committed before: skip the block."""


class Fenced(LedgerError):
    """Someone else moved or claimed a position: nothing was written.

    ``owners`` names, for each partition that did not match, its owner now (``None``: nobody, as after an operator's
    edit).
    """

    def __init__(self, message: str, owners: Mapping[TopicPartition, str | None]) -> None:
        super().__init__(message)
        self.owners = dict(owners)
