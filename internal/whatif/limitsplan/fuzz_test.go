package limitsplan

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/internal/testkit/limitsgen"
)

// replayFiles replays logs against a limits file and writes the report in all forms. mapping is
// empty for decision logs.
func replayFiles(t require.TestingT, limits, mapping string, options Options, logs ...string) {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(limits)}}, limitsfile.Options{})
	if err != nil {
		return
	}
	var fieldMapping *Mapping
	if mapping != "" {
		if fieldMapping, err = ParseMapping("m.yaml", []byte(mapping)); err != nil {
			return
		}
	}
	var readers []Reader
	for _, log := range logs {
		r, err := NewReader("x.log", strings.NewReader(log), fieldMapping)
		if err != nil {
			return
		}
		readers = append(readers, r)
	}
	calls, err := Merge(readers...)
	if err != nil {
		return
	}
	report, err := Run(context.Background(), descriptors.Compile(set), calls, options)
	if err != nil {
		assert.NotEmpty(t, err.Error())
		return
	}
	c := report.Calls
	assert.Equal(t, c.DeniedNow+c.NewlyAdmitted, c.DeniedBefore+c.NewlyDenied)
	sum := uint64(0)
	for _, n := range report.Timeline.Total {
		sum += n
	}
	assert.Equal(t, c.Total, sum)
	require.NoError(t, report.WriteText(io.Discard))
	_, err = json.Marshal(report)
	require.NoError(t, err)
}

// FuzzReaders replays logs of the fuzzer.
func FuzzReaders(f *testing.F) {
	f.Add(testMapping, `{"start_time":1,"path":"/x"}`, "")
	f.Add(testMapping, `{"start_time":"2199-12-31T23:59:59Z","path":"/x"}`, `{"start_time":0.5,"request":{"headers":{"x-tenant":"a"},"cost":-2}}`)
	f.Add("", `{"time":"2026-11-20T10:00:00Z","domain":"shop","descriptor":[{"key":"tenant","value":"a"}],"limit":"2 per minute","code":"OK","hits":-3,"hold":"a","acquire":true}`, "")
	f.Add("", `{"time":"2026-11-20T10:00:00Z","dropped":3,"reason":"rate"}`, "{")
	f.Add("time: [", "\x1f\x8b\x08", "")
	f.Fuzz(func(t *testing.T, mapping, log, secondLog string) {
		replayFiles(t, newLimits, mapping, Options{}, log, secondLog)
	})
}

// FuzzDrawnReplay replays drawn decision logs against drawn limits.
func FuzzDrawnReplay(f *testing.F) { f.Fuzz(rapid.MakeFuzz(replayRandomLogs)) }

func TestReplayOfRandomLogsCountsEachCallOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, replayRandomLogs)
}

func replayRandomLogs(t *rapid.T) {
	o := Options{
		ShadowMode: rapid.Bool().Draw(t, "shadow mode"), QuotaMode: rapid.Bool().Draw(t, "quota mode"), AllOrNone: rapid.Bool().Draw(t, "all or none"),
		MaxKeys: rapid.IntRange(-1, 2).Draw(t, "keys"),
	}
	replayFiles(t, limitsgen.File(t), "", o, rapid.SliceOfN(rapid.Custom(drawLog), 1, 3).Draw(t, "logs")...)
}

// drawLog draws a decision log. Its records can contradict each other.
func drawLog(t *rapid.T) string {
	var b strings.Builder
	now := logStart
	codes := []decisionlog.Code{decisionlog.OK, decisionlog.OK, decisionlog.OverLimit, decisionlog.Failed, "OTHER"}
	for range rapid.IntRange(0, 12).Draw(t, "records") {
		now = rapid.SampledFrom([]time.Time{now, now, now.Add(time.Second), now.Add(-time.Minute), now.AddDate(30, 0, 0), minTime, maxTime.Add(-1)}).Draw(t, "time")
		record := decisionlog.Record{
			Time: now, Domain: limitsgen.Domain, DescriptorIndex: rapid.SampledFrom([]int{0, 0, 1, 2, -1, math.MaxInt}).Draw(t, "index"),
			Rule: "d > a", Limit: rapid.SampledFrom([]string{"", "1 per day", "2 per day"}).Draw(t, "limit"),
			Code: rapid.SampledFrom(codes).Draw(t, "code"), OverallCode: rapid.SampledFrom(codes).Draw(t, "overall code"),
			Hits:   rapid.SampledFrom([]int64{limitsgen.Hits(t), math.MinInt64, math.MaxInt64}).Draw(t, "hits"),
			Source: rapid.SampledFrom([]string{"redis", "deny_cache", "lease", "fallback", "?"}).Draw(t, "source"),
			Hold:   rapid.SampledFrom([]string{"", "", "a", "b", "not valid"}).Draw(t, "hold"), Acquire: rapid.Bool().Draw(t, "acquire"),
			Shadow: rapid.Bool().Draw(t, "shadow"), Degraded: rapid.Bool().Draw(t, "degraded"),
		}
		for _, e := range limitsgen.Entries(t) {
			record.Descriptor = append(record.Descriptor, decisionlog.Entry{Key: e.Key, Value: e.Value})
		}
		b.Write(decisionlog.EncodeLine(record))
	}
	return b.String()
}
