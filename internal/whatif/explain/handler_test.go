package explain_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// get sends a GET with a query and an Accept header.
func (r *replica) get(query, accept string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodGet, explain.Path+"?"+query, nil)
	req.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	r.explainer.ServeHTTP(w, req)
	return w
}

func TestHandlerAnswersInTheFormatOfTheCaller(t *testing.T) {
	t.Parallel()
	const query = "domain=shop&descriptor=tenant%3Dbob&descriptor=trial%3Dx"
	replica := newReplica(t, nil)
	for _, test := range []struct {
		query, accept string
		wantsJSON     bool
	}{
		{query, "", false},
		{query, "text/html,*/*", false},
		{query, "application/json", true},
		{query + "&format=json", "text/html", true},
		{query + "&format=text", "application/json", false},
	} {
		w := replica.get(test.query, test.accept)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		if !test.wantsJSON {
			assert.Equal(t, "text/plain; charset=utf-8", w.Header().Get("Content-Type"))
			assert.Contains(t, w.Body.String(), "OK by shop > tenant\n")
			continue
		}
		assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
		var report explain.Report
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &report))
		assert.Equal(t, "shop > tenant", report.Descriptors[0].Rule)
		assert.Equal(t, "shop > trial", report.Descriptors[1].Rule)
	}
}

func TestHandlerRejectsBadQueries(t *testing.T) {
	t.Parallel()
	replica := newReplica(t, nil)
	for query, want := range map[string]string{
		"":                                   "domain is missing",
		"domain=shop":                        "descriptor is missing; write KEY=VALUE,KEY=VALUE…",
		"domain=shop&descriptor=":            "entry 1 has no =",
		"domain=shop&descriptor=a":           "entry 1 has no =",
		"domain=shop&descriptor==b":          "entry 1 has no key",
		`domain=shop&descriptor=a\`:          "no character follows",
		"domian=shop":                        "unknown parameter domian; want domain, descriptor, limit or format; did you mean domain?",
		"domain=a&domain=b":                  "parameter domain is given 2 times, want once",
		"domain=%zz":                         "invalid query",
		"format=xml":                         "format: want json or text",
		"domain=shop&descriptor=a=b&limit=5": "limit: got 5, want NUMBER/UNIT such as 100/minute",
		"domain=shop&descriptor=a=b&limit=5/minut":                            "did you mean minute?",
		"domain=shop&descriptor=a=b&limit=-1/minute":                          "limit: got -1/minute",
		"domain=shop&descriptor=a=b&limit=4294967296/day":                     "limit: got 4294967296/day, want a number up to 4294967295",
		"domain=a" + strings.Repeat("&descriptor=a=b", 21):                    "descriptors: got 21, want at most 20",
		"domain=a&descriptor=a=" + strings.Repeat("b", explain.MaxQueryBytes): "want at most 65536",
	} {
		w := replica.get(query, "")
		assert.GreaterOrEqual(t, w.Code, 400, query)
		assert.Less(t, w.Code, 500, query)
		assert.Contains(t, w.Body.String(), want)
		assert.Contains(t, w.Body.String(), "/explain?domain=DOMAIN")
		assert.NotContains(t, w.Body.String(), "did you mean day", "a correct unit gets no suggestion")
		if query == "" {
			continue
		}
		var body struct{ Problems []string }
		w = replica.get(query, "application/json")
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
		require.Len(t, body.Problems, 1)
		assert.Contains(t, body.Problems[0], want)
	}
	w := httptest.NewRecorder()
	replica.explainer.ServeHTTP(w, httptest.NewRequest(http.MethodPost, explain.Path, nil))
	assert.Equal(t, http.StatusMethodNotAllowed, w.Code)
}

// FuzzQuery checks that a query is an error, or a request that can be explained. The text of its
// descriptors gives the same descriptors when it is read.
func FuzzQuery(f *testing.F) {
	for _, query := range []string{
		"domain=shop&descriptor=tenant=bob,path=/login", "domain=shop&descriptor=a\\,b=c\\=&descriptor=x=&limit=5/hour",
		"domain=%00&descriptor=%ff=%1b", "format=json", "limit=1/week&domain=d&descriptor=closed=x",
	} {
		f.Add(query)
	}
	replica := newReplica(f, nil)
	f.Fuzz(func(t *testing.T, query string) {
		w := replica.get(strings.Map(func(c rune) rune {
			if c <= ' ' || c == 0x7f {
				return '+' // httptest rejects bytes that a server never gets
			}
			return c
		}, query), "application/json")
		if !json.Valid(w.Body.Bytes()) || w.Code >= 500 {
			t.Fatalf("%q: got %d %s", query, w.Code, w.Body)
		}
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		req, err := explain.ParseQuery(q)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("the error has no text")
			}
			return
		}
		for i, d := range req.Descriptors {
			parsedAgain, err := entrytext.ParseRequest(entrytext.Format(d.Entries))
			if err != nil {
				t.Fatal(err)
			}
			for j, e := range d.Entries {
				if parsedAgain[j].Key != e.Key || parsedAgain[j].Value != e.Value {
					t.Fatalf("descriptor %d of %q is written as %v", i, query, parsedAgain)
				}
			}
		}
	})
}
