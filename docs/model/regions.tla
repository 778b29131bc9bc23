------------------------------ MODULE regions ------------------------------
(* How regions divide one limit of scope global: docs/regions.md. limit/regions.go, backend/region and                     *)
(* backend/redis/ledger.go have the code.                                                                                  *)
(*                                                                                                                         *)
(* The ledger sells hits of a window. A region keeps in its Redis what it has bought and used for each window. A replica   *)
(* admits a hit if used < Floor + belief: belief is what the replica knows of bought, and can be old.                      *)
(*                                                                                                                         *)
(* A message takes any time, so time passes while a trip is in any stage. That a trip fails covers lost and late messages: *)
(* an order or a new number in the Redis of the region can take effect although the replica does not get the answer.       *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Regions, Single,    \* the regions, and those that have one replica
  Replicas, Lone,     \* the replicas of a region: all Replicas, or Lone
  Ledger,             \* the global Redis, as the owner of a clock
  None,               \* no replica
  Algorithm,          \* "fixed_window", "sliding_window" or "token_bucket"
  Limit,              \* the hits of a window; for a token_bucket, its tokens in a window
  Burst,              \* only for a token_bucket
  Floor,              \* the hits that a region admits in each window without a purchase
  Steps, Windows,     \* the steps of time in a window, and the number of windows
  Drift,              \* the largest difference between two clocks, in steps
  MaxOrder,           \* the largest number of hits in an order
  Kinds, MaxFaults    \* the kinds of faults that can happen, and their number

VARIABLES
  time, ahead,    \* each clock shows time + ahead
  sold,           \* the ledger: hits of each window
  level,          \* the ledger: tokens of the bucket, times Steps
  lastSale,       \* the last sale, which a failover of the global Redis can lose
  lost,           \* the hits of each window that such a failover has lost
  bought, used,   \* the Redis of each region: hits of each window
  forgotten,      \* used hits that the Redis of a region has lost
  again,          \* hits that a region can use again, because its Redis has lost its data
  holder,         \* the Redis of each region: the replica that has the hold of the buyer
  belief,         \* each replica: the bought hits of each window
  trip,           \* each replica: its purchase
  strays,         \* orders for each window that nobody waits for
  isCut,          \* whether a region is cut off
  ideal,          \* the tokens, times Steps, of one bucket that all regions would share
  faults          \* faults that can still happen

ledgerVars == <<sold, level, lastSale, lost>>
regionVars == <<bought, used, forgotten, again, holder>>
clockVars == <<time, ahead>>
vars == <<clockVars, ledgerVars, regionVars, belief, trip, strays, isCut, ideal, faults>>

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b
RECURSIVE Sum(_, _)
Sum(f, S) == IF S = {} THEN 0 ELSE LET x == CHOOSE x \in S : TRUE IN f[x] + Sum(f, S \ {x})

ReplicasOf(r) == IF r \in Single THEN {Lone} ELSE Replicas
AllWindows == 0..(Windows - 1)
Zeros == [w \in AllWindows |-> 0]
Idle == [stage |-> "idle", window |-> 0, hits |-> 0]
NoSale == [window |-> 0, hits |-> 0]
IsSliding == Algorithm = "sliding_window"
IsBucket == Algorithm = "token_bucket"

(* The clock of the ledger has no effect on fixed windows.                                                                 *)
Clocks == IF IsSliding \/ IsBucket THEN Regions \cup {Ledger} ELSE Regions
Now(x) == time + ahead[x]
Window(x) == Now(x) \div Steps

(* Nobody can use the hits of a window that is past on all clocks. So the state forgets it, and nobody sells its hits.     *)
IsPast(w, t) == \A x \in Clocks : w < (t + ahead[x]) \div Steps - (IF IsSliding THEN 1 ELSE 0)
Kept(hits) == [w \in AllWindows |-> IF IsPast(w, time + 1) THEN 0 ELSE hits[w]]
KeptOfAll(hits) == [r \in Regions |-> Kept(hits[r])]

(* The steps of w that are left by the clock of the ledger.                                                                *)
Left(w) == Max(0, Min(Steps, (w + 1) * Steps - Now(Ledger)))

-----------------------------------------------------------------------------
(* limit.RegionShare *)
FloorsInWindow == Cardinality(Regions) * (IF IsSliding THEN 2 ELSE 1)
PoolOfBucket == Burst - 2 * (Limit + 1)
Pool == IF IsBucket THEN PoolOfBucket ELSE Limit - FloorsInWindow * Floor
RateTokens == Limit - FloorsInWindow * Floor

(* ledgerScript *)
Sold(w) == IF w \in AllWindows THEN sold[w] ELSE 0
Before(w) == (Sold(w - 1) * Left(w) + Steps - 1) \div Steps
After(w) == Sold(w + 1)
Free(w) ==
  CASE IsBucket -> IF Left(w) = 0 \/ w * Steps > Now(Ledger) + Steps THEN 0 ELSE level \div Steps
    [] IsSliding -> IF Left(w) = 0 THEN 0 ELSE Max(0, Pool - sold[w] - Max(Before(w), After(w)))
    [] OTHER -> Max(0, Pool - sold[w])

(* The script divides scarce hits between regions. Here it may grant any number, but at least 1 if a hit is free.          *)
Sell(w, hits) ==
  /\ hits \in (IF Free(w) = 0 \/ IsPast(w, time) THEN {0} ELSE 1..Min(Free(w), MaxOrder))
  /\ sold' = [sold EXCEPT ![w] = @ + hits]
  /\ level' = IF IsBucket THEN level - hits * Steps ELSE level
  /\ lastSale' = IF "failover" \in Kinds /\ hits > 0 THEN [window |-> w, hits |-> hits] ELSE lastSale
  /\ UNCHANGED lost

-----------------------------------------------------------------------------
Init ==
  /\ time = 0
  /\ ahead \in {f \in [Clocks -> 0..Drift] : \E x \in Clocks : f[x] = 0}
  /\ sold = Zeros /\ level = IF IsBucket THEN Pool * Steps ELSE 0
  /\ lastSale = NoSale /\ lost = Zeros
  /\ bought = [r \in Regions |-> Zeros] /\ used = bought /\ forgotten = bought /\ again = bought
  /\ holder = [r \in Regions |-> None]
  /\ belief = [r \in Regions |-> [p \in ReplicasOf(r) |-> Zeros]]
  /\ trip = [r \in Regions |-> [p \in ReplicasOf(r) |-> Idle]]
  /\ strays = Zeros
  /\ isCut = [r \in Regions |-> FALSE]
  /\ ideal = IF IsBucket THEN Burst * Steps ELSE 0
  /\ faults = MaxFaults

(* What a replica believes after an answer. It believes in fewer hits than before if the Redis has lost its data.          *)
Heard(known, answer) == answer

Learn(r, p, w, answer) ==
  belief' = IF w < Window(r) THEN belief ELSE [belief EXCEPT ![r][p][w] = Heard(@, answer)]

Peek(r, p) ==
  LET w == Window(r)
  IN /\ w \in AllWindows /\ belief[r][p][w] # bought[r][w]
     /\ Learn(r, p, w, bought[r][w])
     /\ UNCHANGED <<clockVars, ledgerVars, regionVars, trip, strays, isCut, ideal, faults>>

(* Nothing waits for used, so the largest number of hits covers all smaller ones. For a bucket, the time of a hit counts.   *)
Admit(r, p) ==
  LET w == Window(r)
      room == Floor + belief[r][p][w] - used[r][w]
  IN /\ w \in AllWindows /\ room > 0
     /\ \E hits \in (IF IsBucket THEN 1..room ELSE {room}) :
          /\ used' = [used EXCEPT ![r][w] = @ + hits]
          /\ ideal' = IF IsBucket THEN ideal - hits * Steps ELSE ideal
     /\ UNCHANGED <<clockVars, ledgerVars, bought, forgotten, again, holder, belief, trip, strays, isCut, faults>>

(* A purchase for the current window or the next one. The first step takes the hold, and reads the bought hits.            *)
Start(r, p, w) ==
  /\ w \in AllWindows \cap {Window(r), Window(r) + 1}
  /\ trip[r][p] = Idle /\ holder[r] = None
  /\ holder' = [holder EXCEPT ![r] = p]
  /\ trip' = [trip EXCEPT ![r][p] = [stage |-> "ordered", window |-> w, hits |-> 0]]
  /\ Learn(r, p, w, bought[r][w])
  /\ UNCHANGED <<clockVars, ledgerVars, bought, used, forgotten, again, strays, isCut, ideal, faults>>

End(r, p) ==
  /\ trip' = [trip EXCEPT ![r][p] = Idle]
  /\ holder' = IF holder[r] = p THEN [holder EXCEPT ![r] = None] ELSE holder

(* The ledger executes the order. If it sells nothing, the trip ends.                                                     *)
Execute(r, p, hits) ==
  /\ trip[r][p].stage = "ordered" /\ ~isCut[r]
  /\ Sell(trip[r][p].window, hits)
  /\ IF hits = 0 THEN End(r, p) ELSE trip' = [trip EXCEPT ![r][p].stage = "sold", ![r][p].hits = hits] /\ UNCHANGED holder
  /\ UNCHANGED <<clockVars, bought, used, forgotten, again, belief, strays, isCut, ideal, faults>>

ExecuteStray(w, hits) ==
  /\ strays[w] > 0 /\ Free(w) > 0
  /\ strays' = [strays EXCEPT ![w] = @ - 1]
  /\ Sell(w, hits)
  /\ UNCHANGED <<clockVars, regionVars, belief, trip, isCut, ideal, faults>>

(* The window to which a region adds hits that it has bought for w.                                                       *)
StoreWindow(r, w) == w

Stored(r, p) ==
  LET t == trip[r][p] IN [bought EXCEPT ![r][StoreWindow(r, t.window)] = @ + t.hits]

Store(r, p) ==
  LET w == StoreWindow(r, trip[r][p].window)
  IN /\ trip[r][p].stage = "sold" /\ w \in AllWindows
     /\ bought' = IF IsPast(w, time) THEN bought ELSE Stored(r, p)
     /\ Learn(r, p, w, bought'[r][w])
     /\ End(r, p)
     /\ UNCHANGED <<clockVars, ledgerVars, used, forgotten, again, strays, isCut, ideal, faults>>

(* A hold expires while its replica is on a slow trip, or after its replica was killed or has failed to end it.            *)
CanExpire == TRUE
Expire(r) ==
  /\ CanExpire /\ holder[r] # None
  /\ LET isSlow == trip[r][holder[r]] # Idle
     IN faults' = (IF isSlow THEN faults - 1 ELSE faults) /\ (isSlow => faults > 0 /\ "slow" \in Kinds)
  /\ holder' = [holder EXCEPT ![r] = None]
  /\ UNCHANGED <<clockVars, ledgerVars, bought, used, forgotten, again, belief, trip, strays, isCut, ideal>>

Tick ==
  /\ time < Windows * Steps - 1
  /\ time' = time + 1
  /\ belief' = [r \in Regions |-> [p \in ReplicasOf(r) |-> [w \in AllWindows |-> IF w < (Now(r) + 1) \div Steps THEN 0 ELSE belief[r][p][w]]]]
  /\ level' = IF IsBucket THEN Min(level + RateTokens, Pool * Steps) ELSE level
  /\ ideal' = IF IsBucket THEN Min(ideal + Limit, Burst * Steps) ELSE ideal
  /\ sold' = Kept(sold) /\ lost' = Kept(lost) /\ strays' = Kept(strays)
  /\ bought' = KeptOfAll(bought) /\ used' = KeptOfAll(used) /\ forgotten' = KeptOfAll(forgotten) /\ again' = KeptOfAll(again)
  /\ lastSale' = IF IsPast(lastSale.window, time + 1) THEN NoSale ELSE lastSale
  /\ UNCHANGED <<ahead, holder, trip, isCut, faults>>

-----------------------------------------------------------------------------
Fault(kind) == kind \in Kinds /\ faults > 0 /\ faults' = faults - 1

(* What a trip leaves behind if its replica does not go on with it: nothing, an order or hits in the Redis of the region.  *)
Abandon(r, p) ==
  /\ trip' = [trip EXCEPT ![r][p] = Idle]
  /\ LET t == trip[r][p]
     IN \/ UNCHANGED <<bought, strays>>
        \/ /\ t.stage = "ordered" /\ ~IsPast(t.window, time)
           /\ strays' = [strays EXCEPT ![t.window] = @ + 1] /\ UNCHANGED bought
        \/ /\ t.stage = "sold" /\ ~IsPast(t.window, time) /\ StoreWindow(r, t.window) \in AllWindows
           /\ bought' = Stored(r, p) /\ UNCHANGED strays
  /\ UNCHANGED <<clockVars, ledgerVars, used, forgotten, again, holder, isCut, ideal>>

(* A trip fails, or its replica is killed. Another replica starts in its place, and knows nothing.                       *)
Fail(r, p) ==
  /\ Fault("fail") /\ Abandon(r, p)
  /\ \/ belief' = [belief EXCEPT ![r][p] = Zeros]
     \/ trip[r][p] # Idle /\ UNCHANGED belief

(* If the global Redis is a Cluster, go-redis sends an order again after its connection broke.                            *)
Duplicate(r, p) ==
  /\ trip[r][p].stage = "ordered" /\ Fault("duplicate")
  /\ strays' = [strays EXCEPT ![trip[r][p].window] = @ + 1]
  /\ UNCHANGED <<clockVars, ledgerVars, regionVars, belief, trip, isCut, ideal>>

Cut(r) ==
  /\ ~isCut[r] /\ Fault("cut") /\ isCut' = [isCut EXCEPT ![r] = TRUE]
  /\ UNCHANGED <<clockVars, ledgerVars, regionVars, belief, trip, strays, ideal>>
Heal(r) ==
  /\ isCut[r] /\ isCut' = [isCut EXCEPT ![r] = FALSE]
  /\ UNCHANGED <<clockVars, ledgerVars, regionVars, belief, trip, strays, ideal, faults>>

(* The global Redis fails over to a replica that does not know the last sale.                                             *)
Failover ==
  /\ lastSale # NoSale /\ Fault("failover")
  /\ sold' = [sold EXCEPT ![lastSale.window] = @ - lastSale.hits]
  /\ lost' = [lost EXCEPT ![lastSale.window] = @ + lastSale.hits]
  /\ lastSale' = NoSale
  /\ UNCHANGED <<clockVars, level, regionVars, belief, trip, strays, isCut, ideal>>

(* The Redis of a region loses its data. The replicas know what the region had bought, and use it until they notice.       *)
MostKnown(r, w) ==
  LET known == {belief[r][p][w] : p \in ReplicasOf(r)} IN CHOOSE n \in known : \A m \in known : m <= n

LoseRegion(r) ==
  /\ Fault("region")
  /\ bought' = [bought EXCEPT ![r] = Zeros]
  /\ used' = [used EXCEPT ![r] = Zeros]
  /\ forgotten' = [forgotten EXCEPT ![r] = [w \in AllWindows |-> @[w] + used[r][w]]]
  /\ again' = [again EXCEPT ![r] = [w \in AllWindows |-> @[w] + Floor + MostKnown(r, w)]]
  /\ holder' = [holder EXCEPT ![r] = None]
  /\ UNCHANGED <<clockVars, ledgerVars, belief, trip, strays, isCut, ideal>>

Next ==
  \/ Tick \/ Failover
  \/ \E w \in AllWindows, hits \in 0..MaxOrder : ExecuteStray(w, hits)
  \/ \E r \in Regions :
       \/ Expire(r) \/ Cut(r) \/ Heal(r) \/ LoseRegion(r)
       \/ \E p \in ReplicasOf(r) :
            \/ Peek(r, p) \/ Admit(r, p) \/ Store(r, p) \/ Fail(r, p) \/ Duplicate(r, p)
            \/ \E w \in AllWindows : Start(r, p, w)
            \/ \E hits \in 0..MaxOrder : Execute(r, p, hits)

Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Regions \ Single) \cup Permutations(Single) \cup Permutations(Replicas)

-----------------------------------------------------------------------------
(* What the code promises at any time. Accounted is the reason for Bounded.                                               *)
Bought(w) == Sum([r \in Regions |-> bought[r][w]], Regions)
Admitted(w) == IF w \in AllWindows THEN Sum([r \in Regions |-> used[r][w] + forgotten[r][w]], Regions) ELSE 0

(* The hits beyond the limit, if a Redis loses data.                                                                       *)
Excess(w) == IF w \in AllWindows THEN lost[w] + Sum([r \in Regions |-> again[r][w]], Regions) ELSE 0

(* The hits in the sliding window that ends now by the clock of the ledger, times Steps. The next window counts because a  *)
(* clock can be ahead.                                                                                                     *)
Weighted(hits(_)) ==
  LET w == Window(Ledger) IN hits(w) * Steps + Max(hits(w - 1) * Left(w), hits(w + 1) * Steps)

Bounded ==
  CASE IsBucket -> ideal >= 0
    [] IsSliding -> Weighted(Admitted) <= Limit * Steps + Weighted(Excess)
    [] OTHER -> \A w \in AllWindows : Admitted(w) <= Limit + Excess(w)

Accounted ==
  /\ \A w \in AllWindows :
       /\ Bought(w) <= sold[w] + lost[w]
       /\ \A r \in Regions : /\ used[r][w] <= Floor + bought[r][w]
                             /\ \A p \in ReplicasOf(r) : belief[r][p][w] <= bought[r][w]
  /\ CASE IsBucket -> level >= 0
       [] IsSliding -> Weighted(Sold) <= Pool * Steps
       [] OTHER -> \A w \in AllWindows : sold[w] <= Pool

-----------------------------------------------------------------------------
(* Never less: in one window, a region with callers is not cut off for ever. It buys all free hits, and uses them.         *)
CONSTANT Busy \* the regions with callers

Progress(r, p) ==
  \/ Peek(r, p) \/ Admit(r, p) \/ Store(r, p)
  \/ \E hits \in 0..MaxOrder : Execute(r, p, hits)
Buy(r, p) == Free(Window(r)) > 0 /\ Start(r, p, Window(r))

LiveNext ==
  \/ \E w \in AllWindows, hits \in 0..MaxOrder : ExecuteStray(w, hits)
  \/ \E r \in Busy : \/ Expire(r) \/ Cut(r) \/ Heal(r)
                     \/ \E p \in ReplicasOf(r) : Buy(r, p) \/ Progress(r, p) \/ Fail(r, p) \/ Duplicate(r, p)
LiveSpec ==
  /\ Init /\ [][LiveNext]_vars
  /\ \A r \in Busy : /\ WF_vars(Expire(r)) /\ WF_vars(Heal(r))
                     /\ \A p \in ReplicasOf(r) : WF_vars(Progress(r, p)) /\ SF_vars(Buy(r, p))

AllIsUsed == <>[](Free(0) = 0 /\ \A r \in Busy : used[r][0] = Floor + bought[r][0])

-----------------------------------------------------------------------------
(* Mistakes that a check must find. The floors belong to the pool, too: FloorsInWindow <- NoFloors. A sliding window       *)
(* covers the floors of one window only: FloorsInWindow <- FloorsOfOneWindow. The bucket does not wait for hits that are   *)
(* bought and not used: PoolOfBucket <- WholeBurst. The ledger ignores a neighbour: Before or After <- Nothing. Hits count *)
(* in the window in which they arrive: StoreWindow <- WindowOfArrival. A replica counts hits twice: Heard <- Added. The hold    *)
(* of a killed replica stays: CanExpire <- FALSE.                                                                          *)
NoFloors == 0
FloorsOfOneWindow == Cardinality(Regions)
WholeBurst == Burst
Nothing(w) == 0
WindowOfArrival(r, w) == Window(r)
Added(known, answer) == known + answer
=============================================================================
