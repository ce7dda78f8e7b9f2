------------------------------ MODULE Mutants -------------------------------
(***************************************************************************)
(* A model that finds nothing proves something only if it would have found *)
(* it.  Each operator here replaces one rule of Tidegate by a worse one,   *)
(* and TLC has to find the harm.  tests/model/mutants.py says which rule   *)
(* each one replaces, and which property it breaks.                        *)
(***************************************************************************)
EXTENDS Tidegate

-----------------------------------------------------------------------------
(* Other comparisons in the compare-and-set, instead of `Matches`.         *)

\* The position is set, whatever it was.
Unconditional(r, step) == TRUE

\* The position is set if that moves it forward.
ForwardOnly(r, step) == r.next < step.end

\* The offset is compared; epoch and owner are not.
OffsetOnly(r, step) == r.next = step.start

\* Epoch and owner are compared; the offset is not.
OwnerOnly(r, step) == r.epoch = step.epoch /\ r.owner = step.owner

\* What the same owner has committed before is written again.
ReplaysBlindly(r, step) == r.epoch = step.epoch /\ r.owner = step.owner /\ r.next \in {step.start, step.end}

-----------------------------------------------------------------------------
(* Two transactions instead of one, instead of `AdvanceMoves`.             *)

SecondHalf(r) == [r EXCEPT !.call = [kind |-> "second half", id |-> 0, work |-> r.call.work]]

Planned(work) == [p \in DOMAIN work |-> work[p].end]

MovePosition(work) ==
    Store([p \in DOMAIN work |-> Advanced(row[p], work[p], Token(work), FALSE)])

\* The effects are committed, and then the position.
DataFirst(r) ==
    \/ /\ r.call.kind = "advance" /\ AllMatch(r.call.work)
       /\ WriteEffects(r.call.work)
       /\ wire' = (wire \ {r}) \cup {SecondHalf(r)}
       /\ UNCHANGED <<kafka, row, journal, changes, part, call, waits, audit, budgets>>
    \/ /\ r.call.kind = "second half" /\ AllMatch(r.call.work)
       /\ MovePosition(r.call.work)
       /\ IF Answered(r) THEN TellCommitted(r.from, r.call.work, Planned(r.call.work)) ELSE UNCHANGED <<part, wrong>>
       /\ Answer(r)
       /\ UNCHANGED <<kafka, effects, changes, begin, jumps, budgets>>

\* The position is committed, and then the effects.
PositionFirst(r) ==
    \/ /\ r.call.kind = "advance" /\ AllMatch(r.call.work)
       /\ MovePosition(r.call.work)
       /\ wire' = (wire \ {r}) \cup {SecondHalf(r)}
       /\ UNCHANGED <<kafka, effects, changes, part, call, waits, audit, budgets>>
    \/ /\ r.call.kind = "second half"
       /\ WriteEffects(r.call.work)
       /\ UNCHANGED <<kafka, row, journal, changes, begin, jumps, budgets>>
       /\ IF Answered(r) THEN TellCommitted(r.from, r.call.work, Planned(r.call.work)) ELSE UNCHANGED <<part, wrong>>
       /\ Answer(r)

\* COMMIT without a look at whether it is still the same transaction, instead of `AdvanceBreaks`: what the handler wrote
\* after the break is committed without the advance.
NoSentinel(r) ==
    /\ faults > 0 /\ r.call.kind = "advance" /\ AllMatch(r.call.work)
    /\ WriteEffects(r.call.work)
    /\ UNCHANGED <<kafka, row, journal, changes, begin, jumps, edits>>
    /\ IF Answered(r) THEN TellCommitted(r.from, r.call.work, Planned(r.call.work)) ELSE UNCHANGED <<part, wrong>>
    /\ Answer(r)
    /\ faults' = faults - 1

-----------------------------------------------------------------------------
(* Rows.                                                                   *)

\* An edit moves the offset, and neither bumps the epoch nor clears the owner; instead of `Edited`.
EditedUnseen(r, to) ==
    [row |-> [r EXCEPT !.next = to, !.open = None],
     entries |-> OpenEntry(r) \o <<Entry("edit", r.next, to, r.epoch, r.owner)>>]

\* A claim of what has an owner leaves owner and epoch as they are; instead of `Claimed`.
ClaimedTogether(r, m) ==
    LET epoch == r.epoch + 1
    IN IF r.owner # None THEN [row |-> r, entries |-> <<>>]
       ELSE [row |-> [r EXCEPT !.epoch = epoch, !.owner = Owner(m, epoch), !.token = None, !.open = None],
             entries |-> OpenEntry(r) \o <<Entry("claim", r.next, r.next, epoch, Owner(m, epoch))>>]

\* A release does not ask whether the claim still stands; instead of `MayRelease`.
ReleasedByAnyone(p, claim) == ~Unowned(p)

\* The token names the spans only; instead of `Token`.
TokenWithoutEpoch(work) == {<<p, work[p].kind, work[p].start, work[p].end>> : p \in DOMAIN work}

\* The token does not say whether records were processed or lost; instead of `Token`.
TokenWithoutKind(work) == {<<p, work[p].start, work[p].end, work[p].epoch>> : p \in DOMAIN work}

\* A claim or an edit leaves the open entry in the row; instead of `Claimed` and `Edited`.  An advance extends whatever
\* entry is open; instead of `Extends`.
ClaimedWithOpenEntry(r, m) ==
    LET epoch == r.epoch + 1
    IN [row |-> [r EXCEPT !.epoch = epoch, !.owner = Owner(m, epoch), !.token = None],
        entries |-> <<Entry("claim", r.next, r.next, epoch, Owner(m, epoch))>>]

