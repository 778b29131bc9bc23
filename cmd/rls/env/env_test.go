package env

import (
	_ "embed"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/goldentest"
)

// read loads the settings from an environment in which only the variables vars are set.
func read(t *testing.T, vars map[string]string) (*Settings, []Warning, error) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		name := f.Tag.Get("envconfig")
		t.Setenv(name, vars[name]) // restores the variable after the test
	}
	return Load()
}

func TestValuesAreParsedLikeTheIncumbents(t *testing.T) {
	settings, warnings, err := read(t, map[string]string{
		"GRPC_PORT": "0x1F91", "USE_TLS": "", "REDIS_TLS": "T", "REDIS_TYPE": "SENTINEL", "LOG_LEVEL": "WARN",
		"REDIS_URL": "mymaster,127.0.0.1:26379", "REDIS_SOCKET_TYPE": "TCP",
		"DRAIN_DELAY": "1m30s", "REDIS_FALLBACK_RATIO": "0.25",
		"CONFIG_GRPC_XDS_NODE_METADATA":             "a=1,malformed,b=x=y",
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": "x-one:1, x-two: 2",
	})
	require.NoError(t, err)
	assert.Equal(t, 0x1F91, settings.GRPCPort)
	assert.True(t, settings.RedisTLS)
	assert.Equal(t, "sentinel", settings.RedisType)
	assert.Equal(t, "warn", settings.LogLevel)
	assert.Equal(t, 90*time.Second, settings.DrainDelay)
	assert.Equal(t, 0.25, settings.RedisFallbackRatio)
	assert.Equal(t, headers{"x-one": "1", "x-two": "2"}, settings.XDSHeaders)
	assert.Equal(t, nodeMetadata{"a": "1", "b": "x=y"}, settings.XDSNodeMetadata)
	assert.Empty(t, warnings)
}

func TestAdminTokensAreParsedWithNames(t *testing.T) {
	for text, want := range map[string]adminTokens{
		"":                        nil,
		"s3cret":                  {"admin": "s3cret"},
		"alice:s3cret":            {"alice": "s3cret"},
		"alice:a, bob:b:b,secret": {"alice": "a", "bob": "b:b", "admin": "secret"},
	} {
		settings, _, err := read(t, map[string]string{"ADMIN_TOKEN": text})
		require.NoError(t, err)
		assert.Equal(t, want, settings.AdminTokens, text)
	}
	for _, text := range []string{",", "alice:", ":s3cret", "a,b", "alice:a,alice:b"} {
		_, _, err := read(t, map[string]string{"ADMIN_TOKEN": text})
		assert.ErrorContains(t, err, "ADMIN_TOKEN: want a token", text)
	}
}

func TestEmptySettingHasItsDefault(t *testing.T) {
	unsetSettings, _, err := read(t, nil)
	require.NoError(t, err)
	emptySettings, _, err := read(t, map[string]string{"GRPC_PORT": "", "DRAIN_TIMEOUT": "", "REDIS_TLS": "", "REDIS_AUTH": "", "RUNTIME_APPDIRECTORY": ""})
	require.NoError(t, err)
	assert.Equal(t, unsetSettings, emptySettings)
	assert.Equal(t, 8081, unsetSettings.GRPCPort)
}

