// Package pagetest has snapshots for tests of the live page, one for each state that the
// page must show well.
package pagetest

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// Now is the time of the snapshots.
var Now = time.Date(2026, 3, 14, 14, 2, 31, 0, time.UTC)

// points is the number of points of a series.
const points = 60

// Quiet returns a process with limits and without traffic.
func Quiet() *live.Snapshot {
	loadTime := Now.Add(-20 * time.Minute)
	return &live.Snapshot{
		Time: Now, Started: Now.Add(-3 * time.Hour), Version: "v0.9.0", Instance: "rls-7d9f-x2k4p",
		Process: live.Process{Cores: 2, MemoryBytes: 84_300_000, Connections: 12},
		State: live.State{
			Level: live.Well, Headline: "Counting in Redis · 3 replicas seen · limits of 13:42 UTC in force", Details: []string{},
			Backend: "redis", Replicas: 3, Redis: &live.Redis{Up: true, Mode: "local", Ratio: 0.5},
			Limits: live.Limits{Loaded: true, Since: &loadTime, Hash: "9f4e11aa02", Source: "file", Domains: []string{"shop", "partner"}, Rules: 16, Problems: []string{}},
		},
		Figures: live.Figures{
			StepSeconds: 5, Calls: unknownSeries(), DeniedShare: unknownSeries(), Errors: unknownSeries(), GivenUp: unknownSeries(), P50: unknownSeries(), P99: unknownSeries(),
			RedisP50: unknownSeries(), RedisP99: unknownSeries(), RedisMax: unknownSeries(), RedisStalls: unknownSeries(), WithoutRedis: unknownSeries(), Unmatched: unknownSeries(), CPU: unknownSeries(),
		},
		Rules: live.RuleList{Total: 16, Shown: []live.Rule{}, Quiet: 16},
		Keys:  live.TopKeys{Mode: live.KeysOn, Hottest: []live.Key{}, Denied: []live.Key{}, Unmatched: []live.Key{}, Callers: []live.Key{}, SampledShare: 1},
		Events: []timeline.Event{
			{ID: 1, Time: Now.Add(-3 * time.Hour), Kind: timeline.Start, Text: "service started", Attrs: []timeline.Attr{{Name: "version", Value: "v0.9.0"}}},
		},
		Overrides: live.OverrideList{Enabled: true, Shown: []live.Override{}},
		Fleet:     live.Fleet{Reported: true},
	}
}

func fleet(replicas ...live.Replica) live.Fleet {
	replicas[0].Answers = true
	f := live.NewFleet(replicas, 0)
	f.Reported = true
	return f
}

func replica(name string, seenSeconds float64) live.Replica {
	return live.Replica{
		Name: name, Version: "v0.9.0", Limits: "9f4e11aa02", SeenSeconds: seenSeconds, Lost: seenSeconds > 15,
		Figures: &changes.ReplicaFigures{Calls: 1240, Denied: 39.7, CPU: 0.42, MemoryBytes: 84_300_000, Blips: 2},
	}
}

// Unmatched returns a process with calls that no rule limits.
func Unmatched() *live.Snapshot {
	snapshot := Quiet()
	snapshot.Figures.Calls, snapshot.Figures.DeniedShare, snapshot.Figures.Errors = wave(18.4, 0.2), wave(0, 0), wave(0, 0)
	snapshot.Figures.P50, snapshot.Figures.P99 = wave(0.000021, 0.1), wave(0.00009, 0.4)
	snapshot.Figures.GivenUp, snapshot.Figures.Unmatched = wave(0, 0), wave(19.1, 0.2)
	snapshot.Keys.Unmatched = []live.Key{
		{Key: "shop|remote_addr=10.0.0.1", Rule: "shop > remote_addr", Limit: "no rule", Rate: 12.6, Share: 0.66},
		{Key: "shop|path=/login|method=POST", Rule: "shop > path > method", Limit: "no rule", Rate: 5.5, Share: 0.29},
		{Key: "edge|path=/", Rule: "edge > path", Limit: "unknown domain", Rate: 0.97, Share: 0.05},
	}
	return snapshot
}

