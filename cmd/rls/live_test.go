package main

import (
	"context"
	"encoding/json"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/admin/page"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/service"
)

const knownLimits = `domain: shop
descriptors:
  - {key: tenant, rate_limit: {unit: second, requests_per_unit: 8}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 3}}
  - {key: bulk, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: off, rate_limit: {unit: second, requests_per_unit: 1, enabled: false}}
`

// knownHits are the hits of each second of sendKnownLoad by rule. Of three calls with four hits,
// the last call exceeds the limit of bulk by two hits.
var knownHits = map[string]struct{ total, ok, near, denied, shadow float64 }{
	"shop > tenant": {total: 12, ok: 8, near: 2, denied: 4},
	"shop > trial":  {total: 5, ok: 3, near: 1, shadow: 2},
	"shop > bulk":   {total: 12, ok: 8, near: 2, denied: 2},
}

// The numbers of calls in each second of sendKnownLoad: all calls, denied calls, and calls without a rule.
const (
	knownCalls, knownDeniedCalls = 12 + 5 + 3 + 2, 4 + 1

	knownUnmatched, knownUnknownDomains = 1, 1
)

func sendKnownLoad(s *service.Service) {
	send := func(n int, domain, key string, hits uint32) {
		for range n {
			_, _ = s.ShouldRateLimit(context.Background(), &rlsv3.RateLimitRequest{Domain: domain, HitsAddend: hits, Descriptors: []*ratelimitv3.RateLimitDescriptor{
				{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: "acme"}}},
			}})
		}
	}
	send(12, "shop", "tenant", 1)
	send(5, "shop", "trial", 1)
	send(3, "shop", "bulk", 4)
	send(1, "shop", "tennant", 1)
	send(1, "shp", "tenant", 1)
}

// observedProcess is a service with its metrics and its live page.
type observedProcess struct {
	service *service.Service
	meter   *metrics.Metrics
	live    live.Handlers
	page    http.Handler
}

func newObservedProcess(t *testing.T) observedProcess {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(knownLimits)}}, limitsfile.Options{})
	require.NoError(t, err)
	settings, _, err := env.Load()
	require.NoError(t, err)
	meter := metrics.New()
	eventLog := events.New(events.Options{Metrics: meter, Health: server.NewHealth(), Log: slog.New(slog.DiscardHandler)})
	store := &descriptors.Store{Prepare: meter.PrepareRules}
	store.Set(descriptors.Compile(set))
	recorder := live.NewRecorder(meter.OverHits, true)
	observers := callObservers(settings, eventLog, recorder)
	liveView := live.New(live.Options{
		Backend: "local", Recorder: recorder, Store: store, Keys: live.KeysOn, Events: eventLog.Timeline,
		Limits:   func() live.Limits { return live.Limits{Source: events.SourceFile} },
		Counts:   eventLog.Metrics.Rules,
		CPUTime:  cpuTime,
		Process:  func() live.Process { return live.Process{} },
		Draining: func() bool { return false },
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); liveView.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	h := live.Handlers{Live: liveView, SeesKeys: func(*http.Request) bool { return true }}
	return observedProcess{
		service: service.New(service.Options{Limits: store, Limiter: local.New(local.Options{}), Observers: observers}),
		meter:   meter, live: h,
		page: page.New(page.Options{Snapshot: h.SnapshotFor, Rules: h.Live.Rules, Rule: h.RuleFor}),
	}
}

func getBody(h http.Handler, address string) string {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, address, nil))
	return w.Body.String()
}

