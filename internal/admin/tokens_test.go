package admin_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/admin"
)

const (
	readerToken = "reader-token-0123456789"
	shopToken   = "shop-token-0123456789"
	bankToken   = "bank-token-0123456789"
)

// hashOf returns the token_sha256 of a token.
func hashOf(token string) string {
	hash := sha256.Sum256([]byte(token))
	return hex.EncodeToString(hash[:])
}

// newTokenFile returns a file with a caller that may only read, a caller for the domain shop, and a caller for the
// domains bank and b|c.
func newTokenFile(t *testing.T) *admin.TokenFile {
	t.Helper()
	tokenFile := &admin.TokenFile{}
	require.NoError(t, tokenFile.Set([]byte(`
- {name: reader, token: `+readerToken+`, access: read}
- name: shop-team
  token: `+shopToken+`
  domains: [shop]
- {name: bank-team, token_sha256: `+strings.ToUpper(hashOf(bankToken))+`, domains: [bank, "b|c"]}
`)))
	return tokenFile
}

// callAs sends a call with a token and returns the status and the body.
func (r *testAPI) callAs(token, method, path, body string) (int, string) {
	req := httptest.NewRequest(method, admin.Prefix+path, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+token)
	resp := r.send(req)
	return resp.Code, resp.Body.String()
}

func TestCallersOfFileHaveTheirRightsOnly(t *testing.T) {
	api := newTestAPI(t, func(o *admin.Options) { o.File = newTokenFile(t) })
	for _, test := range []struct {
		token, method, path, body string
		code                      int
	}{
		{readerToken, "GET", "overrides", "", http.StatusOK},
		{readerToken, "GET", "history", "", http.StatusOK},
		{readerToken, "PUT", "overrides?target=shop%7Ctenant", `{"factor": 2}`, http.StatusForbidden},
		{readerToken, "DELETE", "counters?target=shop%7Ctenant=a", "", http.StatusForbidden},
		{readerToken, "POST", "rollback", "", http.StatusForbidden},
		{shopToken, "PUT", "overrides?target=shop%7Ctenant", `{"factor": 2}`, http.StatusOK},
		{shopToken, "PUT", "switches?target=shop", `{}`, http.StatusOK},
		{shopToken, "DELETE", "switches?target=shop", "", http.StatusOK},
		{shopToken, "PUT", "switches?target=", `{}`, http.StatusForbidden},
		{shopToken, "PUT", "shadow-mode", `{"shadow_mode": true}`, http.StatusForbidden},
		{shopToken, "GET", "counters?target=shop%7Ctenant=a", "", http.StatusOK},
		{bankToken, "GET", "overrides?target=shop%7Ctenant", "", http.StatusForbidden},
		{bankToken, "PUT", "overrides?target=shop%7Ctenant", `{"factor": 3}`, http.StatusForbidden},
		{bankToken, "GET", "counters?target=shop%7Ctenant=a", "", http.StatusForbidden},
		{bankToken, "POST", "rollback?version=0", "", http.StatusForbidden},
		{bankToken, "PUT", "rules?target=b%257Cc%7Ckey", `{"rate_limit": {"unit": "day", "requests_per_unit": 1}}`, http.StatusOK},
		{"unknown-token-0123456789", "GET", "overrides", "", http.StatusUnauthorized},
	} {
		code, body := api.callAs(test.token, test.method, test.path, test.body)
		assert.Equal(t, test.code, code, "%s %s: %s", test.method, test.path, body)
		if code == http.StatusForbidden {
			assert.Regexp(t, "caller (reader may only read|shop-team may only use the domains shop|bank-team may only use the domains bank, b.c)", body)
		}
	}
	_, body := api.callAs(bankToken, "GET", "limits", "")
	assert.NotContains(t, body, "shop|tenant")
	_, body = api.callAs(bankToken, "GET", "history", "")
	assert.NotContains(t, body, "shop")
	assert.Contains(t, api.audits()[0], "by=reader")
	assert.Contains(t, api.audits()[0], "outcome=refused")
}

