"""The mutants by name, and what catches each: the invariant that the missing rule protects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from tidegate.spark.executor import ExecutorCommit

from . import mutant_members as members
from . import mutant_pipelines as pipelines
from . import mutant_stores as stores
from .faults import Tally
from .group import Protocol
from .mutant_members import part
from .pipeline import PipelineParts
from .world import Outcome, Parts, run_schedule


@dataclass(frozen=True)
class Mutant:
    """A protocol with one rule left out, and the kind of violation that shows it."""

    protocol: Parts
    caught_by: str
    patched: Callable[[], AbstractContextManager[object]] = nullcontext

    @contextmanager
    def applied(self) -> Iterator[Parts]:
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


def _part(caught_by: str, **replaced: type) -> Mutant:
    return Mutant(Protocol(), caught_by, partial(part, **replaced))


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
    "edit repeated after a lost answer": Mutant(Protocol(store=stores.EditRepeated), "jump"),
    "claim without a new epoch": Mutant(Protocol(store=stores.ClaimShared), "fence"),
    "release by anyone": Mutant(Protocol(store=stores.ReleaseByAnyone), "fence"),
    "token without epoch": Mutant(Protocol(), "report", stores.token_without_epoch),
    "entry open over a claim": Mutant(Protocol(), "journal", lambda: stores.left_open("claimed")),
    "entry open over an edit": Mutant(Protocol(), "journal", lambda: stores.left_open("edited")),
    "entry never closed": Mutant(Protocol(), "journal", stores.never_closed),
    "unknown taken for committed": Mutant(Protocol(store=stores.UnknownTakenForCommitted), "report"),
    "identity ignored": Mutant(Protocol(cluster=members.IdentityIgnored, source=members.ReadByName), "content"),
    "identity known before": Mutant(Protocol(), "jump", members.identity_known_before),
    "writes what is lost": Mutant(Protocol(member=members.WritesWhatIsLost), "content"),
    "skips in silence": Mutant(Protocol(member=members.SkipsInSilence), "fence"),
    "stale records used": _part("content", assignment=members.StaleRecordsUsed),
    "batches never void": _part("fence", assignment=members.BatchesNeverVoid),
    "stands down for good": _part("liveness", assignment=members.StandsDownForGood),
    "never takes": _part("liveness", assignment=members.NeverTakes),
    "idle owners deaf": _part("liveness", assignment=members.IdleOwnersDeaf),
    "pause unheard": _part("pause", assignment=members.PauseUnheard),
    "buffers kept": _part("content", batching=members.BuffersKept),
    "end is last record": _part("liveness", batching=members.EndIsLastRecord),
    "start is first record": _part("liveness", batching=members.StartIsFirstRecord),
    "job outlives the revoke": Mutant(
        Protocol(member=members.JobOutlivesRevoke),
        "fence",
        partial(part, assignment=members.CommitsAppliedBlindly),
    ),
    "intake keeps its buffer": _part("content", intake=members.IntakeKeepsBuffer),
    "drain outlasts the session": Mutant(Protocol(member=members.DrainOutlastsSession), "fence"),
}


def _task(caught_by: str, replaced: type[ExecutorCommit]) -> Mutant:
    return Mutant(PipelineParts(), caught_by, partial(pipelines.task, replaced))


PIPELINE_MUTANTS = {
    "unconditional update": Mutant(PipelineParts(store=stores.Unconditional), "content"),
    "neither epoch nor owner compared": Mutant(PipelineParts(store=stores.OffsetOnly), "journal"),
    "offset not compared": Mutant(PipelineParts(store=stores.OwnerOnly), "content"),
    "data outside the transaction": Mutant(PipelineParts(store=stores.DataOutside), "content"),
    "position in a second transaction": Mutant(PipelineParts(store=stores.PositionLater), "content"),
    "unknown taken for committed": Mutant(PipelineParts(store=stores.UnknownTakenForCommitted), "report"),
    "fence taken for done": _task("report", pipelines.FenceTakenForDone),
    "fenced task writes again": _task("content", pipelines.FencedTaskWritesAgain),
    "already done, written again": _task("content", pipelines.AlreadyDoneWrittenAgain),
    "part taken for the whole": _task("content", pipelines.PartTakenForWhole),
    "failed task taken for an empty one": Mutant(PipelineParts(driver=pipelines.FailedTaskTakenForEmpty), "content"),
    "failed job taken for an empty one": Mutant(PipelineParts(driver=pipelines.UnreportedTaskTakenForEmpty), "content"),
    "empty spans left": Mutant(PipelineParts(driver=pipelines.EmptySpansLeft), "liveness"),
    "fenced spans written again": Mutant(PipelineParts(driver=pipelines.FencedSpansRewritten), "content"),
    "goes on from the planned end": Mutant(PipelineParts(loop=pipelines.GoesOnFromPlannedEnd), "fence"),
    "zombie takes back": Mutant(PipelineParts(claims=pipelines.ZombieTakesBack), "fence"),
    "zombie takes what is free": Mutant(PipelineParts(claims=pipelines.FreePartitionsTaken), "fence"),
    "zombie claims before it looks": Mutant(PipelineParts(claims=pipelines.ClaimsBeforeItLooks), "fence"),
    "unanswered claim forgotten": Mutant(PipelineParts(claims=pipelines.UnansweredClaimForgotten), "fence"),
    "edits unseen": Mutant(PipelineParts(claims=pipelines.EditsUnseen), "liveness"),
    "pause unheard": Mutant(PipelineParts(claims=pipelines.PipelinePauseUnheard), "pause"),
}
