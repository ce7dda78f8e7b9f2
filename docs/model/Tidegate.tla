------------------------------ MODULE Tidegate ------------------------------
(***************************************************************************)
(* The protocol by which Tidegate moves records from Kafka into a database *)
(* exactly once.  docs/model.md reads it together with you.                *)
(*                                                                         *)
(* A member of a consumer group reads records and writes their effects to  *)
(* the database that also holds its position.  Members crash, freeze, and  *)
(* lose the answers of the database.  Partitions move from member to       *)
(* member.  An operator moves positions by hand.  Each record still takes  *)
(* effect once and in order.                                               *)
(*                                                                         *)
(* A frozen member needs no action of its own: any member may do nothing   *)
(* for as long as it likes and then go on with what it believes.           *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Members,     \* the processes of one consumer group
    Operator,    \* a person at the command line
    Partitions,  \* the partitions of one topic
    Later,       \* those of them that are added while the group runs
    Length,      \* how far each log may grow
    Initially,   \* how long each log is at the beginning
    Holes,       \* offsets without a record: compaction, transaction markers
    Start,       \* "earliest" or "latest": where a new group begins
    Faults,      \* how many things may go wrong
    Edits,       \* how many edits the operator may ask for
    None         \* no value

VARIABLES
    \* Kafka.
    exists,      \* the partitions that exist
    first,       \* first[p]: the first offset that p's log still has
    log,         \* log[p]: the offset at which p's log ends
    assigned,    \* assigned[p]: the member to which the coordinator gives p
    \* The database.  Each transaction is one step.
    row,         \* row[p]: the position's row, or None
    journal,     \* journal[p]: the newest closed entries, oldest first
    effects,     \* effects[p]: what the records of p did, in order
    changes,     \* the ids of changes that were carried out, with their results
    \* The network.
    wire,        \* requests on their way to the database
    \* The members, and the operator.
    part,        \* part[m][p]: what member m believes about partition p
    call,        \* call[c]: the operation that c has in hand, or None
    waits,       \* waits[c]: the attempt whose answer c waits for; 0 if it has none in hand
    \* The auditor.  No rule of the protocol reads these.
    begin,       \* begin[p]: the first offset that the group has to process
    jumps,       \* jumps[p]: the edits and losses that took effect, each noted once
    wrong,       \* {} unless a member was told something untrue
    faults,      \* how many faults are left
    edits        \* how many edits are left

kafka    == <<exists, first, log, assigned>>
ledger   == <<row, journal, effects, changes>>
clients  == <<wire, part, call, waits>>
audit    == <<begin, jumps, wrong>>
budgets  == <<faults, edits>>
vars     == <<kafka, ledger, clients, audit, budgets>>

Callers == Members \cup {Operator}

-----------------------------------------------------------------------------
(* Records.  A span is a half-open range of offsets, [start, end).  Its    *)
(* `end` is where reading continues, so a span may contain holes.          *)

RecordsIn(start, end) ==  \* the offsets in the span that hold a record
    SelectSeq([i \in 1..(IF end > start THEN end - start ELSE 0) |-> start + i - 1],
              LAMBDA offset : offset \notin Holes)

-----------------------------------------------------------------------------
(* A position's row, and what may happen to it: core/positions.py.  Every  *)
(* transition gives the new row and the entries that go to the journal     *)
(* with it.  The newest entry may still be open: then it is in the row.    *)

Entry(kind, start, end, epoch, owner) ==
    [kind |-> kind, start |-> start, end |-> end, epoch |-> epoch, owner |-> owner]

OpenEntry(r) == IF r.open = None THEN <<>> ELSE <<r.open>>

\* An owner is the name of one claim: no other claim has it.
Owner(m, epoch) == <<m, epoch>>

\* Position.start: store where reading begins, before the first record is read.
Begun(start) ==
    [row |-> [next |-> start, epoch |-> 0, owner |-> None, token |-> None, open |-> None],
     entries |-> <<Entry("start", start, start, 0, None)>>]

\* Position.claimed: whoever held the position is fenced from here on.
Claimed(r, m) ==
    LET epoch == r.epoch + 1
        owner == Owner(m, epoch)
    IN [row |-> [r EXCEPT !.epoch = epoch, !.owner = owner, !.token = None, !.open = None],
        entries |-> OpenEntry(r) \o <<Entry("claim", r.next, r.next, epoch, owner)>>]

\* Position.released: nobody owns it; the epoch stays.
Released(r) ==
    [row |-> [r EXCEPT !.owner = None, !.open = None],
     entries |-> OpenEntry(r) \o <<Entry("release", r.next, r.next, r.epoch, r.owner)>>]

\* Position.edited: the operator's hand fences the owner, which has to claim again.
Edited(r, to) ==
    [row |-> [r EXCEPT !.next = to, !.epoch = @ + 1, !.owner = None, !.token = None, !.open = None],
     entries |-> OpenEntry(r) \o <<Entry("edit", r.next, to, r.epoch + 1, None)>>]

\* Position.matches: the comparison of the compare-and-set.
Matches(r, step) == r.next = step.start /\ r.epoch = step.epoch /\ r.owner = step.owner

\* An advance may extend the open entry if it goes on where that ended, under the same claim.
Extends(open, step) == open.end = step.start /\ open.epoch = step.epoch /\ open.owner = step.owner

\* Position.advanced: the setting of the compare-and-set.  `old`: the open entry has been open for long enough.
\* The entry names who advanced, not who should have: that makes the journal a witness of the comparison.
Advanced(r, step, token, old) ==
    LET new   == Entry(step.kind, r.next, step.end, step.epoch, step.owner)
        moved == [r EXCEPT !.next = step.end, !.token = token]
    IN IF step.kind = "loss"
       THEN [row |-> [moved EXCEPT !.open = None], entries |-> OpenEntry(r) \o <<new>>]
       ELSE IF r.open # None /\ ~old /\ Extends(r.open, step)
       THEN [row |-> [moved EXCEPT !.open.end = step.end], entries |-> <<>>]
       ELSE [row |-> [moved EXCEPT !.open = new], entries |-> OpenEntry(r)]

\* Two changes of one row in one transaction: Change.then.
Then(one, other) == [row |-> other.row, entries |-> one.entries \o other.entries]

\* Old entries are pruned.  Two are kept, the open one included: the newest, and the one before it that it follows.
Pruned(entries, r) ==
    LET most == IF r.open = None THEN 2 ELSE 1
    IN SubSeq(entries, IF Len(entries) > most THEN Len(entries) - most + 1 ELSE 1, Len(entries))

\* Store the changes of some rows, all in one transaction.
Store(changed) ==
    /\ row'     = [p \in Partitions |-> IF p \in DOMAIN changed THEN changed[p].row ELSE row[p]]
    /\ journal' = [p \in Partitions |->
                      IF p \in DOMAIN changed THEN Pruned(journal[p] \o changed[p].entries, changed[p].row)
                      ELSE journal[p]]

-----------------------------------------------------------------------------
(* Calls and requests.  A caller has one operation in hand.  It sends it   *)
(* as a request and waits.  If the connection breaks, the request may have *)
(* been carried out, may be carried out later, or never: the caller does   *)
(* not know.  It may send the same operation again.                        *)

\* The smallest number that no attempt and no change of this caller uses any more.
Fresh(c) ==
    LET mine == {r \in wire : r.from = c}
        ids  == {id \in DOMAIN changes : id[1] = c}
        used == {r.no : r \in mine} \cup {r.call.id : r \in mine} \cup {id[2] : id \in ids}
    IN CHOOSE n \in 1..(Cardinality(used) + 1) : n \notin used /\ \A k \in 1..(n - 1) : k \in used

Send(c, operation) ==
    /\ call'  = [call EXCEPT ![c] = operation]
    /\ waits' = [waits EXCEPT ![c] = Fresh(c)]
    /\ wire'  = wire \cup {[from |-> c, no |-> Fresh(c), call |-> operation]}

Idle(c)     == call[c] = None
Answered(r) == waits[r.from] = r.no  \* the sender still waits for this attempt

\* The answer arrives, if anybody still waits for it.
Answer(r) ==
    /\ wire' = wire \ {r}
    /\ IF Answered(r)
       THEN call' = [call EXCEPT ![r.from] = None] /\ waits' = [waits EXCEPT ![r.from] = 0]
       ELSE UNCHANGED <<call, waits>>

\* The table `changes`.  A caller gives each change an id and keeps it over all attempts.  The first statement of the
\* transaction inserts the id.  If the id is there, the change was carried out, and its result is what that attempt had
\* decided.  (A client remembers what it decided; the model keeps it beside the id.)  Ledger._changed.
Id(r)         == <<r.from, r.call.id>>
Recognised(r) == Id(r) \in DOMAIN changes

\* An id is needed for as long as an attempt with it may arrive.
Needed(id) ==
    \/ \E r \in wire' : Id(r) = id
    \/ call'[id[1]] # None /\ call'[id[1]].id = id[2]

Remember(known) == changes' = [id \in {id \in DOMAIN known : Needed(id)} |-> known[id]]

WithResult(r, result) == [id \in DOMAIN changes \cup {Id(r)} |-> IF id = Id(r) THEN result ELSE changes[id]]

-----------------------------------------------------------------------------
(* What a member believes: core/assignment.py.                             *)
(*                                                                         *)
(*   free        not claimed                                               *)
(*   reading     claimed: it may advance from `at`, in `epoch`, as `owner` *)
(*   reclaiming  fenced or in doubt: the row has to be looked at           *)
(*   stood down  another owner has it                                      *)
(*                                                                         *)
(* `buffer` is a batch that was read and is not committed yet.             *)

Free == [state |-> "free", epoch |-> 0, owner |-> None, at |-> 0, buffer |-> None]

\* Position.claim: the claim that the row's present owner holds.
Reading(r, buffer) == [state |-> "reading", epoch |-> r.epoch, owner |-> r.owner, at |-> r.next, buffer |-> buffer]

\* Whatever ends a stretch of reading voids what was read in it: the command DropBuffers.
Dropped(buffer) == None

Become(believed, state) == [believed EXCEPT !.state = state, !.at = 0, !.buffer = Dropped(@)]

In(m, state) == {p \in Partitions : part[m][p].state = state}

ClaimsOf(m, ps) == [p \in ps |-> [epoch |-> part[m][p].epoch, owner |-> part[m][p].owner]]

\* The batches that a member can have read of a partition: Batching.ready.  If retention has passed the position, there
\* is nothing to read, and the position is moved over what is lost: recovery.out_of_range.
Batches(m, p) ==
    LET at == part[m][p].at
    IN IF at < first[p]
       THEN {[kind |-> "loss", start |-> at, end |-> first[p], records |-> <<>>]}
       ELSE {[kind |-> "advance", start |-> at, end |-> end, records |-> RecordsIn(at, end)] : end \in (at + 1)..log[p]}

\* One span to advance under one claim: spans.Step.
Step(m, p, batch) ==
    [kind |-> batch.kind, start |-> batch.start, end |-> batch.end, records |-> batch.records,
     epoch |-> part[m][p].epoch, owner |-> part[m][p].owner]

\* The token names a piece of work, not an attempt at it: spans._token.
Token(work) == {<<p, work[p].kind, work[p].start, work[p].end, work[p].epoch>> : p \in DOMAIN work}

\* What a member believes after it has given up the operation in hand without an answer.
Forsaken(m) ==
    IF call[m].kind # "advance"
    THEN part[m]
    ELSE [p \in Partitions |->
             IF p \in DOMAIN call[m].work THEN Become(part[m][p], "reclaiming") ELSE part[m][p]]

-----------------------------------------------------------------------------
(* What members do.                                                        *)

\* The partition goes to another member, and is given back: Assignment.revoked, Ledger.release.
HearRevoked(m, p) ==
    /\ assigned[p] # m /\ part[m][p].state \in {"reading", "reclaiming"} /\ Idle(m)
    /\ part' = [part EXCEPT ![m][p] = [Free EXCEPT !.buffer = Dropped(part[m][p].buffer)]]
    /\ Send(m, [kind |-> "release", id |-> Fresh(m), claims |-> ClaimsOf(m, {p})])
    /\ UNCHANGED <<kafka, ledger, audit, budgets>>

\* The partition went to another member long ago; there is nothing to give back: Assignment.lost.
HearLost(m, p) ==
    /\ assigned[p] # m /\ part[m][p].state # "free" /\ Idle(m)
    /\ part' = [part EXCEPT ![m][p] = [Free EXCEPT !.buffer = Dropped(part[m][p].buffer)]]
    /\ UNCHANGED <<kafka, ledger, wire, call, waits, audit, budgets>>

\* The coordinator's assignment arrives, and what was assigned is claimed: Assignment.assigned, Ledger.claim.
Claim(m) ==
    LET new == {p \in exists : assigned[p] = m /\ part[m][p].state = "free"}
    IN /\ Idle(m) /\ new # {}
       /\ Send(m, [kind |-> "claim", id |-> Fresh(m), parts |-> new])
       /\ UNCHANGED <<kafka, ledger, part, audit, budgets>>

\* Ledger.transact: advance spans and write what their records do, in one transaction.
Advance(m) ==
    /\ Idle(m)
    /\ \E ps \in SUBSET In(m, "reading") \ {{}} :
       \E batches \in [ps -> UNION {Batches(m, p) : p \in ps}] :
          /\ \A p \in ps : batches[p] \in Batches(m, p)
          /\ part' = [part EXCEPT ![m] = [p \in Partitions |->
                         IF p \in ps THEN [part[m][p] EXCEPT !.buffer = batches[p]] ELSE part[m][p]]]
          /\ Send(m, [kind |-> "advance", id |-> 0, work |-> [p \in ps |-> Step(m, p, batches[p])]])
    /\ UNCHANGED <<kafka, ledger, audit, budgets>>

