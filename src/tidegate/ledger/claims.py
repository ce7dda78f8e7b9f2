"""One call of :meth:`Ledger.claim`: it asks Kafka after it has seen the rows, and outside of their locks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidegate.core.arguments import convert_arguments
from tidegate.core.positions import Change, ClaimRequest, Identity, Position
from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim
from tidegate.errors import ConfigurationError, PositionMissing

__all__ = ["ClaimCall", "Identities", "StartAt", "Subscription"]

StartAt: TypeAlias = int | Mapping[TopicPartition, int] | Callable[[list[TopicPartition]], Mapping[TopicPartition, int]]
"""Where positions that are not stored yet begin: one offset for all, one for each, or a function that looks them up."""

Identities: TypeAlias = Mapping[str, Identity] | Callable[[], Mapping[str, Identity]]
"""The identity of each topic, or a function that looks them up."""

_Seen: TypeAlias = dict[TopicPartition, int]  # the epoch of each row of one topic


@dataclass(frozen=True, slots=True)
class Subscription:
    """Two lookups in Kafka, for a group whose members share out whole topics.

    ``partitions`` returns every partition that the given topics have now. The first claim of a topic stores a position
    for each of them, so a partition that has no row later on was added to the topic afterwards. ``beginnings`` returns
    the first offset of each such added partition. It is read from there, because producers may have written to it
    before the group noticed it.
    """

    partitions: Callable[[Collection[str]], Collection[TopicPartition]]
    beginnings: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]]

    def __post_init__(self) -> None:
        convert_arguments(self)


class ClaimCall:
    """One call of :meth:`Ledger.claim`, decided in rounds of reading the rows and looking things up in Kafka.

    A lookup counts only if the rows still have the epochs that they had at the time of the lookup. Otherwise a process
    that froze in between could move a recreated topic back to its former incarnation.
    """

    def __init__(
        self,
        request: ClaimRequest,
        wanted: list[TopicPartition],
        start_at: StartAt,
        identities: Identities,
        subscription: Subscription | None = None,
    ) -> None:
        if request.restart and not callable(identities):
            raise ConfigurationError(
                "restart=True needs identities as a function: it is asked again once the stored identity is known"
            )
        self.partitions = wanted
        """The partitions whose rows the claim locks: the wanted ones, and all others of a topic that the group starts
        to read."""
        self._wanted = frozenset(wanted)
        self._start_at = start_at
        self._subscription = subscription
        self._ask: Callable[[], Mapping[str, Identity]] = identities if callable(identities) else lambda: identities
        self._request = replace(request, identities=self._ask())
        self._known: dict[str, _Seen] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._open: set[str] = set()  # topics that need a lookup

    def decide(
        self, rows: Mapping[TopicPartition, Position], used: frozenset[str]
    ) -> tuple[list[Change], dict[TopicPartition, Claim]]:
        """Return the changes and claims for all wanted partitions, or none at all if a lookup is needed first.

        ``rows`` are the stored rows, locked. ``used`` are the topics in which the deployment has forced its start.
        """
        claims: dict[TopicPartition, Claim] = {}
        self._request = request = replace(self._request, used=used)
        doubtful = {tp for tp in self.partitions if request.is_doubtful(tp, rows.get(tp))}
        self._open = {
            topic for topic in {tp.topic for tp in doubtful} if self._known.get(topic) != self._seen(topic, rows)
        }
        if self._open:
            return [], claims
        changes = []
        for tp in self.partitions:
            if tp in self._wanted:
                changes.append(request.decide(tp, rows.get(tp), self._starts))
                claims[tp] = changes[-1].position.claim(request.group)
            elif tp in doubtful and (begun := request.begun(tp, rows.get(tp), self._starts)) is not None:
                changes.append(begun)
        return changes, claims

    def look_up(self, rows: Mapping[TopicPartition, Position]) -> None:
        """Look up in Kafka what :meth:`decide` was missing. ``rows`` are all rows of the group, read before the lookup.

        Discards the result if a topic was recreated during the lookup; the next round looks again.
        """
        self._request = request = replace(self._request, identities=self._ask())
        beginning = {
            topic for topic in self._open if request.begins(topic, [r for tp, r in rows.items() if tp.topic == topic])
        }
        concerned = {tp for tp in self._wanted if tp.topic in self._open} | self._others(beginning, rows)
        doubtful = sorted(tp for tp in concerned if request.is_doubtful(tp, rows.get(tp)))
        added = [tp for tp in doubtful if tp.topic not in beginning]
        starts = self._starts_of([tp for tp in doubtful if tp.topic in beginning]) | self._beginnings(added)
        if starts and self._ask() != request.identities:
            return  # a topic was recreated meanwhile, so these starts may belong to its former incarnation
        self._starts.update(starts)
        self.partitions = sorted({*self.partitions, *starts})
        self._known.update((topic, self._seen(topic, rows)) for topic in self._open)

    def _seen(self, topic: str, rows: Mapping[TopicPartition, Position]) -> _Seen:
        return {tp: rows[tp].epoch for tp in self.partitions if tp.topic == topic and tp in rows}

    def _others(self, topics: set[str], rows: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return the other partitions of ``topics``, whose positions start in the same claim as the wanted ones."""
        if not topics:
            return set()
        if self._subscription is not None:
            return set(self._subscription.partitions(topics)) - self._wanted
        return {tp for tp in rows if self._request.forces(tp.topic) and tp.topic in topics} - self._wanted

    def _beginnings(self, added: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self._subscription is None:
            return self._starts_of(added)
        return self._checked(added, self._subscription.beginnings(added) if added else {})

    def _starts_of(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        given = self._start_at
        if isinstance(given, int):
            return self._checked(partitions, dict.fromkeys(partitions, given))
        if callable(given):
            given = given(partitions) if partitions else {}
        return self._checked(partitions, given)

    def _checked(
        self, partitions: list[TopicPartition], starts: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the starts of ``partitions``; raise if a start is no offset, or if a wanted partition has none.

        Other partitions may lack a start, because their topic may not have them any more.
        """
        for tp in partitions:
            if tp in self._wanted and tp not in starts:
                raise PositionMissing(
                    f"group {self._request.group!r} has no stored position for {tp} and no start was given for it; "
                    "does it exist? If so, pass start_at with an offset for it"
                )
            if tp in starts and not 0 <= starts[tp] < 1 << 63:
                raise ConfigurationError(f"{starts[tp]} is not an offset at which {tp} could start")
        return {tp: starts[tp] for tp in partitions if tp in starts}
