package main

import (
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

func TestCertificateBindsCallerToDomains(t *testing.T) {
	t.Parallel()
	authority := certtest.New(t)
	serverPair := authority.IssueNamed("rls")
	callers := writeFile(t, "callers.yaml", "callers:\n- {uri: 'spiffe://test/shop', domains: [shop]}\n- {without_certificate: true, domains: [public]}\n")
	limits := t.TempDir()
	for _, domain := range []string{"shop", "bank", "public"} {
		text := "domain: " + domain + "\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000}}]\n"
		require.NoError(t, os.WriteFile(limits+"/"+domain+".yaml", []byte(text), 0o600))
	}
	service := start(t, []string{
		"LIMITS_PATH=" + limits, "CALLER_DOMAINS_FILE=" + callers,
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + serverPair.CertFile, "GRPC_SERVER_TLS_KEY=" + serverPair.KeyFile, "GRPC_CLIENT_TLS_CACERT=" + authority.File,
	})
	pair := authority.IssueURI("spiffe://test/shop")
	clientCert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	require.NoError(t, err)
	conn, err := grpc.NewClient(service.grpc, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: authority.Pool(), Certificates: []tls.Certificate{clientCert}})))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	code := func(domain string) codes.Code {
		_, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{
			{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}}},
		}})
		return status.Code(err)
	}
	post := func(domain string) int {
		resp, err := http.Post("http://"+service.http+"/json", "application/json", strings.NewReader(`{"domain":"`+domain+`","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}

	metrics := func() string {
		_, body := get(t, "http://"+service.debug+"/metrics")
		return body
	}

	assert.Equal(t, codes.OK, code("shop"))
	assert.Equal(t, codes.PermissionDenied, code("bank"))
	assert.Equal(t, http.StatusOK, post("public"))
	assert.Equal(t, http.StatusForbidden, post("shop"))
	assert.Contains(t, metrics(), "rls_calls_forbidden_total 2\n")

	require.NoError(t, os.WriteFile(callers, []byte("callers: ["), 0o600))
	polltest.Until(t, maxWait, func() bool { return strings.Contains(metrics(), "rls_callers_file_valid 0\n") })
	assert.Contains(t, service.logText(), "callers rejected")
	assert.Equal(t, codes.OK, code("shop"), "the last valid file is in force")

	require.NoError(t, os.WriteFile(callers, []byte("callers:\n- {uri: 'spiffe://test/*', domains: [bank]}\n"), 0o600))
	polltest.Until(t, maxWait, func() bool { return code("bank") == codes.OK })
	assert.Equal(t, codes.PermissionDenied, code("shop"))
	assert.Equal(t, http.StatusForbidden, post("public"))
}

func TestInvalidCallersFileStopsStart(t *testing.T) {
	t.Parallel()
	cmd := command(t, []string{"LIMITS_PATH=" + writeFile(t, "limits.yaml", "domain: d"), "CALLER_DOMAINS_FILE=" + writeFile(t, "callers.yaml", "callers: {}")}, "serve")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "needs GRPC_SERVER_USE_TLS=true and GRPC_CLIENT_TLS_CACERT")
	assert.Contains(t, string(out), "callers: got a mapping, want a list")
}

// The caller with the name hog sends too many calls, over gRPC and over HTTP. Its victim sends one call each time.
func TestCallerThatSendsTooManyCallsIsRefusedAndShown(t *testing.T) {
	t.Parallel()
	decisions := t.TempDir() + "/decisions.log"
	service := start(t, []string{
		"LIMITS_PATH=" + writeFile(t, "limits.yaml", "domain: shop\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000}}]\n"),
		"CALLER_HEADER=X-Envoy-Node", "MAX_CALLER_CALLS_PER_SECOND=1", "DECISION_LOG=denied", "DECISION_LOG_PATH=" + decisions,
	})
	conn, err := grpc.NewClient(service.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	call := func(name string) codes.Code {
		_, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(metadata.AppendToOutgoingContext(t.Context(), "x-envoy-node", name),
			&rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{
				{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: name}}},
			}})
		return status.Code(err)
	}
	polltest.Until(t, maxWait, func() bool { return call("hog") == codes.ResourceExhausted })
	assert.Equal(t, codes.OK, call("victim"))

	post := func(path, body string) (code int, text string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+service.http+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("X-Envoy-Node", "hog")
		req.Header.Set("Rls-Hold", "a") // /json replaces no other header
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(answer)
	}
	const descriptor = `[{"entries":[{"key":"k","value":"v"}]}]`
	polltest.Until(t, maxWait, func() bool {
		code, text := post("/json", `{"domain":"shop","descriptors":`+descriptor+`}`)
		return code == http.StatusTooManyRequests && strings.Contains(text, "calls of this caller: got more than 1 in a second")
	})
	polltest.Until(t, maxWait, func() bool {
		code, text := post("/v1/check", `{"checks":[{"domain":"shop","hold":"a","descriptor":[{"key":"k","value":"v"}]}]}`)
		return code == http.StatusOK && strings.Contains(text, `"code":"RESOURCE_EXHAUSTED"`)
	})

	_, metrics := get(t, "http://"+service.debug+"/metrics")
	assert.Regexp(t, `ratelimit_service_should_rate_limit_error\{err_type="caller_limited"\} [1-9]`, metrics)
	assert.Equal(t, 1, strings.Count(service.logText(), `msg="calls refused; a caller sent too many calls"`))
	polltest.Until(t, maxWait, func() bool {
		text, err := os.ReadFile(decisions)
		return err == nil && strings.Contains(string(text), `"caller":"127.0.0.1 hog"`)
	})
	polltest.Until(t, maxWait, func() bool {
		screen, _, _ := rls(t, "top", "--once", "--admin", service.debug)
		_, page := get(t, "http://"+service.debug+"/")
		return strings.Contains(screen, "127.0.0.1 hog") && strings.Contains(screen, "127.0.0.1 victim") && strings.Contains(page, "127.0.0.1 hog")
	})
}

func TestInvalidCallerHeaderStopsStart(t *testing.T) {
	t.Parallel()
	cmd := command(t, []string{"LIMITS_PATH=" + writeFile(t, "limits.yaml", "domain: d"), "CALLER_HEADER=a b"}, "serve")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), `CALLER_HEADER: got \"a b\", want the name of a header, such as x-envoy-node`)
}