\* Rows are read about every second, so that an edit reaches an idle owner too: Assignment.observed.
Observe(m, p) ==
    /\ Idle(m) /\ part[m][p].state = "reading"
    /\ \/ row[p].epoch > part[m][p].epoch
       \/ row[p].epoch = part[m][p].epoch /\ row[p].owner # part[m][p].owner
    /\ part' = [part EXCEPT ![m][p] = Become(@, "reclaiming")]
    /\ UNCHANGED <<kafka, ledger, wire, call, waits, audit, budgets>>

\* Ledger.reclaim: find out where fenced claims stand, and claim again what has no owner.
Reclaim(m) ==
    /\ Idle(m) /\ In(m, "reclaiming") # {}
    /\ Send(m, [kind |-> "reclaim", id |-> Fresh(m), take |-> FALSE, claims |-> ClaimsOf(m, In(m, "reclaiming"))])
    /\ UNCHANGED <<kafka, ledger, part, audit, budgets>>

\* A member that stood down waits for a session timeout: by then it has heard if the partition went elsewhere.  What it
\* still has then, it takes back from an owner that came late: Assignment.tick.
TakeBack(m) ==
    LET mine == {p \in In(m, "stood down") : assigned[p] = m}
    IN /\ Idle(m) /\ mine # {}
       /\ Send(m, [kind |-> "reclaim", id |-> Fresh(m), take |-> TRUE, claims |-> ClaimsOf(m, mine)])
       /\ UNCHANGED <<kafka, ledger, part, audit, budgets>>

