package admin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

const acme = "shop|tenant=acme"

func TestOverrideCanBePutReadAndDeleted(t *testing.T) {
	api := newTestAPI(t)
	var list admin.List
	require.Equal(t, http.StatusOK, api.call("GET", "overrides", "", "", &list))
	assert.Equal(t, []admin.Override{}, list.Overrides)

	expiresAt := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	value := `{"factor":10,"expires_at":"` + expiresAt + `"}`
	want := admin.Override{
		Kind: override.KindOverride, Version: 1, Target: acme, State: admin.InForce, Path: "shop > tenant=acme",
		BaseLimits: "100 per minute", Limits: "1000 per minute", Counters: "kept", ExpiresAt: expiresAt, SetBy: "ops",
	}
	var got admin.Override
	require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, value+"\n", &got))
	assert.JSONEq(t, value, string(got.Override))
	setAt, err := time.Parse(time.RFC3339, got.SetAt)
	require.NoError(t, err)
	assert.WithinRange(t, setAt, time.Now().Add(-time.Minute), time.Now())
	assert.Len(t, got.ETag, 16)
	got.Override, got.SetAt, got.ETag = nil, "", ""
	assert.Equal(t, want, got)

	t.Run("PUT returns the override that it replaced", func(t *testing.T) {
		var got admin.Override
		require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"requests_per_unit": 7}`, &got))
		assert.JSONEq(t, value, string(got.OldOverride))
		assert.Equal(t, "7 per minute", got.Limits)
		assert.Equal(t, "100 per minute", got.BaseLimits)
	})
	t.Run("GET with a target returns one override", func(t *testing.T) {
		var got admin.Override
		require.Equal(t, http.StatusOK, api.call("GET", "overrides", acme, "", &got))
		assert.Equal(t, "7 per minute", got.Limits)
		assert.Empty(t, got.ExpiresAt)
	})
	require.Equal(t, http.StatusOK, api.call("PUT", "overrides", "shop|ip", `{"factor": 2}`, nil))
	t.Run("GET returns all overrides, sorted by target", func(t *testing.T) {
		var list admin.List
		require.Equal(t, http.StatusOK, api.call("GET", "overrides", "", "", &list))
		require.Len(t, list.Overrides, 2)
		assert.Equal(t, "shop|ip", list.Overrides[0].Target)
		assert.Equal(t, acme, list.Overrides[1].Target)
	})
	t.Run("DELETE returns the old override", func(t *testing.T) {
		var got admin.Override
		require.Equal(t, http.StatusOK, api.call("DELETE", "overrides", acme, "", &got))
		assert.JSONEq(t, `{"requests_per_unit": 7}`, string(got.OldOverride))
		got.OldOverride = nil
		assert.Equal(t, admin.Override{Kind: override.KindOverride, Version: 4, Target: acme, State: admin.Deleted, Path: "shop > tenant=acme", BaseLimits: "7 per minute", Limits: "100 per minute", Counters: "kept"}, got)
		for _, method := range []string{"GET", "DELETE"} {
			code, text := api.problems(method, "overrides", acme, "")
			assert.Equal(t, http.StatusNotFound, code)
			assert.Equal(t, `no override has target "shop|tenant=acme"`, text)
		}
	})
	t.Run("audit has each change", func(t *testing.T) {
		lines := api.audits()
		require.Len(t, lines, 4)
		for i, want := range []string{
			`level=INFO msg=audit action=put by=ops from=192.0.2.1:1234 target="shop|tenant=acme" old="" new="{\"factor\":10,\"expires_at\":\"` + expiresAt + `\"}" path="shop > tenant=acme" limits_before="100 per minute" limits="1000 per minute" counters=kept`,
			`action=put by=ops from=192.0.2.1:1234 target="shop|tenant=acme" old="{\"factor\":10,`,
			`action=put by=ops from=192.0.2.1:1234 target=shop|ip old="" new="{\"factor\": 2}"`,
			`action=delete by=ops from=192.0.2.1:1234 target="shop|tenant=acme" old="{\"requests_per_unit\": 7}" new="" path="shop > tenant=acme" limits_before="7 per minute" limits="100 per minute"`,
		} {
			assert.Contains(t, lines[i], want)
		}
		assert.Contains(t, lines[1], `limits_before="1000 per minute" limits="7 per minute"`)
	})
}

