package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

const explainLimits = `domain: shop
descriptors:
- key: tenant
  rate_limit: {unit: year, requests_per_unit: 3}
  descriptors:
  - key: path
    rate_limit: {unit: year, requests_per_unit: 100, algorithm: sliding_log}
`

// runExplain runs rls explain --json and returns the report.
func runExplain(t *testing.T, args ...string) *explain.Report {
	t.Helper()
	out, errOut, code := rls(t, append([]string{"explain", "--json", "-d", "shop"}, args...)...)
	require.Zero(t, code, errOut)
	report := &explain.Report{}
	require.NoError(t, json.Unmarshal([]byte(out), report), out)
	return report
}

func writeLimits(t *testing.T, text string) (path string) {
	path = filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestExplainReadsLimitsFiles(t *testing.T) {
	t.Parallel()
	path := writeLimits(t, explainLimits)
	report := runExplain(t, "tenant=a,path=/", "tenent=a", "--limits", path)
	assert.True(t, report.Offline)
	assert.Equal(t, "shop > tenant > path", report.Descriptors[0].Rule)
	assert.Equal(t, path+":6", report.Descriptors[0].Place)
	assert.Empty(t, report.Descriptors[1].Rule)
	assert.Equal(t, "similar key: got tenent, want tenant", report.Descriptors[1].Levels[0].Others[0].Reason)

	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"missing file":     {[]string{"tenant=a", "--limits", "/no/such/file"}, "/no/such/file"},
		"bad file":         {[]string{"tenant=a", "--limits", writeLimits(t, "domain: [")}, "limits files have problems:\n"},
		"two origins":      {[]string{"tenant=a", "--limits", path, "--admin", "localhost:1"}, "--limits and --admin are both given; want one of them"},
		"bad descriptor":   {[]string{"tenant", "--limits", path}, "entry 1 has no ="},
		"bad limit":        {[]string{"tenant=a", "--limits", path, "--limit", "many"}, "limit: got many, want NUMBER/UNIT such as 100/minute"},
		"nothing listens":  {[]string{"tenant=a", "--admin", "127.0.0.1:1"}, "set --admin to the debug listener"},
		"no descriptor":    {nil, "got 0 arguments, want rls explain -d DOMAIN KEY=VALUE"},
		"two bad limits":   {[]string{"tenant=a", "--limits", path, "--limit", "1/week", "--limit", "x"}, "limit: got x"},
		"without a domain": {[]string{"tenant=a", "-d", ""}, "domain is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			_, errOut, code := rls(t, append([]string{"explain", "-d", "shop"}, test.args...)...)
			assert.Equal(t, 1, code)
			assert.Contains(t, errOut, test.want)
		})
	}
}

// decisionMetric matches metrics that grow with decisions.
var decisionMetric = regexp.MustCompile(`(?m)^(rls_decisions\S*|ratelimit_\S*|rls_\S*without_redis\S*|rls_\S*fallback\S*) .*$`)

// decisionMetrics returns the metrics that grow with decisions.
func (r *testService) decisionMetrics() []string {
	_, body := get(r.t, "http://"+r.debug+"/metrics")
	return decisionMetric.FindAllString(body, -1)
}