-----------------------------------------------------------------------------
(* What the database does with a request.  Each of these is one            *)
(* transaction, or one that changes nothing.                               *)

AllMatch(work) == \A p \in DOMAIN work : row[p] # None /\ Matches(row[p], work[p])
AllTokens(work) == \A p \in DOMAIN work : row[p] # None /\ row[p].token = Token(work)

\* A member is told that its work is committed, as far as `ends`.  The auditor looks whether that is true.
Journalled(p, step, end) ==
    LET entries == journal'[p] \o OpenEntry(row'[p])
    IN \/ end = step.start
       \/ \E i \in 1..Len(entries) :
             /\ entries[i].kind = step.kind /\ entries[i].epoch = step.epoch
             /\ entries[i].start <= step.start /\ end <= entries[i].end

TellCommitted(m, work, ends) ==
    /\ part'  = [part EXCEPT ![m] = [p \in Partitions |->
                    IF p \in DOMAIN work /\ part[m][p].state = "reading"
                    THEN [part[m][p] EXCEPT !.at = ends[p], !.buffer = None]
                    ELSE part[m][p]]]
    /\ wrong' = IF \A p \in DOMAIN work : Journalled(p, work[p], ends[p]) THEN wrong ELSE wrong \cup {"report"}

\* A member is told that it was fenced.  There is a cause: the position was claimed or edited since, or an earlier
\* attempt of its own landed late.
Cause(m, p, step) ==
    \/ row[p].epoch > step.epoch
    \/ /\ row[p].epoch = step.epoch /\ row[p].owner = step.owner
       /\ row[p].next > step.start /\ part[m][p].at = step.start

