------------------------------- MODULE quota -------------------------------
(* How rls divides one limit between Envoys: docs/quota.md. The module follows rates only. limit/quota has the code.       *)
(*                                                                                                                         *)
(* A holder is the bucket of one Envoy in one stream. After a stream broke, the Envoy continues as another holder, and     *)
(* enforces the last grant of the old holder until the grant expires.                                                      *)
(*                                                                                                                         *)
(* A message takes at most Latency ticks, and is lost if its stream breaks. The clock of an Envoy runs apart from the      *)
(* clock of the store: it may lose Drift ticks in a TTL. So Delay = 2 * Latency + Drift is what the code calls Delay.      *)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS Holders, Limit, TTL, Latency, Drift, MaxFaults   \* quota.cfg has their values

Delay == 2 * Latency + Drift
Never == TTL + Delay   \* ages stop here: nothing that was sent so long ago has an effect
ExpiryAge == Never     \* the age at which the state forgets a grant

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
(* The largest rate that h may still enforce, if a report of h comes now. The report confirms the last decrease if it      *)
(* comes Delay after the decrease.                                                                                         *)
Confirmed(h) == IF reduced[h] >= Delay THEN g[h] ELSE o[h]

(* The largest rate that h may still enforce after a new grant.                                                            *)
Counted(confirmed, rate) == Max(confirmed, rate)

(* The replica of h grants any rate that the limit has room for. Two grants may be in flight.                              *)
Grant(h, confirmed, rate) ==
  LET counted == Counted(confirmed, rate)
  IN /\ isOpen[h] /\ Len(grants[h]) < 2
     /\ rate <= confirmed \/ (frozen = 0 /\ Sum(o, Holders \ {h}) + rate <= Limit)
     /\ g' = [g EXCEPT ![h] = rate]
     /\ o' = [o EXCEPT ![h] = counted]
     /\ reduced' = [reduced EXCEPT ![h] = IF rate = counted THEN Never ELSE IF rate < g[h] THEN 0 ELSE @]
     /\ sent' = [sent EXCEPT ![h] = 0]
     /\ grants' = [grants EXCEPT ![h] = Append(@, [rate |-> rate, age |-> 0])]
     /\ UNCHANGED <<enforced, left, isOpen, frozen, faults>>

(* A report leads to a grant. A decrease also comes without a report.                                                      *)
Apply(h, rate) ==
  /\ report[h] < Never /\ Grant(h, Confirmed(h), rate)
  /\ report' = [report EXCEPT ![h] = Never]
Push(h, rate) == rate < g[h] /\ Grant(h, o[h], rate) /\ UNCHANGED report

Report(h) ==
  /\ isOpen[h] /\ report[h] = Never
  /\ report' = [report EXCEPT ![h] = 0]
  /\ UNCHANGED <<g, o, sent, reduced, enforced, left, isOpen, grants, frozen, faults>>

Receive(h) ==
  /\ grants[h] # <<>>
  /\ enforced' = [enforced EXCEPT ![h] = grants[h][1].rate]
  /\ left' = [left EXCEPT ![h] = IF grants[h][1].rate > 0 THEN TTL + Drift ELSE 0]
  /\ grants' = [grants EXCEPT ![h] = Tail(@)]
  /\ UNCHANGED <<g, o, sent, reduced, isOpen, report, frozen, faults>>

(* The state forgets a holder when its last grant has expired on each clock. Its name is then free for another stream.    *)
Expire(h) ==
  /\ sent[h] >= ExpiryAge /\ (o[h] > 0 \/ ~isOpen[h])
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
  /\ \A h \in Holders : /\ \A i \in DOMAIN grants[h] : grants[h][i].age < Latency
                        /\ report[h] # Never => report[h] < Latency
  /\ sent' = [h \in Holders |-> Older(sent[h])]
  /\ reduced' = [h \in Holders |-> Older(reduced[h])]
  /\ report' = [h \in Holders |-> Older(report[h])]
  /\ left' = [h \in Holders |-> IF left[h] > 0 THEN left[h] - 1 ELSE 0]
  /\ enforced' = [h \in Holders |-> IF left[h] > 1 THEN enforced[h] ELSE 0]
  /\ grants' = [h \in Holders |-> [i \in DOMAIN grants[h] |-> [grants[h][i] EXCEPT !.age = @ + 1]]]
  /\ frozen' = IF frozen > 0 THEN frozen - 1 ELSE 0
  /\ UNCHANGED <<g, o, isOpen, faults>>

Next ==
  \/ Tick \/ LoseData
  \/ \E h \in Holders : Report(h) \/ Receive(h) \/ Expire(h) \/ Break(h) \/ Restart(h) 
                        \/ \E rate \in 0..Limit : Apply(h, rate) \/ Push(h, rate)

-----------------------------------------------------------------------------
(* What the code promises at any time. Accounted is the reason for Bounded.                                               *)
Bounded == Sum(enforced, Holders) <= Limit
Accounted == frozen = 0 => \A h \in Holders : enforced[h] <= o[h]

Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Holders)

-----------------------------------------------------------------------------
(* What the code promises after the last fault: all holders get equal shares. Before, Next gives any rates. Then Divide    *)
(* gives the rates, and each Envoy reports before its grant expires.                                                       *)
Share == Limit \div Cardinality(Holders)
Divide(h) ==
  /\ faults = 0
  /\ Apply(h, IF g[h] > Share \/ (frozen = 0 /\ g[h] + Free >= Share) THEN Share ELSE g[h])
TimelyTick ==
  /\ \A h \in Holders : isOpen[h] /\ sent[h] >= TTL => report[h] # Never \/ sent[h] = Never
  /\ Tick

LiveNext ==
  IF faults > 0 THEN Next ELSE TimelyTick \/ \E h \in Holders : Report(h) \/ Receive(h) \/ Expire(h) \/ Divide(h)

LiveSpec ==
  /\ Init /\ [][LiveNext]_vars
  /\ WF_vars(TimelyTick)
  /\ \A h \in Holders : WF_vars(Report(h)) /\ WF_vars(Receive(h)) /\ WF_vars(Expire(h)) /\ SF_vars(Divide(h))

TargetsAreReached == <>(faults = 0) => <>[](\A h \in Holders : g[h] = Share)

-----------------------------------------------------------------------------
(* Mistakes that a check must find: Counted <- FreedAtOnce gives a decrease to others at once, Confirmed <- AtAnyReport     *)
(* does not wait for Delay, and ExpiryAge <- FromSending counts the TTL from sending.                                      *)
FreedAtOnce(confirmed, rate) == rate
AtAnyReport(h) == g[h]
FromSending == TTL
=============================================================================
