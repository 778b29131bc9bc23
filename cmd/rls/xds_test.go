package main

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/xdstest"
)

// gatewayPod returns the environment that Envoy Gateway gives its rate-limit pods, with an
// xDS server at addr.
func gatewayPod(t *testing.T, addr string, ca *xdstest.Authority) []string {
	pod := ca.Issue("envoy-ratelimit")
	return []string{
		"RUNTIME_ROOT=/data",
		"RUNTIME_SUBDIRECTORY=ratelimit",
		"RUNTIME_IGNOREDOTFILES=true",
		"RUNTIME_WATCH_ROOT=false",
		"LOG_LEVEL=info",
		"USE_STATSD=false",
		"USE_PROMETHEUS=true",
		"PROMETHEUS_ADDR=127.0.0.1:0", // there it is :19001
		"PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml",
		"CONFIG_TYPE=GRPC_XDS_SOTW",
		"CONFIG_GRPC_XDS_SERVER_URL=" + addr,
		"CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + pod.CertFile,
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + pod.KeyFile,
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + ca.File,
		"CONFIG_GRPC_XDS_SERVER_TLS_SAN=envoy-gateway",
		"GRPC_SERVER_USE_TLS=true",
		"GRPC_SERVER_TLS_CERT=" + pod.CertFile,
		"GRPC_SERVER_TLS_KEY=" + pod.KeyFile,
		"GRPC_SERVER_TLS_CA_CERT=" + ca.File,
		"FORCE_START_WITHOUT_INITIAL_CONFIG=true",
		// Only so that the test is quick:
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=10ms",
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL=100ms",
	}
}

// awaitLimits waits until /rlconfig shows want.
func (r *testService) awaitLimits(want string) {
	r.t.Helper()
	var body string
	polltest.Until(r.t, maxWait, func() bool {
		_, body = get(r.t, "http://"+r.debug+"/rlconfig")
		return body == want
	}, "%s\n%s", want, r.logText())
}

func perDay(domain, n string) string {
	return domain + ".tenant: unit=DAY requests_per_unit=" + n + ", shadow_mode: false, quota_mode: false\n"
}

func TestEnvoyGatewayPodFollowsTheLimitsOfTheGateway(t *testing.T) {
	t.Parallel()
	ca := xdstest.NewAuthority(t)
	mutualTLS := ca.MutualTLS(ca.Issue("envoy-gateway"))
	gateway := xdstest.Serve(t, "127.0.0.1:0", mutualTLS)

	service := startAs(t, "/bin/ratelimit", gatewayPod(t, gateway.Addr, ca))
	hit := func(domain string) (string, int) {
		out, _, code := rls(t, "hit", "-a", service.grpc, "--tls", "--ca", ca.File, "--server-name", "envoy-ratelimit", "-d", domain, "tenant=acme")
		return out, code
	}
	code, _ := get(t, "http://"+service.http+"/healthcheck")
	assert.Equal(t, http.StatusOK, code, "the service may start without limits")
	awaitPage := func(page, want string) {
		t.Helper()
		var body string
		polltest.Until(t, maxWait, func() bool {
			_, body = get(t, page)
			return strings.Contains(body, want)
		}, "%s\n%s", want, body)
	}
	metrics := "http://" + regexp.MustCompile(`msg=listening .* metrics=(\S+)`).FindStringSubmatch(service.logText())[1] + "/metrics"
	problems := "http://" + service.debug + "/rlconfig/problems"
	awaitPage(metrics, "ratelimit_service_config_load_success 0")
	awaitPage(problems, `is connected, but has sent nothing for node "envoy-ratelimit"`)
	awaitPage(metrics, `rls_source_up{source="xds"} 0`)
	out, _ := hit("shop")
	assert.Contains(t, out, "FailedPrecondition")

	gateway.Set("1", xdstest.Config("shop", 2))
	service.awaitLimits(perDay("shop", "2"))
	for _, want := range []int{0, 0, 2} {
		out, code := hit("shop")
		assert.Equal(t, want, code, out)
	}

	gateway.Set("2", xdstest.Config("shop", 4))
	service.awaitLimits(perDay("shop", "4"))
	_, code = hit("shop")
	assert.Zero(t, code, "three of four hits are charged")
	_, body := get(t, problems)
	assert.Empty(t, body)
	awaitPage(metrics, `rls_source_up{source="xds"} 1`)

	gateway.Set("3", xdstest.Config("shop", 9), xdstest.Broken("broken"))
	service.awaitLog("broken > tenant: unit is missing")
	service.awaitLimits(perDay("shop", "9"))
	awaitPage(problems, "broken: broken > tenant: unit is missing")

	gateway.Stop()
	service.awaitLog("xDS stream lost")
	awaitPage(problems, "xDS server "+gateway.Addr+": ")
	awaitPage(metrics, `rls_source_up{source="xds"} 0`)
	service.awaitLimits(perDay("shop", "9"))
	gateway = xdstest.Serve(t, gateway.Addr, mutualTLS)
	gateway.Set("1", xdstest.Config("store", 1))
	service.awaitLimits(perDay("store", "1"))
	gateway.Set("2")
	service.awaitLimits("")
	out, code = hit("store")
	assert.Zero(t, code, "an empty response is valid: %s", out)
	assert.NoError(t, service.stop())
}

func TestXDSIsUnhealthyUntilTheFirstLimits(t *testing.T) {
	t.Parallel()
	gateway := xdstest.Serve(t, "127.0.0.1:0")
	service := start(t, []string{"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + gateway.Addr, "CONFIG_GRPC_XDS_NODE_ID=" + xdstest.Node})
	code, _ := get(t, "http://"+service.http+"/healthcheck")
	assert.Equal(t, http.StatusInternalServerError, code)
	gateway.Set("1", xdstest.Broken("a"))
	service.awaitLog("a > tenant: unit is missing")
	code, _ = get(t, "http://"+service.http+"/healthcheck")
	assert.Equal(t, http.StatusInternalServerError, code)
	gateway.Set("2")
	polltest.Until(t, maxWait, func() bool {
		code, _ := get(t, "http://"+service.http+"/healthcheck")
		return code == http.StatusOK
	})
}

func TestUnreadableXDSFileStopsTheStart(t *testing.T) {
	t.Parallel()
	cmd := command(t, []string{"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/nowhere.pem"}, "serve")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), `CONFIG_GRPC_XDS_SERVER_TLS_CACERT=\"/nowhere.pem\" can't be read: no such file or directory`)
}
