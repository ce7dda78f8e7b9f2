"""One call of :meth:`Ledger.claim`: what has to be asked of Kafka is asked after the rows were seen, and outside of
their locks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidegate.core.arguments import convert_arguments
from tidegate.core.claiming import ClaimRequest
from tidegate.core.errors import ConfigurationError, PositionMissing
from tidegate.core.positions import Change, Identity, Position
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim

__all__ = ["Claiming", "Identities", "StartAt", "Subscription"]

StartAt: TypeAlias = int | Mapping[TopicPartition, int] | Callable[[list[TopicPartition]], Mapping[TopicPartition, int]]
"""Where positions begin that are not stored yet: one offset, an offset for each, or a function that looks them up."""

Identities: TypeAlias = Mapping[str, Identity] | Callable[[], Mapping[str, Identity]]
"""The identity of each topic, or a function that looks them up."""

_Seen: TypeAlias = dict[TopicPartition, int]  # the epochs of a topic's rows


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group that shares out whole topics knows of them.

    ``partitions``: every partition that these topics have now. The first claim of a topic stores a position for each,
    so that a partition without a row was added later. ``beginnings``: where the logs of such partitions begin; they are
    read from there, because producers may have used them before anyone here knew of them.
    """

    partitions: Callable[[Collection[str]], Collection[TopicPartition]]
    beginnings: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]]

    def __post_init__(self) -> None:
        convert_arguments(self)


class Claiming:
    """Decides the claim, round by round: what is known of Kafka counts only for rows that are as they were when it was
    looked up. Otherwise a process that froze in between could take a topic back to its former incarnation."""

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
        """Those whose rows are to be locked: the wanted ones, and the rest of a topic that the group begins with."""
        self.claims: dict[TopicPartition, Claim] = {}
        self._wanted = frozenset(wanted)
        self._start_at = start_at
        self._subscription = subscription
        self._ask: Callable[[], Mapping[str, Identity]] = identities if callable(identities) else lambda: identities
        self._request = replace(request, identities=self._ask())
        self._known: dict[str, _Seen] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._open: set[str] = set()  # topics

    def decide(self, rows: Mapping[TopicPartition, Position], used: frozenset[str]) -> list[Change]:
        """Claim all of it, or nothing if something has to be looked up first. ``used`` are the topics in which the
        deployment has forced its start."""
        self.claims = {}
        self._request = request = replace(self._request, used=used)
        doubtful = {tp for tp in self.partitions if request.is_doubtful(tp, rows.get(tp))}
        self._open = {
            topic for topic in {tp.topic for tp in doubtful} if self._known.get(topic) != self._seen(topic, rows)
        }
        if self._open:
            return []
        changes = []
        for tp in self.partitions:
            if tp in self._wanted:
                changes.append(request.decide(tp, rows.get(tp), self._starts))
                self.claims[tp] = changes[-1].position.claim(request.group)
            elif tp in doubtful and (begun := request.begun(tp, rows.get(tp), self._starts)) is not None:
                changes.append(begun)
        return changes

    def look_up(self, rows: Mapping[TopicPartition, Position]) -> None:
        """Ask what is open; ``rows`` are all that the group has, read before."""
        self._request = request = replace(self._request, identities=self._ask())
        beginning = {
            topic for topic in self._open if request.begins(topic, [r for tp, r in rows.items() if tp.topic == topic])
        }
        concerned = {tp for tp in self._wanted if tp.topic in self._open} | self._others(beginning, rows)
        doubtful = sorted(tp for tp in concerned if request.is_doubtful(tp, rows.get(tp)))
        added = [tp for tp in doubtful if tp.topic not in beginning]
        starts = self._starts_of([tp for tp in doubtful if tp.topic in beginning]) | self._beginnings(added)
        if starts and self._ask() != request.identities:
            return  # recreated meanwhile: those starts may be another topic's
        self._starts.update(starts)
        self.partitions = sorted({*self.partitions, *starts})
        self._known.update((topic, self._seen(topic, rows)) for topic in self._open)

    def _seen(self, topic: str, rows: Mapping[TopicPartition, Position]) -> _Seen:
        return {tp: rows[tp].epoch for tp in self.partitions if tp.topic == topic and tp in rows}

    def _others(self, topics: set[str], rows: Iterable[TopicPartition]) -> set[TopicPartition]:
        """What the group begins with together with the wanted partitions: the rest of their topics."""
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
        """Every wanted partition has a start, which is an offset; others may be gone from their topic."""
        for tp in partitions:
            if tp in self._wanted and tp not in starts:
                raise PositionMissing(
                    f"group {self._request.group!r} has no stored position for {tp} and no start was given for it; "
                    "does it exist? If so, pass start_at with an offset for it"
                )
            if tp in starts and not 0 <= starts[tp] < 1 << 63:
                raise ConfigurationError(f"{starts[tp]} is not an offset at which {tp} could start")
        return {tp: starts[tp] for tp in partitions if tp in starts}
