package env

import (
	"slices"
	"strconv"
	"strings"
)

// unusedSettings are settings of the incumbent that change nothing here.
var unusedSettings = []struct {
	name         string // a * at the end matches any rest of the name
	reason       string
	matchesValue string // booleans that describe what rls does anyway, which need no warning
}{
	{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "use XDS_CLIENT_BACKOFF_INITIAL_INTERVAL and XDS_CLIENT_BACKOFF_MAX_INTERVAL", ""},
	{"GRPC_SERVER_TLS_CA_CERT", "GRPC_CLIENT_TLS_CACERT names the authorities of client certificates", ""},

	{"BACKEND_TYPE=memcache", "rls refuses to start, because memcached can't charge and check in one step", ""},
	{"MEMCACHE_*", "counters are in Redis or in the process (BACKEND_TYPE)", ""},
	{"USE_CALENDAR_MONTH_RATE_LIMIT", "a month is 30 days", "false"},
	{"NEAR_LIMIT_RATIO", "there are no metrics of single limits yet", ""},

	{"REDIS_PIPELINE_WINDOW", pipelineWindow, ""},
	{"REDIS_PIPELINE_LIMIT", "REDIS_MAX_BATCH_SIZE bounds a batch", ""},
	{"REDIS_CLUSTER_PIPELINE_PARALLELISM", "rls sends to all nodes at the same time", ""},
	{"REDIS_POOL_ON_EMPTY_BEHAVIOR", "rls connects when needed, up to REDIS_POOL_SIZE", ""},
	{"REDIS_POOL_ON_EMPTY_WAIT_DURATION", "REDIS_TIMEOUT bounds all waiting", ""},
	{"REDIS_STARTUP_INITIAL_INTERVAL", redisStartup, ""},
	{"REDIS_STARTUP_MAX_INTERVAL", redisStartup, ""},
	{"REDIS_STARTUP_MAX_ELAPSED_TIME", redisStartup, ""},
	{"REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "rls always disconnects from a master that has become a replica", ""},
	{"REDIS_PERSECOND_PIPELINE_WINDOW", pipelineWindow, ""},
	{"REDIS_PERSECOND_PIPELINE_LIMIT", "REDIS_MAX_BATCH_SIZE bounds a batch", ""},
	{"REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "rls sends to all nodes at the same time", ""},
	{"REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "rls connects when needed, up to REDIS_PERSECOND_POOL_SIZE", ""},
	{"REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION", "REDIS_TIMEOUT bounds all waiting", ""},
	{"REDIS_PERSECOND_TIMEOUT", "REDIS_TIMEOUT applies to both Redis", ""},

	{"USE_STATSD", prometheusOnly, "false"},
	{"STATSD_*", prometheusOnly, ""},
	{"USE_DOG_STATSD", prometheusOnly, "false"},
	{"USE_DOG_STATSD_MOGRIFIERS", prometheusOnly, ""},
	{"DOG_STATSD_MOGRIFIER_*", prometheusOnly, ""},
	{"EXTRA_TAGS", prometheusOnly, ""},
	{"STATS_FLUSH_INTERVAL", prometheusOnly, ""},
	{"DISABLE_STATS", prometheusOnly, "true false"},
	{"PROMETHEUS_MAPPER_YAML", "the names of metrics need no mapping", ""},
	{"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "there is no metric of response times yet", "false"},

	{"TRACING_ENABLED", "there is no tracing yet", "false"},
	{"TRACING_*", "there is no tracing yet", ""},
	{"OTEL_EXPORTER_OTLP_*", "there is no tracing yet", ""},
}

const (
	pipelineWindow = "calls that arrive during a batch share the next batch, without a timer"
	redisStartup   = "the service starts without waiting for Redis"
	prometheusOnly = "metrics are for Prometheus to scrape (USE_PROMETHEUS, or /metrics of the debug listener)"
)

// newNames are the names of renamed settings, by former name.
var newNames = map[string]string{
	"LIMITS_POLL_INTERVAL":         "SOURCE_POLL_INTERVAL",
	"LIMITS_REDIS":                 "OVERRIDES_ENABLED",
	"LIMITS_REDIS_RESYNC_INTERVAL": "OVERRIDES_RESYNC_INTERVAL",
	"REDIS_MAX_HITS_PER_TRIP":      "REDIS_MAX_BATCH_SIZE",
	"REDIS_MAX_QUEUED_HITS":        "REDIS_MAX_QUEUE_SIZE",
	"REDIS_TRIPS_IN_FLIGHT":        "REDIS_MAX_INFLIGHT_BATCHES",
}

// unusedWarnings returns a warning for each reason why variables, as of os.Environ, have
// no effect.
func unusedWarnings(variables []string) []Warning {
	var warnings []Warning
	for _, variable := range variables {
		name, value, _ := strings.Cut(variable, "=")
		reason := unusedReason(name, value)
		if reason == "" {
			continue
		}
		i := slices.IndexFunc(warnings, func(w Warning) bool { return w.Reason == reason })
		if i >= 0 {
			warnings[i].Setting += "," + name
			continue
		}
		warnings = append(warnings, Warning{noEffect, name, reason})
	}
	return warnings
}

// unusedReason returns why a variable has no effect, or an empty string if it has one.
func unusedReason(name, value string) string {
	if value == "" || serviceLink.MatchString(value) {
		return ""
	}
	if newName := newNames[name]; newName != "" {
		return "renamed to " + newName
	}
	for _, s := range unusedSettings {
		prefix, isPrefix := strings.CutSuffix(s.name, "*")
		if name != s.name && (!isPrefix || !strings.HasPrefix(name, prefix)) {
			continue
		}
		if b, err := strconv.ParseBool(value); err == nil && slices.Contains(strings.Fields(s.matchesValue), strconv.FormatBool(b)) {
			return ""
		}
		return s.reason
	}
	return ""
}