EditedWithOpenEntry(r, to) ==
    [row |-> [r EXCEPT !.next = to, !.epoch = @ + 1, !.owner = None, !.token = None],
     entries |-> <<Entry("edit", r.next, to, r.epoch + 1, None)>>]

ExtendsAnything(open, step) == TRUE

\* An advance forgets the open entry and opens another; instead of `Advanced`.
AdvancedWithoutClosing(r, step, token, old) ==
    [row |-> [r EXCEPT !.next = step.end, !.token = token,
                       !.open = Entry(step.kind, r.next, step.end, step.epoch, step.owner)],
     entries |-> <<>>]

\* A claim stores a start for what it takes, and for nothing else; instead of `Stored`.
StoresOnlyItsOwn(ps) == {p \in ps : row[p] = None}

\* Where a partition without a row begins is guessed from the strategy; instead of `StartOf`.
StartsLikeANewGroup(p) == IF Start = "latest" THEN log[p] ELSE 0

\* A repeat does not recognise itself; instead of `Recognised`.
RecognisesNothing(r) == FALSE

-----------------------------------------------------------------------------
(* Members.                                                                *)

\* An unanswered COMMIT is taken for a good one; instead of `LoseAnswerAndGiveUp`.
UnknownTakenForCommitted(c) ==
    /\ faults > 0 /\ ~Idle(c) /\ call[c].kind = "advance"
    /\ UNCHANGED <<kafka, ledger, wire, begin, jumps, edits>>
    /\ TellCommitted(c, call[c].work, Planned(call[c].work))
    /\ call'   = [call EXCEPT ![c] = None]
    /\ waits'  = [waits EXCEPT ![c] = 0]
    /\ faults' = faults - 1

\* A member that loses the partition in the middle writes what it has in hand, past the compare-and-set; instead of
\* `LoseAnswerAndGiveUp`.
WritesWhatIsLost(c) ==
    /\ faults > 0 /\ ~Idle(c) /\ call[c].kind = "advance"
    /\ \E p \in DOMAIN call[c].work : assigned[p] # c
    /\ WriteEffects(call[c].work)
    /\ part'   = [part EXCEPT ![c] = Forsaken(c)]
    /\ call'   = [call EXCEPT ![c] = None]
    /\ waits'  = [waits EXCEPT ![c] = 0]
    /\ faults' = faults - 1
    /\ UNCHANGED <<kafka, row, journal, changes, wire, audit, edits>>

\* Batches outlive the stretch of reading that they were read in; instead of `Dropped`.
NotDropped(buffer) == buffer

BatchesFrom(at, p) ==
    {[kind |-> "advance", start |-> at, end |-> end, records |-> RecordsIn(at, end)] : end \in (at + 1)..log[p]}

FreshBatches(m, p) ==
    LET at == part[m][p].at
    IN IF at < first[p]
       THEN {[kind |-> "loss", start |-> at, end |-> first[p], records |-> <<>>]}
       ELSE BatchesFrom(at, p)

\* What is made of such a batch; instead of `Batches`.  A stale record is used if its offset is not below the position.
StaleRecordsUsed(m, p) ==
    LET at == part[m][p].at
        old == part[m][p].buffer
    IN IF old = None THEN FreshBatches(m, p)
       ELSE IF old.end <= at THEN FreshBatches(m, p)
       ELSE {[kind |-> "advance", start |-> at, end |-> old.end,
              records |-> SelectSeq(old.records, LAMBDA offset : offset >= at)]}

\* The buffer is written as it is, from the position on.
BuffersKept(m, p) ==
    LET at == part[m][p].at
        old == part[m][p].buffer
    IN IF old = None THEN FreshBatches(m, p)
       ELSE {[kind |-> "advance", start |-> at, end |-> IF old.end > at THEN old.end ELSE at + 1,
              records |-> old.records]}

\* The batch is committed under whatever claim there is now.
BatchesNeverVoid(m, p) ==
    IF part[m][p].buffer = None THEN FreshBatches(m, p) ELSE {part[m][p].buffer}

\* A span ends behind its last record, wherever the log goes on; instead of `Batches`.
EndIsLastRecord(m, p) == {batch \in FreshBatches(m, p) : batch.end - 1 \notin Holes}

\* A span starts at its first record, wherever the position is; instead of `Batches`.
StartIsFirstRecord(m, p) ==
    {IF batch.records = <<>> THEN batch ELSE [batch EXCEPT !.start = batch.records[1]] : batch \in FreshBatches(m, p)}

\* Where retention has passed the position, it reads on at the log's start and tells nobody; instead of `Batches`.
SkipsInSilence(m, p) == BatchesFrom(IF part[m][p].at < first[p] THEN first[p] ELSE part[m][p].at, p)

\* Whoever is fenced by another owner leaves the partition to it; instead of `TakeBack`.
StandsDownForGood(m) == FALSE

\* After standing down it asks again, and leaves the partition to whoever claimed it late; instead of `TakeBack`.
NeverTakes(m) ==
    LET mine == {p \in In(m, "stood down") : assigned[p] = m}
    IN /\ Idle(m) /\ mine # {}
       /\ Send(m, [kind |-> "reclaim", id |-> Fresh(m), take |-> FALSE, claims |-> ClaimsOf(m, mine)])
       /\ UNCHANGED <<kafka, ledger, part, audit, budgets>>

\* An owner learns of an edit when it next commits, and not before; instead of `Observe`.
NeverObserves(m, p) == FALSE
=============================================================================
