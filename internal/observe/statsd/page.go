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
		var names []string
		sums := map[string]float64{} // the key is a name; rules whose metric keys are equal have one name
		for p := range points {
			if p.kind == timer {
				continue
			}
			name := replaceControls(plainName(p.name, p.tags, tags))
			if _, isKnown := sums[name]; !isKnown {
				names = append(names, name)
			}
			sums[name] += p.value
		}
		for _, name := range names {
			fmt.Fprintf(w, "%s: %s\n", name, formatValue(sums[name]))
		}
	})
}
