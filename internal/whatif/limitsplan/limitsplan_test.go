package limitsplan

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/service"
)

// newLimits has a rule that admits two hits of each tenant in a minute.
const newLimits = `
domain: shop
descriptors:
  - {key: tenant, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: kept, refunds: false, rate_limit: {unit: minute, requests_per_unit: 2}}
`

var logStart = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

func compile(t testing.TB, limits string) *descriptors.Config {
	t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(limits)}}, limitsfile.Options{})
	require.NoError(t, err)
	return descriptors.Compile(set)
}

// record returns a record of a descriptor with one entry, some milliseconds after logStart.
func record(millis int, key, value string, code decisionlog.Code) decisionlog.Record {
	return decisionlog.Record{
		Time: logStart.Add(time.Duration(millis) * time.Millisecond), Domain: "shop",
		Descriptor: []decisionlog.Entry{{Key: key, Value: value}}, Limit: "9 per minute",
		Code: code, OverallCode: code, Hits: 1,
	}
}

// logOf returns a decision log with the records.
func logOf(records ...decisionlog.Record) string {
	var b strings.Builder
	for _, r := range records {
		b.Write(decisionlog.EncodeLine(r))
	}
	return b.String()
}

func replayLog(t testing.TB, limits string, logs ...string) *Report {
	t.Helper()
	var readers []Reader
	for i, log := range logs {
		r, err := NewReader(fmt.Sprintf("%d.log", i), strings.NewReader(log), nil)
		require.NoError(t, err)
		readers = append(readers, r)
	}
	calls, err := Merge(readers...)
	require.NoError(t, err)
	report, err := Run(t.Context(), compile(t, limits), calls, Options{})
	require.NoError(t, err)
	return report
}

func TestReplayCountsNewAndRecordedDenials(t *testing.T) {
	ok, overLimit := decisionlog.OK, decisionlog.OverLimit
	peek := record(5, "tenant", "a", ok)
	peek.Hits = 0
	refund := record(5, "tenant", "a", ok)
	refund.Hits = -2
	threeHits := record(1, "tenant", "a", ok)
	threeHits.Hits = 3
	for name, test := range map[string]struct {
		records []decisionlog.Record
		want    Counts
	}{
		"third hit is newly denied": {
			[]decisionlog.Record{record(1, "tenant", "a", ok), record(2, "tenant", "a", ok), record(3, "tenant", "a", ok)},
			Counts{Total: 3, DeniedNow: 1, NewlyDenied: 1},
		},
		"looser limit admits": {
			[]decisionlog.Record{record(1, "tenant", "a", overLimit), record(2, "tenant", "b", ok)},
			Counts{Total: 2, DeniedBefore: 1, NewlyAdmitted: 1},
		},
		"denied before and now": {
			[]decisionlog.Record{record(1, "tenant", "a", ok), record(2, "tenant", "a", ok), record(3, "tenant", "a", overLimit)},
			Counts{Total: 3, DeniedBefore: 1, DeniedNow: 1},
		},
		"new window starts with nothing": {
			[]decisionlog.Record{record(1, "tenant", "a", ok), record(2, "tenant", "a", ok), record(60_001, "tenant", "a", ok)},
			Counts{Total: 3},
		},
		"records out of order": {
			[]decisionlog.Record{record(60_001, "tenant", "a", ok), record(2, "tenant", "a", ok), record(1, "tenant", "a", ok)},
			Counts{Total: 3},
		},
		"peek charges nothing": {
			[]decisionlog.Record{record(1, "tenant", "a", ok), peek, record(6, "tenant", "a", ok)},
			Counts{Total: 3},
		},
		"refund gives hits back": {
			[]decisionlog.Record{record(1, "tenant", "a", ok), record(2, "tenant", "a", ok), refund, record(6, "tenant", "a", ok)},
			Counts{Total: 4},
		},
		"hits of a call count":    {[]decisionlog.Record{threeHits}, Counts{Total: 1, DeniedNow: 1, NewlyDenied: 1}},
		"rule in shadow mode":     {[]decisionlog.Record{record(1, "trial", "a", ok)}, Counts{Total: 1}},
		"descriptor without rule": {[]decisionlog.Record{record(1, "other", "a", overLimit), record(2, "free", "a", ok)}, Counts{Total: 2, DeniedBefore: 1, NewlyAdmitted: 1}},
		"unlimited rule":          {[]decisionlog.Record{record(1, "free", "a", ok)}, Counts{Total: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, replayLog(t, newLimits, logOf(test.records...)).Calls)
		})
	}
}