func TestExplainAsksServiceAndChangesNothing(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=20s", "ADMIN_TOKEN=", "LOCAL_CACHE_SIZE_IN_BYTES=65536"}, "--limits", writeLimits(t, explainLimits))
	ask := func(descriptor string) (*explain.Descriptor, explain.Limit) {
		report := runExplain(t, descriptor, "--admin", service.debug, "--timeout", maxWait.String())
		d := &report.Descriptors[0]
		require.NotEmpty(t, d.Limits, d.Summary)
		return d, d.Limits[0]
	}
	_, _, code := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=a", "-n", "3")
	require.Zero(t, code)
	oldMetrics := service.decisionMetrics()
	require.NotEmpty(t, oldMetrics)

	for range 3 {
		d, l := ask("tenant=a")
		assert.Equal(t, "OVER_LIMIT", d.Code)
		assert.Equal(t, "redis", l.NextHit.Source)
		assert.EqualValues(t, 3, l.Counter.Spent)
		assert.Equal(t, redis.Addr, l.Counter.Server)
		exists, err := redis.Client(t).Exists(t.Context(), l.Counter.Key).Result()
		require.NoError(t, err)
		assert.EqualValues(t, 1, exists, l.Counter.Key)
	}
	_, explanation := ask("tenant=new,path=/")
	exists, err := redis.Client(t).Exists(t.Context(), explanation.Counter.Key).Result()
	require.NoError(t, err)
	assert.Zero(t, exists, "a peek makes no counter")
	assert.Equal(t, oldMetrics, service.decisionMetrics())

	polltest.Until(t, maxWait, func() bool { // a replica remembers a first denial for a second
		_, _, code = rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=a")
		require.Equal(t, int(exitOverLimit), code)
		_, explanation = ask("tenant=a")
		return explanation.NextHit.Source == "deny_cache"
	})
	assert.Greater(t, explanation.Counter.Spent, int64(3), "the counter of Redis, although the deny cache answers")
	require.NotNil(t, explanation.NextHit.Since)
	assert.WithinDuration(t, *explanation.Counter.ResetAt, *explanation.NextHit.Until, time.Second, "the clocks of Redis and of the process differ")

	redis.Kill()
	polltest.Until(t, maxWait, func() bool {
		_, explanation = ask("tenant=b,path=/")
		return explanation.NextHit.Source == "fallback"
	})
	assert.True(t, explanation.Counter.Degraded)
	assert.Contains(t, []string{"outage", "breaker_open"}, explanation.NextHit.Reason)
	polltest.Until(t, maxWait, func() bool {
		rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=b", "-n", "5")
		_, explanation = ask("tenant=b,path=/")
		return explanation.NextHit.Reason == "breaker_open"
	})
	assert.NotNil(t, explanation.NextHit.Since)
}

func TestExplainWithoutRedisAsksThisReplica(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeLimits(t, explainLimits))
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=a", "-n", "2")
	out, errOut, code := rls(t, "explain", "-d", "shop", "tenant=a", "--admin", service.debug)
	require.Zero(t, code, errOut)
	assert.Contains(t, out, "next answer: OK\n")
	assert.Contains(t, out, "spent: 2 of 3, 1 left; window from ")
	assert.Contains(t, out, "next hit: OK, then 0 left, answered by this replica\n")
	assert.NotContains(t, out, "in Redis")
}

func TestHitSuggestsExplainWhenNoRuleMatches(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeLimits(t, explainLimits))
	for name, test := range map[string]struct {
		args       []string
		want, hint string
	}{
		"one descriptor":      {[]string{"-d", "shop", "tenent=a"}, "tenent=a: OK, no rule limits the descriptor\n", "rls explain -d shop tenent=a"},
		"unknown domain":      {[]string{"-d", "bank", "tenant=a"}, "tenant=a: OK, no rule limits the descriptor\n", "rls explain -d bank tenant=a"},
		"several descriptors": {[]string{"-d", "shop", "tenant=a", "x=it's"}, "x=it's: OK, no rule limits the descriptor, or other limits of the request replace its limits\n", `rls explain -d shop tenant=a 'x=it'\''s'`},
		"limited":             {[]string{"-d", "shop", "tenant=a"}, "OK 3 per year", ""},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := rls(t, append([]string{"hit", "-a", service.grpc}, test.args...)...)
			require.Zero(t, code, errOut)
			assert.Contains(t, out, test.want)
			if test.hint == "" {
				assert.NotContains(t, out, "explain")
				return
			}
			assert.Contains(t, out, "to see which rule has no limit, or why no rule matches: "+test.hint+"\n")
		})
	}
}

func TestExplainPageIsPrivate(t *testing.T) {
	t.Parallel()
	service := start(t, []string{"ADMIN_TOKEN=ops:" + adminToken}, "--limits", writeLimits(t, explainLimits))
	resp, err := http.Get("http://" + service.debug + explain.Path + "?domain=shop&descriptor=tenant=a")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
	_, errOut, code := rls(t, "explain", "-d", "shop", "tenant=a", "--admin", service.debug)
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "unauthorized: set --token or ADMIN_TOKEN")
	_, errOut, code = rls(t, "explain", "-d", "shop", "tenant=a", "--admin", service.debug, "--token", adminToken)
	assert.Zero(t, code, errOut)
}
