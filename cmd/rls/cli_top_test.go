package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/internal/source/changes"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// testSnapshot has traffic, hostile texts and unknown figures.
func testSnapshot() *live.Snapshot {
	start := time.Date(2026, 11, 20, 14, 2, 0, 0, time.UTC)
	spent, capacity := int64(21), int64(20)
	return &live.Snapshot{
		Time: start.Add(90 * time.Second), Started: start, Version: "v1", Instance: "pod-1",
		State: live.State{Level: live.Trouble, Headline: "Redis away for 00:41", Details: []string{"a detail"}, Redis: &live.Redis{}},
		Figures: live.Figures{
			Calls:       live.Series{Now: 1204, Points: []live.Value{0, live.Unknown, 5, 10}},
			Unmatched:   live.Series{Now: 0.5},
			DeniedShare: live.Series{Now: 0.125}, P50: live.Series{Now: 0.00024}, P99: live.Series{Now: live.Unknown},
		},
		Rules: live.RuleList{Total: 45, More: 2, Quiet: 41, Shown: []live.Rule{
			{
				Path: "shop > \x1b]0;evil\x07 > 日本", Limits: []live.Limit{{Text: "20 per minute"}, {Text: "5 per day"}},
				Rates: live.Rates{OK: 3.456, Denied: 99.5}, Use: 1.05, Marks: []string{"override"},
				Override: &live.RuleOverride{ExpiresAt: &start},
			},
			{Path: "shop > " + strings.Repeat("x", 300) + " > end", Use: live.Unknown},
		}},
		Keys: live.TopKeys{
			Mode:    live.KeysOn,
			Hottest: []live.Key{{Key: "shop|tenant=\u202eevil", Rate: 1e6, Share: 0.25, Spent: &spent, Capacity: &capacity, IsShare: true}},
			Denied:  []live.Key{{Key: "shop|denied", DeniedRate: 5, Share: 1}, {Key: "shop|trial", Shadow: true, DeniedRate: 2}},
			Callers: []live.Key{{Key: "10.0.0.1 envoy\x1b[2J", Rate: 1200, DeniedRate: 300, Share: 0.9}},
			Unmatched: []live.Key{
				{Key: "shop|pth=\x1b[2J", Rule: "shop > pth", Limit: "no rule"}, {Key: "edge|path=/", Rule: "edge > path", Limit: "unknown domain"},
			},
		},
		Fleet: live.NewFleet([]live.Replica{
			{Name: "pod-1/1", Answers: true, Version: "v1", Limits: "0123456789", Figures: &changes.ReplicaFigures{Calls: 1204, Denied: 150.5, CPU: 0.25, MemoryBytes: 23e6, Blips: 4}},
			{Name: "pod-2/1\x1b[2J", Version: "v0", Lost: true, SeenSeconds: 30.6},
		}, 3),
		Events: []timeline.Event{{Time: start, Text: "limits rejected", Failed: true, Attrs: []timeline.Attr{{Name: "problem", Value: "a\nb\x1b[2J"}}}},
	}
}

// printTop returns what rls top prints once, without the narrow spaces of units.
func printTop(t *testing.T, snapshot *live.Snapshot) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, printAnswer(&out, false, newTopView(snapshot), "top"))
	return strings.ReplaceAll(out.String(), "\u202f", "")
}

func TestTopPrintsTheSnapshot(t *testing.T) {
	text := printTop(t, testSnapshot())
	clock := func(seconds int) string {
		return testSnapshot().Started.Add(time.Duration(seconds) * time.Second).Local().Format("15:04:05")
	}
	for _, want := range []string{
		"rls v1 · pod-1 · up 1m30s · " + clock(90), "✗ Redis away for 00:41", "a detail",
		"1,200/s", "▁█", "p50 240µs  p99 –", "12.5%", "Redis    away",
		"日本", "20 per minute and 5 per day", "3.46", "99.5", "105%", "override until " + clock(0), "> end",
		"No rule  0.5/s", `"shop|pth=\x1b[2J" (no rule), edge|path=/ (unknown domain)`,
		"1,200    151       0.25  23 MB   4      01234567   now             pod-1/1           v1",
		`–        –         –     –       –      no limits  lost, 31 s ago  "pod-2/1\x1b[2J"  v0`, "3 more replicas",
		"2 more rules with traffic, 41 quiet rules", "1,000,000", "25%", "21/20 here", "shop|denied", "(shadow) shop|trial", `1,200    90%   300       "10.0.0.1 envoy\x1b[2J"`,
		clock(0) + ` limits rejected · problem "a; b\x1b[2J"`,
	} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, "\x1b")
	assert.NotContains(t, text, "\x07")
	assert.NotContains(t, text, "\u202e")
}

