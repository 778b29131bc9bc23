package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/local"
)

// scrapeOf returns the metrics of one scrape of m.
func scrapeOf(t *testing.T, m *Metrics) prometheus.Gatherer {
	page := httptest.NewRecorder()
	m.Handler(nil, nil).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, page.Code)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page.Body)
	require.NoError(t, err)
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		return slices.SortedFunc(maps.Values(families), func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) }), nil
	})
}

// newLibraryRegistry returns a registry with a metric of each kind, and a second registry that also has the counts of
// the rules of f. No metric changes from scrape to scrape.
func newLibraryRegistry(fixture *ruleFixture) (otherMetrics, allMetrics *prometheus.Registry) {
	otherMetrics, allMetrics = prometheus.NewRegistry(), prometheus.NewRegistry()
	registerInBoth := func(c prometheus.Collector) { otherMetrics.MustRegister(c); allMetrics.MustRegister(c) }
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ratelimit_service_rate_limit_over", Help: "Sorted among the rules."}, []string{"text"})
	counter.WithLabelValues("a\\b\n\"c\" é").Add(1.5)
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "a_gauge", Help: "Help with \\ and\nlines."})
	gauge.Set(-1e300)
	histogram := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "z_histogram", Help: "Seconds.", Buckets: []float64{0.1, 1}})
	histogram.Observe(0.5)
	summary := prometheus.NewSummary(prometheus.SummaryOpts{Name: "m_summary", Help: "Seconds.", Objectives: map[float64]float64{0.5: 0.01}})
	summary.Observe(3)
	registerInBoth(counter)
	registerInBoth(gauge)
	registerInBoth(histogram)
	registerInBoth(summary)
	registerInBoth(prometheus.NewUntypedFunc(prometheus.UntypedOpts{Name: "b_untyped"}, func() float64 { return 7 }))
	allMetrics.MustRegister(prometheus.CollectorFunc(func(metrics chan<- prometheus.Metric) {
		for _, m := range RuleMetrics {
			desc := prometheus.NewDesc("ratelimit_service_rate_limit_"+m.Name, m.Help, []string{"domain", "key1", "key2", "rule"}, nil)
			values := map[ruleLabels]float64{}
			for _, l := range fixture.rules.limits.allLimits(time.Now()) {
				for s := range l.series() {
					sums := s.sums()
					values[s.labels()] += float64(m.Value(&sums))
				}
			}
			for l, value := range values {
				if value == 0 && m.isSparse {
					continue
				}
				metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, l[0], l[1], l[2], l[3])
			}
		}
	}))
	return otherMetrics, allMetrics
}

// taggedGatherer adds labels to all metrics of a registry.
type taggedGatherer struct {
	*prometheus.Registry
	labels extraLabels
}

func (g taggedGatherer) Gather() ([]*dto.MetricFamily, error) {
	families, err := g.Registry.Gather()
	for _, family := range families {
		for _, m := range family.GetMetric() {
			m.Label = g.labels.addTo(m.GetLabel())
		}
	}
	return families, err
}

