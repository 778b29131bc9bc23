package env

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
)

// unused are settings that the incumbent knows and that change nothing here, and
// why. A * at the end stands for more of the name.
var unused = []struct {
	name   string
	reason string
	same   string // of a boolean: the values, between blanks, that say what happens anyway
}{
	{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL and XDS_CLIENT_BACKOFF_MAX_INTERVAL space attempts", ""},
	{"GRPC_SERVER_TLS_CA_CERT", "GRPC_CLIENT_TLS_CACERT names the authorities of client certificates", ""},

	{"BACKEND_TYPE=memcache", "is refused: memcached can't charge and check in one step", ""},
	{"MEMCACHE_*", "counters are in Redis or in the process (BACKEND_TYPE)", ""},
	{"USE_CALENDAR_MONTH_RATE_LIMIT", "a month is 30 days", "false"},
	{"NEAR_LIMIT_RATIO", "there are no metrics of single limits yet", ""},

	{"REDIS_PIPELINE_WINDOW", "calls that arrive during a trip share the next one, without a timer", ""},
	{"REDIS_PIPELINE_LIMIT", "REDIS_MAX_BATCH_SIZE bounds a trip", ""},
	{"REDIS_CLUSTER_PIPELINE_PARALLELISM", "all nodes are asked at the same time", ""},
	{"REDIS_POOL_ON_EMPTY_BEHAVIOR", "connections are made when needed, up to REDIS_POOL_SIZE", ""},
	{"REDIS_POOL_ON_EMPTY_WAIT_DURATION", "REDIS_TIMEOUT bounds all waiting", ""},
	{"REDIS_STARTUP_INITIAL_INTERVAL", "the service starts at once and connects when Redis comes", ""},
	{"REDIS_STARTUP_MAX_INTERVAL", "the service starts at once and connects when Redis comes", ""},
	{"REDIS_STARTUP_MAX_ELAPSED_TIME", "the service starts at once and connects when Redis comes", ""},
	{"REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "a master that has become a replica is left at once", ""},
	{"REDIS_PERSECOND_PIPELINE_WINDOW", "calls that arrive during a trip share the next one, without a timer", ""},
	{"REDIS_PERSECOND_PIPELINE_LIMIT", "REDIS_MAX_BATCH_SIZE bounds a trip", ""},
	{"REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "all nodes are asked at the same time", ""},
	{"REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "connections are made when needed, up to REDIS_PERSECOND_POOL_SIZE", ""},
	{"REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION", "REDIS_TIMEOUT bounds all waiting", ""},
	{"REDIS_PERSECOND_TIMEOUT", "REDIS_TIMEOUT is the budget for both", ""},

	{"USE_STATSD", "metrics are for Prometheus to fetch (USE_PROMETHEUS, or /metrics of the debug listener)", "false"},
	{"STATSD_*", "metrics are for Prometheus to fetch (USE_PROMETHEUS, or /metrics of the debug listener)", ""},
	{"USE_DOG_STATSD", "metrics are for Prometheus to fetch (USE_PROMETHEUS, or /metrics of the debug listener)", "false"},
	{"USE_DOG_STATSD_MOGRIFIERS", "metrics are for Prometheus to fetch (USE_PROMETHEUS, or /metrics of the debug listener)", ""},
	{"DOG_STATSD_MOGRIFIER_*", "metrics are for Prometheus to fetch (USE_PROMETHEUS, or /metrics of the debug listener)", ""},
	{"EXTRA_TAGS", "metrics are for Prometheus to fetch (USE_PROMETHEUS, or /metrics of the debug listener)", ""},
	{"STATS_FLUSH_INTERVAL", "metrics are for Prometheus to fetch (USE_PROMETHEUS, or /metrics of the debug listener)", ""},
	{"DISABLE_STATS", "metrics are for Prometheus to fetch (USE_PROMETHEUS, or /metrics of the debug listener)", "true false"},
	{"PROMETHEUS_MAPPER_YAML", "metrics have their names already, and need no mapping", ""},
	{"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "there is no metric of response times yet", "false"},

	{"TRACING_ENABLED", "there is no tracing yet", "false"},
	{"TRACING_*", "there is no tracing yet", ""},
	{"OTEL_EXPORTER_OTLP_*", "there is no tracing yet", ""},
}

// renamed are the former names of settings, and their names now.
var renamed = map[string]string{
	"LIMITS_REDIS":                 "OVERRIDES_ENABLED",
	"LIMITS_REDIS_RESYNC_INTERVAL": "OVERRIDES_RESYNC_INTERVAL",
	"REDIS_MAX_HITS_PER_TRIP":      "REDIS_MAX_BATCH_SIZE",
	"REDIS_MAX_QUEUED_HITS":        "REDIS_MAX_QUEUE_SIZE",
	"REDIS_TRIPS_IN_FLIGHT":        "REDIS_MAX_INFLIGHT_BATCHES",
}

// LogUnused logs a line for each of the variables that is one of unused. Of
// several that one * stands for, and of all of one reason, a line tells.
func LogUnused(variables []string, log *slog.Logger) {
	names := map[string][]string{}
	var reasons []string
	for _, variable := range variables {
		name, value, _ := strings.Cut(variable, "=")
		reason, ok := unusedReason(name, value)
		if !ok {
			continue
		}
		if len(names[reason]) == 0 {
			reasons = append(reasons, reason)
		}
		names[reason] = append(names[reason], name)
	}
	for _, reason := range reasons {
		log.Warn("setting without effect", "setting", strings.Join(names[reason], ","), "reason", reason)
	}
}

func unusedReason(name, value string) (string, bool) {
	if now, ok := renamed[name]; ok {
		return "it is called " + now, value != ""
	}
	for _, u := range unused {
		start, more := strings.CutSuffix(u.name, "*")
		if name != u.name && (!more || !strings.HasPrefix(name, start)) {
			continue
		}
		if b, err := strconv.ParseBool(value); err == nil && slices.Contains(strings.Fields(u.same), strconv.FormatBool(b)) {
			return "", false
		}
		return u.reason, value != "" && !serviceLink.MatchString(value)
	}
	return "", false
}
