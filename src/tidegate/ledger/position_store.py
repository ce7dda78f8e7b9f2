"""The interface :class:`PositionStore`: where a consumer keeps its positions, a ledger or Kafka's own group offsets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import NamedTuple, Protocol, TypeVar

from tidegate.core.positions import GroupState
from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim, Move, Span
from tidegate.errors import LedgerError
from tidegate.ledger.claims import Identities, StartAt, Subscription
from tidegate.ledger.transaction import Limits, Result, Transaction

__all__ = ["PositionStore", "Reclaimed"]

Tx_co = TypeVar("Tx_co", bound=Transaction, covariant=True)


class Reclaimed(NamedTuple):
    """The result of ``reclaim``: the claims held now, and the other partitions with their present owners."""

    claims: dict[TopicPartition, Claim]
    owners: dict[TopicPartition, str]


class PositionStore(Protocol[Tx_co]):
    """A store of positions, as consumers use it.

    :class:`~tidegate.ledger.Ledger` commits positions together with data, and fences. Positions in Kafka are committed
    on their own, or together with records that a handler sends.
    """

    limits: Limits

    @property
    @abstractmethod
    def silence(self) -> float:
        """How many seconds the store has not answered; 0 if it answered the last request."""

    @abstractmethod
    def claim(
        self,
        group: str,
        partitions: Iterable[TopicPartition],
        start_at: StartAt = 0,
        *,
        identities: Identities | None = None,
        deployment: str | None = None,
        restart: bool = False,
        subscription: Subscription | None = None,
    ) -> dict[TopicPartition, Claim]:
        """Claim partitions and return their positions; a partition without a position gets one from ``start_at``."""

    @abstractmethod
    def reclaim(self, claims: Mapping[TopicPartition, Claim], *, take: bool = False) -> Reclaimed:
        """Check claims that may be outdated, and claim again where possible; with ``take``, from other owners too."""

    @abstractmethod
    def release(self, claims: Mapping[TopicPartition, Claim]) -> set[TopicPartition]:
        """Release claims and return the partitions released."""

    @abstractmethod
    def confirm(self, claims: Mapping[TopicPartition, Claim], spans: Iterable[Span]) -> bool:
        """Return whether the spans still have to be advanced, as far as the store can tell; raises if fenced."""

    @abstractmethod
    def transact(
        self,
        claims: Mapping[TopicPartition, Claim],
        spans: Iterable[Span],
        handler: Callable[[Tx_co], object] | None = None,
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
        conflicts: int | None = None,
    ) -> Result:
        """Advance the spans and run ``handler`` in the same transaction, until it has committed once."""

    @abstractmethod
    def detached(self, claims: Mapping[TopicPartition, Claim], spans: Iterable[Span]) -> AbstractContextManager[Tx_co]:
        """Open a transaction that does not move the positions; :meth:`transact` moves them separately."""

    @abstractmethod
    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """Return whether a group is paused, and its positions: all that the store knows, or those of ``partitions``."""

    @abstractmethod
    def stored(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the stored positions of these partitions, no matter which member of the group moved them."""

    @abstractmethod
    def passing(self, error: BaseException, what: str) -> LedgerError | None:
        """Return the public error for an error that a handler met at the store's database outside of a transaction,
        if that error is temporary; ``None`` for other errors."""

    @abstractmethod
    def begin_pruning(self, group: str, every: timedelta) -> bool:
        """Return whether the caller should prune a group's journal now."""

    @abstractmethod
    def prune(self, older_than: timedelta | float | str, group: str | None = None) -> int:
        """Delete journal entries older than ``older_than`` and return how many."""
