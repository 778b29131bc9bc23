package env

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Comparison says what a variable of the incumbent does here.
type Comparison string

// The values of Comparison.
const (
	SameEffect  Comparison = "same"
	OtherEffect Comparison = "different"
	NoEffect    Comparison = "no effect"
	OnlyInRls   Comparison = "only in rls" // the incumbent does not have the variable
)

// remark is a note about one or more variables of the incumbent, such as "PORT GRPC_PORT".
type remark struct{ Variables, Text string }

// changedSettings are the variables whose effect or default differs from the incumbent's.
var changedSettings = []remark{
	{"PORT GRPC_PORT DEBUG_PORT", "if another process has the port, rls does not start. The incumbent shares the port"},
	{"GRPC_UDS", "if an ended process has left its socket, rls replaces the socket. The incumbent does not start"},
	{"GRPC_CLIENT_TLS_SAN", "without GRPC_CLIENT_TLS_CACERT, rls does not start. The incumbent ignores the name"},
	{"DEBUG_HOST", "the default is 127.0.0.1. In the incumbent, the default is 0.0.0.0"},
	{"LOG_LEVEL", "the default is info. In the incumbent, the default is warn"},

	{"FORCE_START_WITHOUT_INITIAL_CONFIG", "if the variable is false, rls does not start without valid limits files. The incumbent starts, and each call fails"},
	{"RUNTIME_ROOT", "if the directory is missing, rls does not start. With RUNTIME_WATCH_ROOT, the incumbent starts and limits nothing"},
	{"RUNTIME_SUBDIRECTORY", "if the variable is empty, rls reads RUNTIME_ROOT/RUNTIME_APPDIRECTORY. The incumbent reads no file"},
	{"RUNTIME_WATCH_ROOT", "rls sees each change of a file. The incumbent sees only that a link was replaced"},
	{"RUNTIME_IGNOREDOTFILES", "rls always skips names that start with two dots"},
	{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "the default is 1s, and each failure doubles the pause. In the incumbent, the default is 10s"},
	{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "in rls, a pause is randomly longer or shorter by this share. In the incumbent, a pause grows by this factor"},
	{"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "the default is 16 MiB. In the incumbent, the default is 4 MiB"},

	{"USE_STATSD", "the default is false, unless STATSD_HOST or STATSD_PORT is set. In the incumbent, the default is true"},
	{"USE_DOG_STATSD", "the incumbent also needs USE_STATSD=false. rls does not"},
	{"USE_PROMETHEUS", "the incumbent also needs USE_STATSD=false. rls can serve metrics to Prometheus and send them to statsd or DogStatsD at the same time"},
	{"PROMETHEUS_ADDR", "if the port is in use, rls does not start. The incumbent starts without metrics"},
	{"PROMETHEUS_MAPPER_YAML", "rls keeps fractions of milliseconds in timers. In the incumbent, timers have whole milliseconds. If the file has a mistake, metrics of rls keep their usual names"},
	{"EXTRA_TAGS", "for Prometheus, tags are labels. In the incumbent, tags become a part of the metric's name"},
	{"STATS_FLUSH_INTERVAL", "rls also sends timers at this interval. The incumbent sends a timer with each call"},
	{"DISABLE_STATS", "the debug listener of rls still serves /metrics"},

	{"BACKEND_TYPE", "rls also accepts the value local. If the variable is empty, REDIS_URL decides"},
	{"MEMCACHE_HOST_PORT", "rls looks up the address of a host for each connection. The incumbent looks up the address once"},
	{"MEMCACHE_MAX_IDLE_CONNS", "in rls, the number bounds all connections to a server, and the default is 16. In the incumbent, the number bounds only idle connections, and the default is 2"},
	{"LOCAL_CACHE_SIZE_IN_BYTES", "the default is 4 MiB, and the maximum is 16 GiB. In the incumbent, the default is 0"},
	{"CACHE_KEY_PREFIX", "the prefix has at most 64 bytes, and keys have another layout"},
	{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "if rls denies a request, no descriptor is charged. The incumbent charges the descriptors that are over the limit"},
	{"REDIS_URL REDIS_PERSECOND_URL", "there is no default. In the incumbent, the default is the path of a socket. Without REDIS_URL, rls counts in the process"},
	{"REDIS_SOCKET_TYPE REDIS_PERSECOND_SOCKET_TYPE", "by default, the URL decides. In the incumbent, the default is unix. rls allows only tcp and unix"},
	{"REDIS_TIMEOUT", "in rls, this is the time limit of a whole operation, and the default is 50ms. In the incumbent, this is the time limit for connecting, and the default is 10s"},
	{"REDIS_POOL_SIZE REDIS_PERSECOND_POOL_SIZE", "the default is 0, which means enough connections for all batches. In the incumbent, the default is 10"},
	{"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "rls is unhealthy while a breaker is open. The incumbent is unhealthy while no connection is open"},
	{"REDIS_PERSECOND", "if a call needs both Redis servers, rls asks them at the same time. The incumbent asks one after the other"},
	{"RESPONSE_DYNAMIC_METADATA", "in rls, the setting also works for rules with detailed_metric or value_to_metric"},
}

func textAbout(variable string, remarks []remark) string {
	for _, r := range remarks {
		if slices.Contains(strings.Fields(r.Variables), variable) {
			return r.Text
		}
	}
	return ""
}

// Compare returns what a variable does here, compared with the incumbent, and the
// difference or the reason why the variable has no effect.
func Compare(variable string) (Comparison, string) {
	if difference := textAbout(variable, changedSettings); difference != "" {
		return OtherEffect, difference
	}
	if reason := textAbout(variable, unusedSettings); reason != "" {
		return NoEffect, reason
	}
	isOfIncumbent := func(f reflect.StructField) bool { return f.Tag.Get("envconfig") == variable && f.Tag.Get("only") == "" }
	if strings.HasPrefix(variable, mogrifierPrefix) || slices.ContainsFunc(settings, isOfIncumbent) {
		return SameEffect, ""
	}
	return OnlyInRls, ""
}

// unusedSettings are variables of the incumbent that change nothing here.
var unusedSettings = []remark{
	{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "use XDS_CLIENT_BACKOFF_INITIAL_INTERVAL and XDS_CLIENT_BACKOFF_MAX_INTERVAL"},
	{"GRPC_SERVER_TLS_CA_CERT", "GRPC_CLIENT_TLS_CACERT names the authorities of client certificates"},

	{"REDIS_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_WINDOW", "calls that arrive during a batch share the next batch, without a timer"},
	{"REDIS_PIPELINE_LIMIT REDIS_PERSECOND_PIPELINE_LIMIT", "a batch has at most 256 hits"},
	{"REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "rls sends to all nodes at the same time"},
	{"REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "rls opens a connection when a batch needs one, up to REDIS_POOL_SIZE or REDIS_PERSECOND_POOL_SIZE"},
	{"REDIS_POOL_ON_EMPTY_WAIT_DURATION REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION", "REDIS_TIMEOUT bounds each wait for a connection"},
	{"REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME", "the service starts without waiting for Redis"},
	{"REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "rls always closes the connection to a master that has become a replica"},
	{"REDIS_PERSECOND_TIMEOUT", "REDIS_TIMEOUT applies to both Redis servers"},

	{"GOSTATS_FLUSH_INTERVAL_SECONDS", "use STATS_FLUSH_INTERVAL, as in newer versions of envoyproxy/ratelimit"},
	{"GOSTATS_LOGGING_SINK_DISABLED", "use DISABLE_STATS, as in newer versions of envoyproxy/ratelimit"},
}

// settingRedundantIfFalse is the unused setting that needs no warning if its value is false, because rls then behaves
// as the incumbent.
const settingRedundantIfFalse = "GOSTATS_LOGGING_SINK_DISABLED"

// unusedWarnings returns one warning for each reason why variables have no effect. variables are texts NAME=VALUE, as
// os.Environ returns them.
func unusedWarnings(variables []string) []Warning {
	var warnings []Warning
	for _, variable := range variables {
		name, value, _ := strings.Cut(variable, "=")
		reason := textAbout(name, unusedSettings)
		isOn, err := strconv.ParseBool(value)
		isRedundant := name == settingRedundantIfFalse && err == nil && !isOn
		if reason == "" || value == "" || serviceLink.MatchString(value) || isRedundant {
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