func TestRecordsOfOneCallAreReplayedTogether(t *testing.T) {
	secondDescriptor := record(1, "tenant", "b", decisionlog.OK)
	secondDescriptor.DescriptorIndex = 1
	otherLimit := record(1, "tenant", "a", decisionlog.OK)
	otherLimit.LimitName = "per hour"
	sameMoment := record(1, "tenant", "a", decisionlog.OK)
	for name, test := range map[string]struct {
		records            []decisionlog.Record
		calls, descriptors uint64
	}{
		"two descriptors":                           {[]decisionlog.Record{record(1, "tenant", "a", decisionlog.OK), secondDescriptor}, 1, 2},
		"two limits of a descriptor":                {[]decisionlog.Record{record(1, "tenant", "a", decisionlog.OK), otherLimit}, 1, 1},
		"two calls at the same moment":              {[]decisionlog.Record{record(1, "tenant", "a", decisionlog.OK), sameMoment}, 2, 2},
		"other descriptor with the same index":      {[]decisionlog.Record{record(1, "tenant", "a", decisionlog.OK), record(1, "tenant", "b", decisionlog.OK)}, 2, 2},
		"lower index of a descriptor starts a call": {[]decisionlog.Record{secondDescriptor, record(1, "tenant", "a", decisionlog.OK)}, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			report := replayLog(t, newLimits, logOf(test.records...))
			assert.Equal(t, test.calls, report.Calls.Total)
			require.Len(t, report.Rules, 1)
			assert.Equal(t, test.descriptors, report.Rules[0].Total)
		})
	}
}

func TestReportNamesTheKeyWithTheMostNewDenials(t *testing.T) {
	var records []decisionlog.Record
	for i := range 30 {
		records = append(records, record(i*100, "tenant", "acme", decisionlog.OK), record(i*30_000, "tenant", "small", decisionlog.OK))
	}
	report := replayLog(t, newLimits, logOf(records...))
	assert.Equal(t, []KeyReport{{
		Rule: "shop > tenant", Key: "shop|tenant=acme",
		Counts:      Counts{Total: 30, DeniedNow: 28, NewlyDenied: 28},
		FirstDenied: logStart.Add(200 * time.Millisecond),
	}}, report.Keys)
	assert.Equal(t, 1, report.NewlyDeniedKeys)
	assert.Equal(t, uint64(28), report.Rules[0].NewlyDenied)
	sum := uint64(0)
	for _, n := range report.Rules[0].Timeline {
		sum += n
	}
	assert.Equal(t, uint64(28), sum, "all buckets together")
	assert.Equal(t, uint64(28), report.Timeline.DeniedNow[0])
}

func TestLogsOfReplicasAreMergedByTime(t *testing.T) {
	ok := decisionlog.OK
	firstLog := logOf(record(1, "tenant", "a", ok), record(60_001, "tenant", "a", ok))
	secondLog := logOf(record(2, "tenant", "a", ok), record(60_002, "tenant", "a", ok))
	report := replayLog(t, newLimits, firstLog, secondLog)
	assert.Equal(t, Counts{Total: 4}, report.Calls)
	assert.Equal(t, logStart.Add(60_002*time.Millisecond), report.End)
	assert.Empty(t, report.Notes)
}

