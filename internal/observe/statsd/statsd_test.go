package statsd

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

func TestRulesHaveTheNamesOfTheIncumbent(t *testing.T) {
	server, process := listenTCP(t), newProcess()
	// envoyproxy/ratelimit sends these lines for 4 calls with limits of 3 and 2.
	process.rules = []metrics.KeyCounts{
		{Key: "shop.plain", HitSums: metrics.HitSums{Total: 4, WithinLimit: 3, NearLimit: 1, OverLimit: 1}},
		{Key: "shop.ip_10_0_0_1", HitSums: metrics.HitSums{Total: 4, WithinLimit: 2, NearLimit: 1, OverLimit: 2}},
		{Key: "shop.a_b_c_10_0_0_2_80", HitSums: metrics.HitSums{Total: 4, WithinLimit: 2, NearLimit: 1, OverLimit: 2, DeniedByCache: 1, ShadowHits: 2}},
	}
	process.exporter(&server.Server, map[string]string{"dc": "eu.1", "app": "x"}).flush(t.Context())
	assert.Equal(t, []string{
		"ratelimit.service.rate_limit.shop.a_b_c_10_0_0_2_80.near_limit.__app=x.__dc=eu_1:1|c",
		"ratelimit.service.rate_limit.shop.a_b_c_10_0_0_2_80.over_limit.__app=x.__dc=eu_1:2|c",
		"ratelimit.service.rate_limit.shop.a_b_c_10_0_0_2_80.over_limit_with_local_cache.__app=x.__dc=eu_1:1|c",
		"ratelimit.service.rate_limit.shop.a_b_c_10_0_0_2_80.shadow_mode.__app=x.__dc=eu_1:2|c",
		"ratelimit.service.rate_limit.shop.a_b_c_10_0_0_2_80.total_hits.__app=x.__dc=eu_1:4|c",
		"ratelimit.service.rate_limit.shop.a_b_c_10_0_0_2_80.within_limit.__app=x.__dc=eu_1:2|c",
		"ratelimit.service.rate_limit.shop.ip_10_0_0_1.near_limit.__app=x.__dc=eu_1:1|c",
		"ratelimit.service.rate_limit.shop.ip_10_0_0_1.over_limit.__app=x.__dc=eu_1:2|c",
		"ratelimit.service.rate_limit.shop.ip_10_0_0_1.total_hits.__app=x.__dc=eu_1:4|c",
		"ratelimit.service.rate_limit.shop.ip_10_0_0_1.within_limit.__app=x.__dc=eu_1:2|c",
		"ratelimit.service.rate_limit.shop.plain.near_limit.__app=x.__dc=eu_1:1|c",
		"ratelimit.service.rate_limit.shop.plain.over_limit.__app=x.__dc=eu_1:1|c",
		"ratelimit.service.rate_limit.shop.plain.total_hits.__app=x.__dc=eu_1:4|c",
		"ratelimit.service.rate_limit.shop.plain.within_limit.__app=x.__dc=eu_1:3|c",
	}, server.lines(t))
}

func TestFlushSendsGrowthSinceTheLastFlush(t *testing.T) {
	server, process := listenUDP(t), newProcess()
	loadCounter, gauge := process.counter("ratelimit_service_config_load_success"), prometheus.NewGauge(prometheus.GaugeOpts{Name: "rls_redis_up"})
	process.registry.MustRegister(gauge)
	exporter := process.exporter(&server.Server, nil)

	loadCounter.Add(2)
	process.rules = []metrics.KeyCounts{{Key: "d.k", HitSums: metrics.HitSums{Total: 5, WithinLimit: 5}}}
	exporter.flush(t.Context())
	assert.Equal(t, []string{
		"ratelimit.service.config_load_success:2|c", "ratelimit.service.rate_limit.d.k.total_hits:5|c",
		"ratelimit.service.rate_limit.d.k.within_limit:5|c", "rls_redis_up:0|g",
	}, server.lines(t))

	gauge.Set(0.25)
	exporter.flush(t.Context())
	assert.Equal(t, []string{"rls_redis_up:0.25|g"}, server.lines(t), "only gauges are sent without growth")

	process.rules = []metrics.KeyCounts{{Key: "d.k", HitSums: metrics.HitSums{Total: 3, WithinLimit: 3}}}
	exporter.flush(t.Context())
	assert.Equal(t, []string{
		"ratelimit.service.rate_limit.d.k.total_hits:3|c", "ratelimit.service.rate_limit.d.k.within_limit:3|c", "rls_redis_up:0.25|g",
	}, server.lines(t), "a lower count has started again at 0")
}

