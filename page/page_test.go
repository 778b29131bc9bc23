package page_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/live"
	"github.com/seed-81f232ab/rls/page"
	"github.com/seed-81f232ab/rls/page/pagetest"
)

func get(t *testing.T, o page.Options, address string) (http.Header, string) {
	t.Helper()
	w := httptest.NewRecorder()
	page.New(o).ServeHTTP(w, httptest.NewRequest(http.MethodGet, address, nil))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	return w.Header(), w.Body.String()
}

func of(s *live.Snapshot) page.Options {
	return page.Options{Snapshot: func(*http.Request) *live.Snapshot { return s }}
}

func TestBudget(t *testing.T) {
	_, body := get(t, of(pagetest.Busy()), "/")
	total := len(body)
	for _, f := range []string{"assets/page.css", "assets/page.js", "assets/icon.svg"} {
		b, _ := os.ReadFile(f)
		total += len(b)
		fmt.Println(f, len(b))
	}
	fmt.Println(len(body), total)
	_, body = get(t, of(pagetest.Quiet()), "/")
	fmt.Println(len(body))
	assert.NotContains(t, body, "ZgotmplZ")
	fmt.Println(strings.Count(body, "\n"))
}