func TestTopScreenFitsTheTerminal(t *testing.T) {
	snapshot := testSnapshot()
	for range 50 {
		snapshot.Rules.Shown = append(snapshot.Rules.Shown, snapshot.Rules.Shown[0])
		snapshot.Keys.Hottest = append(snapshot.Keys.Hottest, snapshot.Keys.Hottest[0])
		snapshot.Keys.Callers = append(snapshot.Keys.Callers, snapshot.Keys.Callers[0])
		snapshot.Events = append(snapshot.Events, snapshot.Events[0])
	}
	for _, size := range [][2]int{{200, 60}, {100, 24}, {80, 24}, {40, 12}, {20, 5}, {1, 1}} {
		view := newTopView(snapshot)
		view.Problem = "connection refused"
		var out strings.Builder
		require.NoError(t, view.draw(&out, size[0], size[1]))
		text := strings.NewReplacer(cursorHome, "", clearLine, "", clearBelow, "").Replace(out.String())
		lines := strings.Split(text, "\r\n")
		assert.LessOrEqual(t, len(lines), size[1])
		for _, line := range lines {
			assert.LessOrEqual(t, len([]rune(line)), size[0], "%v: %q", size, line)
		}
		if size[0] >= 80 {
			for _, want := range []string{"trying again: connection refused", "REPLICA", "RULE", "CALLER", "DENIED KEYS"} {
				assert.Contains(t, text, want, size)
			}
		}
	}
}

// In a pipe or a file, no one can make the screen wider, so the advice at the end of a line must be there.
func TestTopPrintsLongLinesInFull(t *testing.T) {
	snapshot := testSnapshot()
	words := strings.Repeat("word ", 40)
	snapshot.State.Headline, snapshot.State.Details = "Mass denial "+words+"headline advice", []string{"a", "b", "c", "d", words + "stop the denials"}
	snapshot.Events[0].Attrs[0].Value = words + "requests_per_unit " + strings.Repeat("月", 100) + " end"
	text := printTop(t, snapshot)
	for _, want := range append(snapshot.State.Details, snapshot.State.Headline, snapshot.Events[0].Attrs[0].Value) {
		assert.Contains(t, text, want)
	}
}

func TestTopMarksTheLevelInColour(t *testing.T) {
	var out strings.Builder
	_, err := colourWriter{&out}.Write([]byte(printTop(t, testSnapshot())))
	require.NoError(t, err)
	assert.Contains(t, out.String(), red+"✗"+noColour+" Redis away for 00:41")
}

func TestTopSaysWhichKeysItHides(t *testing.T) {
	snapshot := testSnapshot()
	snapshot.Keys = live.TopKeys{Mode: live.KeysOff}
	assert.Contains(t, printTop(t, snapshot), "HOTTEST KEYS (off: TOP_KEYS)")
	snapshot.Keys = live.TopKeys{Mode: live.KeysHashed}
	assert.Contains(t, printTop(t, snapshot), "HOTTEST KEYS (hashed)")
	snapshot.Keys.Hidden = true
	assert.Contains(t, printTop(t, snapshot), "HOTTEST KEYS (hashed; --token shows them)")
	snapshot.Keys.Unmatched = []live.Key{{Key: "#0123456789abcdef", Rule: "shop > pth", Limit: "no rule"}}
	assert.Contains(t, printTop(t, snapshot), "shop > pth #0123456789abcdef (no rule)")
}

