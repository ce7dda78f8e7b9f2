"""The mutants by name, and what catches each: the invariant that the missing rule protects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from . import mutant_members as members
from . import mutant_stores as stores
from .faults import Tally
from .world import Outcome, Protocol, run_schedule


@dataclass(frozen=True)
class Mutant:
    """A protocol with one rule left out, and the kind of violation that shows it."""

    protocol: Protocol
    caught_by: str
    patched: Callable[[], AbstractContextManager[object]] = nullcontext

    @contextmanager
    def applied(self) -> Iterator[Protocol]:
        """Run schedules with it."""
        with self.patched():
            yield self.protocol

    def caught(self, schedules: int) -> Outcome | None:
        """The first of that many schedules that shows it for the right reason."""
        with self.applied() as protocol:
            for seed in range(schedules):
                outcome = run_schedule(seed, protocol, Tally())
                if any(violation.kind == self.caught_by for violation in outcome.violations):
                    return outcome
        return None


MUTANTS = {
    "unconditional update": Mutant(Protocol(store=stores.Unconditional), "content"),
    "forward-only update": Mutant(Protocol(store=stores.ForwardOnly), "content"),
    "neither epoch nor owner compared": Mutant(Protocol(store=stores.OffsetOnly), "journal"),
    "offset not compared": Mutant(Protocol(store=stores.OwnerOnly), "content"),
    "replay without looking": Mutant(Protocol(store=stores.ReplaysBlindly), "content"),
    "data outside the transaction": Mutant(Protocol(store=stores.DataOutside), "content"),
    "position in a second transaction": Mutant(Protocol(store=stores.PositionLater), "content"),
    "position first": Mutant(Protocol(store=stores.PositionFirst), "content"),
    "no sentinel": Mutant(Protocol(store=stores.NoSentinel), "content"),
    "edit without a new epoch": Mutant(Protocol(store=stores.EditUnseen), "liveness"),
    "claim without a new epoch": Mutant(Protocol(store=stores.ClaimShared), "fence"),
    "release by anyone": Mutant(Protocol(store=stores.ReleaseByAnyone), "fence"),
    "token without epoch": Mutant(Protocol(), "report", stores.token_without_epoch),
    "unknown taken for committed": Mutant(Protocol(member=members.UnknownTakenForCommitted), "report"),
    "identity ignored": Mutant(Protocol(member=members.IdentityIgnored), "content"),
    "identity known before": Mutant(Protocol(member=members.IdentityKnownBefore), "jump"),
    "writes what is lost": Mutant(Protocol(member=members.WritesWhatIsLost), "content"),
    "skips in silence": Mutant(Protocol(member=members.SkipsInSilence), "fence"),
    "stale records used": Mutant(Protocol(assignment=members.StaleRecordsUsed), "content"),
    "batches never void": Mutant(Protocol(assignment=members.BatchesNeverVoid), "fence"),
    "stands down for good": Mutant(Protocol(assignment=members.StandsDownForGood), "liveness"),
    "never takes": Mutant(Protocol(assignment=members.NeverTakes), "liveness"),
    "idle owners deaf": Mutant(Protocol(assignment=members.IdleOwnersDeaf), "liveness"),
    "pause unheard": Mutant(Protocol(assignment=members.PauseUnheard), "pause"),
    "buffers kept": Mutant(Protocol(batching=members.BuffersKept), "content"),
    "end is last record": Mutant(Protocol(batching=members.EndIsLastRecord), "liveness"),
    "start is first record": Mutant(Protocol(batching=members.StartIsFirstRecord), "liveness"),
}
