----------------------------- MODULE Witnesses ------------------------------
(***************************************************************************)
(* A model in which nothing ever goes wrong proves nothing.  These are     *)
(* situations that it has to get into.  TLC prints each when it first      *)
(* finds it, and tests/model looks for all of them.                        *)
(***************************************************************************)
EXTENDS Tidegate

Advancing(m) == call[m] # None /\ call[m].kind = "advance"

Situations == <<
    <<"a commit whose answer is lost, and whose member tries again",
      \E m \in Members : Advancing(m) /\ AllTokens(call[m].work)>>,
    <<"a change that was carried out, and whose caller tries again",
      \E m \in Members : call[m] # None /\ <<m, call[m].id>> \in DOMAIN changes>>,
    <<"an edit that was carried out, and whose operator tries again",
      call[Operator] # None /\ <<Operator, call[Operator].id>> \in DOMAIN changes>>,
    <<"two attempts at the same work on the wire",
      \E r, s \in wire : r.no # s.no /\ r.from = s.from /\ r.call = s.call>>,
    <<"a request of a dead process on the wire",
      \E r \in wire : Idle(r.from)>>,
    <<"a zombie that commits",
      \E m \in Members : Advancing(m) /\ \E p \in DOMAIN call[m].work : row[p].epoch > call[m].work[p].epoch>>,
    <<"two members that believe they own a partition",
      \E p \in Partitions : \A m \in Members : part[m][p].state = "reading">>,
    <<"an owner that came late",
      \E p \in Partitions : /\ row[p] # None /\ row[p].owner # None
                            /\ row[p].owner[1] # assigned[p] /\ part[assigned[p]][p].state = "stood down">>,
    <<"an open entry that several advances extended",
      \E p \in Partitions : /\ row[p] # None /\ row[p].open # None /\ row[p].token # None
                            /\ \A t \in row[p].token : t[3] > row[p].open.start>>,
    <<"an entry that was closed by its age",
      \E p \in Partitions : /\ row[p] # None /\ row[p].open # None
                            /\ journal[p][Len(journal[p])].kind = "advance">>,
    <<"a record that takes effect again, as an operator asked",
      \E p \in Partitions : \E i, k \in 1..Len(effects[p]) : i < k /\ effects[p][i] = effects[p][k]>>,
    <<"a record that takes no effect, as an operator asked",
      \E p \in Partitions : /\ \E j \in 1..Len(jumps[p]) : jumps[p][j].number > 0
                            /\ \E o \in 0..(row[p].next - 1) : \A i \in 1..Len(effects[p]) : effects[p][i] # o>>,
    <<"a record that is lost before it took effect",
      \E p \in Partitions : \E j \in 1..Len(jumps[p]) : jumps[p][j].number = 0>>,
    <<"work that was cut before its end",
      \E p \in Partitions : /\ row[p] # None /\ row[p].token # None
                            /\ \E t \in row[p].token : t[1] = p /\ t[4] > row[p].next>>,
    <<"a transaction over two partitions",
      \E m \in Members : Advancing(m) /\ Cardinality(DOMAIN call[m].work) = 2>>,
    <<"a record in an added partition that nobody has claimed",
      \E p \in Later : row[p] = None /\ log[p] > 0 /\ \E q \in Partitions : row[q] # None>>,
    <<"a partition that has a start and was never claimed",
      \E p \in Partitions : row[p] # None /\ row[p].epoch = 0>>
>>

ASSUME \A i \in 1..50 : TLCSet(i, FALSE)

\* Always true; evaluated once for each state.
Watched ==
    \A i \in 1..Len(Situations) :
       IF TLCGet(i) THEN TRUE
       ELSE IF Situations[i][2] THEN TLCSet(i, TRUE) /\ PrintT(<<"witness", Situations[i][1]>>)
       ELSE TRUE
=============================================================================