// A replay of the log of a service with the same limits gives the answers of the service.
func TestReplayOfTheSameLimitsChangesNothing(t *testing.T) {
	const limits = `
domain: shop
descriptors:
  - {key: tenant, rate_limits: [{unit: second, requests_per_unit: 3}, {unit: minute, requests_per_unit: 20, algorithm: sliding_window}]}
  - {key: ip, rate_limit: {unit: second, requests_per_unit: 2, algorithm: token_bucket}}
`
	now := logStart
	clock := func() time.Time { return now }
	var log bytes.Buffer
	hub := decisionlog.NewHub(clock, nil)
	records, err := hub.Subscribe(decisionlog.Filter{}, 10)
	require.NoError(t, err)
	defer records.Close()
	store := new(descriptors.Store)
	store.Set(compile(t, limits))
	recordedService := service.New(service.Options{Limits: store, Limiter: local.New(local.Options{}), Now: clock, Observers: []service.Observer{hub}})
	random := rand.New(rand.NewPCG(1, 2))
	denials := uint64(0)
	for range 2000 {
		now = now.Add(time.Duration(random.IntN(200)) * time.Millisecond)
		c := Call{Request: &rlsv3.RateLimitRequest{Domain: "shop"}}
		c.addDescriptor(decisionlog.RequestEntries([]decisionlog.Entry{{Key: "tenant", Value: strconv.Itoa(random.IntN(3))}}), 1, false)
		c.addDescriptor(decisionlog.RequestEntries([]decisionlog.Entry{{Key: "ip", Value: strconv.Itoa(random.IntN(3))}}), 1, false)
		answer, err := recordedService.ShouldRateLimit(t.Context(), c.Request)
		require.NoError(t, err)
		if answer.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
			denials++
		}
		for range 3 { // the tenant has two limits
			log.Write(decisionlog.EncodeLine(<-records.Records))
		}
	}
	require.NotZero(t, denials)
	assert.Equal(t, Counts{Total: 2000, DeniedBefore: denials, DeniedNow: denials}, replayLog(t, limits, log.String()).Calls)
}

func TestReaderRejectsBadLines(t *testing.T) {
	for name, test := range map[string]struct{ log, want string }{
		"no JSON":           {logOf(record(1, "tenant", "a", decisionlog.OK)) + "hello\n", "x.log:2: got no record of a decision log; want a line of DECISION_LOG=all"},
		"access log":        {`{"start_time":"2026-11-20T10:00:00Z","response_code":200}`, "x.log:1: got no record of a decision log; want a line of DECISION_LOG=all; for an access log, give --access-log"},
		"no time":           {`{"domain":"shop","code":"OK","descriptor":[{"key":"a","value":"b"}]}`, "x.log:1: record has no time; want a line of DECISION_LOG=all"},
		"time out of range": {`{"time":"1969-12-31T23:59:59Z","domain":"shop","code":"OK","descriptor":[{"key":"a","value":"b"}]}`, "x.log:1: field time: got 1969-12-31T23:59:59Z, want a time from 1970 to 2199"},
		"long line":         {strings.Repeat("x", maxLineBytes+1), "x.log:1: line is longer than 1048576 bytes"},
		"damaged gzip data": {"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00abc", "x.log:1: "},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := NewReader("x.log", strings.NewReader(test.log), nil)
			require.NoError(t, err)
			_, err = r.Next()
			assert.ErrorContains(t, err, test.want)
		})
	}
	_, err := NewReader("x.log", strings.NewReader("\x1f\x8bno"), nil)
	assert.ErrorContains(t, err, "x.log: not a whole gzip file")
}

func TestCompressedLogIsRead(t *testing.T) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, logOf(record(1, "tenant", "a", decisionlog.OK)))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	assert.Equal(t, uint64(1), replayLog(t, newLimits, b.String()).Calls.Total)
}

func TestNotesListDroppedAndMissingRecords(t *testing.T) {
	deniedLog := logOf(record(1, "tenant", "a", decisionlog.OverLimit))
	drops := string(decisionlog.EncodeLine(decisionlog.Drops{Time: logStart, Dropped: 7, Reason: "rate"}))
	report := replayLog(t, newLimits, deniedLog+drops)
	assert.Equal(t, []string{
		"0.log: 7 records were dropped when the log was written; these calls are missing (DECISION_LOG_MAX_PER_SECOND)",
		"0.log: the log has denied calls only; a plan needs all calls (DECISION_LOG=all)",
	}, report.Notes)
}

