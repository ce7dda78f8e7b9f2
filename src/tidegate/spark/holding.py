"""The partitions that a pipeline holds: all of its topics, claimed once, and looked at before every micro-batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.core.errors import ConfigurationError, Fenced, IdentityChanged, PipelineStopped
from tidegate.core.positions import GroupState
from tidegate.core.records import TopicPartition
from tidegate.core.recovery import Lose, OutOfRange, Stop, out_of_range
from tidegate.core.spans import Claim, Move
from tidegate.core.start import LogOffsets
from tidegate.kafka.admin import Admin
from tidegate.kafka.claimer import Claimer
from tidegate.ledger import Ledger
from tidegate.observe.observer import Claimed, Event, Skipped
from tidegate.spark.waiting import AWAY

__all__ = ["Holding"]

_log = logging.getLogger(__name__)


class Holding:
    """Claims, and where they stand."""

    def __init__(
        self,
        group: str,
        topics: Sequence[str],
        ledger: Ledger[Any],
        admin: Admin,
        *,
        claimer: Claimer,
        policy: OutOfRange,
        tell: Callable[[Event], None],
    ) -> None:
        self._group = group
        self._topics = topics
        self._ledger = ledger
        self._admin = admin
        self._claimer = claimer
        self._policy = policy
        self._tell = tell
        self.claims: dict[TopicPartition, Claim] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.logs: dict[TopicPartition, LogOffsets] = {}
        self.paused = False

    def topic_ids(self) -> list[str]:
        """The topics' ids; a topic that does not exist is an error."""
        known = self._admin.identities(self._topics)
        for topic in self._topics:
            if topic not in known:
                raise ConfigurationError(
                    f"group {self._group!r}: there is no topic {topic!r} on the cluster; create it, or correct the name"
                )
        return [str(known[topic].topic_id) for topic in self._topics]

    def look(self, *, firmly: bool = False) -> None:
        """See what became of the rows and the logs since the last time: edits, other owners, new partitions, losses.

        Partitions that are not held are claimed: the first time, all of them.

        ``firmly``: take the rows' locks for a moment. Whoever sits on them frozen is ended by that; a commit only waits
        for its bound, and the next one would do the same.
        """
        added = sorted(self._admin.partitions(self._topics) - self.claims.keys())
        if added:
            self._claim(added)
        state = self._ledger.read(self._group, list(self.claims))
        self._refuse_recreated(state)
        self.paused = state.paused
        if firmly or any(not self._is_mine(tp, state) for tp in self.claims):
            self._reclaim()
        else:
            self.positions = {tp: row.next_offset for tp, row in state.positions.items()}
        self.logs = self._admin.logs(self.claims)
        try:
            for tp, log in self.logs.items():
                self._check_range(tp, log)
        except Fenced:  # an edit or a claim came in between
            self.look()

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Where the logs end, for readers of what is committed."""
        return {tp: log.latest for tp, log in self.logs.items()}

    @property
    def lag(self) -> int:
        """How many offsets there are between the positions and the ends."""
        return sum(max(0, end - self.positions[tp]) for tp, end in self.ends.items() if tp in self.positions)

    def release(self) -> None:
        """Give everything back that is still ours. If the ledger is away the next owner claims it all the same."""
        claims, self.claims = self.claims, {}
        try:
            if claims:
                self._ledger.release(claims)
        except AWAY as error:
            _log.warning("partitions could not be released, their next owner will do without: %s", error)

    def _claim(self, partitions: list[TopicPartition]) -> None:
        claims = self._claimer.claim(partitions)
        self._hold(claims)

    def _hold(self, claims: dict[TopicPartition, Claim]) -> None:
        self.claims |= claims
        self.positions |= {tp: claim.position for tp, claim in claims.items()}
        self._tell(Claimed(self._group, tuple(claims), tuple(claim.position for claim in claims.values())))

    def _is_mine(self, tp: TopicPartition, state: GroupState) -> bool:
        row, claim = state.positions.get(tp), self.claims[tp]
        return row is not None and (row.epoch, row.owner) == (claim.epoch, claim.owner)

    def _reclaim(self) -> None:
        """What an operator edited is claimed again; what another owner has ends this pipeline."""
        held, owners = self._ledger.reclaim(self.claims)
        before, self.claims = self.claims, held
        self.positions = {tp: claim.position for tp, claim in held.items()}
        if owners:
            shown = ", ".join(f"{tp} is owned by {owner}" for tp, owner in sorted(owners.items())[:4])
            raise PipelineStopped(
                f"group {self._group!r} was taken over: {shown}. One pipeline or the listeners of a group work at a "
                "time; stop the other one, or give this one another group"
            )
        new = {tp: claim for tp, claim in held.items() if claim.epoch != before[tp].epoch}
        if new:
            self._tell(Claimed(self._group, tuple(new), tuple(claim.position for claim in new.values())))

    def _refuse_recreated(self, state: GroupState) -> None:
        known = self._admin.identities(self._topics)
        for tp, row in state.positions.items():
            if tp.topic not in known or row.identity.conflict(known[tp.topic]) == "topic":
                raise IdentityChanged(
                    f"group {self._group!r}: topic {tp.topic!r} was {'recreated' if tp.topic in known else 'deleted'} "
                    "while the pipeline was reading it; start it again, with recreated='restart' to begin anew"
                )

    def _check_range(self, tp: TopicPartition, log: LogOffsets) -> None:
        verdict = out_of_range(self._policy, self._group, tp, self.positions[tp], log)
        if isinstance(verdict, Stop):
            raise PipelineStopped(verdict.reason)
        if isinstance(verdict, Lose):
            self._ledger.transact(self.claims, [verdict.span], move=Move.LOSS, note=verdict.note)
            self.positions[tp] = verdict.span.end
            self._tell(Skipped(self._group, verdict.span, "loss", verdict.note))
