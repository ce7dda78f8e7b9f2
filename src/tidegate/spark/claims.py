"""The claims of a pipeline on its partitions: made once, and checked before every micro-batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.core.policies import LogOffsets, Lose, OutOfRange, Stop, out_of_range
from tidegate.core.positions import GroupState
from tidegate.core.records import TopicPartition
from tidegate.core.runtime import Runtime, Signal
from tidegate.core.work import Claim, Move
from tidegate.errors import (
    BrokerUnavailable,
    ConfigurationError,
    Fenced,
    IdentityChanged,
    LedgerBusy,
    LedgerConflict,
    LedgerUnavailable,
    NotCommitted,
    PipelineStopped,
    RegistryUnavailable,
    WritesRefused,
)
from tidegate.kafka.broker import Cluster
from tidegate.kafka.claims import Claimer
from tidegate.ledger import Ledger
from tidegate.ledger.ledger import new_owner
from tidegate.ledger.threads import THREADS
from tidegate.ledger.upkeep import Upkeep
from tidegate.observe.events import Claimed, Event, Outages, Skipped

__all__ = ["AWAY", "ClaimedTopics", "Waiting"]


AWAY = (LedgerUnavailable, LedgerBusy, LedgerConflict, NotCommitted, WritesRefused, RegistryUnavailable)
"""Temporary errors of the ledger and the schema registry."""

_PATIENCE = 300.0  # seconds that an outage of the ledger or the broker may last
_PAUSE = 1.0  # seconds between two attempts


class Waiting:
    """Waits through the outages of one run.

    It reports each outage once, raises if one lasts too long, and ends early when a stop is requested.
    """

    def __init__(self, group: str, stopping: Signal, tell: Callable[[Event], None], runtime: Runtime = THREADS) -> None:
        self._stopping = stopping
        self._clock = runtime.monotonic
        self._outages = Outages(group, tell)
        self._since: float | None = None

    def until_done(self, work: Callable[[], object]) -> bool:
        """Repeat ``work`` until it succeeds or a stop is requested. Returns whether it succeeded."""
        while not self._stopping.is_set():
            if self.tried(work):
                self.over()
                return True
        return False

    def tried(self, work: Callable[[], object]) -> bool:
        """Run ``work`` once. On an outage, wait a moment and return ``False``."""
        try:
            work()
        except (*AWAY, BrokerUnavailable) as error:
            self.out(error)
            return False
        return True

    def out(self, error: Exception) -> None:
        """Wait a moment; raise the error if the outage has lasted too long. Waiting holds no locks."""
        now = self._clock()
        self._since = self._since or now
        if now - self._since > _PATIENCE:
            raise error
        if not isinstance(error, LedgerConflict):  # a conflict is not an outage
            others: dict[type[Exception], str] = {BrokerUnavailable: "broker", RegistryUnavailable: "registry"}
            what = others.get(type(error), "ledger")
            self._outages.begin(what, str(error))
        self._stopping.wait(_PAUSE)

    def failed(self, error: Exception, seconds: float) -> None:
        """Report that a Spark job failed, and wait before the next attempt."""
        self._outages.begin("Spark", str(error))
        self._stopping.wait(seconds)

    def over(self) -> None:
        """Report the end of any outage of the ledger or the broker: both have answered."""
        for what in ("ledger", "broker"):
            self._outages.end(what)
        self._since = None

    def succeeded(self) -> None:
        """Report the end of all outages: a Spark job succeeded."""
        self._outages.end("Spark")
        self._outages.end("registry")
        self.over()


_log = logging.getLogger(__name__)


class ClaimedTopics:
    """The claims of a pipeline, their positions, and the offsets of their logs."""

    def __init__(
        self,
        group: str,
        topics: Sequence[str],
        ledger: Ledger[Any],
        admin: Cluster,
        *,
        claimer: Claimer,
        policy: OutOfRange,
        tell: Callable[[Event], None],
        runtime: Runtime = THREADS,
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
        self._owner: str | None = None  # of a reclaim that was not answered yet
        self._runtime = runtime
        self._upkeep = Upkeep(ledger, group, runtime=runtime)

    def topic_ids(self) -> list[str]:
        """Return the ids of the topics. Raises if a topic does not exist."""
        known = self._admin.identities(self._topics)
        for topic in self._topics:
            if topic not in known:
                raise ConfigurationError(
                    f"group {self._group!r}: there is no topic {topic!r} on the cluster; create it, or correct the name"
                )
        return [str(known[topic].topic_id) for topic in self._topics]

    def look(self, *, firmly: bool = False) -> None:
        """Refresh positions and log offsets: notice edits, other owners, new partitions and lost records.

        Partitions that are not held yet are claimed; on the first call these are all partitions.

        ``firmly`` locks the rows for a moment. This ends a frozen session that still holds their locks. A commit would
        not: it only waits until its lock timeout, and so would the next one.
        """
        added = sorted(self._admin.partitions(self._topics) - self.claims.keys())
        if added:
            self._refuse_if_replaced()
            self._claim(added)
        state = self._ledger.read(self._group, list(self.claims))
        self._refuse_recreated(state)
        self.paused = state.paused
        if firmly or not self._are_mine(state):
            self._reclaim()
        else:
            self.positions = {tp: row.next_offset for tp, row in state.positions.items()}
        self._upkeep.look()
        self.logs = self._admin.logs(self.claims)
        try:
            for tp, log in self.logs.items():
                self._check_range(tp, log, state)
        except Fenced:  # an edit or another claim came in between
            self.look()

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The end offset of each partition as a ``read_committed`` consumer sees it."""
        return {tp: log.latest for tp, log in self.logs.items()}

    @property
    def lag(self) -> int:
        """The number of offsets between the positions and the ends of the logs."""
        return sum(max(0, end - self.positions[tp]) for tp, end in self.ends.items() if tp in self.positions)

    def release(self) -> None:
        """Release all claims that are still ours. If the ledger is unreachable, the next owner claims them anyway."""
        claims, self.claims = self.claims, {}
        self._upkeep.close()
        try:
            if claims:
                self._ledger.release(claims)
        except AWAY as error:
            _log.warning("partitions could not be released; their next owner claims them all the same: %s", error)

    def _refuse_if_replaced(self) -> None:
        """Raise if another owner has claimed partitions, before more are claimed: that would stop the other one."""
        if self.claims and not self._are_mine(self._ledger.read(self._group, list(self.claims))):
            self._reclaim()

    def _claim(self, partitions: list[TopicPartition]) -> None:
        claims = self._claimer.claim(partitions)
        self._hold(claims)

    def _hold(self, claims: dict[TopicPartition, Claim]) -> None:
        self.claims |= claims
        self.positions |= {tp: claim.position for tp, claim in claims.items()}
        self._tell(Claimed(self._group, tuple(claims), tuple(claim.position for claim in claims.values())))

    def _are_mine(self, state: GroupState) -> bool:
        rows = state.positions
        return all(
            (row := rows.get(tp)) is not None and (row.epoch, row.owner) == (claim.epoch, claim.owner)
            for tp, claim in self.claims.items()
        )

    def _reclaim(self) -> None:
        """Claim partitions again that an operator has edited. Raises if another owner has claimed one.

        It claims nothing then, since the other owner would find that out and stop as well. A call that was not answered
        is repeated under the same owner: otherwise its claims would look like those of someone else.
        """
        self._owner = self._owner or new_owner(self._runtime)
        held, owners = self._ledger.reclaim(self.claims, together=True, owner=self._owner)
        self._owner = None
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
                    "while the pipeline was reading it; start it again; with recreated='restart', "
                    "it reads the topic from its start"
                )

    def _check_range(self, tp: TopicPartition, log: LogOffsets, state: GroupState) -> None:
        verdict = out_of_range(self._policy, self._group, tp, self.positions[tp], log)
        if verdict is not None:  # if the topic is still the same one, the log is its log
            self._refuse_recreated(state)
        if isinstance(verdict, Stop):
            raise PipelineStopped(verdict.reason)
        if isinstance(verdict, Lose):
            self._ledger.transact(self.claims, [verdict.span], move=Move.LOSS, note=verdict.note)
            self.positions[tp] = verdict.span.end
            self._tell(Skipped(self._group, verdict.span, "loss", verdict.note))