TellFenced(m, work) ==
    LET fenced == {p \in DOMAIN work : ~Matches(row[p], work[p])}
    IN /\ part'  = [part EXCEPT ![m] = [p \in Partitions |->
                       IF p \in fenced THEN Become(part[m][p], "reclaiming")
                       ELSE IF p \in DOMAIN work THEN [part[m][p] EXCEPT !.buffer = Dropped(@)]
                       ELSE part[m][p]]]
       /\ wrong' = IF \A p \in fenced : Cause(m, p, work[p]) THEN wrong ELSE wrong \cup {"fence"}

WriteEffects(work) ==
    effects' = [p \in Partitions |-> IF p \in DOMAIN work THEN effects[p] \o work[p].records ELSE effects[p]]

\* The auditor notes a loss if the records are really gone.
NoteLosses(work) ==
    jumps' = [p \in Partitions |->
                 IF p \in DOMAIN work /\ work[p].kind = "loss" /\ work[p].end <= first[p]
                 THEN Append(jumps[p], [number |-> 0, after |-> Len(effects[p]), to |-> work[p].end])
                 ELSE jumps[p]]

\* A handler that takes its time may cut the work: `tx.cut`.  Each span keeps its start and ends earlier, or is left
\* out.  The token still names the work as it was planned.
Ends(work) ==
    {ends \in [DOMAIN work -> 0..Length] :
        /\ \A p \in DOMAIN work : IF work[p].kind = "loss" THEN ends[p] = work[p].end
                                  ELSE work[p].start <= ends[p] /\ ends[p] <= work[p].end
        /\ \E p \in DOMAIN work : ends[p] > work[p].start}