func TestLineWithoutAnEndIsLeftOut(t *testing.T) {
	line := logOf(record(1, "tenant", "a", decisionlog.OK))
	report := replayLog(t, newLimits, line+line[:40]+"\n"+line+line[:1])
	assert.Equal(t, uint64(2), report.Calls.Total)
	assert.Equal(t, []string{"0.log: 2 lines have no end and were left out, the first is line 2"}, report.Notes)
}

func TestReplayWithoutCallsReturnsTheReason(t *testing.T) {
	drops := string(decisionlog.EncodeLine(decisionlog.Drops{Time: logStart, Dropped: 7, Reason: "rate"}))
	otherDomain := record(1, "tenant", "a", decisionlog.OK)
	otherDomain.Domain = "other"
	for name, test := range map[string]struct{ log, want string }{
		"empty log":            {"", "no call to replay\nx.log: the log has no record of a decision; a plan needs the log of DECISION_LOG=all, or an access log and --access-log"},
		"drops only":           {drops, "no call to replay\nx.log: 7 records were dropped"},
		"unknown domain":       {logOf(otherDomain), "no call meets a rule of the new limits; the first call is tenant=a in domain other, and the limits have only the domains shop"},
		"unknown key":          {logOf(record(1, "tenat", "a", decisionlog.OK)), "the first call is tenat=a in domain shop, and the rules of this domain begin with the keys tenant, trial, free, kept"},
		"all refunds rejected": {logOf(refund("kept")), "no call can be replayed; the first error is: rpc error: code = PermissionDenied desc = descriptors[0]: rule shop > kept has refunds: false"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := NewReader("x.log", strings.NewReader(test.log), nil)
			require.NoError(t, err)
			_, err = Run(t.Context(), compile(t, newLimits), r, Options{})
			assert.ErrorContains(t, err, test.want)
		})
	}
}

// refund returns a record of a refund.
func refund(key string) decisionlog.Record {
	r := record(1, key, "a", decisionlog.OK)
	r.Hits = -1
	return r
}

func TestLimitsWithoutRulesAdmitAll(t *testing.T) {
	report := replayLog(t, "domain: shop", logOf(record(1, "tenant", "a", decisionlog.OverLimit)))
	assert.Equal(t, Counts{Total: 1, DeniedBefore: 1, NewlyAdmitted: 1}, report.Calls)
}

func TestHitInShadowModeCountsAsAdmitted(t *testing.T) {
	const limits = `
domain: shop
descriptors:
  - {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: some, enforce: 0.000001, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: tenant, rate_limit: {unit: minute, requests_per_unit: 1}}
`
	for _, test := range []struct {
		key     string
		options Options
		denied  uint64
		shadow  uint64
	}{
		{"trial", Options{}, 0, 2},
		{"some", Options{}, 0, 2},
		{"tenant", Options{}, 2, 0},
		{"tenant", Options{ShadowMode: true}, 0, 2},
		{"quota", Options{}, 2, 0}, // a single rule in quota mode denies
	} {
		t.Run(test.key, func(t *testing.T) {
			log := logOf(record(1, test.key, "a", decisionlog.OK), record(2, test.key, "a", decisionlog.OK), record(3, test.key, "a", decisionlog.OK))
			r, err := NewReader("x.log", strings.NewReader(log), nil)
			require.NoError(t, err)
			report, err := Run(t.Context(), compile(t, limits), r, test.options)
			require.NoError(t, err)
			want := Counts{Total: 3, DeniedNow: test.denied, NewlyDenied: test.denied}
			assert.Equal(t, want, report.Calls)
			assert.Equal(t, want, report.Rules[0].Counts)
			assert.Equal(t, test.shadow, report.Rules[0].DeniedInShadow)
			assert.Equal(t, test.denied > 0, report.NewlyDeniedKeys == 1)
			for _, figure := range []string{"denied", "newly_denied", "newly_denied_keys"} {
				condition, err := ParseFailCondition(figure + " > 0")
				require.NoError(t, err)
				holds, _ := condition.Check(report)
				assert.Equal(t, test.denied > 0, holds, figure)
			}
			var text bytes.Buffer
			require.NoError(t, report.WriteText(&text))
			assert.Equal(t, test.shadow > 0, strings.Contains(text.String(), ", would deny 2 without shadow mode"))
		})
	}
}

