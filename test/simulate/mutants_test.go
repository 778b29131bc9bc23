package simulate

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mutant is a defect: a change of one file. The simulation must find it.
type mutant struct {
	name     string
	file     string
	old, new string // old occurs once in the file
	runs     []run  // that find the defect
	problem  string // a part of one of the problems that each run must report
}

// run is a seed with the name of a schedule, or with the schedule that the seed draws.
type run struct {
	schedule string
	seed     uint64
}

// mutants are the defects that the simulation is known to find. docs/lab/simulation.md lists them. In
// new code, isMutant reports whether the run is one of this mutant, and choose returns its second
// argument if the first one is true, and its third argument otherwise.
var mutants = []mutant{
	{
		name:    "starved-process-blames-redis",
		file:    "backend/redis/request.go",
		old:     "|| !isStarvedAfterYield(r.deadline) {",
		new:     "|| isMutant() || !isStarvedAfterYield(r.deadline) {",
		runs:    []run{{"no-cpu-time", 1}, {"canceled-calls", 1}},
		problem: "breaker opened",
	},
	{
		name:    "busy-process-blames-redis",
		file:    "backend/redis/request.go",
		old:     "runtime.Gosched()",
		new:     "if !isMutant() {\n\t\t\truntime.Gosched()\n\t\t}",
		runs:    []run{{"busy-callers", 1}},
		problem: "breaker opened",
	},
	{
		name:    "canceled-call-is-a-failure",
		file:    "backend/fallback/serve.go",
		old:     "case !canServe(ctx, reason):",
		new:     "case !canServe(ctx, reason):\n\t\t\tif isMutant() {\n\t\t\t\tl.breakerOf(h).recordFailure(now, r.Err)\n\t\t\t}",
		runs:    []run{{"canceled-calls", 1}},
		problem: "breaker opened",
	},
	{
		name:    "full-queue-is-a-failure",
		file:    "backend/fallback/serve.go",
		old:     "case reason != backend.ReasonOverload && !backend.IsNotSent(r.Err):",
		new:     "case isMutant() || reason != backend.ReasonOverload && !backend.IsNotSent(r.Err):",
		runs:    []run{{"full-queue-far-away", 1}},
		problem: "breaker opened",
	},
	{
		name:    "full-queue-is-not-reported",
		file:    "backend/fallback/outage.go",
		old:     "\t\tif r.Err != nil {\n\t\t\tcontinue",
		new:     "\t\tif r.Err != nil || isMutant() && r.Reason == backend.ReasonOverload {\n\t\t\tcontinue",
		runs:    []run{{"full-queue", 1}},
		problem: "rls_max_excess_hits",
	},
	{
		name:    "full-queue-is-not-replayed",
		file:    "backend/fallback/outage.go",
		old:     "case backend.IsNotSent(f.err):",
		new:     "case !isMutant() && backend.IsNotSent(f.err):",
		runs:    []run{{"full-queue", 1}},
		problem: "and not charged",
	},
	{
		name:    "late-answers-are-not-settled",
		file:    "backend/fallback/outage.go",
		old:     "l.settle(late, answer)",
		new:     "if !isMutant() { l.settle(late, answer) }",
		runs:    []run{{"late-answers", 1}},
		problem: "admitted hits: got",
	},
	{
		name:    "late-answers-to-groups-are-ignored",
		file:    "backend/redis/request.go",
		old:     "lateError.SetAnswer(r)",
		new:     "if !isMutant() || !h.IsInGroup() { lateError.SetAnswer(r) }",
		runs:    []run{{"late-answers-all-or-none", 1}},
		problem: "admitted hits: got",
	},
	{
		name:    "last-count-is-ignored",
		file:    "backend/fallback/serve.go",
		old:     "if l.options.LastCount == nil || h",
		new:     "if isMutant() || isMutant(\"late-answers-are-not-settled\") || isMutant(\"late-answers-to-groups-are-ignored\") || l.options.LastCount == nil || h",
		runs:    []run{{"late-answers", 1}},
		problem: "admitted hits: got",
	},
	{
		name:    "denied-late-hit-is-not-refunded",
		file:    "backend/fallback/replay.go",
		old:     "case !h.hit.Shadow && !hasHolds && answer.ResetAfter > 0:",
		new:     "case !isMutant() && !h.hit.Shadow && !hasHolds && answer.ResetAfter > 0:",
		runs:    []run{{"late-denials", 1}},
		problem: "admitted hits",
	},
	{
		name:    "deny-cache-never-forgets",
		file:    "backend/denycache/table.go",
		old:     "now < e.nextAskTime && n",
		new:     "(isMutant() || now < e.nextAskTime) && n",
		runs:    []run{{"short-windows", 1}},
		problem: "without a denial by Redis",
	},
	{
		name:    "deny-cache-ignores-raised-limit",
		file:    "backend/denycache/table.go",
		old:     "h.Limit.Max() <= int64(e.max) && h.Limit.Capacity() <= int64(e.capacity)",
		new:     "(isMutant() || h.Limit.Max() <= int64(e.max) && h.Limit.Capacity() <= int64(e.capacity))",
		runs:    []run{{"short-windows", 1}},
		problem: "without a denial by Redis",
	},
	{
		name:    "share-is-the-whole-limit",
		file:    "backend/fallback/serve.go",
		old:     "lim.Scaled(cmp.Or(lim.FallbackRatio, l.options.Ratio))",
		new:     "lim.Scaled(choose(isMutant(), 1, cmp.Or(lim.FallbackRatio, l.options.Ratio)))",
		runs:    []run{{"long-network-cut", 1}},
		problem: "admitted hits: got",
	},
	{
		name:    "permits-go-back-to-a-later-window",
		file:    "backend/lease/giveback.go",
		old:     "			permitBatch.Add(i, g.permitHit(-g.permits))",
		new:     "			h := g.permitHit(-g.permits)\n\t\t\th.WindowStart = choose(isMutant(), 0, h.WindowStart)\n\t\t\tpermitBatch.Add(i, h)",
		runs:    []run{{"late-return", 1}},
		problem: "admitted hits of second",
	},
	{
		name:    "permits-of-a-lost-answer-are-used",
		file:    "backend/lease/refill.go",
		old:     "case permitAnswer.Err != nil:",
		new:     "case permitAnswer.Err != nil:\n\t\tif isMutant() {\n\t\t\te.permits += t.permits\n\t\t}",
		runs:    []run{{"lost-permits", 2}},
		problem: "permits do not add up",
	},
	{
		name:    "allowance-of-a-lost-answer-is-used-again",
		file:    "backend/lease/refill.go",
		old:     "if !backend.IsNotSent(permitAnswer.Err) {",
		new:     "if !isMutant() && !backend.IsNotSent(permitAnswer.Err) {",
		runs:    []run{{"late-permits", 1}},
		problem: "lost permits",
	},
	{
		name:    "lost-permits-free-their-allowance",
		file:    "backend/lease/giveback.go",
		old:     "if g.isLost {",
		new:     "if !isMutant() && g.isLost {",
		runs:    []run{{"lost-returns", 1}},
		problem: "lost permits",
	},
	{
		name:    "budget-bounds-no-allowance",
		file:    "backend/lease/refill.go",
		old:     "case budgetAnswer.Allowed:",
		new:     "case isMutant() || budgetAnswer.Allowed:",
		runs:    []run{{"killed-replicas", 1}},
		problem: "lost permits",
	},
	{
		name:    "wait-for-replicas-delays-answers",
		file:    "backend/redis/send.go",
		old:     "b.sendAndAwaitReplicas(ctx, s)",
		new:     "if isMutant() {\n\t\t\ts.execute(ctx, append(b.commands, goredis.NewIntCmd(ctx, \"WAIT\", waitReplicas, b.queue.limiter.options.Timeout.Milliseconds()/4)))\n\t\t} else {\n\t\t\tb.sendAndAwaitReplicas(ctx, s)\n\t\t}",
		runs:    []run{{"missing-replicas", 1}},
		problem: "decided without Redis",
	},
	{
		name:    "timeout-ignores-the-round-trip",
		file:    "backend/redis/clock.go",
		old:     "if !l.options.AutoTimeout {\n\t\treturn l.options.Timeout",
		new:     "if isMutant() {\n\t\treturn defaultTimeout\n\t}\n\tif !l.options.AutoTimeout {\n\t\treturn l.options.Timeout",
		runs:    []run{{"far-redis", 1}},
		problem: "breaker opened",
	},
	{
		name:    "deleted-counter-gets-no-time-to-live",
		file:    "backend/redis/send.go",
		old:     "b.setTTL(ctx, s, a.newTTLCommands)",
		new:     "if !isMutant() {\n\t\tb.setTTL(ctx, s, a.newTTLCommands)\n\t}",
		runs:    []run{{"deleted-counter", 1}},
		problem: "has no time to live",
	},
	{
		name:    "refund-also-gives-permits",
		file:    "backend/lease/table.go",
		old:     "if h.N <= 0 || h.N > h.Limit.Capacity() {",
		new:     "if isMutant() && h.N < 0 {\n\t\te.permits -= h.N\n\t}\n\tif h.N <= 0 || h.N > h.Limit.Capacity() {",
		runs:    []run{{"refunds", 1}},
		problem: "admitted hits",
	},
	{
		name:    "refund-is-sent-twice",
		file:    "backend/redis/request.go",
		old:     "newHit.N = nil, min(max(n, -limit.MaxHits)",
		new:     "newHit.N = nil, min(max(choose(isMutant() && n < 0, 2*n, n), -limit.MaxHits)",
		runs:    []run{{"refunds", 1}},
		problem: "and not charged",
	},
	{
		name:    "deny-cache-ignores-refunds",
		file:    "backend/denycache/table.go",
		old:     "s.generation++\n\tif e := findEntry(set, id); e.id == id {",
		new:     "s.generation++\n\tif e := findEntry(set, id); e.id == id && !isMutant() {",
		runs:    []run{{"refunds", 1}},
		problem: "without a denial by Redis",
	},
	{
		name:    "deny-cache-never-asks-again",
		file:    "backend/denycache/table.go",
		old:     "newEntry.nextAskTime = min(newEntry.end, now+max(now-newEntry.start, firstDenialSpan))",
		new:     "newEntry.nextAskTime = min(newEntry.end, now+choose(isMutant(), newEntry.end-now, max(now-newEntry.start, firstDenialSpan)))",
		runs:    []run{{"refunds-elsewhere", 1}},
		problem: "denied by the deny cache, though Redis had room",
	},
	{
		name:    "deny-cache-keeps-denial-after-admission",
		file:    "backend/denycache/denycache.go",
		old:     "if hitLookup.hasEntry {",
		new:     "if hitLookup.hasEntry && !isMutant() {",
		runs:    []run{{"refunds-elsewhere", 1}},
		problem: "denied by the deny cache, though Redis had room",
	},
	{
		name:    "deny-cache-remembers-denial-by-own-group",
		file:    "backend/denycache/denycache.go",
		old:     "case followsGroupHit(hits, lookups, i):",
		new:     "case !isMutant() && followsGroupHit(hits, lookups, i):",
		runs:    []run{{"groups-on-one-counter", 1}},
		problem: "denied by the deny cache, though Redis had room",
	},
	{
		name:    "deny-cache-remembers-temporary-denial",
		file:    "backend/denycache/denycache.go",
		old:     "case r.DenialMayEndEarly:",
		new:     "case !isMutant() && r.DenialMayEndEarly:",
		runs:    []run{{"acquires-two-redis", 1}},
		problem: "denied by the deny cache, though Redis had room",
	},
	{
		name:    "acquire-is-charged-and-refunded",
		file:    "service/acquire.go",
		old:     "if isGroup {",
		new:     "if isGroup && !isMutant() {",
		runs:    []run{{"acquires", 1}},
		problem: "denied, and charged in Redis",
	},
	{
		name:    "higher-rate-drains-the-bucket",
		file:    "lua/lua.go",
		old:     readsScript,
		new:     fmt.Sprintf(changesScript, "if hasBurst then -- keep", "if false then -- keep"),
		runs:    []run{{"raised-rate", 1}},
		problem: "hits were spent",
	},
	{
		name:    "idle-permits-stay",
		file:    "backend/lease/giveback.go",
		old:     "case e.isRefilling || unusedTime < idleTime:",
		new:     "case isMutant() || e.isRefilling || unusedTime < idleTime:",
		runs:    []run{{"idle-permits", 1}},
		problem: "permits without hits",
	},
	{
		name:    "renewal-does-not-extend-hold",
		file:    "lua/lua.go",
		old:     readsScript,
		new:     fmt.Sprintf(changesScript, "now + period, namedHold.slots", "namedHold.expiry, namedHold.slots"),
		runs:    []run{{"holders", 1}},
		problem: "slots were taken",
	},
	{
		name:    "holds-never-expire",
		file:    "lua/lua.go",
		old:     readsScript,
		new:     fmt.Sprintf(changesScript, "hold.expiry <= now", "hold.expiry <= 0"),
		runs:    []run{{"holders", 2}},
		problem: "slots were taken",
	},
	{
		name:    "release-ends-two-holds",
		file:    "lua/lua.go",
		old:     readsScript,
		new:     fmt.Sprintf(changesScript, "releaseAnonymousSlots(s, -n)", "releaseAnonymousSlots(s, 1 - n)"),
		runs:    []run{{"anonymous-holders", 1}},
		problem: "slots were taken",
	},
	{
		name:    "fallback-admits-holders-up-to-the-limit",
		file:    "backend/fallback/serve.go",
		old:     "return backend.Hit{Key: h.Key, Limit: l.shareOf(h.Limit)",
		new:     "return backend.Hit{Key: h.Key, Limit: choose(isMutant() && h.Limit.Algorithm.HasHolds(), h.Limit, l.shareOf(h.Limit))",
		runs:    []run{{"holders-long-network-cut", 1}},
		problem: "holders at",
	},
	{
		name:    "region-floors-are-sold",
		file:    "limit/regions.go",
		old:     "s.Pool -= floorsInWindow * s.Floor",
		new:     "if !isMutant() {\n\t\t\ts.Pool -= floorsInWindow * s.Floor\n\t\t}",
		runs:    []run{{"regions-years", 1}},
		problem: "year, window at",
	},
	{
		name:    "region-sliding-floor-is-not-halved",
		file:    "limit/regions.go",
		old:     "floorsInWindow *= 2",
		new:     "if !isMutant() {\n\t\t\tfloorsInWindow *= 2\n\t\t}",
		runs:    []run{{"regions-short-windows", 1}},
		problem: "count in the sliding window",
	},
	{
		name:    "region-bucket-sells-its-whole-burst",
		file:    "limit/regions.go",
		old:     "s.Pool = l.capacity - 2*(windowHits+1)",
		new:     "s.Pool = l.capacity - choose(isMutant(), 0, 2*(windowHits+1))",
		runs:    []run{{"regions-bucket-burst", 1}},
		problem: "the bucket has sold",
	},
	{
		name:    "region-ledger-ignores-the-window-before",
		file:    "backend/redis/quota.go",
		old:     sendsScript,
		new:     fmt.Sprintf(changesSentScript, "math.max(sold_before, sold(KEYS[3]))", "sold(KEYS[3])"),
		runs:    []run{{"regions-short-windows", 1}},
		problem: "count in the sliding window",
	},
	{
		name:    "region-waste-has-no-bound",
		file:    "backend/redis/quota.go",
		old:     sendsScript,
		new:     fmt.Sprintf(changesSentScript, "math.max(math.floor(max_unused * rate / all_rates) - unused, least, 1)", "want"),
		runs:    []run{{"regions-one-busy", 1}},
		problem: "bought and not used",
	},
	{
		name:    "region-demand-is-never-forgotten",
		file:    "backend/redis/quota.go",
		old:     sendsScript,
		new:     fmt.Sprintf(changesSentScript, "now - tonumber(report_time) > report_life", "false"),
		runs:    []run{{"regions-moving-demand", 1}},
		problem: "no other region needs them",
	},
	{
		name:    "region-bucket-follows-the-clocks-of-regions",
		file:    "backend/redis/quota.go",
		old:     sendsScript,
		new:     fmt.Sprintf(changesSentScript, "local now = time[1] * 1000000 + time[2]", "local now = kind == 'bucket' and first or time[1] * 1000000 + time[2]"),
		runs:    []run{{"regions-bucket", 1}},
		problem: "more than the refill",
	},
	{
		name:    "region-sales-never-expire",
		file:    "backend/redis/quota.go",
		old:     sendsScript,
		new:     fmt.Sprintf(changesSentScript, "redis.call('PEXPIRE', KEYS[1], ttl)", ""),
		runs:    []run{{"regions-years", 1}},
		problem: "has no time to live",
	},
	{
		name:    "region-stores-hits-in-the-current-window",
		file:    "backend/region/buy.go",
		old:     "N: o.Granted, WindowStart: o.WindowStart",
		new:     "N: o.Granted, WindowStart: choose(isMutant(), p.orders[0].WindowStart, o.WindowStart)",
		runs:    []run{{"regions-short-windows", 1}},
		problem: "bought hits, but has bought",
	},
	{
		name:    "region-stores-hits-of-a-lost-answer",
		file:    "backend/region/buy.go",
		old:     "if o.Err == nil && o.Granted > 0 {",
		new:     "if isMutant() && o.Err != nil {\n\t\t\t\to.Granted, o.Err = o.Want, nil\n\t\t\t}\n\t\t\tif o.Err == nil && o.Granted > 0 {",
		runs:    []run{{"regions-lost-orders", 1}},
		problem: "bought hits, but has bought",
	},
	{
		name:    "region-stores-hits-again-after-a-late-answer",
		file:    "backend/region/buy.go",
		old:     "l.options.Counters.Take(ctx, time.Now(), hits, results)\n\tfor i, h := range hits {",
		new:     "l.options.Counters.Take(ctx, time.Now(), hits, results)\n\tif isMutant() && len(hits) > 0 && results[0].Err != nil {\n\t\tl.options.Counters.Take(ctx, time.Now(), hits, results)\n\t}\n\tfor i, h := range hits {",
		runs:    []run{{"regions-stalls", 1}},
		problem: "bought hits, but has bought",
	},
	{
		name:    "region-buyers-have-no-hold",
		file:    "backend/region/buy.go",
		old:     "p.isBuyer = answers[0].Err == nil && answers[0].Allowed",
		new:     "p.isBuyer = isMutant() || answers[0].Err == nil && answers[0].Allowed",
		runs:    []run{{"regions-years", 1}},
		problem: "two replicas buy at once",
	},
	{
		name:    "region-never-buys-after-a-cut",
		file:    "backend/region/buy.go",
		old:     "e.retryAt = e.now + retryPause",
		new:     "e.retryAt = e.now + retryPause\n\t\tif isMutant() {\n\t\t\te.retryAt = 1 << 62\n\t\t}",
		runs:    []run{{"regions-cut", 1}},
		problem: "has not tried to buy",
	},
	{
		name:    "region-buys-for-a-window-that-ends",
		file:    "backend/region/stock.go",
		old:     "arrivesInTime := e.windows[0].end-e.now > l.roundTrip.Load()",
		new:     "arrivesInTime := isMutant() || e.windows[0].end-e.now > l.roundTrip.Load()",
		runs:    []run{{"regions-bucket-burst", 1}},
		problem: "after their window",
	},
	{
		name:    "region-reads-the-stock-of-the-window-before",
		file:    "backend/region/region.go",
		old:     "Limit: p.stock.share.Purchases, WindowStart: p.windowStart, Shadow",
		new:     "Limit: p.stock.share.Purchases, WindowStart: p.windowStart - choose(isMutant(), int64(1), 0), Shadow",
		runs:    []run{{"regions-short-windows", 1}},
		problem: "though the region had room",
	},
	{
		name:    "region-that-is-cut-off-admits-half-of-the-limit",
		file:    "backend/region/stock.go",
		old:     "window: w.limit.WithChargeDenied(hasMany)",
		new:     "window: choose(isMutant() && e.retryAt > e.now && e.mostDenied > 0, share.Stock(h.Limit.Max()/2), w.limit).WithChargeDenied(hasMany)",
		runs:    []run{{"regions-cut", 1}},
		problem: "want at most the floor",
	},
	{
		name:    "region-keeps-its-stock-after-a-loss",
		file:    "backend/region/stock.go",
		old:     "if bought != w.bought {",
		new:     "if bought > w.bought || !isMutant() && bought < w.bought {",
		runs:    []run{{"regions-redis-empty", 1}},
		problem: "want at most the floor",
	},
	{
		name:    "region-replica-learns-no-purchase-of-another",
		file:    "backend/region/stock.go",
		old:     "e.nextPeek = e.now + peekPause",
		new:     "e.nextPeek = e.now + choose(isMutant(), int64(1<<60), peekPause)",
		runs:    []run{{"regions-years", 1}},
		problem: "though the region had room",
	},
	{
		name:    "region-reset-keeps-its-stock",
		file:    "backend/region/region.go",
		old:     "l.options.Counters.Take(ctx, now, refunds, results)",
		new:     "if !isMutant() {\n\t\tl.options.Counters.Take(ctx, now, refunds, results)\n\t}",
		runs:    []run{{"regions-reset", 1}},
		problem: "after the reset",
	},
}