CutTo(step, end) == [step EXCEPT !.end = end, !.records = SelectSeq(@, LAMBDA offset : offset < end)]

LeftOut(r, token) == [row |-> [r EXCEPT !.token = token], entries |-> <<>>]

\* The compare-and-set matches every row: positions and effects are committed together.  Ledger._open.
AdvanceMoves(r) ==
    /\ r.call.kind = "advance" /\ AllMatch(r.call.work)
    /\ \E ends \in Ends(r.call.work), old \in BOOLEAN :
          LET token == Token(r.call.work)
              done  == [p \in DOMAIN r.call.work |-> CutTo(r.call.work[p], ends[p])]
          IN /\ Store([p \in DOMAIN done |->
                          IF done[p].end = done[p].start THEN LeftOut(row[p], token)
                          ELSE Advanced(row[p], done[p], token, old)])
             /\ WriteEffects(done)
             /\ NoteLosses(done)
             /\ IF Answered(r) THEN TellCommitted(r.from, r.call.work, ends) ELSE UNCHANGED <<part, wrong>>
    /\ Answer(r)
    /\ UNCHANGED <<kafka, changes, begin, budgets>>

\* It does not match, and the token is mine: an earlier attempt was committed, as far as the rows say.  The token is
\* looked at only here: Ledger._done_or_fenced.
AdvanceFindsToken(r) ==
    /\ r.call.kind = "advance" /\ ~AllMatch(r.call.work) /\ AllTokens(r.call.work)
    /\ UNCHANGED <<kafka, ledger, begin, jumps, budgets>>
    /\ IF Answered(r)
       THEN TellCommitted(r.from, r.call.work, [p \in DOMAIN r.call.work |-> row[p].next])
       ELSE UNCHANGED <<part, wrong>>
    /\ Answer(r)

\* It does not match, and the token is not mine: fenced.  Nothing is written.
AdvanceFenced(r) ==
    /\ r.call.kind = "advance" /\ ~AllMatch(r.call.work) /\ ~AllTokens(r.call.work)
    /\ IF Answered(r) THEN TellFenced(r.from, r.call.work) ELSE UNCHANGED <<part, wrong>>
    /\ Answer(r)
    /\ UNCHANGED <<kafka, ledger, begin, jumps, budgets>>

\* The database ends the transaction in the middle and the handler swallows the error.  The sentinel notices at COMMIT
\* that it is another transaction: nothing is committed, and the batch is read again.  Ledger._open, TransactionBroken.
AdvanceBreaks(r) ==
    /\ faults > 0 /\ r.call.kind = "advance" /\ AllMatch(r.call.work)
    /\ part' = IF Answered(r)
               THEN [part EXCEPT ![r.from] = [p \in Partitions |->
                        IF p \in DOMAIN r.call.work THEN [part[r.from][p] EXCEPT !.buffer = Dropped(@)]
                        ELSE part[r.from][p]]]
               ELSE part
    /\ Answer(r)
    /\ faults' = faults - 1
    /\ UNCHANGED <<kafka, ledger, audit, edits>>

\* A member is told what became of its claims.
Tell(r, result) ==
    IF ~Answered(r) \/ r.call.kind \notin {"claim", "reclaim"}
    THEN UNCHANGED part
    ELSE part' = [part EXCEPT ![r.from] = [p \in Partitions |->
                     IF p \in DOMAIN result THEN result[p] ELSE part[r.from][p]]]

\* The change was carried out by an earlier attempt: it is not done again, and its result is the same.
Recognise(r) ==
    /\ r.call.kind # "advance" /\ Recognised(r)
    /\ Tell(r, changes[Id(r)])
    /\ Answer(r)
    /\ Remember(changes)
    /\ UNCHANGED <<kafka, row, journal, effects, audit, budgets>>

\* The first claim of a topic stores a start for every partition that exists, those of other members included.  So a
\* partition without a row was added later, and is read from its beginning.  ClaimRequest.begins, ClaimCall.look_up.
GroupIsNew == \A p \in Partitions : row[p] = None

Stored(ps) == IF GroupIsNew THEN exists ELSE {p \in ps : row[p] = None}