func TestLoadReportsAllBadValues(t *testing.T) {
	_, _, err := read(t, map[string]string{
		"PORT": "http", "GRPC_PORT": "65536", "DEBUG_PORT": "-1", "GRPC_MAX_CONNECTION_AGE": "10", "DRAIN_DELAY": "-1s",
		"REDIS_TLS": "yes", "REDIS_FALLBACK_RATIO": "0", "LOG_LEVEL": "loud", "CONFIG_TYPE": "XDS", "REDIS_TIMEOUT": "1us",
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": "authorization=s3cret", "ADMIN_TOKEN": "alice:s3cret,alice:another",
		"REDIS_MAX_QUEUE_SIZE": "-3", "CACHE_KEY_PREFIX": strings.Repeat("x", 65), "REDIS_SOCKET_TYPE": "tcp4",
		"LOCAL_CACHE_SIZE_IN_BYTES": "99999999999999", "REDIS_POOL_SIZE": "65536", "REDIS_URL": "nowhere",
	})
	lines := strings.Split(err.Error(), "\n")
	assert.ElementsMatch(t, []string{
		`PORT: got "http", want a whole number from 0 to 65535`,
		`GRPC_PORT: got "65536", want a whole number from 0 to 65535`,
		`DEBUG_PORT: got "-1", want a whole number from 0 to 65535`,
		`GRPC_MAX_CONNECTION_AGE: got "10", want a duration with a unit such as 50ms or 10s`,
		`DRAIN_DELAY: got "-1s", want a duration with a unit such as 50ms or 10s, at least 0s`,
		`REDIS_TLS: got "yes", want true or false`,
		`REDIS_FALLBACK_RATIO: got "0", want a number above 0, at most 1`,
		`LOG_LEVEL: got "loud", want one of debug, info, warn, error, trace, warning, fatal, panic`,
		`CONFIG_TYPE: got "XDS", want one of FILE, GRPC_XDS_SOTW`,
		`REDIS_TIMEOUT: got "1us", want a duration with a unit such as 50ms or 10s, at least 1ms, or auto`,
		`CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: want a list such as name:value,name:value`,
		`ADMIN_TOKEN: want a token, or a list such as name:token,name:token with different names`,
		`REDIS_MAX_QUEUE_SIZE: got "-3", want a whole number from 1 to 1048576`,
		`CACHE_KEY_PREFIX: got "` + strings.Repeat("x", 65) + `", want at most 64 bytes`,
		`REDIS_SOCKET_TYPE: got "tcp4", want one of tcp, unix`,
		`LOCAL_CACHE_SIZE_IN_BYTES: got "99999999999999", want a whole number at most 17179869184`,
		`REDIS_POOL_SIZE: got "65536", want a whole number from 0 to 65535`,
		`REDIS_URL: URL: got "nowhere", want host:port`,
	}, lines)
}

func TestKubernetesServiceLinksAreIgnored(t *testing.T) {
	settings, warnings, err := read(t, map[string]string{"GRPC_PORT": "tcp://10.0.0.1:8081", "DEBUG_PORT": "udp://10.0.0.2:1"})
	require.NoError(t, err)
	assert.Equal(t, 8081, settings.GRPCPort)
	assert.Equal(t, 6070, settings.DebugPort)
	require.Len(t, warnings, 2)
	assert.Equal(t, "GRPC_PORT", warnings[0].Setting)
	assert.Contains(t, warnings[0].Reason, "Kubernetes set tcp://10.0.0.1:8081 for the service grpc;")

	_, _, err = read(t, map[string]string{"PORT": "tcp://10.0.0.1:80"})
	assert.Error(t, err, "no service has a link of that name")
}

func TestUnusedSettingsAreReportedByReason(t *testing.T) {
	warnings := unusedWarnings([]string{
		"USE_STATSD=true", "REDIS_PIPELINE_LIMIT=5", "REDIS_PERSECOND_PIPELINE_LIMIT=6",
		"PATH=/bin", "REDIS_PERSECOND_TIMEOUT=",
	})
	assert.Equal(t, []Warning{
		{noEffect, "REDIS_PIPELINE_LIMIT,REDIS_PERSECOND_PIPELINE_LIMIT", "a batch has at most 256 hits"},
	}, warnings)
}

func TestRegionsWithoutGlobalRedisHaveNoEffect(t *testing.T) {
	_, warnings, err := read(t, map[string]string{"REDIS_URL": "127.0.0.1:1", "REGION": "eu", "REGIONS": "3"})
	require.NoError(t, err)
	assert.Equal(t, []Warning{{noEffect, "REGION,REGIONS", "REDIS_GLOBAL_URL is empty, so each region admits its limits alone"}}, warnings)
}

func TestMisspeltSettingsAreReported(t *testing.T) {
	warnings := misspeltWarnings([]string{
		"REDIS_TIMOUT=3s", "DRAIN_DELLAY=", "REDIS_TIMEOUT=3s", "LIMITS_PATHS=x", "HOSTS=x", "REDIS_PIPELINE_LIMIT=5", "REDIS_SERVICE_HOST=10.0.0.1",
	})
	assert.Equal(t, []Warning{
		{"unknown setting", "REDIS_TIMOUT", "did you mean REDIS_TIMEOUT?"},
		{"unknown setting", "LIMITS_PATHS", "did you mean LIMITS_PATH?"},
	}, warnings)
}

func TestUnusedBooleansThatMatchBehaviorAreNotReported(t *testing.T) {
	for variable, isReported := range map[string]bool{
		"GOSTATS_LOGGING_SINK_DISABLED=False": false, "GOSTATS_LOGGING_SINK_DISABLED=no": true,
	} {
		assert.Equal(t, isReported, len(unusedWarnings([]string{variable})) > 0, variable)
	}
}