// Busy returns a process with mixed traffic, a shadowed rule, an override and a past outage.
func Busy() *live.Snapshot {
	snapshot := Quiet()
	snapshot.State.Details = []string{"Last outage of Redis ended at 13:21 UTC and lasted 41.2s: 1,204 calls decided without Redis, at most 310 hits too many"}
	snapshot.Figures.Calls = wave(1240, 0.2)
	snapshot.Figures.DeniedShare = wave(0.032, 0.6)
	snapshot.Figures.Errors, snapshot.Figures.GivenUp = wave(0, 0), wave(0, 0)
	snapshot.Figures.P50, snapshot.Figures.P99 = wave(0.000048, 0.1), wave(0.00021, 0.4)
	snapshot.Figures.RedisP50, snapshot.Figures.RedisP99 = wave(0.00041, 0.1), wave(0.0012, 0.4)
	snapshot.Figures.RedisMax, snapshot.Figures.RedisStalls = wave(0.0031, 0.4), wave(0, 0)
	snapshot.Figures.WithoutRedis, snapshot.Figures.Unmatched = wave(0, 0), wave(0, 0)
	snapshot.Figures.CPU = wave(0.42, 0.2)
	snapshot.Fleet = fleet(replica("rls-7d9f-x2k4p/1", 0), replica("rls-7d9f-8rq2m/1", 3), replica("rls-7d9f-v6c9d/1", 34))
	snapshot.Fleet.Replicas[2].Figures = nil
	for i, name := range []string{"10.4.0.17 envoy.edge.shop.example", "10.4.1.9 envoy.edge.shop.example", "10.4.2.30"} {
		rate := live.Value(700 / (i + 1))
		snapshot.Keys.Callers = append(snapshot.Keys.Callers, live.Key{Key: name, Rate: rate, DeniedRate: rate / 31, Share: rate / 1240})
	}
	expiry := Now.Add(68 * time.Minute)
	setTime := Now.Add(-12 * time.Minute)
	acmeRule := Rule("shop > tenant=acme", "6,000 per minute", "fixed_window", 96, 0, 0.71)
	acmeRule.Marks = []string{"override"}
	acmeRule.Override = &live.RuleOverride{Target: "shop|tenant=acme", Author: "dana", ExpiresAt: &expiry}
	searchRule := Rule("shop > service=search", "40 per second", "token_bucket", 3.7, 0, 0.6)
	searchRule.Marks, searchRule.Override = []string{"off"}, &live.RuleOverride{Target: "shop|service=search", Author: "dana", ExpiresAt: &expiry}
	trialRule := Rule("shop > tenant=trial", "10 per minute", "fixed_window", 0, 0, 1.4)
	trialRule.Shadow, trialRule.Marks = 2.31, []string{"shadow"}
	addressRule := Rule("shop > remote_address", "5 per second", "fixed_window", 812, 31.2, 1)
	addressRule.Limits = append(addressRule.Limits, live.Limit{Text: "1,000 per hour", Name: "ip-hour", Algorithm: "sliding_window"})
	snapshot.Rules.Shown = []live.Rule{
		addressRule,
		Rule("shop > remote_address > path=/login", "3 per 15 minutes", "sliding_log", 1.2, 8.4, 1),
		Rule("shop > service=checkout > path", "100 per minute", "fixed_window", 61.5, 0.2, 0.98),
		Rule("shop > service=checkout", "600 per minute", "fixed_window", 9.42, 0, 0.94),
		Rule("partner > api_key", "30 per minute", "sliding_log", 44, 0, 0.52),
		acmeRule,
		trialRule,
		searchRule,
		Rule("shop > path=/api/*", "50 per second, burst 100", "token_bucket", 38.1, 0, 0.21),
		Rule("shop > destination_cluster=echo", "200 per second", "token_bucket", 0.003, 0, 0.01),
	}
	snapshot.Rules.Quiet = 6
	snapshot.Keys.Hottest, snapshot.Keys.Denied = nil, nil
	for i := range 20 {
		n := int64(20 - i)
		snapshot.Keys.Hottest = append(snapshot.Keys.Hottest, Key(fmt.Sprintf("shop|remote_address=10.0.%d.%d", i/3, i*7%250), "shop > remote_address", float64(n)*1.7, float64(n)/40))
	}
	for i := range 9 {
		n := int64(9 - i)
		k := Key(fmt.Sprintf("shop|remote_address=203.0.113.%d|path=/login", i*31), "shop > remote_address > path=/login", float64(n)*0.9, float64(n)/45)
		if n > 3 {
			Limited(&k, time.Duration(n*n)*time.Minute, time.Duration(n-5)*time.Second)
		}
		snapshot.Keys.Denied = append(snapshot.Keys.Denied, k)
	}
	outageEnd := Now.Add(-41 * time.Minute)
	snapshot.State.Redis.Since = &outageEnd
	snapshot.Events = append([]timeline.Event{
		{ID: 5, Time: Now.Add(-12 * time.Minute), Kind: timeline.Override, Text: "override set", Attrs: []timeline.Attr{{Name: "target", Value: "shop|tenant=acme"}, {Name: "by", Value: "dana"}, {Name: "until", Value: "2026-03-14T15:10:31Z"}}},
		{ID: 4, Time: Now.Add(-20 * time.Minute), Kind: timeline.Reload, Text: "limits in force", Attrs: []timeline.Attr{{Name: "changed", Value: "shop > remote_address: 4 per second → 5 per second"}, {Name: "counters", Value: "kept"}}},
		{ID: 3, Time: outageEnd, Kind: timeline.Breaker, Text: "Redis is back", Attrs: []timeline.Attr{{Name: "lasted", Value: "41.2s"}, {Name: "calls", Value: "1,204"}, {Name: "at most too many", Value: "310"}}},
		{ID: 2, Time: outageEnd.Add(-41 * time.Second), Kind: timeline.Breaker, Failed: true, Text: "Redis went away", Attrs: []timeline.Attr{{Name: "error", Value: "dial tcp 10.2.0.7:6379: connect: connection refused"}}},
	}, snapshot.Events...)
	snapshot.Overrides.Shown = []live.Override{{
		Target: "shop|tenant=acme", Path: "shop > tenant=acme", State: "in force", Limits: "6000 per minute", Base: "60 per minute",
		Author: "dana", SetAt: &setTime, ExpiresAt: &expiry,
	}}
	return snapshot
}