func TestLabelsBecomeSegmentsOfNames(t *testing.T) {
	server, process := listenTCP(t), newProcess()
	process.counterVec("ratelimit_service_total_requests", "grpc_method").WithLabelValues("ShouldRateLimit").Inc()
	process.counterVec("ratelimit_service_should_rate_limit_error", "err_type").WithLabelValues("redis_error").Inc()
	notFound := process.counterVec("ratelimit_service_rate_limit_domain_not_found", "domain")
	notFound.WithLabelValues("a:b").Inc()
	notFound.WithLabelValues("a_b").Add(2)
	process.counterVec("rls_decisions_total", "source").WithLabelValues("deny.cache").Inc()
	process.counter("promhttp_requests_total").Inc()
	process.counterVec("rls_config_info", "hash").WithLabelValues("abc").Inc()
	process.exporter(&server.Server, nil).flush(t.Context())
	assert.Equal(t, []string{
		"ratelimit.service.call.should_rate_limit.redis_error:1|c",
		"ratelimit.service.rate_limit.a_b.domain_not_found:1|c",
		"ratelimit.service.rate_limit.a_b.domain_not_found:2|c",
		"ratelimit_server.ShouldRateLimit.total_requests:1|c",
		"rls_decisions_total.deny_cache:1|c",
	}, server.lines(t))
}

func TestTimersHaveOneLinePerBucket(t *testing.T) {
	server, process := listenTCP(t), newProcess()
	times := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "ratelimit_service_response_time_seconds", Buckets: []float64{0.001, 0.003},
	}, []string{"grpc_method"})
	process.registry.MustRegister(times)
	calls := times.WithLabelValues("ShouldRateLimit")
	exporter := process.exporter(&server.Server, nil)
	for range 12_500 {
		calls.Observe(0.0002)
	}
	calls.Observe(0.002)
	exporter.flush(t.Context())
	assert.Equal(t, []string{
		"ratelimit_server.ShouldRateLimit.response_time:0.5|ms|@0.000100",
		"ratelimit_server.ShouldRateLimit.response_time:0.5|ms|@0.000400",
		"ratelimit_server.ShouldRateLimit.response_time:2|ms",
	}, server.lines(t))
	for range 4 {
		calls.Observe(7)
	}
	exporter.flush(t.Context())
	assert.Equal(t, []string{"ratelimit_server.ShouldRateLimit.response_time:3|ms|@0.250000"}, server.lines(t))
}

func TestDogStatsDHasTagsAndMogrifiedNames(t *testing.T) {
	server, process := listenUDP(t), newProcess()
	server.DogStatsD = true
	server.Mogrifiers = []Mogrifier{
		{Pattern: regexp.MustCompile(`^ratelimit\.service\.rate_limit\.([^.]+)\.(.+)\.total_hits$`), Name: "hits.$1", Tags: []Tag{{"rule", "$2-$3"}}},
		{Pattern: regexp.MustCompile(`total_hits|within_limit`), Name: "$0"},
	}
	process.rules = []metrics.KeyCounts{{Key: "shop.plain", HitSums: metrics.HitSums{Total: 4, WithinLimit: 3, OverLimit: 1}}}
	process.counterVec("rls_decisions_total", "source").WithLabelValues("deny_cache").Inc()
	process.exporter(&server.Server, map[string]string{"dc": "eu.1"}).flush(t.Context())
	assert.Equal(t, []string{
		"hits.shop:4|c|#dc:eu_1,rule:plain-$3",
		"ratelimit.service.rate_limit.shop.plain.over_limit:1|c|#dc:eu_1",
		"rls_decisions_total:1|c|#dc:eu_1,source:deny_cache",
		"within_limit:3|c|#dc:eu_1",
	}, server.lines(t))
}

func TestPacketsHaveAtMostPacketBytes(t *testing.T) {
	server, process := listenUDP(t), newProcess()
	want := map[string]bool{}
	for i := range 100 {
		key := fmt.Sprintf("d.%s%d", strings.Repeat("k", 50), i)
		process.rules = append(process.rules, metrics.KeyCounts{Key: key, HitSums: metrics.HitSums{Total: 1}})
		want["ratelimit.service.rate_limit."+key+".total_hits:1|c"] = true
	}
	process.exporter(&server.Server, nil).flush(t.Context())
	got := map[string]bool{}
	for len(got) < len(want) {
		lines := server.lines(t)
		assert.LessOrEqual(t, len(strings.Join(lines, "\n"))+1, packetBytes)
		for _, line := range lines {
			got[line] = true
		}
	}
	assert.Equal(t, want, got)
}

func TestCountsAreSentAfterTheServerWasDown(t *testing.T) {
	server, process := listenTCP(t), newProcess()
	deadServer := server.Server
	deadServer.Port = 1
	exporter := process.exporter(&deadServer, nil)
	process.rules = []metrics.KeyCounts{{Key: "d.k", HitSums: metrics.HitSums{Total: 2}}}
	exporter.flush(t.Context())
	assert.Contains(t, process.logText.String(), `level=WARN msg="metrics not sent" statsd=127.0.0.1:1 error=`)

	process.rules = []metrics.KeyCounts{{Key: "d.k", HitSums: metrics.HitSums{Total: 5}}}
	exporter.sink = process.exporter(&server.Server, nil).sink
	exporter.flush(t.Context())
	assert.Equal(t, []string{"ratelimit.service.rate_limit.d.k.total_hits:5|c"}, server.lines(t))
	assert.Contains(t, process.logText.String(), `level=INFO msg="metrics sent again"`)
}

