package statsd

import (
	"fmt"
	"iter"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

// Handler returns a page with the counters and gauges and their names in statsd.
func Handler(gatherer prometheus.Gatherer, rules func() iter.Seq[metrics.KeyCounts], extraTags map[string]string) http.Handler {
	tags := sortedTags(extraTags)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reader := pointReader{gatherer: gatherer, rules: rules}
		points, err := reader.points()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		for p := range points {
			if p.kind != timer {
				fmt.Fprintf(w, "%s: %s\n", replaceControls(plainName(p.name, p.tags, tags)), formatValue(p.value))
			}
		}
	})
}