// RedisAway returns Busy during an outage of Redis.
func RedisAway() *live.Snapshot {
	snapshot := Busy()
	outageStart := Now.Add(-41 * time.Second)
	snapshot.State.Level = live.Trouble
	snapshot.State.Headline = "Redis away for 00:41 · deciding here at half of each limit · 1,204 calls decided without Redis, at most 310 hits too many · 3 replicas seen · limits of 13:42 UTC in force"
	snapshot.State.Details = []string{}
	snapshot.State.Redis = &live.Redis{Up: false, Since: &outageStart, Error: "dial tcp 10.2.0.7:6379: connect: connection refused", Mode: "local", Ratio: 0.5, Breakers: live.Breakers{Open: 1}}
	snapshot.Figures.RedisP50.Now, snapshot.Figures.RedisP99.Now = live.Unknown, live.Unknown
	snapshot.Fleet = fleet(replica("rls-7d9f-x2k4p/1", 0))
	snapshot.Fleet.UnknownSince = &outageStart
	snapshot.Figures.WithoutRedis = wave(1240, 0.2)
	snapshot.Events = append([]timeline.Event{{ID: 6, Time: outageStart, Kind: timeline.Breaker, Failed: true, Text: "Redis went away", Attrs: []timeline.Attr{{Name: "error", Value: "dial tcp 10.2.0.7:6379: connect: connection refused"}}}}, snapshot.Events...)
	return snapshot
}

// Refused returns Busy with newer limits that are not in force.
func Refused() *live.Snapshot {
	s := Busy()
	problem := "limits.yaml:14:5: shop > tenant=acme: unit: got \"minutes\", want second, minute, hour, day, week, month or year; did you mean minute?"
	s.State.Level = live.Warning
	s.State.Headline = "Newest limits or overrides rejected · counting in Redis · 3 replicas seen · limits of 13:42 UTC in force"
	s.State.Details = append([]string{"1 problem, so the newest limits are not in force: " + problem}, s.State.Details...)
	s.State.Limits.Problems = []string{problem}
	s.Events = append([]timeline.Event{{ID: 6, Time: Now.Add(-5 * time.Second), Kind: timeline.Refusal, Failed: true, Text: "limits rejected", Attrs: []timeline.Attr{{Name: "problem", Value: problem}}}}, s.Events...)
	return s
}

// NoLimits returns a process that has no limits.
func NoLimits() *live.Snapshot {
	s := Quiet()
	s.State.Level, s.State.Headline = live.Trouble, "No limits loaded: calls fail until valid limits arrive"
	s.State.Details = []string{"1 problem, so there are no limits: limits.yaml: no such file"}
	s.State.Limits = live.Limits{Source: "file", Domains: []string{}, Problems: []string{"limits.yaml: no such file"}}
	s.Rules = live.RuleList{Shown: []live.Rule{}}
	s.Overrides = live.OverrideList{Shown: []live.Override{}}
	return s
}

// Many returns Busy with n rules that have traffic.
func Many(n int) *live.Snapshot {
	snapshot := Busy()
	snapshot.Rules.Shown = nil
	for i := range n {
		path := fmt.Sprintf("shop > service=svc-%04d > path=/v1/items/%d", i/5, i%5)
		snapshot.Rules.Shown = append(snapshot.Rules.Shown, Rule(path, "100 per minute", "fixed_window", float64(n-i), float64(n-i)/9, float64(i%100)/80))
	}
	snapshot.Rules.Total, snapshot.Rules.Quiet = n+40, 40
	snapshot.State.Limits.Rules = n + 40
	return snapshot
}

