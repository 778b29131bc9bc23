package admin_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/testkit/admintest"
)

// FuzzCalls checks that each answer has a body and a status below 500.
func FuzzCalls(f *testing.F) {
	f.Add(uint8(1), "overrides", "shop|tenant=acme", `{"factor": 2, "expires_at": "9999-12-31T23:59:59-23:59"}`)
	f.Add(uint8(1), "overrides", "shop|ip", `{"rate_limits": [{}, {"burst": 3}, {"unlimited": true}]}`)
	f.Add(uint8(2), "overrides", "shop|%FF", "\xff")
	f.Add(uint8(0), "counters", "shop|tenant=acme|path=/api/%2A", "")
	f.Add(uint8(2), "counters", "shop|tenant=*", "")
	f.Add(uint8(1), "rules", "shop|user=new", `{"rate_limit": {"unit": "day", "requests_per_unit": 3}, "expires_at": "2030-01-31T12:00:00Z"}`)
	f.Add(uint8(1), "switches", "shop|tenant", `{"enabled": false, "reason": "incident"}`)
	f.Add(uint8(1), "shadow-mode", "", `{"shadow_mode": true}`)
	f.Add(uint8(0), "history", "shop|tenant", "")
	f.Add(uint8(3), "rollback", "", `{}`)
	f.Fuzz(func(t *testing.T, method uint8, path, target, body string) {
		overrides, counters := admintest.NewOverrides(t, limits), local.New(local.Options{MaxKeys: 100})
		handler := admin.New(admin.Options{
			Callers:   admin.Callers{Tokens: map[string]string{"ops": token}},
			Overrides: overrides,
			Counters:  admin.Counters{Limits: &overrides.Limits, Layer: backend.Counters{Limiter: counters}, Now: time.Now},
		})
		address := &url.URL{Path: admin.Prefix + path}
		if target != "" {
			address.RawQuery = "target=" + url.QueryEscape(target)
		}
		// Before the calls, another program stores the value.
		overrides.SetField(target, body)
		for range 2 {
			req := httptest.NewRequest([]string{"GET", "PUT", "DELETE", "POST"}[method%4], "/", strings.NewReader(body))
			req.URL = address
			req.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, req)
			if w.Code >= http.StatusInternalServerError || w.Body.Len() == 0 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
	})
}