func TestTopShowsThatTheServiceNoLongerAnswers(t *testing.T) {
	var isBroken atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if isBroken.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		assert.NoError(t, json.NewEncoder(w).Encode(testSnapshot()))
	}))
	defer server.Close()
	top := &top{adminClient: adminClient{addr: server.URL, timeout: maxWait}}
	firstSnapshot, err := top.fetch(t.Context())
	require.NoError(t, err)
	assert.False(t, firstSnapshot.Figures.P99.Now.IsKnown())

	ctx, cancel := context.WithCancel(t.Context())
	var width atomic.Int64
	width.Store(100)
	out := &syncBuffer{}
	done := make(chan error)
	go func() {
		done <- top.showScreens(ctx, firstSnapshot, func() (int, int) { return int(width.Load()), 30 }, out)
	}()
	await := func(text string) {
		t.Helper()
		polltest.Until(t, maxWait, func() bool { return strings.Contains(out.String(), text) }, text)
	}
	await("✗ Redis away")
	isBroken.Store(true)
	await("trying again")
	width.Store(30)
	await("figures of " + firstSnapshot.Time.In(time.Local).Format("15:04:05") + ", trying ag" + clearLine)
	cancel()
	require.NoError(t, <-done)
}

func TestTopSaysThatOtherReplicasAreUnknown(t *testing.T) {
	snapshot := testSnapshot()
	snapshot.Fleet = live.NewFleet(snapshot.Fleet.Replicas[:1], 0)
	assert.NotContains(t, printTop(t, snapshot), "REPLICA", "the only replica")
	snapshot.Fleet.UnknownSince = &snapshot.Started
	assert.Contains(t, printTop(t, snapshot), "other replicas unknown since "+snapshot.Started.Local().Format("15:04:05"))
}

func TestTopAsksAllItsAddresses(t *testing.T) {
	startService := func(name, version string) string {
		snapshot := testSnapshot()
		snapshot.State.Details = append(snapshot.Fleet.Notes, "a detail")
		snapshot.Instance, snapshot.Fleet.Replicas[0].Name, snapshot.Fleet.Replicas[0].Version = name, name, version
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			assert.NoError(t, json.NewEncoder(w).Encode(snapshot))
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	fetch := func(addrs ...string) (*live.Snapshot, error) {
		top := &top{adminClient: adminClient{addr: strings.Join(addrs, ","), timeout: maxWait}}
		return top.fetch(t.Context())
	}
	firstAddr, secondAddr := startService("a", "v1"), startService("b", "v2")
	mergedSnapshot, err := fetch("127.0.0.1:1", firstAddr, secondAddr)
	require.NoError(t, err)
	assert.Equal(t, "a", mergedSnapshot.Instance, "the first service that answers")
	assert.Len(t, mergedSnapshot.Fleet.Replicas, 2)
	assert.Equal(t, "b", mergedSnapshot.Fleet.Replicas[1].Name)
	require.Len(t, mergedSnapshot.State.Details, 3)
	assert.Contains(t, mergedSnapshot.State.Details[0], "No answer from 127.0.0.1:1: connection refused")
	assert.Equal(t, []string{"Replicas have different versions of rls: v1 in a; v2 in b", "a detail"}, mergedSnapshot.State.Details[1:])

	mergedSnapshot, err = fetch(firstAddr)
	require.NoError(t, err)
	assert.Len(t, mergedSnapshot.Fleet.Replicas, 2, "with one address, the replicas report themselves")
	_, err = fetch("127.0.0.1:1", "127.0.0.1:1")
	require.ErrorContains(t, err, "connection refused")
	_, err = fetch(make([]string, maxTopReplicas+1)...)
	require.EqualError(t, err, "--admin: got 51 addresses, want at most 50")
}

func TestSparklineIsBlankWherePointsAreUnknown(t *testing.T) {
	points := []live.Value{1, 1, 1, live.Unknown, live.Unknown, live.Unknown, 4, live.Unknown, 2, 8, 8, 8}
	assert.Equal(t, strings.Repeat(" ", 16)+"▂ ▅█", sparkline(points, 20))
	assert.Equal(t, " ▁", sparkline([]live.Value{0}, 2))
}

func TestKeyQuitsTop(t *testing.T) {
	for input, want := range map[string]bool{"q": true, "xyzQ": true, "\x03": true, "abc": false} {
		quit := false
		quitOnKey(strings.NewReader(input), func() { quit = true })
		assert.Equal(t, want, quit, "%q", input)
	}
}

func TestTopPrintsOneScreenOrJSON(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", threePerYear))
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "5")
	polltest.Until(t, maxWait, func() bool {
		out, errOut, code := rls(t, "top", "--admin", service.debug, "--once")
		require.Zero(t, code, errOut)
		assert.NotContains(t, out, "\x1b")
		return strings.Contains(out, "shop|tenant=acme") && strings.Contains(out, "Counting in this process")
	})
	out, _, code := rls(t, "top", "--admin", service.debug, "--json")
	require.Zero(t, code)
	var snapshot live.Snapshot
	require.NoError(t, json.Unmarshal([]byte(out), &snapshot))
	assert.Equal(t, 1, snapshot.Rules.Total)

	_, errOut, code := rls(t, "top", "--admin", "127.0.0.1:1")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "set --admin to the debug listener")
}

