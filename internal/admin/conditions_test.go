package admin_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// callWithHeader sends a call with one more header. It decodes the answer and returns the response.
func (r *testAPI) callWithHeader(method, target, body, header, value string, answer any) *httptest.ResponseRecorder {
	r.Helper()
	req := httptest.NewRequest(method, admin.Prefix+"overrides?"+url.Values{"target": {target}}.Encode(), strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set(header, value)
	resp := r.send(req)
	require.NoError(r, json.Unmarshal(resp.Body.Bytes(), answer))
	return resp
}

func TestSecondOfTwoCollidingCallersGets412(t *testing.T) {
	api := newTestAPI(t)
	var firstOverride, secondOverride admin.Override
	require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"requests_per_unit": 10}`, &firstOverride))
	resp := api.callWithHeader("GET", acme, "", "Accept", "*/*", &firstOverride)
	tag := resp.Header().Get("ETag")
	assert.Equal(t, `"`+firstOverride.ETag+`"`, tag)

	resp = api.callWithHeader("PUT", acme, `{"requests_per_unit": 20, "reason": "spike"}`, "If-Match", tag, &secondOverride)
	require.Equal(t, http.StatusOK, resp.Code)
	assert.Equal(t, `"`+secondOverride.ETag+`"`, resp.Header().Get("ETag"))
	assert.NotEqual(t, firstOverride.ETag, secondOverride.ETag)

	for _, method := range []string{"PUT", "DELETE"} {
		var conflict admin.Conflict
		assert.Equal(t, http.StatusPreconditionFailed, api.callWithHeader(method, acme, `{"requests_per_unit": 30}`, "If-Match", tag, &conflict).Code)
		require.Len(t, conflict.Problems, 1)
		assert.Contains(t, conflict.Problems[0], "override shop|tenant=acme: ops set the value at "+secondOverride.SetAt+`, reason "spike"; limits now: 20 per minute. Nothing was changed`)
		assert.Equal(t, secondOverride.ETag, conflict.Current.ETag)
	}
	assert.Contains(t, api.audits()[2], "outcome=refused")
	assert.Equal(t, "20 per minute", api.overrides.States()[0].Limits)

	require.Equal(t, http.StatusOK, api.callURL("DELETE", "/admin/overrides?target=shop%7Ctenant=acme&reason=over", "", nil))
	var conflict admin.Conflict
	assert.Equal(t, http.StatusPreconditionFailed, api.callWithHeader("PUT", acme, `{"requests_per_unit": 30}`, "If-Match", tag, &conflict).Code)
	assert.Contains(t, conflict.Problems[0], "no value is set, or the end of the value has passed")
	assert.Nil(t, conflict.Current)
}

func TestConditionsAreHTTPConditions(t *testing.T) {
	const value = `{"requests_per_unit": 10}`
	for name, test := range map[string]struct {
		exists        bool
		header, value string // TAG in value stands for the ETag of the stored value
		code          int
	}{
		"create if absent":                      {false, "If-None-Match", "*", http.StatusOK},
		"create if absent, but it exists":       {true, "If-None-Match", "*", http.StatusPreconditionFailed},
		"change if present":                     {true, "If-Match", "*", http.StatusOK},
		"change if present, but it is absent":   {false, "If-Match", "*", http.StatusPreconditionFailed},
		"the tag":                               {true, "If-Match", `"TAG"`, http.StatusOK},
		"two tags are a bad request":            {true, "If-Match", `"0123456789abcdef", "TAG"`, http.StatusBadRequest},
		"a tag, but there is no value":          {false, "If-Match", `"0123456789abcdef"`, http.StatusPreconditionFailed},
		"a part of a tag":                       {true, "If-Match", `"0"`, http.StatusPreconditionFailed},
		"a weak tag is a bad request":           {true, "If-Match", `W/"TAG"`, http.StatusBadRequest},
		"a forbidden tag is a bad request":      {true, "If-None-Match", `"TAG"`, http.StatusBadRequest},
		"a tag without quotes is a bad request": {true, "If-Match", `TAG`, http.StatusBadRequest},
		"an empty tag is a bad request":         {true, "If-Match", ``, http.StatusBadRequest},
		"a tag without a text is a bad request": {true, "If-Match", `""`, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			api := newTestAPI(t)
			if test.exists {
				api.overrides.SetField(acme, value)
			}
			var answer admin.Override
			code := api.callWithHeader("PUT", acme, `{"factor": 2}`, test.header, strings.ReplaceAll(test.value, "TAG", changes.Tag(value)), &answer).Code
			assert.Equal(t, test.code, code, answer.Problems)
			if code == http.StatusBadRequest {
				assert.Contains(t, answer.Problems[0], test.header+": got ")
			}
		})
	}
}

func FuzzConditions(f *testing.F) {
	for _, text := range []string{`*`, `"a", W/"b"`, `W/`, `"`, `"a b"`, ``} {
		f.Add(text, text)
	}
	f.Fuzz(func(t *testing.T, match, noneMatch string) {
		api := newTestAPI(t)
		api.overrides.SetField(acme, `{"factor": 2}`)
		req := httptest.NewRequest(http.MethodPut, admin.Prefix+"overrides?target=shop%7Ctenant=acme", strings.NewReader(`{"factor": 3}`))
		req.Header = http.Header{"Authorization": {"Bearer " + token}, "If-Match": {match}, "If-None-Match": {noneMatch}}
		code := api.send(req).Code
		isStored := api.overrides.States()[0].Value != `{"factor": 2}`
		if isStored != (code == http.StatusOK) {
			t.Fatalf("%d, stored %t", code, isStored)
		}
	})
}