// readsScript is the line that returns the text of a Lua script. changesScript returns the text with
// another expression.
const (
	readsScript   = "return string(text)"
	changesScript = "if isMutant() {\n\t\treturn strings.Replace(string(text), %q, %q, 1)\n\t}\n\treturn string(text)"
)

// sendsScript is the line that sends the text of a script of the global Redis. changesSentScript sends the text with another
// expression.
const (
	sendsScript       = "all := []any{\"EVAL\", script, len(keys)}"
	changesSentScript = "if isMutant() {\n\t\tscript = replaceText(script, %q, %q)\n\t}\n\t" + sendsScript
)

// root is the folder of the repository.
const root = "../.."

func TestMutantsChangeCodeThatExists(t *testing.T) {
	for _, m := range mutants {
		code, err := os.ReadFile(filepath.Join(root, m.file))
		require.NoError(t, err)
		assert.Equal(t, 1, strings.Count(string(code), m.old), "%s: %s", m.name, m.file)
		if m.old != readsScript && m.old != sendsScript {
			continue
		}
		_, replacement, _ := strings.Cut(strings.Replace(m.new, "replaceText(script, ", "strings.Replace(string(text), ", 1), "strings.Replace(string(text), ")
		quoted, err := strconv.QuotedPrefix(replacement)
		require.NoError(t, err)
		scriptText, err := strconv.Unquote(quoted)
		require.NoError(t, err)
		assert.Contains(t, allScripts(t), scriptText, m.name)
	}
}

// allScripts returns the texts of all Lua files, and of the scripts of the global Redis.
func allScripts(t *testing.T) (texts string) {
	files, err := filepath.Glob(filepath.Join(root, "lua/*.lua"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		texts += string(text)
	}
	ledger, err := os.ReadFile(filepath.Join(root, "backend/redis/ledger.go"))
	require.NoError(t, err)
	return texts + string(ledger)
}
