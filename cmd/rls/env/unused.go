package env

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// unusedSettings are variables of the incumbent that change nothing here.
var unusedSettings = []struct{ names, reason string }{
	{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "use XDS_CLIENT_BACKOFF_INITIAL_INTERVAL and XDS_CLIENT_BACKOFF_MAX_INTERVAL"},
	{"GRPC_SERVER_TLS_CA_CERT", "GRPC_CLIENT_TLS_CACERT names the authorities of client certificates"},

	{"USE_CALENDAR_MONTH_RATE_LIMIT", "a month is 30 days"},

	{"REDIS_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_WINDOW", "calls that arrive during a batch share the next batch, without a timer"},
	{"REDIS_PIPELINE_LIMIT REDIS_PERSECOND_PIPELINE_LIMIT", "REDIS_MAX_BATCH_SIZE bounds a batch"},
	{"REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "rls sends to all nodes at the same time"},
	{"REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "rls connects when needed, up to REDIS_POOL_SIZE or REDIS_PERSECOND_POOL_SIZE"},
	{"REDIS_POOL_ON_EMPTY_WAIT_DURATION REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION", "REDIS_TIMEOUT bounds all waiting"},
	{"REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME", "the service starts without waiting for Redis"},
	{"REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "rls always closes the connection to a master that has become a replica"},
	{"REDIS_PERSECOND_TIMEOUT", "REDIS_TIMEOUT applies to both Redis"},

	{"PROMETHEUS_MAPPER_YAML", "rls can't rename its metrics; use metric_relabel_configs of Prometheus, or DogStatsD with mogrifiers"},
	{"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "ratelimit_service_response_time_seconds is in seconds, as its name says; multiply by 1000 in the query"},
}

// redundantIfFalse are the unused settings that need no warning if they are false, because rls does the same.
var redundantIfFalse = []string{"USE_CALENDAR_MONTH_RATE_LIMIT", "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"}

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
	if isOn, err := strconv.ParseBool(value); err == nil && !isOn && slices.Contains(redundantIfFalse, name) {
		return ""
	}
	if _, err := os.Stat(value); name == "PROMETHEUS_MAPPER_YAML" && err != nil {
		return "" // the incumbent ignores a missing file too
	}
	for _, s := range unusedSettings {
		if slices.Contains(strings.Fields(s.names), name) {
			return s.reason
		}
	}
	return ""
}