// A descriptor in quota mode that is over its limit counts as denied only if the whole call is denied.
func TestDescriptorInQuotaModeCountsAsAdmittedIfTheCallPasses(t *testing.T) {
	const limits = `
domain: shop
descriptors:
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: free, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 9}}
`
	overLimit := record(1, "quota", "a", decisionlog.OverLimit)
	overLimit.OverallCode = decisionlog.OK
	freeRecord := record(1, "free", "a", decisionlog.OK)
	freeRecord.DescriptorIndex = 1
	report := replayLog(t, limits, logOf(overLimit, freeRecord))
	assert.Equal(t, Counts{Total: 1}, report.Calls)
	for _, rule := range report.Rules {
		assert.Equal(t, Counts{Total: 1}, rule.Counts)
	}
}

func TestRejectedCallIsLeftOut(t *testing.T) {
	rejectedRecord := record(1, "tenant", "a", decisionlog.Failed)
	rejectedRecord.Hits, rejectedRecord.Limit, rejectedRecord.Error = -1, "", "refunds are turned off"
	noAnswer := record(2, "tenant", "b", decisionlog.Failed)
	report := replayLog(t, newLimits, logOf(rejectedRecord, noAnswer, record(3, "tenant", "b", decisionlog.OK)))
	assert.Equal(t, uint64(2), report.Calls.Total, "a call that failed can have charged its hits")
	assert.Equal(t, []string{"0.log: the service rejected 1 calls, and they are left out; the first error is: refunds are turned off"}, report.Notes)
}

func TestEachReplicaCountsLimitsWithScopeInstance(t *testing.T) {
	const limits = `{domain: shop, descriptors: [{key: tenant, rate_limit: {unit: minute, requests_per_unit: 1, scope: instance}}]}`
	firstLog, secondLog := logOf(record(1, "tenant", "a", decisionlog.OK)), logOf(record(2, "tenant", "a", decisionlog.OK))
	assert.Zero(t, replayLog(t, limits, firstLog, secondLog).Calls.DeniedNow)
	assert.Equal(t, uint64(1), replayLog(t, limits, firstLog+secondLog).Calls.DeniedNow)
}

func TestLateRecordIsReplayedAtTheTimeOfTheClock(t *testing.T) {
	records := []decisionlog.Record{}
	for range maxQueueLength + 1 {
		records = append(records, record(60_000, "free", "a", decisionlog.OK))
	}
	report := replayLog(t, newLimits, logOf(append(records, record(0, "free", "a", decisionlog.OK))...))
	assert.Equal(t, uint64(maxQueueLength+2), report.Calls.Total)
	require.Len(t, report.Notes, 1)
	assert.Contains(t, report.Notes[0], "1 calls are more than 16384 lines out of order")
}

func TestKeysBeyondTheBoundAreLeftOut(t *testing.T) {
	counts := newReplayCounts(1)
	rule := &descriptors.Rule{Path: "shop > tenant"}
	for _, key := range []string{"a", "b", "a"} {
		counts.addKey(rule, []byte(key), logStart, false, true)
	}
	report := counts.report(10)
	require.Len(t, report.Keys, 1)
	assert.Equal(t, uint64(2), report.Keys[0].NewlyDenied)
	assert.Equal(t, []string{"1 descriptors have keys beyond the first 1; the table of keys leaves them out"}, report.Notes)
}

func TestHugeHitsAreBounded(t *testing.T) {
	r := record(1, "tenant", "a", decisionlog.OK)
	r.Hits = 1 << 40
	assert.Equal(t, Counts{Total: 1, DeniedNow: 1, NewlyDenied: 1}, replayLog(t, newLimits, logOf(r)).Calls)
}
