package metrics

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
)

func TestExtraTagsAreLabelsOfAllMetrics(t *testing.T) {
	metrics := New()
	metrics.Reload("file")
	for range 2 { // the labels must not pile up
		page := httptest.NewRecorder()
		metrics.Handler(map[string]string{"data.center": "eu.1", "source": "x", "2nd": "y"}, nil).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		assert.Contains(t, page.Body.String(), "ratelimit_service_config_load_success{_2nd=\"y\",data_center=\"eu.1\",source=\"x\"} 0\n")
		assert.Contains(t, page.Body.String(), "rls_source_up{_2nd=\"y\",data_center=\"eu.1\",source=\"file\"} 0\n")
		assert.Contains(t, page.Body.String(), "go_goroutines{_2nd=")
	}
	n, err := testutil.GatherAndCount(metrics, "rls_source_up")
	assert.NoError(t, err)
	assert.Equal(t, 1, n)
}