func TestRollbackShowsNoUndoneChangeOfOtherDomains(t *testing.T) {
	api := newTestAPI(t, func(o *admin.Options) { o.File = newTokenFile(t) })
	for _, test := range []struct{ token, method, path, body string }{
		{bankToken, "PUT", "rules?target=b%257Cc%7Ckey", `{"rate_limit": {"unit": "day", "requests_per_unit": 1}, "reason": "merger"}`},
		{bankToken, "DELETE", "rules?target=b%257Cc%7Ckey", ""},
		{shopToken, "PUT", "overrides?target=shop%7Ctenant", `{"factor": 2}`},
	} {
		code, body := api.callAs(test.token, test.method, test.path, test.body)
		require.Equal(t, http.StatusOK, code, body)
	}
	code, body := api.callAs(shopToken, "POST", "rollback?version=0&dry_run=true", "")
	require.Equal(t, http.StatusOK, code, body)
	assert.Contains(t, body, `"by": "shop-team"`)
	assert.NotContains(t, body, "bank-team")
	assert.NotContains(t, body, "merger")
}

func TestOnlyCallersOfAllDomainsOpenPages(t *testing.T) {
	callers := admin.Callers{File: newTokenFile(t)}
	for _, test := range []struct {
		token, method string
		want          bool
	}{
		{readerToken, "GET", true}, {readerToken, "PUT", false}, {shopToken, "GET", false}, {"", "GET", false},
	} {
		req := httptest.NewRequest(test.method, "/", nil)
		req.Header.Set("Authorization", "Bearer "+test.token)
		assert.Equal(t, test.want, callers.MayReadPages(req), test)
	}
}

func TestInvalidTokenFileChangesNothing(t *testing.T) {
	const secret = "secret-token-0123456789"
	tokenFile := newTokenFile(t)
	for text, want := range map[string]string{
		"name: alice": "tokens:1:1: file: want a list with items such as {name: alice",
		"- alice":     "tokens:1:3: item: got a text, want a mapping with name, token",
		"- {name: a, token: " + secret + ", acces: read}":                                "tokens:1:45: unknown key acces in item; want name, token, token_sha256, access or domains; did you mean access?",
		"- {name: a, token: " + secret + ", access: admin}":                              "tokens:1:53: access: want read or write",
		"- {token: " + secret + "}":                                                      "tokens:1:3: name is missing",
		"- {name: a}":                                                                    "want token or token_sha256",
		"- {name: a, token: short}":                                                      "token: got 5 bytes, want at least 16",
		"- {name: a, token_sha256: 12}":                                                  "want 64 hexadecimal digits",
		"- {name: a, token: " + secret + ", domains: shop}":                              "domains: want a list",
		"- {name: a, token: " + secret + ", domains: []}":                                "domains is empty; want a list of domains, or no field domains for all",
		"- {name: a, token: *" + secret + "}":                                            "tokens:1: not valid YAML; want quotes around each value",
		"- {name: a, token:" + secret + "}":                                              "tokens:1:13: unknown key in item; want name",
		"- {name: a, token_sha256: " + hashOf("") + "}":                                  "got the hash of an empty text",
		"- {name: a, token: [" + secret + "]}":                                           "tokens:1:20: token: want text",
		"- {name: a, token: " + secret + "}\n- {name: b, token: " + secret + "}":         `tokens:2:3: the token is also the token of "a"`,
		"- {name: a, token: " + secret + "}\n- {name: a, token: another-" + secret + "}": `tokens:2:3: name "a" is already in line 1`,
		"- {name: a, token: " + secret:                                                   "tokens:1: not valid YAML",
		strings.Repeat("- {}\n", 10_001):                                                 "got 10001 items, want at most 10000",
	} {
		err := tokenFile.Set([]byte(text))
		require.ErrorContains(t, err, want, "%.50s", text)
		assert.NotContains(t, err.Error(), secret)
	}
	api := newTestAPI(t, func(o *admin.Options) { o.File = tokenFile })
	code, _ := api.callAs(readerToken, "GET", "limits", "")
	assert.Equal(t, http.StatusOK, code)

	require.NoError(t, tokenFile.Set([]byte("")))
	code, _ = api.callAs(readerToken, "GET", "limits", "")
	assert.Equal(t, http.StatusUnauthorized, code, "an empty file has no callers")
}

func FuzzTokenFile(f *testing.F) {
	f.Add([]byte("- {name: a, token: 0123456789abcdef, access: read, domains: [shop]}"))
	f.Add([]byte("- &a {name: a, token_sha256: ffff}\n- *a"))
	f.Add([]byte("a: b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var file admin.TokenFile
		if err := file.Set(data); err == nil {
			return
		}
		callers := admin.Callers{File: &file}
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.Header.Set("Authorization", "Bearer 0123456789abcdef")
		if _, ok := callers.Authorize(req); ok {
			t.Fatal("an invalid file has authorized a caller")
		}
	})
}