StartOf(p) == IF GroupIsNew /\ Start = "latest" THEN log[p] ELSE 0

ClaimChange(p, m, ps) ==
    IF p \notin Stored(ps) THEN Claimed(row[p], m)
    ELSE IF p \in ps THEN Then(Begun(StartOf(p)), Claimed(Begun(StartOf(p)).row, m))
    ELSE Begun(StartOf(p))

\* All partitions are claimed in one transaction, or none: ClaimCall.decide.
ClaimLands(r) ==
    /\ r.call.kind = "claim" /\ ~Recognised(r)
    /\ LET ps      == r.call.parts
           changed == [p \in ps \cup Stored(ps) |-> ClaimChange(p, r.from, ps)]
           result  == [p \in ps |-> Reading(changed[p].row, Dropped(part[r.from][p].buffer))]
       IN /\ Store(changed)
          /\ Tell(r, result)
          /\ Answer(r)
          /\ Remember(WithResult(r, result))
    /\ begin' = IF \A p \in Partitions : begin[p] # None THEN begin
                ELSE [p \in Partitions |-> IF p \in exists /\ Start = "latest" THEN log[p] ELSE 0]
    /\ UNCHANGED <<kafka, effects, jumps, wrong, budgets>>

\* Where a claim stands, judged by the row under its lock: claiming.standing.
Mine(p, claim) == row[p].epoch = claim.epoch /\ row[p].owner = claim.owner
Unowned(p)     == row[p].owner = None

\* Mine: an earlier attempt landed late, and I go on from the row.  No owner: claimed again.  Another owner: left to it,
\* unless it is taken back.  Ledger.reclaim.
ReclaimLands(r) ==
    /\ r.call.kind = "reclaim" /\ ~Recognised(r)
    /\ LET claims  == r.call.claims
           mine    == {p \in DOMAIN claims : Mine(p, claims[p])}
           taken   == {p \in DOMAIN claims \ mine : Unowned(p) \/ r.call.take}
           changed == [p \in taken |-> Claimed(row[p], r.from)]
           result  == [p \in DOMAIN claims |->
                          LET buffer == Dropped(part[r.from][p].buffer)
                          IN IF p \in mine THEN Reading(row[p], buffer)
                             ELSE IF p \in taken THEN Reading(changed[p].row, buffer)
                             ELSE [part[r.from][p] EXCEPT !.state = "stood down", !.buffer = buffer]]
       IN /\ Store(changed)
          /\ Tell(r, result)
          /\ Answer(r)
          /\ Remember(WithResult(r, result))
    /\ UNCHANGED <<kafka, effects, audit, budgets>>

\* Only what is still mine is released: Ledger.release.
MayRelease(p, claim) == Mine(p, claim)

ReleaseLands(r) ==
    /\ r.call.kind = "release" /\ ~Recognised(r)
    /\ LET given == {p \in DOMAIN r.call.claims : MayRelease(p, r.call.claims[p])}
       IN Store([p \in given |-> Released(row[p])])
    /\ UNCHANGED part
    /\ Answer(r)
    /\ Remember(WithResult(r, None))
    /\ UNCHANGED <<kafka, effects, audit, budgets>>

\* The operator's edit: Ledger.edit.  The auditor notes each edit once, when it first takes effect.
EditLands(r) ==
    /\ r.call.kind = "edit" /\ ~Recognised(r)
    /\ LET p == r.call.partition
       IN /\ Store([q \in {p} |-> Edited(row[p], r.call.to)])
          /\ jumps' = IF \E i \in 1..Len(jumps[p]) : jumps[p][i].number = r.call.number THEN jumps
                      ELSE [jumps EXCEPT ![p] =
                               Append(@, [number |-> r.call.number, after |-> Len(effects[p]), to |-> r.call.to])]
    /\ UNCHANGED part
    /\ Answer(r)
    /\ Remember(WithResult(r, None))
    /\ UNCHANGED <<kafka, effects, begin, wrong, budgets>>

-----------------------------------------------------------------------------
(* What happens to them.                                                   *)

\* The connection breaks.  The request that was sent stays on the wire.  If it lands before anything else happens, the
\* answer was lost after the commit; if it never lands, before; and it may land late.  The caller cannot tell.

\* It sends the same operation again, under its old id: Ledger._patiently, Ledger.transact.
LoseAnswerAndRepeat(c) ==
    /\ faults > 0 /\ ~Idle(c)
    /\ Send(c, call[c])
    /\ faults' = faults - 1
    /\ UNCHANGED <<kafka, ledger, part, audit, edits>>

