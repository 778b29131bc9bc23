package check

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/service"
)

const limits = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3, name: per-user}
  - key: tokens
    rate_limit: {unit: hour, unit_multiplier: 2, requests_per_unit: 100, algorithm: token_bucket}
  - key: free
    rate_limit: {unlimited: true}
  - key: dark
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2, algorithm: token_bucket}
  - key: job
    rate_limit: {requests_per_unit: 1, algorithm: concurrency, hold: 30s}
`

// newHandler returns a handler with limits and a clock that stands still at the start of a minute.
func newHandler(tb testing.TB, change ...func(*Options)) *Handler {
	tb.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(limits)}}, limitsfile.Options{})
	require.NoError(tb, err)
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	now := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	o := Options{Service: service.New(service.Options{
		Limits: store, Limiter: local.New(local.Options{MaxKeys: 1000}), MaxEntries: 2, Now: func() time.Time { return now },
	})}
	for _, f := range change {
		f(&o)
	}
	return New(o)
}

// post returns the status and the body of an answer.
func (h *Handler) post(body string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeBody(w, httptest.NewRequest(http.MethodPost, Path, nil), []byte(body))
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestChecksAreDecidedInTheirOrder(t *testing.T) {
	h := newHandler(t)
	code, body := h.post(`{"domain": "shop", "rules": true, "checks": [
		{"descriptor": [{"key": "user", "value": "alice"}], "hits": 2},
		{"descriptor": [{"key": "user", "value": "alice"}], "hits": 0},
		{"descriptor": [{"key": "user", "value": "alice"}]},
		{"descriptor": [{"key": "user", "value": "alice"}]},
		{"descriptor": [{"key": "tokens"}], "hits": 101},
		{"descriptor": [{"key": "free"}]},
		{"descriptor": [{"key": "other"}]},
		{"domain": "other", "descriptor": [{"key": "user"}]}
	]}`)
	assert.Equal(t, http.StatusOK, code)
	perUser := `"limit":{"name":"per-user","requests_per_unit":3,"unit":"minute","unit_multiplier":1,"algorithm":"fixed_window"},"rule":"shop > user"`
	assert.JSONEq(t, `{"answers":[
		{"code":"OK","remaining":1,"reset_seconds":60,`+perUser+`},
		{"code":"OK","remaining":1,"reset_seconds":60,`+perUser+`},
		{"code":"OK","remaining":0,"reset_seconds":60,`+perUser+`},
		{"code":"OVER_LIMIT","remaining":0,"reset_seconds":60,`+perUser+`},
		{"code":"OVER_LIMIT","remaining":100,"reset_seconds":7200,"never":true,
		 "limit":{"requests_per_unit":100,"unit":"hour","unit_multiplier":2,"algorithm":"token_bucket"},"rule":"shop > tokens"},
		{"code":"OK","rule":"shop > free"},
		{"code":"OK"},
		{"code":"OK"}
	]}`, body)
}

func TestAnswersHaveRulesOnlyOnDemand(t *testing.T) {
	_, body := newHandler(t).post(`{"domain": "shop", "checks": [{"descriptor": [{"key": "free"}]}]}`)
	assert.Equal(t, `{"answers":[{"code":"OK"}]}`, body)
}

func TestBadCheckFailsNoOtherCheck(t *testing.T) {
	refuseSecretDomain := func(o *Options) {
		o.CheckDomain = func(_ context.Context, domain string) error {
			if domain == "secret" {
				return status.Error(codes.PermissionDenied, "the caller may not use this domain")
			}
			return nil
		}
	}
	const descriptor = `"descriptor": [{"key": "user", "value": "alice"}]`
	for name, c := range map[string]struct{ check, code, message string }{
		"no domain":        {`{` + descriptor + `}`, "INVALID_ARGUMENT", "domain must not be empty"},
		"no descriptor":    {`{"domain": "shop"}`, "INVALID_ARGUMENT", "descriptor: got no entries, want at least one"},
		"null":             {`null`, "INVALID_ARGUMENT", "descriptor: got no entries, want at least one"},
		"many entries":     {`{"domain": "shop", "descriptor": [{"key":"a"},{"key":"b"},{"key":"c"}]}`, "INVALID_ARGUMENT", "got 3, want at most 2 (MAX_ENTRIES)"},
		"many hits":        {`{"domain": "shop", "hits": 17179869185, ` + descriptor + `}`, "INVALID_ARGUMENT", "hits: got 17179869185, want -17179869184 to 17179869184"},
		"negative hits":    {`{"domain": "shop", "hits": -1, ` + descriptor + `}`, "PERMISSION_DENIED", "JSON_REFUNDS=true turns them on"},
		"forbidden domain": {`{"domain": "secret", ` + descriptor + `}`, "PERMISSION_DENIED", "the caller may not use this domain"},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := newHandler(t, refuseSecretDomain).post(`{"checks": [` + c.check + `, {"domain": "shop", ` + descriptor + `}]}`)
			assert.Equal(t, http.StatusOK, code)
			var got Response
			require.NoError(t, json.Unmarshal([]byte(body), &got))
			require.Len(t, got.Answers, 2)
			require.Equal(t, Failed, got.Answers[0].Code)
			assert.Equal(t, c.code, got.Answers[0].Error.Code)
			assert.Contains(t, got.Answers[0].Error.Message, c.message)
			assert.Nil(t, got.Answers[0].Remaining)
			assert.Equal(t, OK, got.Answers[1].Code)
			assert.EqualValues(t, 2, *got.Answers[1].Remaining, "the other check is charged once")
		})
	}
}

func TestChecksHaveHoldsOfTheirOwn(t *testing.T) {
	h := newHandler(t, func(o *Options) { o.Refunds = true })
	job := `"descriptor": [{"key": "job", "value": "report"}]`
	_, body := h.post(`{"domain": "shop", "checks": [{"hold": "a", ` + job + `}, {"hold": "a", ` + job + `}, {"hold": "b", ` + job + `},
		{"hold": "a", "hits": -1, ` + job + `}, {"hold": "b", ` + job + `}, {"hold": "\u0000", ` + job + `}]}`)
	var got Response
	require.NoError(t, json.Unmarshal([]byte(body), &got))
	var answerCodes []Code
	for _, a := range got.Answers {
		answerCodes = append(answerCodes, a.Code)
	}
	assert.Equal(t, []Code{OK, OK, OverLimit, OK, OK, Failed}, answerCodes, body)
}

func TestNegativeHitsGiveHitsBack(t *testing.T) {
	h := newHandler(t, func(o *Options) { o.Refunds = true })
	alice := `"descriptor": [{"key": "user", "value": "alice"}]`
	_, body := h.post(`{"domain": "shop", "checks": [{"hits": 3, ` + alice + `}, {"hits": -2, ` + alice + `}]}`)
	var got Response
	require.NoError(t, json.Unmarshal([]byte(body), &got))
	assert.EqualValues(t, 2, *got.Answers[1].Remaining)
}

func TestBadRequestsAreRefusedAndChargeNothing(t *testing.T) {
	const good = `{"descriptor": [{"key": "user", "value": "alice"}]}`
	h := newHandler(t, func(o *Options) { o.MaxChecks = 3 })
	for name, c := range map[string]struct{ body, message string }{
		"empty":              {``, "body: got an end in the middle"},
		"cut short":          {`{"domain": "shop", "checks": [` + good, "body: got an end in the middle"},
		"no JSON":            {`domain=shop`, "body: want a JSON object: invalid character"},
		"a list":             {`[]`, "body: got array, want an object"},
		"two objects":        {`{"checks": [` + good + `]} {}`, "body: got more than one JSON value"},
		"no checks":          {`{"domain": "shop"}`, "checks: got none, want at least one"},
		"many checks":        {`{"checks": [` + strings.Repeat(good+",", 3) + good + `]}`, "checks: got 4, want at most 3"},
		"a check of text":    {`{"domain": "shop", "checks": [` + good + `, "x"]}`, "checks[1]: got string, want an object"},
		"unknown field":      {`{"domian": "shop", "checks": [` + good + `]}`, "domian: unknown field"},
		"unknown in a check": {`{"domain": "shop", "checks": [` + good + `, {"key": "a"}]}`, "checks[1].key: unknown field"},
		"hits as text":       {`{"domain": "shop", "checks": [` + good + `, {"hits": "3"}]}`, "checks[1].hits: got string, want a whole number"},
		"half a hit":         {`{"domain": "shop", "checks": [{"hits": 0.5}]}`, "checks[0].hits: got number 0.5, want a whole number"},
		"descriptor as text": {`{"domain": "shop", "checks": [{"descriptor": "a=b"}]}`, "checks[0].descriptor: got string, want a list"},
		"domain as number":   {`{"domain": 5, "checks": [` + good + `]}`, "domain: got number, want text"},
		"rules as text":      {`{"rules": "yes", "checks": [` + good + `]}`, "rules: got string, want true or false"},
		"invalid UTF-8":      {"{\"domain\": \"sh\xffop\", \"checks\": [" + good + "]}", "body: got invalid UTF-8"},
		"a long domain":      {`{"domain": "` + strings.Repeat("x", 1025) + `", "checks": [` + good + `]}`, "domain: got 1025 bytes, want at most 1024"},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := h.post(c.body)
			assert.Equal(t, http.StatusBadRequest, code)
			var got Refusal
			require.NoError(t, json.Unmarshal([]byte(body), &got), body)
			assert.Equal(t, "INVALID_ARGUMENT", got.Error.Code)
			assert.True(t, strings.HasPrefix(got.Error.Message, c.message), got.Error.Message)
		})
	}
	_, body := h.post(`{"domain": "shop", "checks": [` + good + `]}`)
	assert.Contains(t, body, `"remaining":2`, "nothing was charged before")
}

func TestOnlyPostsAreAnswered(t *testing.T) {
	w := httptest.NewRecorder()
	newHandler(t).ServeBody(w, httptest.NewRequest(http.MethodGet, Path, nil), nil)
	assert.Equal(t, http.StatusMethodNotAllowed, w.Code)
	assert.Equal(t, "POST", w.Header().Get("Allow"))
	assert.JSONEq(t, `{"error": {"code": "UNIMPLEMENTED", "message": "method: want POST"}}`, w.Body.String())
}

// Each check has a context of its own, which ends after its answer.
func TestEachCheckIsACall(t *testing.T) {
	startCount, endCount := 0, 0
	h := newHandler(t, func(o *Options) {
		o.StartCall = func(ctx context.Context) (context.Context, func()) {
			startCount++
			return ctx, func() { endCount++ }
		}
	})
	h.post(fmt.Sprintf(`{"domain": "shop", "checks": [%s]}`, strings.TrimSuffix(strings.Repeat(`{"descriptor": [{"key": "user"}]},`, MaxChecks), ",")))
	assert.Equal(t, MaxChecks, startCount)
	assert.Equal(t, MaxChecks, endCount)
}

func TestLongMessagesAreCut(t *testing.T) {
	h := newHandler(t, func(o *Options) {
		o.CheckDomain = func(_ context.Context, domain string) error {
			return status.Errorf(codes.PermissionDenied, "domain %q", domain)
		}
	})
	_, body := h.post(`{"checks": [{"domain": "` + strings.Repeat("ä", 60_000) + `"}]}`)
	assert.Less(t, len(body), 2*maxMessageBytes)
	assert.Contains(t, body, "…")
}

// FuzzBody posts bodies. Each answer is JSON, with an answer for each check or a reason.
func FuzzBody(f *testing.F) {
	f.Add(`{"domain": "shop", "rules": true, "checks": [{"descriptor": [{"key": "user", "value": "alice"}], "hits": 2}]}`)
	f.Add(`{"checks": [{"domain": "shop", "descriptor": [{"key": "tokens"}], "hits": -9223372036854775808}, null]}`)
	f.Add(`{"domain": "\ud800", "checks": [{"descriptor": [null]}, {"hits": 1e3}]}`)
	f.Add(strings.Repeat(`{"checks":[`, 2000))
	h := newHandler(f, func(o *Options) { o.Refunds = true })
	f.Fuzz(func(t *testing.T, body string) {
		code, text := h.post(body)
		var got struct {
			Response
			Refusal
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		switch {
		case code == http.StatusOK && len(got.Answers) > 0:
		case code == http.StatusBadRequest && got.Refusal.Error.Message != "":
		default:
			t.Fatalf("%d %s", code, text)
		}
	})
}

func TestMostHitsAndTheLongestDomainAreAccepted(t *testing.T) {
	h := newHandler(t, func(o *Options) { o.Refunds = true })
	for n, want := range map[int64]bool{maxHits: true, -maxHits: true, 0: true, maxHits + 1: false, -maxHits - 1: false} {
		req, err := h.newRequest(t.Context(), &Check{Domain: "shop", Descriptor: []Entry{{Key: "user"}}, Hits: &n})
		assert.Equal(t, want, err == nil, n)
		if err == nil {
			assert.Equal(t, n < 0, req.Descriptors[0].IsNegativeHits, n)
		}
	}
	_, err := parse([]byte(`{"domain": "`+strings.Repeat("x", maxDomainBytes)+`", "checks": [{}]}`), 1)
	assert.NoError(t, err)
}

func TestHitsThatPassInShadowModeHaveNoFieldNever(t *testing.T) {
	_, body := newHandler(t).post(`{"domain": "shop", "checks": [{"descriptor": [{"key": "dark"}], "hits": 3}]}`)
	assert.Contains(t, body, `"code":"OK"`)
	assert.NotContains(t, body, "never")
}
