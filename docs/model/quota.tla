------------------------------- MODULE quota -------------------------------
(* How rls divides one limit between Envoys: docs/quota.md. The module follows rates only. limit/quota has the code.       *)
(*                                                                                                                         *)
(* A holder is the bucket of one Envoy in one stream. After a stream broke, the Envoy continues as another holder, and     *)
(* enforces the last grant of the old holder until the grant expires.                                                      *)
(*                                                                                                                         *)
(* A message takes at most Latency ticks, and is lost if its stream breaks. The clock of an Envoy runs apart from the      *)
(* clock of the store: it may lose Drift ticks in a TTL. So Delay = 2 * Latency + Drift is what the code calls Delay.      *)
EXTENDS Naturals, FiniteSets

CONSTANTS Holders,   \* for example {h1, h2, h3}
          Limit,     \* 4
          TTL,       \* 2
          Latency,   \* 1
          Drift,     \* 1
          MaxFaults  \* 2

Delay == 2 * Latency + Drift
Never == TTL + Delay   \* ages stop here: nothing that was sent so long ago has an effect

VARIABLES
  g,          \* the rate that the holder was granted last
  o,          \* the largest rate that the holder may still enforce
  sent,       \* ticks since the last grant was sent
  reduced,    \* ticks since the last grant that was lower than the one before
  enforced,   \* the rate that the Envoy enforces because of this holder
  left,       \* ticks until enforced expires, by the clock of the Envoy
  isOpen,     \* whether the stream of the holder is open
  grants,     \* the grants in flight, oldest first: records [rate, age]
  report,     \* the age of the report in flight, or Never
  frozen,     \* ticks until the store may raise rates again
  faults      \* faults that may still happen

vars == <<g, o, sent, reduced, enforced, left, isOpen, grants, report, frozen, faults>>

RECURSIVE Sum(_, _)
Sum(f, S) == IF S = {} THEN 0 ELSE LET h == CHOOSE x \in S : TRUE IN f[h] + Sum(f, S \ {h})

Max(a, b) == IF a > b THEN a ELSE b
Older(age) == IF age < Never THEN age + 1 ELSE Never
Free == IF Sum(o, Holders) < Limit THEN Limit - Sum(o, Holders) ELSE 0

Init ==
  /\ g = [h \in Holders |-> 0] /\ o = g /\ enforced = g /\ left = g
  /\ sent = [h \in Holders |-> Never] /\ reduced = sent /\ report = sent
  /\ isOpen = [h \in Holders |-> TRUE]
  /\ grants = [h \in Holders |-> <<>>]
  /\ frozen = 0 /\ faults = MaxFaults

-----------------------------------------------------------------------------
(* The replica of h counts a report: a report that comes Delay after a decrease confirms the decrease. Then h gets any    *)
(* rate that the limit has room for. One grant is in flight at a time, which keeps the model small.                       *)
Apply(h, rate) ==
  LET confirmed == IF reduced[h] >= Delay THEN g[h] ELSE o[h]
      room == (Limit - (Sum(o, Holders \ {h}) + confirmed))
  IN /\ report[h] < Never /\ isOpen[h] /\ grants[h] = <<>>
     /\ rate <= Max(g[h], confirmed) \/ (frozen = 0 /\ room >= 0 /\ rate <= confirmed + room)
     /\ report' = [report EXCEPT ![h] = Never]
     /\ g' = [g EXCEPT ![h] = rate]
     /\ o' = [o EXCEPT ![h] = Max(confirmed, rate)]
     /\ reduced' = [reduced EXCEPT ![h] = IF rate < g[h] THEN 0 ELSE @]
     /\ sent' = [sent EXCEPT ![h] = 0]
     /\ grants' = [grants EXCEPT ![h] = <<[rate |-> rate, age |-> 0]>>]
     /\ UNCHANGED <<enforced, left, isOpen, frozen, faults>>

Report(h) ==
  /\ isOpen[h] /\ report[h] = Never
  /\ report' = [report EXCEPT ![h] = 0]
  /\ UNCHANGED <<g, o, sent, reduced, enforced, left, isOpen, grants, frozen, faults>>

Receive(h) ==
  /\ grants[h] # <<>>
  /\ enforced' = [enforced EXCEPT ![h] = grants[h][1].rate]
  /\ left' = [left EXCEPT ![h] = TTL + Drift]
  /\ grants' = [grants EXCEPT ![h] = <<>>]
  /\ UNCHANGED <<g, o, sent, reduced, isOpen, report, frozen, faults>>