\* Its patience is over.  A member looks at the row before it goes on.  An operator is told that the outcome is unknown.
LoseAnswerAndGiveUp(c) ==
    /\ faults > 0 /\ ~Idle(c)
    /\ part'   = IF c \in Members THEN [part EXCEPT ![c] = Forsaken(c)] ELSE part
    /\ call'   = [call EXCEPT ![c] = None]
    /\ waits'  = [waits EXCEPT ![c] = 0]
    /\ faults' = faults - 1
    /\ UNCHANGED <<kafka, row, journal, effects, wire, audit, edits>>
    /\ Remember(changes)

\* A process dies and starts again: it has forgotten everything.  Its last request may still land.
Crash(m) ==
    /\ faults > 0 /\ ~(Idle(m) /\ part[m] = [p \in Partitions |-> Free])
    /\ part'   = [part EXCEPT ![m] = [p \in Partitions |-> Free]]
    /\ call'   = [call EXCEPT ![m] = None]
    /\ waits'  = [waits EXCEPT ![m] = 0]
    /\ faults' = faults - 1
    /\ UNCHANGED <<kafka, row, journal, effects, wire, audit, edits>>
    /\ Remember(changes)

\* The coordinator gives a partition to another member.  The former one hears of it when it next listens.
Rebalance(p, m) ==
    /\ faults > 0 /\ p \in exists /\ assigned[p] # m
    /\ assigned' = [assigned EXCEPT ![p] = m]
    /\ faults'   = faults - 1
    /\ UNCHANGED <<exists, first, log, ledger, clients, audit, edits>>

Produce(p) ==
    /\ p \in exists /\ log[p] < Length
    /\ log' = [log EXCEPT ![p] = @ + 1]
    /\ UNCHANGED <<exists, first, assigned, ledger, clients, audit, budgets>>

\* Retention deletes the oldest records, whether they were read or not.
Expire(p) ==
    /\ faults > 0 /\ first[p] < log[p]
    /\ \E to \in (first[p] + 1)..log[p] : first' = [first EXCEPT ![p] = to]
    /\ faults' = faults - 1
    /\ UNCHANGED <<exists, log, assigned, ledger, clients, audit, edits>>

AddPartition(p) ==
    /\ p \notin exists
    /\ exists' = exists \cup {p}
    /\ UNCHANGED <<first, log, assigned, ledger, clients, audit, budgets>>

\* The operator asks for a rewind or a skip.
Edit(p) ==
    /\ edits > 0 /\ Idle(Operator) /\ row[p] # None
    /\ \E to \in 0..log[p] :
          Send(Operator, [kind |-> "edit", id |-> Fresh(Operator), number |-> edits, partition |-> p, to |-> to])
    /\ edits' = edits - 1
    /\ UNCHANGED <<kafka, ledger, part, audit, faults>>

-----------------------------------------------------------------------------
(* The whole of it.                                                        *)

Init ==
    /\ exists   = Partitions \ Later
    /\ first    = [p \in Partitions |-> 0]
    /\ log      = [p \in Partitions |-> IF p \in Later THEN 0 ELSE Initially]
    /\ assigned \in [Partitions -> Members]
    /\ row      = [p \in Partitions |-> None]
    /\ journal  = [p \in Partitions |-> <<>>]
    /\ effects  = [p \in Partitions |-> <<>>]
    /\ changes  = <<>>
    /\ wire     = {}
    /\ part     = [m \in Members |-> [p \in Partitions |-> Free]]
    /\ call     = [c \in Callers |-> None]
    /\ waits    = [c \in Callers |-> 0]
    /\ begin    = [p \in Partitions |-> None]
    /\ jumps    = [p \in Partitions |-> <<>>]
    /\ wrong    = {}
    /\ faults   = Faults
    /\ edits    = Edits

Work(m) ==
    \/ Claim(m) \/ Advance(m) \/ Reclaim(m) \/ TakeBack(m)
    \/ \E p \in Partitions : Observe(m, p)

Land(r) ==
    \/ AdvanceMoves(r) \/ AdvanceFindsToken(r) \/ AdvanceFenced(r)
    \/ ClaimLands(r) \/ ReclaimLands(r) \/ ReleaseLands(r) \/ EditLands(r) \/ Recognise(r)