// The library encodes all series of a metric at once. A scrape writes the series of rules one by one, and
// must send the same bytes.
func TestScrapeHasTheBytesOfTheLibrary(t *testing.T) {
	const values = 500
	fixture := newRuleFixture(t, perValue, local.New(local.Options{}), RuleOptions{NearLimitRatio: 0.8, MaxSeries: values})
	fixture.hit(3, "user", "other") // has the labels of the values beyond MaxSeries
	for i := range values + 1 {
		fixture.hit(int64(i%20+1), "user", fmt.Sprintf("u%d\\ \"x\"\ny\xff.é", i))
	}
	fixture.hit(11, "both", "x")
	fixture.hit(2, "plain", "x", "b", "y", "c", "z")
	otherMetrics, allMetrics := newLibraryRegistry(fixture)
	fixture.registry = otherMetrics
	ourServer := httptest.NewServer(nil)
	libraryServer := httptest.NewServer(nil)
	defer ourServer.Close()
	defer libraryServer.Close()
	get := func(server *httptest.Server, query, accept, encoding string) (http.Header, []byte) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/metrics"+query, nil)
		require.NoError(t, err)
		r.Header.Set("Accept", accept)
		r.Header.Set("Accept-Encoding", encoding)
		resp, err := http.DefaultTransport.RoundTrip(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Equal(t, http.StatusOK, resp.StatusCode)
		body := io.Reader(resp.Body)
		if resp.Header.Get("Content-Encoding") == "gzip" {
			body, err = gzip.NewReader(resp.Body)
			require.NoError(t, err)
		}
		text, err := io.ReadAll(body)
		require.NoError(t, err)
		resp.Header.Del("Date")
		resp.Header.Del("Content-Length")
		return resp.Header, text
	}
	const prometheusAccept = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
	for _, tags := range []map[string]string{nil, {"dc": "eu\n1", "rule": "not this", "zone": "z"}} {
		ourServer.Config.Handler = fixture.Handler(tags, nil)
		libraryServer.Config.Handler = promhttp.HandlerFor(taggedGatherer{allMetrics, extraLabelsOf(tags)}, promhttp.HandlerOpts{})
		requests := []struct{ query, accept, encoding string }{
			{"", prometheusAccept, "gzip"},
			{"", "", ""},
			{"", "*/*", ""},
			{"", "text/plain;version=0.0.4;escaping=allow-utf-8", ""},
			{"", "application/openmetrics-text;version=1.0.0", ""},
			{"", "", "gzip"},
			{"", "", "identity"},
			{"", "", "gzip;q=0"},
			{"", "", "br, gzip;q=0.5"},
			{"", "", "deflate"},
			{"", "", "*"},
			{"?name[]=a_gauge&name[]=ratelimit_service_rate_limit_over_limit", "", ""},
			{"?name[]=ratelimit_service_rate_limit_total_hits", prometheusAccept, ""},
			{"?name[]=none", "", "gzip"},
		}
		if tags != nil {
			requests = requests[:1]
		}
		for _, r := range requests {
			wantHeader, want := get(libraryServer, r.query, r.accept, r.encoding)
			header, got := get(ourServer, r.query, r.accept, r.encoding)
			assert.Equal(t, wantHeader, header, "%+v", r)
			assert.True(t, bytes.Equal(want, got), "%v %+v", tags, r)
		}
	}
	_, text := get(ourServer, "", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", "")
	assert.Contains(t, string(text), "# TYPE", "the text format is for all clients")
}

func TestFailedGatheringIsAnError(t *testing.T) {
	registry := New()
	registry.registry.MustRegister(prometheus.CollectorFunc(func(metrics chan<- prometheus.Metric) {
		metrics <- prometheus.NewInvalidMetric(prometheus.NewDesc("a", "", nil, nil), errors.New("no value"))
	}))
	page := httptest.NewRecorder()
	registry.Handler(nil, nil).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	assert.Equal(t, http.StatusInternalServerError, page.Code)
	assert.Contains(t, page.Body.String(), "no value")
}

func TestScrapeWaitsForTheEndOfAnotherScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := New()
		require.True(t, metrics.beginScrape(t.Context()))
		scrapeStatus := func(ctx context.Context) int {
			page := httptest.NewRecorder()
			metrics.Handler(nil, nil).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil).WithContext(ctx))
			if page.Code != http.StatusOK {
				assert.Contains(t, page.Body.String(), "another scrape is in progress")
			}
			return page.Code
		}
		var secondScrape sync.WaitGroup
		secondScrape.Go(func() { assert.Equal(t, http.StatusOK, scrapeStatus(t.Context())) })
		time.Sleep(maxScrapeWait / 2)
		metrics.endScrape()
		secondScrape.Wait()

		require.True(t, metrics.beginScrape(t.Context()))
		start := time.Now()
		assert.Equal(t, http.StatusServiceUnavailable, scrapeStatus(t.Context()))
		assert.Equal(t, maxScrapeWait, time.Since(start))
		doneCtx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.Equal(t, http.StatusServiceUnavailable, scrapeStatus(doneCtx), "a client that has left does not wait")
	})
}

