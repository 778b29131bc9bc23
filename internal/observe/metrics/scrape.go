package metrics

import (
	"cmp"
	"compress/gzip"
	"context"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

const (
	// maxScrapeWait bounds the time that a scrape waits for the scrape in progress. By default, Prometheus also ends a
	// scrape after 10 s.
	maxScrapeWait = 10 * time.Second

	// maxScrapeTime bounds a scrape. Without this bound, a client that does not read would block further scrapes.
	maxScrapeTime = 15 * time.Second
)

type family struct {
	name  string
	write func(io.Writer) error // writes the series in the text format
}

// Handler returns the handler for Prometheus. Each tag becomes a label of all metrics. If mapFamilies is not nil, the handler
// serves the metrics that mapFamilies returns. If the query has parameters name[], the answer has only the metrics with
// these names. The handlers of m serve one scrape at a time, because a scrape
// needs much memory. Another scrape waits for at most maxScrapeWait, and then gets the code 503.
func (m *Metrics) Handler(extraTags map[string]string, mapFamilies Mapper) http.Handler {
	return m.handler(extraTags, maxScrapeTime, mapFamilies)
}

// Mapper returns metrics that replace families and the metrics of rules.
type Mapper func(families []*dto.MetricFamily) ([]*dto.MetricFamily, error)

// handler returns a Handler that cuts a scrape after maxTime. mapFamilies can be nil.
func (m *Metrics) handler(extraTags map[string]string, maxTime time.Duration, mapFamilies Mapper) http.Handler {
	labels := extraLabelsOf(extraTags)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !m.beginScrape(r.Context()) {
			http.Error(w, "another scrape is in progress; try again later", http.StatusServiceUnavailable)
			return
		}
		defer m.endScrape()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxTime)) // also bounds writes after the handler has returned
		families, err := m.families(labels, r.URL.Query()["name[]"], mapFamilies)
		if err != nil {
			http.Error(w, "An error has occurred while serving metrics:\n\n"+err.Error(), http.StatusInternalServerError)
			return
		}
		_ = writeFamilies(w, r, families) // an error means that the client has left
	})
}

// beginScrape waits for the scrape in progress. It reports whether this scrape may begin.
func (m *Metrics) beginScrape(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, maxScrapeWait)
	defer cancel()
	select {
	case m.runningScrape <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (m *Metrics) endScrape() { <-m.runningScrape }

// families returns the metrics with these names, sorted by name. If names is empty, families returns all metrics.
func (m *Metrics) families(labels extraLabels, names []string, mapFamilies Mapper) ([]family, error) {
	gatheredFamilies, err := m.registry.Gather()
	if err == nil && mapFamilies != nil {
		gatheredFamilies, err = mapFamilies(gatheredFamilies)
	}
	if err != nil {
		return nil, err
	}
	isWanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	var families []family
	for _, gatheredFamily := range gatheredFamilies {
		if !isWanted(gatheredFamily.GetName()) {
			continue
		}
		for _, metric := range gatheredFamily.GetMetric() {
			metric.Label = labels.addTo(metric.GetLabel())
			if m.ResponseTimeMillis && mapFamilies == nil && gatheredFamily.GetName() == responseTimeName {
				toMillis(metric.GetHistogram())
			}
		}
		families = append(families, family{gatheredFamily.GetName(), func(w io.Writer) error {
			_, err := expfmt.MetricFamilyToText(w, gatheredFamily)
			return err
		}})
	}
	if mapFamilies == nil {
		families = append(families, m.rules.families(labels, isWanted)...)
	}
	slices.SortFunc(families, func(a, b family) int { return cmp.Compare(a.name, b.name) })
	return families, nil
}

func writeFamilies(w http.ResponseWriter, r *http.Request, families []family) error {
	format := expfmt.NegotiateAccept(r.Header, expfmt.NewFormat(expfmt.TypeTextPlain))
	w.Header().Set("Content-Type", string(format))
	w.Header().Add("Vary", "Accept")
	w.Header().Add("Vary", "Accept-Encoding")
	body := io.Writer(w)
	if acceptsGzip(r.Header) {
		w.Header().Set("Content-Encoding", "gzip")
		gzipWriter := gzip.NewWriter(w)
		defer func() { _ = gzipWriter.Close() }()
		body = gzipWriter
	}
	for _, f := range families {
		if err := f.write(body); err != nil {
			return err
		}
	}
	return nil
}

func acceptsGzip(h http.Header) bool {
	for encoding := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		if name, parameters, err := mime.ParseMediaType(encoding); err == nil && name == "gzip" {
			quality, err := strconv.ParseFloat(parameters["q"], 64)
			return err != nil || quality > 0
		}
	}
	return false
}
