"""The mutants of the model, and those of the simulation that have another name here, or no counterpart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .tlc import LIVENESS, Checked, check_mutant, constants


@dataclass(frozen=True)
class Mutant:
    """Rules of the model replaced by worse ones of the module Mutants, and the property that has to break.

    ``bounds`` are the constants that differ from those of the configuration ``Faults``.
    """

    rules: Mapping[str, str]
    violates: str
    bounds: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> Checked:
        return check_mutant(self.rules, {**constants("Faults"), **self.bounds}, self.violates)


def _bounds(faults: int, edits: int = 0, **others: str) -> dict[str, str]:
    return {"Faults": str(faults), "Edits": str(edits), **others}


_ONE_RECORD = {"Length": "1", "Initially": "1"}
_NO_FAULT = _bounds(0, Members="{m1}")
_ONE_EDIT = _bounds(0, 1, Members="{m1}")
_GROWING = {"Partitions": "{p1, p2}", "Later": "{p2}", "Length": "1", "Initially": "0", "Start": '"latest"'}

MUTANTS = {
    "unconditional update": Mutant({"Matches": "Unconditional"}, "ExactlyOnce"),
    "forward-only update": Mutant({"Matches": "ForwardOnly"}, "ExactlyOnce"),
    "neither epoch nor owner compared": Mutant({"Matches": "OffsetOnly"}, "Verified"),
    "offset not compared": Mutant({"Matches": "OwnerOnly"}, "ExactlyOnce"),
    "replay without looking": Mutant({"Matches": "ReplaysBlindly"}, "ExactlyOnce"),
    "data first": Mutant({"AdvanceMoves": "DataFirst"}, "ExactlyOnce"),
    "position first": Mutant({"AdvanceMoves": "PositionFirst"}, "ExactlyOnce"),
    "no sentinel": Mutant({"AdvanceBreaks": "NoSentinel"}, "ExactlyOnce"),
    "edit without a new epoch": Mutant({"Edited": "EditedUnseen"}, LIVENESS, _ONE_EDIT),
    "claim without a new epoch": Mutant({"Claimed": "ClaimedTogether"}, "OneOwner"),
    "release by anyone": Mutant({"MayRelease": "ReleasedByAnyone"}, "FencedWithCause"),
    "token without epoch": Mutant({"Token": "TokenWithoutEpoch"}, "TrueReports"),
    "token without the kind of move": Mutant({"Token": "TokenWithoutKind"}, "TrueReports", _bounds(2, Members="{m1}")),
    "unknown taken for committed": Mutant({"LoseAnswerAndGiveUp": "UnknownTakenForCommitted"}, "TrueReports"),
    "writes what is lost": Mutant({"LoseAnswerAndGiveUp": "WritesWhatIsLost"}, "ExactlyOnce"),
    "stale records used": Mutant({"Dropped": "NotDropped", "Batches": "StaleRecordsUsed"}, "ExactlyOnce", _ONE_EDIT),
    "batches never void": Mutant(
        {"Dropped": "NotDropped", "Batches": "BatchesNeverVoid"}, "FencedWithCause", _ONE_EDIT
    ),
    "buffers kept": Mutant({"Dropped": "NotDropped", "Batches": "BuffersKept"}, "ExactlyOnce", _ONE_EDIT),
    "skips in silence": Mutant({"Batches": "SkipsInSilence"}, "FencedWithCause", _bounds(1, Members="{m1}")),
    "stands down for good": Mutant({"TakeBack": "StandsDownForGood"}, LIVENESS, _ONE_RECORD),
    "never takes": Mutant({"TakeBack": "NeverTakes"}, LIVENESS, _ONE_RECORD),
    "idle owners deaf": Mutant({"Observe": "NeverObserves"}, LIVENESS, _ONE_EDIT),
    "end is last record": Mutant({"Batches": "EndIsLastRecord"}, LIVENESS, _NO_FAULT | {"Holes": "{1}"}),
    "start is first record": Mutant({"Batches": "StartIsFirstRecord"}, LIVENESS, _NO_FAULT | {"Holes": "{0}"}),
    "edit repeated after a lost answer": Mutant(
        {"Recognised": "RecognisesNothing"}, "ExactlyOnce", _bounds(1, 1, Members="{m1}")
    ),
    "entry open over a claim": Mutant({"Claimed": "ClaimedWithOpenEntry", "Extends": "ExtendsAnything"}, "Verified"),
    "entry open over an edit": Mutant(
        {"Edited": "EditedWithOpenEntry", "Extends": "ExtendsAnything"}, "Verified", _ONE_EDIT
    ),
    "open entry forgotten": Mutant({"Advanced": "AdvancedWithoutClosing"}, "Verified", _NO_FAULT),
    "starts stored for its own only": Mutant(
        {"Stored": "StoresOnlyItsOwn", "StartOf": "StartsLikeANewGroup"}, "ExactlyOnce", _bounds(0) | _GROWING
    ),
    "added partitions start like a new group": Mutant(
        {"StartOf": "StartsLikeANewGroup"}, "ExactlyOnce", _bounds(0) | _GROWING
    ),
}

OTHER_NAMES = {
    "data outside the transaction": "data first",
    "position in a second transaction": "data first",
}
"""Mutants of the simulation whose rule is left out by a mutant of the model with another name."""

_RECREATION = (
    "the model has one incarnation of one topic: which topic an offset belongs to is compared, not agreed upon"
)
_LOOP = "the model has the protocol only: which jobs and buffers the loop of a member has is not part of it"
NOT_MODELLED = {
    "entry never closed": "the model has no clock: when an entry is old enough to be closed is left open",
    "job outlives the revoke": _LOOP,
    "intake keeps its buffer": _LOOP,
    "drain outlasts the session": _LOOP,
    "identity ignored": _RECREATION,
    "identity known before": _RECREATION,
    "pause unheard": "the model's group is never paused: a pause is a flag that members read, and changes no position",
}
"""Mutants of the simulation that the model cannot express, and why."""