// The scrape of a client that does not read lasts until the write deadline.
func TestClientThatDoesNotReadEndsWithItsScrape(t *testing.T) {
	fixture := newRuleFixture(t, perValue, local.New(local.Options{}), RuleOptions{})
	for i := range 1000 {
		fixture.hit(1, "user", fmt.Sprintf("%d%s", i, strings.Repeat("x", 200)))
	}
	pages := http.NewServeMux()
	pages.Handle("/unread", fixture.handler(nil, 100*time.Millisecond, nil))
	pages.Handle("/metrics", fixture.Handler(nil, nil))
	server := httptest.NewServer(pages)
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, strings.Repeat("GET /unread HTTP/1.1\r\nHost: x\r\n\r\n", 100))
	require.NoError(t, err)
	resp, err := http.Get(server.URL + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, http.StatusOK, resp.StatusCode)
}

// deadlinePage remembers its write deadlines.
type deadlinePage struct {
	discardPage
	deadlines []time.Time
}

func (p *deadlinePage) SetWriteDeadline(t time.Time) error {
	p.deadlines = append(p.deadlines, t)
	return nil
}

// The server sends the last bytes after the handler has returned.
func TestWriteDeadlineOutlivesScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var page deadlinePage
		New().Handler(nil, nil).ServeHTTP(&page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		assert.Equal(t, []time.Time{time.Now().Add(maxScrapeTime)}, page.deadlines)
	})
}

func TestScrapeOfManyRulesAllocatesAFractionOfTheLibrary(t *testing.T) {
	const series = 5_000
	fixture := newRuleFixture(t, perValue, local.New(local.Options{}), RuleOptions{MaxSeries: series})
	for i := range series {
		fixture.hit(1, "user", fmt.Sprintf("u%d", i))
	}
	countAllocatedBytes := func(h http.Handler) uint64 {
		var statsBefore, statsAfter runtime.MemStats
		runtime.ReadMemStats(&statsBefore)
		h.ServeHTTP(discardPage{}, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		runtime.ReadMemStats(&statsAfter)
		return statsAfter.TotalAlloc - statsBefore.TotalAlloc
	}
	_, allMetrics := newLibraryRegistry(fixture)
	ourBytes, libraryBytes := countAllocatedBytes(fixture.Handler(nil, nil)), countAllocatedBytes(promhttp.HandlerFor(allMetrics, promhttp.HandlerOpts{}))
	t.Logf("%d bytes for each set of labels; the library needs %d", ourBytes/series, libraryBytes/series)
	assert.Less(t, 5*ourBytes, libraryBytes)
}

// discardPage is a http.ResponseWriter that keeps nothing.
type discardPage struct{}

func (discardPage) Header() http.Header         { return http.Header{} }
func (discardPage) Write(p []byte) (int, error) { return len(p), nil }
func (discardPage) WriteHeader(int)             {}

func TestMetricsLikeThoseOfTheIncumbent(t *testing.T) {
	fixture := newRuleFixture(t, tenPerYear, local.New(local.Options{}), RuleOptions{NoRuleLabel: true})
	fixture.ResponseTimeMillis = true
	fixture.Server()("ShouldRateLimit")(20 * time.Millisecond)
	scrape := func() string {
		w := httptest.NewRecorder()
		fixture.Handler(nil, nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return w.Body.String()
	}
	fixture.hit(1, "a", "x")
	fixture.hit(2, "log", "x")
	out := scrape()
	assert.Contains(t, out, `ratelimit_service_rate_limit_total_hits{domain="d",key1="a",key2="",rule=""} 1`+"\n", "an empty label is a missing label")
	assert.NotContains(t, out, "total_negative_hits")
	assert.Contains(t, out, `ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="10"} 0`+"\n")
	assert.Contains(t, out, `ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="25"} 1`+"\n")
	assert.Contains(t, out, `ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"} 20`+"\n")
	fixture.hit(-1, "a", "x")
	assert.Contains(t, scrape(), `ratelimit_service_rate_limit_total_negative_hits{domain="d",key1="a",key2="",rule=""} 1`+"\n")
}
