//go:build e2e

package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

// logFormat is the access log of docs/observability.md.
const logFormat = "%RESPONSE_CODE% " +
	"rule=%DYNAMIC_METADATA(envoy.filters.http.ratelimit:decision:rule)% " +
	"limit=%DYNAMIC_METADATA(envoy.filters.http.ratelimit:decision:limit)% " +
	"code=%DYNAMIC_METADATA(envoy.filters.http.ratelimit:decision:code)% " +
	"remaining=%DYNAMIC_METADATA(envoy.filters.http.ratelimit:decision:remaining)% " +
	"source=%DYNAMIC_METADATA(envoy.filters.http.ratelimit:decision:source)% " +
	"domain=%DYNAMIC_METADATA(envoy.filters.http.ratelimit:domain)%\n"

// TestAccessLogShowsRuleAndLimit sends three searches with a key that has two a minute.
func TestAccessLogShowsRuleAndLimit(t *testing.T) {
	const limits = `
domain: shop
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 2, algorithm: sliding_log}
`
	for name, test := range map[string]struct {
		env          []string
		rule, domain string
	}{
		"rule metadata":                {[]string{"RESPONSE_RULE_METADATA=true"}, "shop > api_key", "-"},
		"rule metadata beside request": {[]string{"RESPONSE_RULE_METADATA=true", "RESPONSE_DYNAMIC_METADATA=true"}, "shop > api_key", "shop"},
		"off":                          {nil, "-", "-"},
	} {
		t.Run(name, func(t *testing.T) {
			config := exampleConfig(t, "envoy.yaml", startRLS(t, limitsFile(t, limits), test.env...))
			path := filepath.Join(t.TempDir(), "access.log")
			config.editHTTP(func(hcm *hcmv3.HttpConnectionManager) {
				file, err := anypb.New(&filelogv3.FileAccessLog{Path: path, AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{
					LogFormat: &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
						TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: logFormat}},
					}},
				}})
				require.NoError(t, err)
				hcm.AccessLog = append(hcm.AccessLog, &accesslogv3.AccessLog{Name: "file", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: file}})
			})
			envoy := config.start()
			for _, status := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
				assert.Equal(t, status, envoy.send(t, call{"/search?key=k1"}).status)
			}
			var lines []string
			polltest.Until(t, maxWait, func() bool {
				text, _ := os.ReadFile(path)
				lines = strings.Split(strings.TrimSpace(string(text)), "\n")
				return len(lines) == 3
			})
			t.Log(strings.Join(lines, "\n"))
			if test.rule == "-" {
				assert.Equal(t, "429 rule=- limit=- code=- remaining=- source=- domain=-", lines[2])
				return
			}
			assert.Equal(t, []string{
				"200 rule=shop > api_key limit=2 per year, sliding_log code=OK remaining=1 source=local domain=" + test.domain,
				"200 rule=shop > api_key limit=2 per year, sliding_log code=OK remaining=0 source=local domain=" + test.domain,
				"429 rule=shop > api_key limit=2 per year, sliding_log code=OVER_LIMIT remaining=0 source=local domain=" + test.domain,
			}, lines)
		})
	}
}
