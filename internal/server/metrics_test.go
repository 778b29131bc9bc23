package server

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
)

// metricsPage is a page of metrics. It panics on DELETE.
var metricsPage = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodDelete {
		panic("boom")
	}
	_, _ = io.WriteString(w, "calls_total 7\n")
})

func TestMetricsListenerServesOnlyMetrics(t *testing.T) {
	t.Parallel()
	const metrics, notFound = "calls_total 7\n", "Not Found: metrics are at "
	for _, tt := range []struct {
		configured, method, path string
		code                     int
		want                     string
	}{
		{"", "GET", "/metrics", 200, metrics},
		{"", "GET", "/metrics?name[]=calls_total", 200, metrics},
		{"", "GET", "/", 404, notFound + "/metrics\n"},
		{"", "GET", "/metrics/", 404, notFound + "/metrics\n"},
		{"", "GET", "/debug/pprof/", 404, notFound + "/metrics\n"},
		{"", "GET", "/rlconfig", 404, notFound + "/metrics\n"},
		{"", "DELETE", "/metrics", 500, "Internal Server Error: internal error\n"},
		{"/stats/prometheus", "GET", "/stats/prometheus", 200, metrics},
		{"/stats/prometheus", "GET", "/metrics", 404, notFound + "/stats/prometheus\n"},
		{"/", "GET", "/", 200, metrics},
		{"/", "GET", "/metrics", 404, notFound + "/\n"},
		{"/{", "GET", "/%7B", 200, metrics}, // a pattern that ServeMux panics on
	} {
		t.Run(tt.configured+" "+tt.method+" "+tt.path, func(t *testing.T) {
			server := start(t, Options{
				DebugPages: []Page{{Path: "/rlconfig", Help: "limits", Handler: http.NotFoundHandler()}},
				Metrics:    &MetricsListener{Path: tt.configured, Handler: metricsPage},
			})
			code, header, body := request(t, tt.method, server.MetricsAddr(), tt.path, "")
			assert.Equal(t, tt.code, code)
			assert.Equal(t, tt.want, body)
			assert.Equal(t, "text/plain; charset=utf-8", header.Get("Content-Type"))
		})
	}
}

func TestMetricsListenerIsOffByDefault(t *testing.T) {
	t.Parallel()
	server := start(t, Options{})
	assert.Nil(t, server.MetricsAddr())
}