// incumbentVariables are all variables in the code or the README of envoyproxy/ratelimit.
const incumbentVariables = `
HOST PORT DEBUG_HOST DEBUG_PORT GRPC_UDS GRPC_HOST GRPC_PORT GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE
GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN LOG_LEVEL LOG_FORMAT
CONFIG_TYPE FORCE_START_WITHOUT_INITIAL_CONFIG CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_SERVER_URL
CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_SERVER_USE_TLS
CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN
XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER
XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS DOG_STATSD_MOGRIFIER_A_PATTERN DOG_STATSD_MOGRIFIER_A_NAME
DOG_STATSD_MOGRIFIER_A_TAGS USE_STATSD STATSD_HOST STATSD_PORT STATSD_PROTOCOL EXTRA_TAGS STATS_FLUSH_INTERVAL DISABLE_STATS
USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH PROMETHEUS_MAPPER_YAML PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS RUNTIME_ROOT
RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY RUNTIME_IGNOREDOTFILES RUNTIME_WATCH_ROOT EXPIRATION_JITTER_MAX_SECONDS
LOCAL_CACHE_SIZE_IN_BYTES NEAR_LIMIT_RATIO CACHE_KEY_PREFIX BACKEND_TYPE STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
LIMIT_RESPONSE_HEADERS_ENABLED LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED
REDIS_SOCKET_TYPE REDIS_TYPE REDIS_URL REDIS_POOL_SIZE REDIS_AUTH REDIS_SENTINEL_AUTH REDIS_TLS REDIS_TLS_CLIENT_CERT
REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT
REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_TIMEOUT REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_HEALTH_CHECK_ACTIVE_CONNECTION
REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME REDIS_PERSECOND REDIS_PERSECOND_SOCKET_TYPE
REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_AUTH REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_TLS
REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_TIMEOUT
REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_TLS
MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION SHADOW_MODE QUOTA_MODE
RESPONSE_DYNAMIC_METADATA MERGE_DOMAIN_CONFIG TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID
TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE OTEL_EXPORTER_OTLP_ENDPOINT REDIS_POOL_ON_EMPTY_WAIT_DURATION
REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR USE_CALENDAR_MONTH_RATE_LIMIT GRPC_SERVER_TLS_CA_CERT`

func TestEveryVariableOfTheIncumbentIsCompared(t *testing.T) {
	fields := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		fields[f.Tag.Get("envconfig")] = true
	}
	timesCompared := map[string]int{}
	count := func(names string, wantField bool) {
		for name := range strings.FieldsSeq(names) {
			timesCompared[name]++
			assert.Equal(t, wantField, fields[name], name)
		}
	}
	for _, s := range changedSettings {
		count(s.Variables, true)
	}
	for _, s := range unusedSettings {
		count(s.Variables, false)
	}
	for name, times := range timesCompared {
		assert.Equal(t, 1, times, "%s is listed more than once", name)
	}
	for name := range strings.FieldsSeq(incumbentVariables) {
		comparison, note := Compare(name)
		assert.NotEqual(t, OnlyInRls, comparison, name)
		assert.Equal(t, comparison != SameEffect, note != "", name)
		delete(fields, name)
	}
	for name := range fields {
		comparison, _ := Compare(name)
		assert.Equal(t, OnlyInRls, comparison, name)
	}
}