\* One line for each action, so that TLC counts each.
Next ==
    \* what members do
    \/ \E m \in Members : Claim(m)
    \/ \E m \in Members : Advance(m)
    \/ \E m \in Members : Reclaim(m)
    \/ \E m \in Members : TakeBack(m)
    \/ \E m \in Members, p \in Partitions : Observe(m, p)
    \/ \E m \in Members, p \in Partitions : HearRevoked(m, p)
    \/ \E m \in Members, p \in Partitions : HearLost(m, p)
    \* what an operator does
    \/ \E p \in Partitions : Edit(p)
    \* what the database does
    \/ \E r \in wire : AdvanceMoves(r)
    \/ \E r \in wire : AdvanceFindsToken(r)
    \/ \E r \in wire : AdvanceFenced(r)
    \/ \E r \in wire : AdvanceBreaks(r)
    \/ \E r \in wire : ClaimLands(r)
    \/ \E r \in wire : ReclaimLands(r)
    \/ \E r \in wire : ReleaseLands(r)
    \/ \E r \in wire : EditLands(r)
    \/ \E r \in wire : Recognise(r)
    \* what happens to them
    \/ \E c \in Callers : LoseAnswerAndRepeat(c)
    \/ \E c \in Callers : LoseAnswerAndGiveUp(c)
    \/ \E m \in Members : Crash(m)
    \/ \E m \in Members, p \in Partitions : Rebalance(p, m)
    \/ \E p \in Partitions : Expire(p)
    \/ \E p \in Partitions : Produce(p)
    \/ \E p \in Partitions : AddPartition(p)

\* A member that can go on with its work does so some time, and a request that a member waits for is answered.  Nobody
\* else has to do anything: a member may never hear that it lost a partition, and an edit may never land.
Fairness ==
    \A m \in Members :
       /\ WF_vars(Work(m))
       /\ WF_vars(\E r \in wire : r.from = m /\ Answered(r) /\ Land(r))

Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
(* What has to hold.                                                       *)

\* Each record of a partition takes effect once and in order, from where the group began, apart from the edits that an
\* operator asked for and the losses that retention caused; and the position is behind them.  The auditor walks through
\* the effects: `at` is where the next one is due.  Nothing that the journal says is used.
Due(p, i, at) ==
    LET here == SelectSeq(jumps[p], LAMBDA edit : edit.after = i)
    IN IF here = <<>> THEN at ELSE here[Len(here)].to

RECURSIVE Follow(_, _, _)
Follow(p, i, at) ==
    LET due == Due(p, i, at)
    IN IF i = Len(effects[p])
       THEN due <= row[p].next /\ RecordsIn(due, row[p].next) = <<>>
       ELSE LET offset == effects[p][i + 1]
            IN due <= offset /\ RecordsIn(due, offset) = <<>> /\ Follow(p, i + 1, offset + 1)

ExactlyOnce ==
    \A p \in Partitions : IF row[p] = None THEN effects[p] = <<>> ELSE Follow(p, 0, begin[p])

\* The journal explains the position: Ledger.verify, core/journal.py.  An advance by a zombie would name an epoch or an
\* owner that is not the one of the entry before it.
Moves     == {"advance", "loss"}
NewEpoch  == {"claim", "edit"}
Ownerless == {"start", "release", "edit"}

Follows(before, entry) ==
    /\ entry.start = before.end
    /\ entry.kind \in Moves => entry.end > entry.start
    /\ entry.kind \notin Moves \cup {"edit"} => entry.end = entry.start
    /\ entry.epoch = before.epoch + (IF entry.kind \in NewEpoch THEN 1 ELSE 0)
    /\ entry.kind \in Moves => before.kind \notin Ownerless /\ entry.owner = before.owner

Verified ==
    \A p \in Partitions : row[p] # None =>
       LET entries == journal[p] \o OpenEntry(row[p])
           last    == entries[Len(entries)]
       IN /\ \A i \in 2..Len(entries) : Follows(entries[i - 1], entries[i])
          /\ last.end = row[p].next /\ last.epoch = row[p].epoch
          /\ row[p].owner = IF last.kind \in Ownerless THEN None ELSE last.owner

\* At most one member can commit to a partition.
OneOwner ==
    \A p \in Partitions : row[p] # None =>
       Cardinality({m \in Members : /\ part[m][p].state = "reading"
                                    /\ part[m][p].epoch = row[p].epoch
                                    /\ row[p].owner = part[m][p].owner}) <= 1

\* A member that is told "committed" finds its advance in the journal, under its claim.
TrueReports == "report" \notin wrong

\* A member is fenced only if somebody moved, claimed or edited the position, or an attempt of its own landed late.
FencedWithCause == "fence" \notin wrong

\* Once nothing goes wrong any more, every partition gets to the end of its log and stays there.
Settles == <>[](\A p \in exists : row[p] # None /\ row[p].next = log[p])

\* Members are alike: states that differ only in who is who are looked at once.  Not for liveness.
Symmetry == Permutations(Members)
=============================================================================
