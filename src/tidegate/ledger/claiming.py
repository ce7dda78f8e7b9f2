"""One call of :meth:`Ledger.claim`: what has to be asked of Kafka is asked after the rows were seen, and outside of
their locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from tidegate.core.claiming import ClaimRequest
from tidegate.core.errors import ConfigurationError, PositionMissing
from tidegate.core.positions import Change, Identity, Position
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim

__all__ = ["Claiming", "Identities", "StartAt"]

StartAt: TypeAlias = int | Mapping[TopicPartition, int] | Callable[[list[TopicPartition]], Mapping[TopicPartition, int]]
"""Where positions begin that are not stored yet: one offset, an offset for each, or a function that looks them up."""

Identities: TypeAlias = Mapping[str, Identity] | Callable[[], Mapping[str, Identity]]
"""The identity of each topic, or a function that looks them up."""

_Seen: TypeAlias = int | None  # the epoch of a row, or that there was none


class Claiming:
    """Decides the claim, round by round: what is known of Kafka counts only for rows that are as they were when it was
    looked up. Otherwise a process that froze in between could take a topic back to its former incarnation."""

    def __init__(
        self, request: ClaimRequest, wanted: list[TopicPartition], start_at: StartAt, identities: Identities
    ) -> None:
        if request.restart and not callable(identities):
            raise ConfigurationError(
                "restart=True needs identities as a function: it is asked again once the stored identity is known"
            )
        self._wanted = wanted
        self._start_at = start_at
        self._ask: Callable[[], Mapping[str, Identity]] = identities if callable(identities) else lambda: identities
        self._request = replace(request, identities=self._ask())
        self._known: dict[TopicPartition, _Seen] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._open: dict[TopicPartition, Position | None] = {}
        self.claims: dict[TopicPartition, Claim] = {}

    def decide(self, rows: Mapping[TopicPartition, Position]) -> list[Change]:
        """Claim all of it, or nothing if something has to be looked up first."""
        self.claims = {}
        self._open = {
            tp: row
            for tp in self._wanted
            if self._request.is_doubtful(row := rows.get(tp))
            and not (tp in self._known and self._known[tp] == _seen(row))
        }
        if self._open:
            return []
        changes = [self._request.decide(tp, rows.get(tp), self._starts) for tp in self._wanted]
        self.claims = {change.position.partition: change.position.claim(self._request.group) for change in changes}
        return changes

    def look_up(self) -> None:
        """Ask what the rows that were seen leave open."""
        self._request = replace(self._request, identities=self._ask())
        startless = [tp for tp, row in self._open.items() if self._request.wants_start(row)]
        starts = self._resolved(startless) if startless else {}
        if startless and self._ask() != self._request.identities:
            return  # recreated meanwhile: those starts may be another topic's
        self._starts.update(starts)
        self._known.update((tp, _seen(row)) for tp, row in self._open.items())

    def _resolved(self, wanted: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        given = self._start_at
        if isinstance(given, int):
            starts: Mapping[TopicPartition, int] = dict.fromkeys(wanted, given)
        else:
            starts = given(wanted) if callable(given) else given
        for tp in wanted:
            if tp not in starts:
                raise PositionMissing(
                    f"group {self._request.group!r} has no stored position for {tp} and no start was given for it; "
                    "pass start_at with an offset for it"
                )
            if not 0 <= starts[tp] < 1 << 63:
                raise ConfigurationError(f"{starts[tp]} is not an offset at which {tp} could start")
        return {tp: starts[tp] for tp in wanted}


def _seen(row: Position | None) -> _Seen:
    return None if row is None else row.epoch
