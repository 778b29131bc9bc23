package server

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/service"
)

// FuzzJSON posts bodies to /json of a service with the limits of the examples. It checks that each answer has a body and
// a documented status.
func FuzzJSON(f *testing.F) {
	f.Add(`{"domain":"shop","descriptors":[{"entries":[{"key":"remote_address","value":"10.0.0.1"}]}]}`)
	f.Add(`{"domain":"shop","hitsAddend":9,"descriptors":[{"entries":[{"key":"path","value":"/api/v1"}],"hits_addend":"18446744073709551615"}]}`)
	f.Add(`{"domain":"shop","descriptors":[{"entries":[{"key":"k"}],"is_negative_hits":true},{"limit":{"requests_per_unit":1,"unit":"DAY"}}]}`)
	f.Add(`{"domain":"\ud800","descriptors":[null,{}]}`)
	f.Add(strings.Repeat("[", maxSmallBody+1))
	limits, err := os.ReadFile("../../examples/limits.yaml")
	require.NoError(f, err)
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: limits}}, limitsfile.Options{})
	require.NoError(f, err)
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	statuses := []int{http.StatusOK, http.StatusTooManyRequests, http.StatusBadRequest, http.StatusRequestEntityTooLarge}
	f.Fuzz(func(t *testing.T, body string) {
		for _, refunds := range []bool{false, true} {
			o := withDefaults(Options{JSON: service.New(service.Options{Limits: store, Limiter: local.New(local.Options{MaxKeys: 100})}), JSONRefunds: refunds})
			w := httptest.NewRecorder()
			httpHandler(&o, new(callCounter)).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(body)))
			if !slices.Contains(statuses, w.Code) || w.Body.Len() == 0 {
				t.Fatalf("%d %q", w.Code, w.Body)
			}
		}
	})
}