// TestPageTopLiveAndMetricsShowTheSameNumbers compares them after ten seconds of a known load.
func TestPageTopLiveAndMetricsShowTheSameNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process := newObservedProcess(t)
		const seconds = 10
		time.Sleep(500 * time.Millisecond) // the load comes between the samples
		for range seconds {
			sendKnownLoad(process.service)
			time.Sleep(time.Second)
		}
		var snapshot live.Snapshot
		require.NoError(t, json.Unmarshal([]byte(getBody(http.HandlerFunc(process.live.Snapshot), live.SnapshotPath)), &snapshot))
		var screen strings.Builder
		require.NoError(t, printAnswer(&screen, false, newTopView(&snapshot), "top"))
		top := screen.String()
		html := getBody(process.page, "/")
		counters := countersOf(t, process.meter)

		require.Len(t, snapshot.Rules.Shown, len(knownHits))
		for _, rule := range snapshot.Rules.Shown {
			want := knownHits[rule.Path]
			assert.Equal(t, live.Rates{OK: live.Value(want.ok), Near: live.Value(want.near), Denied: live.Value(want.denied), Shadow: live.Value(want.shadow)}, rule.Rates, rule.Path)

			for metric, perSecond := range map[string]float64{
				"total_hits": want.total, "within_limit": want.ok, "near_limit": want.near, "over_limit": want.denied + want.shadow, "shadow_mode": want.shadow,
			} {
				assert.Equal(t, perSecond*seconds, counters("ratelimit_service_rate_limit_"+metric, "rule", rule.Path), "%s of %s", metric, rule.Path)
			}

			_, row, _ := strings.Cut(html, `data-path="`+strings.ReplaceAll(rule.Path, ">", "&gt;")+`"`)
			for name, value := range map[string]live.Value{"ok": rule.OK, "near": rule.Near, "denied": rule.Denied, "shadow": rule.Shadow} {
				assert.Equal(t, page.FormatRate(value), dataText(row, name), "%s of %s on the page", name, rule.Path)
			}
			assert.Regexp(t, `(?m)^`+strings.Join([]string{page.FormatRate(rule.OK), page.FormatRate(rule.Denied), page.FormatRate(rule.Shadow)}, " +")+" .* "+regexp.QuoteMeta(rule.Path), top)

			deniedHits := want.denied + want.shadow // keys have both, and a mark
			_, keys, _ := process.live.RuleFor(httptest.NewRequest(http.MethodGet, "/", nil), rule.Path)
			for name, list := range map[string][]live.Key{"hottest": keys.Hottest, "most denied": keys.Denied} {
				if name == "most denied" && deniedHits == 0 {
					assert.Empty(t, list, rule.Path)
					continue
				}
				require.Len(t, list, 1)
				assert.InDelta(t, want.total, float64(list[0].Rate), 1e-4, "hits of the %s key of %s", name, rule.Path)
				assert.InDelta(t, deniedHits, float64(list[0].DeniedRate), 1e-4, "denied hits of the %s key of %s", name, rule.Path)
				assert.Equal(t, want.shadow > 0, list[0].Shadow, "the mark of the %s key of %s", name, rule.Path)
			}
			details := getBody(process.page, "/?part=rule&rule="+url.QueryEscape(rule.Path))
			assert.Contains(t, details, `<td class="c-rate number">`+page.FormatRate(live.Value(want.total))+`</td><td class="c-rate number">`+page.FormatRate(live.Value(deniedHits))+`</td>`, rule.Path)
		}

		figures := snapshot.Figures
		assert.InDelta(t, knownCalls, float64(figures.Calls.Now), 1e-9)
		assert.InDelta(t, float64(knownDeniedCalls)/knownCalls, float64(figures.DeniedShare.Now), 1e-4)
		assert.InDelta(t, knownUnmatched+knownUnknownDomains, float64(figures.Unmatched.Now), 1e-9)
		assert.EqualValues(t, knownDeniedCalls*seconds, counters("rls_decisions_total", "result", "over_limit"))
		assert.EqualValues(t, 2*seconds, counters("rls_decisions_total", "result", "shadowed"))
		assert.EqualValues(t, knownUnmatched*seconds, counters("rls_unmatched_descriptors_total", "domain", "shop"))
		assert.EqualValues(t, knownUnknownDomains*seconds, counters("ratelimit_service_rate_limit_domain_not_found", "domain", "shp"))
		for id, value := range map[string]string{"calls": page.FormatRate(figures.Calls.Now), "denied": strings.TrimSuffix(page.FormatShare(figures.DeniedShare.Now), "\u202f%")} {
			_, figure, _ := strings.Cut(html, `id="figure-`+id+`"`)
			assert.Equal(t, value, dataText(figure, "value"), id)
		}
		assert.Contains(t, html, "No rule limits "+page.FormatRate(figures.Unmatched.Now)+" descriptors per second")
		for _, text := range []string{page.FormatRate(figures.Calls.Now) + "/s", page.FormatShare(figures.DeniedShare.Now), "No rule  2/s", "shop|tennant=acme (no rule)", "shp|tenant=acme (unknown domain)"} {
			assert.Contains(t, top, text)
		}

		assert.Equal(t, snapshot.State.Limits.Rules, snapshot.Rules.Total)
		assert.Contains(t, html, "3 of 3 with traffic")
		assert.Contains(t, html, "3 rules in 1 domain")
	})
}