// fakeSink fails while err is set, and counts the flushes.
type fakeSink struct {
	err     error
	flushes int
}

func (f *fakeSink) flush(context.Context, func() (iter.Seq[point], error)) error {
	f.flushes++
	return f.err
}

func TestFailingServerIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process, failingSink := newProcess(), &fakeSink{err: errors.New("connection refused")}
		exporter := process.exporter(nil, nil)
		exporter.sink = failingSink
		for range 13 { // the first flush, and twelve flushes in two minutes
			exporter.flush(t.Context())
			time.Sleep(10 * time.Second)
		}
		assert.Equal(t, 3, strings.Count(process.logText.String(), "metrics not sent"))
		for range 12 { // the server works for each second flush
			failingSink.err = nil
			exporter.flush(t.Context())
			failingSink.err = errors.New("connection refused")
			exporter.flush(t.Context())
			time.Sleep(10 * time.Second)
		}
		assert.LessOrEqual(t, strings.Count(process.logText.String(), "metrics not sent"), 5)
		assert.LessOrEqual(t, strings.Count(process.logText.String(), "metrics sent again"), 4)
	})
}

func TestExporterFlushesAtIntervalsAndAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, sink := newProcess().exporter(nil, nil), &fakeSink{}
		e.sink = sink
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); e.run(ctx) }()
		time.Sleep(35 * time.Second)
		synctest.Wait()
		assert.Equal(t, 3, sink.flushes)
		stop()
		<-done
		assert.Equal(t, 4, sink.flushes)
	})
}

func TestCloseSendsTheLastChanges(t *testing.T) {
	server, process := listenTCP(t), newProcess()
	process.rules = []metrics.KeyCounts{{Key: "d.k", HitSums: metrics.HitSums{Total: 2}}}
	New(process.options(&server.Server, nil)).Close()
	assert.Equal(t, []string{"ratelimit.service.rate_limit.d.k.total_hits:2|c"}, server.lines(t))
}

func TestLogHasALineForEachChange(t *testing.T) {
	process := newProcess()
	gauge, goroutines := prometheus.NewGauge(prometheus.GaugeOpts{Name: "rls_redis_up"}), prometheus.NewGauge(prometheus.GaugeOpts{Name: "go_goroutines"})
	process.registry.MustRegister(gauge, goroutines)
	exporter := process.exporter(nil, map[string]string{"dc": "eu"})
	process.rules = []metrics.KeyCounts{{Key: "d.k", HitSums: metrics.HitSums{Total: 2}}}
	exporter.flush(t.Context())
	exporter.flush(t.Context())
	var lines []string
	for line := range strings.Lines(process.logText.String()) {
		_, line, found := strings.Cut(line, "level=")
		require.True(t, found)
		lines = append(lines, strings.TrimSpace(line))
	}
	assert.Equal(t, []string{
		`INFO msg="metric flushed" name="ratelimit.service.rate_limit.d.k.total_hits.__dc=eu" type=counter value=2`,
		`INFO msg="metric flushed" name="rls_redis_up.__dc=eu" type=gauge value=0`,
	}, lines)
}

func TestNoMetricsAreReadIfTheLogDropsTheirLines(t *testing.T) {
	process := newProcess()
	exporter := process.exporter(nil, nil)
	process.rules = []metrics.KeyCounts{{Key: "d.k", HitSums: metrics.HitSums{Total: 2}}}
	process.level.Set(slog.LevelWarn)
	exporter.flush(t.Context())
	assert.Zero(t, process.ruleReads)
	process.level.Set(slog.LevelInfo)
	exporter.flush(t.Context())
	assert.Contains(t, process.logText.String(), "type=counter value=2")
}

func TestReaderForgetsRemovedRules(t *testing.T) {
	process := newProcess()
	exporter := process.exporter(nil, nil)
	for i := range 3 {
		process.rules = []metrics.KeyCounts{{Key: fmt.Sprint("d.k", i), HitSums: metrics.HitSums{Total: 2}}}
		exporter.flush(t.Context())
	}
	assert.Len(t, exporter.reader.ruleSums, 1)
}

// FuzzLines checks that the text of a request neither ends a line early nor forges a counter.
func FuzzLines(f *testing.F) {
	for _, text := range []string{"shop", "a\nx:1|c", "10.0.0.1:80|#t:x,y", "\r\n\x00,", "é|@0.1"} {
		f.Add(text, false)
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, text string, isDog bool) {
		s := &serverSink{Server: &Server{DogStatsD: isDog, Mogrifiers: []Mogrifier{{Pattern: regexp.MustCompile(`(?s)^(.*)\.total_hits$`), Name: "$0", Tags: []Tag{{"rule", "$1"}}}}}}
		key := metrics.PlainKey(text)
		name, tags := s.rename(point{name: key + ".total_hits", tags: []Tag{{"domain", text}}, kind: counter})
		for _, part := range []string{name, fmt.Sprint(tags)} {
			assert.NotContains(t, part, "\n")
			assert.NotContains(t, part, "|")
		}
		assert.NotContains(t, name, ":")
		for _, tag := range tags {
			assert.NotContains(t, tag.Value, ",")
		}
	})
}