// TestChangesAreVisibleInTheSnapshot makes each change that an operator asks about.
func TestChangesAreVisibleInTheSnapshot(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	replica := startReplicas(t, 1, redis, threePerYear)[0]
	fetchSnapshot := func() (s live.Snapshot) {
		out, errOut, code := rls(t, "top", "--admin", replica.debug, "--json", "--token", adminToken)
		require.Zero(t, code, errOut)
		require.NoError(t, json.Unmarshal([]byte(out), &s))
		return s
	}
	await := func(what string, isVisible func(*live.Snapshot) bool) {
		t.Helper()
		polltest.Until(t, maxWait, func() bool { snapshot := fetchSnapshot(); return isVisible(&snapshot) }, what)
	}
	hasEvent := func(kind timeline.Kind, text string) func(*live.Snapshot) bool {
		return func(s *live.Snapshot) bool {
			for _, e := range s.Events {
				if e.Kind == kind && strings.Contains(e.Text, text) {
					return true
				}
			}
			return false
		}
	}
	await("start", hasEvent(timeline.Start, "service started"))
	await("reload", hasEvent(timeline.Reload, "1 rule in 1 domain"))

	_, errOut, code := rls(t, "limits", "set", "--admin", replica.debug, "--token", adminToken, "-d", "shop", "tenant=acme", "factor=2", "--for", "1h")
	require.Zero(t, code, errOut)
	await("override", hasEvent(timeline.Override, "override set: shop|tenant=acme"))
	snapshot := fetchSnapshot()
	require.Len(t, snapshot.Overrides.Shown, 1)
	assert.Equal(t, "tester", snapshot.Overrides.Shown[0].Author)
	assert.NotNil(t, snapshot.Overrides.Shown[0].ExpiresAt)
	assert.NotNil(t, snapshot.Overrides.Shown[0].SetAt)

	redis.Kill()
	await("outage", func(s *live.Snapshot) bool {
		rls(t, "hit", "-a", replica.grpc, "-d", "shop", "tenant=acme", "-n", "3")
		return !s.State.Redis.Up && s.State.Level == live.Trouble && s.State.Redis.Outage.Calls > 0 && strings.Contains(s.State.Headline, "Redis away")
	})
	await("outage", hasEvent(timeline.Breaker, "Redis outage started"))
}

func TestRefusalOfLimitsIsVisibleInTheSnapshot(t *testing.T) {
	t.Parallel()
	path := writeFile(t, "limits.yaml", threePerYear)
	service := start(t, nil, "--limits", path)
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(threePerYear, "unit: year", "unit: yeer")), 0o600))
	polltest.Until(t, maxWait, func() bool {
		screen, _, _ := rls(t, "top", "--admin", service.debug, "--once")
		snapshot, _, _ := rls(t, "top", "--admin", service.debug, "--json")
		rules, _, _ := rls(t, "limits", "show", "--admin", service.debug)
		return strings.HasPrefix(rules, "warning: newer limits or overrides are rejected: ") && strings.Contains(rules, "got yeer") && strings.Contains(rules, "RULE ") && strings.Contains(screen, "▲ Newest limits or overrides rejected") && strings.Contains(screen, "limits rejected · problem") && strings.Contains(snapshot, "got yeer")
	})
}
