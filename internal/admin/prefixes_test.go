package admin_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/admin"
)

// fakePrefixResetter is a backend.PrefixResetter. Each prefix has the same number of counters.
type fakePrefixResetter struct {
	counters, unclear int
	err               error
	resets            []backend.KeyPrefix
}

func (f *fakePrefixResetter) ResetPrefix(_ context.Context, p backend.KeyPrefix, maxCounters int, dryRun bool) (backend.PrefixReset, error) {
	r := backend.PrefixReset{Counters: f.counters, Unclear: f.unclear}
	if f.counters > maxCounters {
		return r, backend.ErrTooManyCounters
	}
	if !dryRun && f.err == nil {
		f.resets = append(f.resets, p)
	}
	return r, f.err
}

// fakeCache counts the calls that make it forget all counters.
type fakeCache struct {
	backend.Layer
	forgetAllCount int
}

func (c *fakeCache) Forget(h *backend.Hit) {
	if h == nil {
		c.forgetAllCount++
	}
}

func TestResetByPrefixIsExplicitCountedAndBounded(t *testing.T) {
	var publishedResets []string
	prefixes, cache := &fakePrefixResetter{counters: 3, unclear: 1}, &fakeCache{}
	api := newTestAPI(t, func(o *admin.Options) {
		o.Counters.Prefixes, o.Counters.Layer = prefixes, cache
		o.Counters.PublishReset = func(_ context.Context, target string) error {
			publishedResets = append(publishedResets, target)
			return nil
		}
	})
	reset := func(query url.Values) (a admin.ResetByPrefix, code int) {
		code = api.callURL("DELETE", "/admin/counters?"+query.Encode(), "", &a)
		return a, code
	}
	threeHits := 3
	got, code := reset(url.Values{"prefix": {"shop|tenant=acme"}, "dry_run": {"true"}})
	require.Equal(t, http.StatusOK, code)
	assert.Equal(t, &threeHits, got.Counters)
	assert.True(t, got.DryRun)
	assert.Contains(t, got.Note, "1 counters have names that are too long")
	assert.Empty(t, prefixes.resets)
	assert.Empty(t, api.audits(), "a dry run is no change")

	_, code = reset(url.Values{"prefix": {"shop|tenant=acme"}, "max": {"2"}})
	assert.Equal(t, http.StatusConflict, code)
	assert.Empty(t, prefixes.resets)

	for _, prefix := range []string{"shop|tenant=acme", "shop|tenant", "shop"} {
		got, code = reset(url.Values{"prefix": {prefix}})
		require.Equal(t, http.StatusOK, code)
		assert.Equal(t, prefix, got.Prefix)
		assert.True(t, got.Published)
	}
	assert.Equal(t, []backend.KeyPrefix{
		{Start: "shop|tenant=acme"}, {Start: "shop|tenant=", EndsAnywhere: true}, {Start: "shop|", EndsAnywhere: true},
	}, prefixes.resets)
	assert.Equal(t, 3, cache.forgetAllCount)
	assert.Equal(t, []string{"*", "*", "*"}, publishedResets)
	assert.Contains(t, api.audits()[0], `action=reset_prefix by=ops`)
	assert.Contains(t, api.audits()[0], `target="shop|tenant=acme" counters=3`)

	prefixes.err = errors.New("connection lost")
	_, code = reset(url.Values{"prefix": {"shop"}})
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Equal(t, 4, cache.forgetAllCount, "a failed reset may have reset a part")
	assert.Contains(t, api.audits()[3], "outcome=unknown")
}

func TestResetRejectsAmbiguousRequests(t *testing.T) {
	api := newTestAPI(t, func(o *admin.Options) { o.Counters.Prefixes = &fakePrefixResetter{} })
	for query, want := range map[string]string{
		"target=shop%7Ctenant%3Dacme&prefix=shop": "either as target",
		"target=shop%7Ctenant%3Dacme&max=5":       "max and dry_run are for a prefix",
		"prefix=":                                 "prefix is empty",
		"prefix=shop%7Cpath%3D/api/*":             "got a * in path=/api/*",
		"prefix=shop&max=0":                       `max: got "0", want a number from 1 to 1000000`,
		"prefix=shop&dry_run=perhaps":             "dry_run",
		"prefix=shop%7Ctenant%7Cpath":             "got the key tenant without a value",
	} {
		var problems admin.Problems
		assert.Equal(t, http.StatusBadRequest, api.callURL("DELETE", "/admin/counters?"+query, "", &problems), query)
		require.NotEmpty(t, problems.Problems, query)
		assert.Contains(t, problems.Problems[0], want, query)
	}
}

func TestTokenOfADomainResetsOnlyItsPrefixes(t *testing.T) {
	prefixes := &fakePrefixResetter{counters: 1}
	api := newTestAPI(t, func(o *admin.Options) { o.Counters.Prefixes, o.File = prefixes, newTokenFile(t) })
	for query, want := range map[string]int{
		"prefix=shop":             http.StatusOK,
		"prefix=bank":             http.StatusForbidden,
		"prefix=shop2%7Ctenant":   http.StatusForbidden,
		"prefix=bank&target=shop": http.StatusBadRequest,
	} {
		code, body := api.callAs(shopToken, "DELETE", "counters?"+query, "")
		assert.Equal(t, want, code, "%s: %s", query, body)
	}
	code, _ := api.callAs(readerToken, "DELETE", "counters?prefix=shop", "")
	assert.Equal(t, http.StatusForbidden, code)
	assert.Len(t, prefixes.resets, 1)
}