// TestConcurrentPutsAreAuditedExactly has callers that change one override at the same
// time. Each line of the audit has the limits of its own old and new value.
func TestConcurrentPutsAreAuditedExactly(t *testing.T) {
	api := newTestAPI(t)
	const callers, calls = 4, 25
	require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"requests_per_unit": 1000}`, nil))
	var puts sync.WaitGroup
	for i := range callers {
		puts.Go(func() {
			for n := range calls {
				assert.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, fmt.Sprintf(`{"requests_per_unit": %d}`, 1001+i*calls+n), nil))
			}
		})
	}
	puts.Wait()
	lines := api.audits()[1:]
	require.Len(t, lines, callers*calls)
	pattern := regexp.MustCompile(`old="{\\"requests_per_unit\\": (\d+)}" new="{\\"requests_per_unit\\": (\d+)}".* limits_before="(\d+) per minute" limits="(\d+) per minute"`)
	replacedTargets := map[string]bool{}
	for _, line := range lines {
		m := pattern.FindStringSubmatch(line)
		require.NotNil(t, m, line)
		assert.Equal(t, m[1], m[3], line)
		assert.Equal(t, m[2], m[4], line)
		assert.False(t, replacedTargets[m[1]], "two calls replaced the same value")
		replacedTargets[m[1]] = true
	}
}

func TestInvalidOverrideIsNotStored(t *testing.T) {
	for name, test := range map[string]struct {
		target, value string
		want          []string // parts of the problems
	}{
		"no target":           {"", `{"factor": 2}`, []string{"want DOMAIN|KEY=VALUE"}},
		"an unknown domain":   {"shpo|tenant=acme", `{"factor": 2}`, []string{"unknown domain shpo; want shop; did you mean shop?"}},
		"an unknown key":      {"shop|tenat=acme", `{"factor": 2}`, []string{"unknown descriptor tenat=acme; want tenant, ip, free, trial or quiet; did you mean tenant?"}},
		"an unescaped space":  {"shop|tenant=a b", `{"factor": 2}`, []string{"want shop|tenant=a%20b"}},
		"a long target":       {"shop|tenant=" + strings.Repeat("x", admin.MaxTargetBytes), `{"factor": 2}`, []string{"target: got 4108 bytes, want at most 4096"}},
		"an empty value":      {acme, ``, []string{"value is not JSON"}},
		"a list":              {acme, `[]`, []string{"got a list, want a JSON object"}},
		"no change":           {acme, `{}`, []string{"changes nothing"}},
		"several mistakes":    {acme, `{"factr": 2, "unit": "minutes", "algorithm": "slow"}`, []string{"did you mean factor?", "slow"}},
		"several limits":      {"shop|ip", `{"requests_per_unit": 1}`, []string{"the descriptor has 3 limits"}},
		"an end that is past": {acme, `{"factor": 2, "expires_at": "2020-01-01T00:00:00+01:00"}`, []string{"expires_at 2019-12-31T23:00:00Z is in the past"}},
		"invalid UTF-8":       {acme, "{\"name\": \"\xff\"}", []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newTestAPI(t)
			for _, dryRunParam := range []string{"", "&dry_run=true"} {
				var got admin.Override
				u := "/admin/overrides?target=" + strings.NewReplacer("|", "%7C", "%", "%25", " ", "%20").Replace(test.target) + dryRunParam
				assert.Equal(t, http.StatusBadRequest, api.callURL("PUT", u, test.value, &got))
				for _, want := range test.want {
					assert.Contains(t, strings.Join(got.Problems, "\n"), want)
				}
			}
			assert.Empty(t, api.overrides.States())
			assert.Empty(t, api.audits())
		})
	}
	t.Run("too many bytes", func(t *testing.T) {
		api := newTestAPI(t)
		code, text := api.problems("PUT", "overrides", acme, `{"name": "`+strings.Repeat("x", override.MaxBytes)+`"}`)
		assert.Equal(t, http.StatusRequestEntityTooLarge, code)
		assert.Contains(t, text, "body: want at most 65536 bytes")
		assert.Empty(t, api.overrides.States())
	})
}

func TestValueIsNotLostToAValueThatEndsEarlier(t *testing.T) {
	endlessOverride, temporaryOverride := `{"factor": 10}`, `{"factor": 2, "expires_at": "2090-01-01T00:00:00Z"}`
	shorterOverride := `{"factor": 3, "expires_at": "2089-01-01T00:00:00Z"}`
	for name, test := range map[string]struct {
		path, target, old, new, query string
		want                          int
	}{
		"override":              {"overrides", acme, endlessOverride, temporaryOverride, "", http.StatusPreconditionFailed},
		"dry run":               {"overrides", acme, endlessOverride, temporaryOverride, "&dry_run=true", http.StatusPreconditionFailed},
		"with replace":          {"overrides", acme, endlessOverride, temporaryOverride, "&replace=true", http.StatusOK},
		"both without an end":   {"overrides", acme, endlessOverride, `{"factor": 3}`, "", http.StatusOK},
		"both with an end":      {"overrides", acme, temporaryOverride, temporaryOverride, "", http.StatusOK},
		"an earlier end":        {"overrides", acme, temporaryOverride, shorterOverride, "", http.StatusPreconditionFailed},
		"a later end":           {"overrides", acme, shorterOverride, temporaryOverride, "", http.StatusOK},
		"another target":        {"overrides", "shop|tenant=other", endlessOverride, temporaryOverride, "", http.StatusOK},
		"switch without an end": {"switches", "shop", `{}`, `{"expires_at": "2090-01-01T00:00:00Z"}`, "", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			api := newTestAPI(t)
			oldTarget := test.target
			if name == "another target" {
				oldTarget = acme
			}
			require.Equal(t, http.StatusOK, api.call("PUT", test.path, oldTarget, test.old, nil))
			var conflict admin.Conflict
			assert.Equal(t, test.want, api.callURL("PUT", "/admin/"+test.path+"?target="+url.QueryEscape(test.target)+test.query, test.new, &conflict))
			if test.want != http.StatusOK {
				wantProblem := `its value {"factor": 10} has no end`
				if test.old == temporaryOverride {
					wantProblem = `its value {"factor": 2, "expires_at": "2090-01-01T00:00:00Z"} ends later, at 2090-01-01T00:00:00Z`
				}
				assert.Contains(t, conflict.Problems[0], wantProblem)
				assert.JSONEq(t, test.old, override.RemoveAuthor(api.overrides.States()[0].Value))
			}
		})
	}
}

func TestDryRunStoresNothing(t *testing.T) {
	api := newTestAPI(t)
	var got admin.Override
	require.Equal(t, http.StatusOK, api.callURL("PUT", "/admin/overrides?target=shop%7Ctenant=acme&dry_run=true", `{"factor": 3}`, &got))
	assert.True(t, got.DryRun)
	assert.Equal(t, admin.InForce, got.State)
	assert.Equal(t, "300 per minute", got.Limits)
	assert.Equal(t, "kept", got.Counters)
	require.Equal(t, http.StatusOK, api.callURL("PUT", "/admin/overrides?target=shop%7Ctenant=acme&dry_run=true", `{"algorithm": "sliding_log"}`, &got))
	assert.Equal(t, "new", got.Counters)
	assert.Empty(t, api.overrides.States())
	assert.Empty(t, api.audits())
}

func TestStoredOverridesAreShownEvenIfInvalid(t *testing.T) {
	for name, test := range map[string]struct {
		target string
		values []string // stored one after the other
		want   admin.Override
	}{
		"number, which means requests_per_unit": {
			acme,
			[]string{"1000"},
			admin.Override{State: admin.InForce, Override: []byte("1000"), Path: "shop > tenant=acme", BaseLimits: "100 per minute", Limits: "1000 per minute", Counters: "kept"},
		},
		"for a missing descriptor": {
			"shop|gone",
			[]string{`{"factor": 2}`},
			admin.Override{State: admin.Waiting, Override: []byte(`{"factor": 2}`)},
		},
		"not JSON": {
			acme,
			[]string{"faster!"},
			admin.Override{State: admin.Rejected, Override: []byte(`"faster!"`)},
		},
		"invalid after a valid value, which stays in force": {
			acme,
			[]string{`{"factor": 2}`, `{"factr": 3}`},
			admin.Override{State: admin.Rejected, Override: []byte(`{"factr": 3}`), Path: "shop > tenant=acme", BaseLimits: "100 per minute", Limits: "200 per minute", Counters: "kept"},
		},
		"expired": {
			acme,
			[]string{`{"factor": 2, "expires_at": "2020-01-01T00:00:00Z"}`},
			admin.Override{State: admin.Expired, Override: []byte(`{"factor": 2, "expires_at": "2020-01-01T00:00:00Z"}`), ExpiresAt: "2020-01-01T00:00:00Z"},
		},
		"invalid target": {
			"shop tenant",
			[]string{`{"factor": 2}`},
			admin.Override{State: admin.Rejected, Override: []byte(`{"factor": 2}`)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := newTestAPI(t)
			for _, value := range test.values {
				api.overrides.SetField(test.target, value)
			}
			var got admin.Override
			require.Equal(t, http.StatusOK, api.call("GET", "overrides", test.target, "", &got))
			assert.JSONEq(t, string(test.want.Override), string(got.Override))
			assert.Equal(t, test.want.State == admin.Rejected || test.want.State == admin.Waiting, len(got.Problems) > 0)
			got.Override, got.Problems, got.Target, got.Kind, got.ETag = test.want.Override, nil, "", "", ""
			assert.Equal(t, test.want, got)
			assert.Equal(t, http.StatusOK, api.call("DELETE", "overrides", test.target, "", nil), "it can be deleted")
			assert.Empty(t, api.overrides.States())
		})
	}
	t.Run("deeply nested", func(t *testing.T) {
		api := newTestAPI(t)
		const depth = 9_000
		api.overrides.SetField(acme, strings.Repeat(`{"a":`, depth)+`"\"]}"`+strings.Repeat("}", depth))
		var text json.RawMessage
		require.Equal(t, http.StatusOK, api.call("GET", "overrides", "", "", &text))
		assert.Less(t, len(text), 3*override.MaxBytes)
		assert.Equal(t, http.StatusBadRequest, api.call("PUT", "overrides", acme, strings.Repeat(`{"a":`, depth)+"1"+strings.Repeat("}", depth), &text))
		assert.Less(t, len(text), 3*override.MaxBytes)
	})
	t.Run("too large", func(t *testing.T) {
		api := newTestAPI(t)
		api.overrides.SetField(acme, `{"name": "`+strings.Repeat("é", override.MaxBytes)+`"}`)
		var list admin.List
		require.Equal(t, http.StatusOK, api.call("GET", "overrides", "", "", &list))
		assert.Less(t, len(list.Overrides[0].Override), override.MaxBytes+1000)
		assert.Contains(t, list.Overrides[0].Problems[0], "maximum is 65536")
	})
}

func TestChangeFailsIfStoreFails(t *testing.T) {
	api := newTestAPI(t)
	api.overrides.Fail(errors.New("write an override: dial tcp: connection refused"))
	for method, body := range map[string]string{"PUT": `{"factor": 2}`, "DELETE": ""} {
		code, text := api.problems(method, "overrides", acme, body)
		assert.Equal(t, http.StatusServiceUnavailable, code)
		assert.Equal(t, "change possibly not stored; repeat the call. While Redis is down, shadow_mode: true in a rule of the limits file stops its denials (more ways: docs/operations.md#stop-all-denials-now): write an override: dial tcp: connection refused", text)
	}
	assert.Len(t, api.audits(), 2, "the changes may be stored")
	assert.Equal(t, 2, strings.Count(api.log.String(), "outcome=unknown"))
	for _, path := range []string{"limits", "overrides"} {
		var list admin.List
		require.Equal(t, http.StatusOK, api.call("GET", path, "", "", &list))
		assert.Equal(t, []string{"write an override: dial tcp: connection refused"}, list.Problems, path)
	}
	api.overrides.Fail(changes.ErrNotSent)
	_, text := api.problems("PUT", "overrides", acme, `{"factor": 2}`)
	assert.Contains(t, text, "change not stored; repeat the call.")
	assert.Equal(t, 1, strings.Count(api.log.String(), "outcome=refused"))
	code, _ := api.problems("PUT", "overrides", acme, `{}`)
	assert.Equal(t, http.StatusBadRequest, code, "an invalid override is rejected without the store")
}

func TestCallsWithoutStoreSayHowToEnableOverrides(t *testing.T) {
	api := newTestAPI(t, func(o *admin.Options) { o.Overrides = nil })
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		code, text := api.problems(method, "overrides", acme, "{}")
		assert.Equal(t, http.StatusNotImplemented, code)
		assert.Contains(t, text, "OVERRIDES_ENABLED=true")
	}
	assert.Equal(t, http.StatusOK, api.call("GET", "counters", acme, "", nil))
}

func TestAuditTruncatesLongValues(t *testing.T) {
	api := newTestAPI(t)
	require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"name": "`+strings.Repeat("x", 5000)+`"}`, nil))
	assert.Less(t, len(api.audits()[0]), 6_000)
	assert.Contains(t, api.audits()[0], "…")
}