func TestVariablesHaveEffectiveValuesWithoutSecrets(t *testing.T) {
	t.Setenv("REDIS_PIPELINE_LIMIT", "5")
	t.Setenv("DOG_STATSD_MOGRIFIER_HITS_PATTERN", "x")
	t.Setenv("DOG_STATSD_MOGRIFIER_HITS_NAME", "y")
	settings, _, err := read(t, map[string]string{
		"REDIS_URL": "redis://user:s3cret@127.0.0.1:6379", "REDIS_AUTH": "s3cret", "EXTRA_TAGS": "a:b", "REDIS_TIMEOUT": "0.07s",
		"USE_DOG_STATSD": "1", "USE_DOG_STATSD_MOGRIFIERS": "hits",
	})
	require.NoError(t, err)
	variables := map[string]Variable{}
	for _, v := range settings.Variables() {
		assert.NotContains(t, v.Value, "s3cret")
		v.Meaning, v.Note = "", ""
		variables[v.Name] = v
	}
	for _, want := range []Variable{
		{Name: "REDIS_URL", Value: "redis://(secret)@127.0.0.1:6379", IsSet: true, Comparison: OtherEffect},
		{Name: "REDIS_AUTH", Value: "(secret)", IsSet: true, Comparison: SameEffect},
		{Name: "ADMIN_TOKEN", Comparison: OnlyInRls},
		{Name: "REDIS_TIMEOUT", Value: "70ms", IsSet: true, Comparison: OtherEffect},
		{Name: "BACKEND_TYPE", Value: "redis", Comparison: OtherEffect},
		{Name: "EXTRA_TAGS", Value: "a:b", IsSet: true, Comparison: OtherEffect},
		{Name: "PORT", Value: "8080", Comparison: OtherEffect},
		{Name: "DOG_STATSD_MOGRIFIER_HITS_PATTERN", Value: "x", IsSet: true, Comparison: SameEffect},
		{Name: "REDIS_PIPELINE_LIMIT", Value: "5", IsSet: true, Comparison: NoEffect},
		{Name: "REDIS_PIPELINE_WINDOW", Comparison: NoEffect},
		{Name: "MEMCACHE_TLS", Value: "false", Comparison: SameEffect},
	} {
		assert.Equal(t, want, variables[want.Name])
	}
}

func TestAddressOfRedisIsShownWithoutItsPassword(t *testing.T) {
	for url, want := range map[string]string{
		"redis:6379":                               "redis:6379",
		"redis://:s3cret@redis:6379/3":             "redis://(secret)@redis:6379/3",
		"redis://:s3c,s3cret@s3cret@redis:6379":    "redis://(secret)@redis:6379",
		"redis://redis:6379?password=s3cret@1":     "(secret)",
		"redis://:s3c?ret@redis:6379":              "(secret)",
		"m,redis://:s3cret@a:1,redis://:s3cret@b:": "m,redis://(secret)@b:",
	} {
		settings := Settings{RedisURL: url}
		variables := settings.Variables()
		i := slices.IndexFunc(variables, func(v Variable) bool { return v.Name == "REDIS_URL" })
		assert.Equal(t, want, variables[i].Value)
	}
}

func TestChangedVariablesDifferFromTheirDefaults(t *testing.T) {
	t.Setenv("REDIS_PIPELINE_LIMIT", "5")
	settings, _, err := read(t, map[string]string{
		"REDIS_URL": "redis://user:s3cret@127.0.0.1:6379", "REDIS_TIMEOUT": "0.05s", "GRPC_MAX_CONNECTION_AGE": "1440m", "PORT": "8080",
		"LOG_LEVEL": "DEBUG", "DRAIN_DELAY": "5s", "DECISION_LOG_HASH_KEY": "s3cret",
	})
	require.NoError(t, err)
	var changedNames []string
	for _, v := range settings.ChangedVariables() {
		changedNames = append(changedNames, v.Name+"="+v.Value)
	}
	assert.Equal(t, []string{"DRAIN_DELAY=5s", "LOG_LEVEL=debug", "DECISION_LOG_HASH_KEY=(secret)", "REDIS_URL=redis://(secret)@127.0.0.1:6379"}, changedNames)
}

func TestSettingsPageIsUpToDate(t *testing.T) {
	var page strings.Builder
	require.NoError(t, writeSettingsPage(&page))
	goldentest.RequireText(t, "../../../docs/settings.md", page.String())
}

//go:embed testdata/settings.md.tmpl
var settingsPageTemplate string

// writeSettingsPage writes docs/settings.md.
func writeSettingsPage(w io.Writer) error {
	functions := template.FuncMap{"list": func(variables, separator string) string {
		return "`" + strings.Join(strings.Fields(variables), "`"+separator+"`") + "`"
	}}
	sameVariables := mogrifierPrefix + "*"
	for _, f := range settings {
		if comparison, _ := Compare(f.Tag.Get("envconfig")); comparison == SameEffect {
			sameVariables += " " + f.Tag.Get("envconfig")
		}
	}
	return template.Must(template.New("").Funcs(functions).Parse(settingsPageTemplate)).Execute(w, struct {
		Settings        []reflect.StructField
		Changed, Unused []remark
		Same            string
	}{settings, changedSettings, unusedSettings, sameVariables})
}