(* The state forgets a holder when its last grant has expired on each clock. Its name is then free for another stream.    *)
Expire(h) ==
  /\ sent[h] = Never /\ (o[h] > 0 \/ ~isOpen[h])
  /\ g' = [g EXCEPT ![h] = 0] /\ o' = [o EXCEPT ![h] = 0]
  /\ isOpen' = [isOpen EXCEPT ![h] = TRUE]
  /\ UNCHANGED <<sent, reduced, enforced, left, grants, report, frozen, faults>>

(* A stream breaks. Its messages are lost, and the Envoy enforces its grant until the grant expires.                      *)
Break(h) ==
  /\ faults > 0 /\ isOpen[h] /\ faults' = faults - 1
  /\ isOpen' = [isOpen EXCEPT ![h] = FALSE]
  /\ grants' = [grants EXCEPT ![h] = <<>>] /\ report' = [report EXCEPT ![h] = Never]
  /\ UNCHANGED <<g, o, sent, reduced, enforced, left, frozen>>

(* An Envoy restarts and enforces nothing.                                                                                *)
Restart(h) ==
  /\ faults > 0 /\ isOpen[h] /\ faults' = faults - 1
  /\ isOpen' = [isOpen EXCEPT ![h] = FALSE]
  /\ enforced' = [enforced EXCEPT ![h] = 0] /\ left' = [left EXCEPT ![h] = 0]
  /\ grants' = [grants EXCEPT ![h] = <<>>] /\ report' = [report EXCEPT ![h] = Never]
  /\ UNCHANGED <<g, o, sent, reduced, frozen>>

(* The store loses all holders. The replicas remember the holders with open streams, and restore them at any later time:  *)
(* here the worst case is that they restore none. No rate is raised until all grants have expired.                        *)
LoseData ==
  /\ faults > 0 /\ frozen = 0 /\ faults' = faults - 1
  /\ frozen' = Never
  /\ g' = [h \in Holders |-> 0] /\ o' = g' /\ reduced' = [h \in Holders |-> Never]
  /\ isOpen' = [h \in Holders |-> FALSE]
  /\ grants' = grants /\ report' = [h \in Holders |-> Never]
  /\ UNCHANGED <<sent, enforced, left>>

(* Time passes only if no message is late.                                                                                *)
Tick ==
  /\ \A h \in Holders : /\ grants[h] # <<>> => grants[h][1].age < Latency
                        /\ report[h] # Never => report[h] < Latency
  /\ sent' = [h \in Holders |-> Older(sent[h])]
  /\ reduced' = [h \in Holders |-> Older(reduced[h])]
  /\ report' = [h \in Holders |-> Older(report[h])]
  /\ left' = [h \in Holders |-> IF left[h] > 0 THEN left[h] - 1 ELSE 0]
  /\ enforced' = [h \in Holders |-> IF left[h] > 1 THEN enforced[h] ELSE 0]
  /\ grants' = [h \in Holders |-> IF grants[h] = <<>> THEN <<>> ELSE <<[grants[h][1] EXCEPT !.age = @ + 1]>>]
  /\ frozen' = IF frozen > 0 THEN frozen - 1 ELSE 0
  /\ UNCHANGED <<g, o, isOpen, faults>>

Next ==
  \/ Tick \/ LoseData
  \/ \E h \in Holders : Report(h) \/ Receive(h) \/ Expire(h) \/ Break(h) \/ Restart(h) \/ \E rate \in 0..Limit : Apply(h, rate)

-----------------------------------------------------------------------------
(* The part of Apply that divides equally, for the liveness below.                                                        *)
Share == Limit \div Cardinality(Holders)
Divide(h) == Apply(h, IF g[h] > Share THEN Share ELSE IF g[h] + Free >= Share THEN Share ELSE g[h])

Fairness ==
  /\ WF_vars(Tick)
  /\ \A h \in Holders : WF_vars(Report(h)) /\ WF_vars(Receive(h)) /\ WF_vars(Expire(h)) /\ SF_vars(Divide(h))

Spec == Init /\ [][Next]_vars

(* For the liveness, rates come from Divide only.                                                                         *)
NextDivide ==
  \/ Tick \/ LoseData
  \/ \E h \in Holders : Report(h) \/ Receive(h) \/ Expire(h) \/ Break(h) \/ Restart(h) \/ Divide(h)
LiveSpec == Init /\ [][NextDivide]_vars /\ Fairness

(* What the code promises.                                                                                                *)
Bounded == Sum(enforced, Holders) <= Limit
Accounted == frozen = 0 => \A h \in Holders : enforced[h] <= o[h]
TargetsAreReached == <>[](\A h \in Holders : g[h] = Share)

(* Two mutants that a checker must find: Apply with confirmed == g[h] frees a decrease at once, and Expire with            *)
(* sent[h] = TTL counts the TTL from sending.                                                                             *)
=============================================================================