// TestFirstCallsAreShownAtOnce asks for each view right after calls that follow minutes without calls. The calls come at
// different moments of a sampling step.
func TestFirstCallsAreShownAtOnce(t *testing.T) {
	for name, view := range map[string]func(observedProcess) string{
		"page": func(p observedProcess) string { return html.UnescapeString(getBody(p.page, "/")) },
		"live": func(p observedProcess) string {
			return strings.ReplaceAll(getBody(http.HandlerFunc(p.live.Snapshot), live.SnapshotPath), `\u003e`, ">")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				process := newObservedProcess(t)
				for i := range 20 {
					time.Sleep(time.Duration(i) * 137 * time.Millisecond)
					view(process)
					sendKnownLoad(process.service)
					time.Sleep(time.Millisecond)
					text := view(process)
					assert.False(t, strings.Contains(text, "No calls") || strings.Contains(text, "no limit has counted"), "the view says that no calls came")
					assert.True(t, strings.Contains(text, "tennant=acme"), "the view shows the descriptor without a rule")
					assert.True(t, strings.Contains(text, `"path":"shop > tenant"`) || strings.Contains(text, `data-path="shop > tenant"`), "the view shows the rule")
					time.Sleep(6 * time.Minute)
				}
			})
		})
	}
}

// dataText returns the text of the first element with an attribute data-NAME.
func dataText(html, name string) string {
	m := regexp.MustCompile(`data-` + name + `[^>]*>([^<]*)<`).FindStringSubmatch(html)
	if m == nil {
		return ""
	}
	return m[1]
}

// countersOf returns a function that returns the sum of the metrics with a name and a label.
func countersOf(t *testing.T, meter *metrics.Metrics) func(name, label, value string) float64 {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(getBody(meter.Handler(nil, nil), "/metrics")))
	require.NoError(t, err)
	return func(name, label, value string) (sum float64) {
		for _, m := range families[name].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label && l.GetValue() == value {
					sum += m.GetCounter().GetValue()
				}
			}
		}
		return sum
	}
}

func TestReplicaReportsItsFiguresAndTheHashThatCheckPrints(t *testing.T) {
	t.Parallel()
	replica := startReplicas(t, 1, redistest.Start(t), perYear(5))[0]
	checkReport, _, _ := rls(t, "check", "--json", writeFile(t, "limits.yaml", perYear(5)))
	var check limitsCheck
	require.NoError(t, json.Unmarshal([]byte(checkReport), &check))
	polltest.Until(t, maxWait, func() bool {
		_, snapshot := get(t, "http://"+replica.debug+live.SnapshotPath)
		report, _, _ := rls(t, "limits", "show", "--replicas", "--json", "--admin", replica.debug, "--token", adminToken)
		return strings.Contains(snapshot, "1 replica seen") && strings.Contains(report, "calls_per_second") &&
			strings.Contains(report, `"limits": "`+check.Limits+`"`)
	})

	replica.override("shop|tenant=acme", `{"factor": 10}`)
	polltest.Until(t, maxWait, func() bool {
		report, _, _ := rls(t, "limits", "show", "--replicas", "--json", "--admin", replica.debug, "--token", adminToken)
		return !strings.Contains(report, `"limits": "`+check.Limits+`"`) && strings.Contains(report, `"base_limits": "`+check.Limits+`"`)
	})
}