// Hostile returns Busy with keys, rules and texts that try to break the page.
func Hostile() *live.Snapshot {
	snapshot := Busy()
	script := "<script>alert(1)</script><img src=x onerror=alert(2)>"
	snapshot.Keys.Hottest = []live.Key{
		Key("shop|path=<script>alert(1)</script><img%20src%3Dx%20onerror%3Dalert(2)>", "shop > path="+script, 12, 0.4),
		Key("shop|tenant=%D8%B4%D8%B1%D9%83%D8%A9%20%D8%A7%D9%84%D8%B3%D9%84%D8%A7%D9%85", "shop > tenant=شركة السلام", 8, 0.3),
		Key("shop|tenant=%F0%9F%9B%92%F0%9F%91%A9%E2%80%8D%F0%9F%92%BB", "shop > tenant=🛒👩‍💻", 4, 0.1),
		Key("shop|path="+strings.Repeat("long-path/", 30), "shop > path", 3, 0.1),
		Key("shop|tenant=%1B[31mred%1B[0m%0Anext", `shop > "tenant=\x1b[31mred"`, 2, 0.1),
		Key("shop|tenant=evil%E2%80%AEgpj.exe", "shop > tenant", 1, 0.1),
	}
	snapshot.Figures.Unmatched = wave(3, 0.1)
	for _, k := range snapshot.Keys.Hottest {
		k.Rule, k.Limit = strings.ReplaceAll(k.Key, "|", " > "), "no rule"
		snapshot.Keys.Unmatched = append(snapshot.Keys.Unmatched, k)
	}
	snapshot.Rules.Shown = []live.Rule{
		Rule("shop > path="+script, "5 per second", "fixed_window", 4, 2, 1),
		Rule("shop > tenant=شركة السلام", "5 per second", "fixed_window", 4, 1, 0.5),
		Rule("shop > tenant=🛒👩‍💻", "5 per second", "fixed_window", 4, 1, 0.5),
		Rule("shop > path="+strings.Repeat("long-path/", 30), "5 per second", "fixed_window", 4, 1, 0.5),
	}
	snapshot.State.Details = []string{"1 problem, so the newest limits are not in force: " + script}
	snapshot.Fleet.Replicas[1].Name, snapshot.Fleet.Replicas[1].Version, snapshot.Fleet.Replicas[1].Limits = strings.Repeat(script, 3), script, script
	snapshot.Events = append([]timeline.Event{{ID: 9, Time: Now, Kind: timeline.Refusal, Failed: true, Text: script, Attrs: []timeline.Attr{{Name: script, Value: script}}}}, snapshot.Events...)
	return snapshot
}

// Rule returns a rule with one limit.
func Rule(path, limit, algorithm string, ok, denied, use float64) live.Rule {
	parts := strings.Split(path, " > ")
	rates := live.Rates{OK: live.Value(ok), Near: live.Value(ok / 20), Denied: live.Value(denied)}
	return live.Rule{
		Domain: parts[0], Path: path, Label: parts[len(parts)-1], Depth: len(parts) - 1,
		Limits: []live.Limit{{Text: limit, Algorithm: algorithm}}, Rates: rates, Use: live.Value(use),
		OKPoints: wave(ok, 0.3).Points, DeniedPoints: wave(denied, 0.8).Points,
		Marks: []string{}, File: "limits.yaml", Line: 12,
	}
}

// Key returns a key with a count of the limit.
func Key(name, rule string, rate, share float64) live.Key {
	spent, capacity := int64(rate*1.2), int64(60)
	return live.Key{Key: name, Rule: rule, Limit: "60 per minute", Rate: live.Value(rate), DeniedRate: live.Value(rate / 3), Share: live.Value(share), Spent: &spent, Capacity: &capacity}
}

// Limited makes k a key that has been limited for limitedTime, and that passes after the wait.
func Limited(k *live.Key, limitedTime, wait time.Duration) {
	start, end := Now.Add(-limitedTime), Now.Add(wait)
	k.LimitedSince, k.PassesAt = &start, &end
}

func unknownSeries() live.Series {
	s := live.Series{Now: live.Unknown}
	for range points {
		s.Points = append(s.Points, live.Unknown)
	}
	return s
}

// wave returns a series that ends near lastValue. Its values differ from lastValue by at most the share swing.
func wave(lastValue, swing float64) live.Series {
	s := live.Series{Now: live.Value(lastValue)}
	for i := range points {
		x := float64(i - points + 1)
		s.Points = append(s.Points, live.Value(lastValue*(1+swing*math.Sin(x/4)*math.Cos(x/11))))
	}
	return s
}
