// Package env reads the settings of the service from the environment.
package env

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/limit"
)

// Values of BACKEND_TYPE, DECISION_LOG and CONFIG_TYPE.
const (
	BackendRedis    = "redis"
	BackendMemcache = "memcache"
	BackendLocal    = "local"

	DecisionLogAll = "all"
	DecisionLogOff = "off"

	ConfigXDS = "GRPC_XDS_SOTW"
)

// Settings are the settings of the service. The tags of a field name its variable, its
// default and the values that it allows (parse.go). File check.go finds settings that do not fit
// together. `make docs` writes docs/settings.md from the tags.
type Settings struct {
	GRPCHost                  string        `envconfig:"GRPC_HOST" default:"0.0.0.0" desc:"Address of the gRPC listener. With the address ::, rls listens on IPv6 and IPv4."`
	GRPCPort                  int           `envconfig:"GRPC_PORT" default:"8081" min:"0" max:"65535" desc:"Port of the gRPC listener."`
	GRPCUDS                   string        `envconfig:"GRPC_UDS" desc:"Path of a unix socket for gRPC. If this path is set, GRPC_HOST and GRPC_PORT have no effect. If a process has ended and left its socket there, rls replaces the socket."`
	GRPCMaxMessageBytes       int           `envconfig:"GRPC_MAX_MESSAGE_BYTES" only:"rls" default:"1048576" min:"1" max:"67108864" desc:"Maximum size of a request in bytes, over gRPC and HTTP. See docs/security.md."`
	GRPCMaxStreams            int           `envconfig:"GRPC_MAX_STREAMS" only:"rls" default:"1024" min:"1" max:"1000000" desc:"Maximum number of calls that a gRPC connection can have in flight. Clients queue further calls."`
	GRPCMaxPendingBytes       int64         `envconfig:"GRPC_MAX_PENDING_BYTES" only:"rls" default:"16777216" min:"0" desc:"Maximum number of request bytes that the unanswered calls of all connections can have together. A request of up to 4 KiB that comes in one frame does not count. If the calls have more bytes, rls cuts the connection with the most bytes. 0 means no bound."`
	GRPCMaxPeerResets         int64         `envconfig:"GRPC_MAX_PEER_RESETS" only:"rls" default:"1000" min:"0" desc:"Maximum number of calls that a client can reset on one connection in a second. Each answered call allows 100 more resets. Six pings or other frames count as one reset. If a client resets more calls, rls cuts the connection. 0 means no bound."`
	GRPCMaxConnectionIdle     time.Duration `envconfig:"GRPC_MAX_CONNECTION_IDLE" only:"rls" default:"30m" min:"0s" desc:"Time after which a gRPC connection without calls is closed. 0 means never."`
	MaxConnections            int           `envconfig:"MAX_CONNECTIONS" only:"rls" default:"4096" min:"0" desc:"Maximum number of connections of each listener. 0 means no bound."`
	MaxPeerConnections        int           `envconfig:"MAX_PEER_CONNECTIONS" only:"rls" default:"512" min:"0" desc:"Maximum number of connections of one IP address to each listener. Unix sockets have no such bound. 0 means no bound."`
	CallerHeader              string        `envconfig:"CALLER_HEADER" only:"rls" desc:"Key of gRPC metadata, or HTTP header, in which each caller sends its name, such as x-envoy-node. The live page, rls top, rls tail and the decision log show the name. See docs/envoy.md."`
	MaxCallerCallsPerSecond   int           `envconfig:"MAX_CALLER_CALLS_PER_SECOND" only:"rls" default:"0" min:"0" max:"1000000" desc:"Maximum number of calls of one caller in a second. Further calls fail with RESOURCE_EXHAUSTED, or with 429 over HTTP. A caller is known by its name in CALLER_HEADER, or else by the name in its client certificate, or else by its IP address. 0 means no bound. See docs/security.md."`
	JSONRefunds               bool          `envconfig:"JSON_REFUNDS" only:"rls" default:"false" desc:"Allow refunds over HTTP: is_negative_hits for /json, and negative hits for /v1/check."`
	NegativeHits              string        `envconfig:"NEGATIVE_HITS" only:"rls" default:"allow" oneof:"allow refuse" desc:"Whether requests can refund hits (is_negative_hits): allow or refuse. If a rule has the field refunds: false, rls refuses refunds of this rule in any case."`
	MaxDescriptors            int           `envconfig:"MAX_DESCRIPTORS" only:"rls" default:"1024" min:"1" desc:"Maximum number of descriptors in a request. All descriptors of a request together can have 64 × MAX_DESCRIPTORS entries."`
	MaxEntries                int           `envconfig:"MAX_ENTRIES" only:"rls" default:"256" min:"1" desc:"Maximum number of entries in a descriptor of a request."`
	QuotaMaxBuckets           int           `envconfig:"QUOTA_MAX_BUCKETS" only:"rls" default:"1000" min:"1" max:"16384" desc:"Maximum number of quota buckets of an Envoy. All streams and buckets together may use QUOTA_MAX_BUCKETS × 64 KiB of memory. One IP address may use at most half of the memory that is free: if other addresses use 24 of 64 MiB, it may use 20 MiB."`
	GRPCMaxConnectionAge      time.Duration `envconfig:"GRPC_MAX_CONNECTION_AGE" default:"24h" desc:"Age at which rls asks a client to connect again, ±10 %, so that new replicas get their share of the load. 0 or less means never."`
	GRPCMaxConnectionAgeGrace time.Duration `envconfig:"GRPC_MAX_CONNECTION_AGE_GRACE" default:"1h" min:"0s" desc:"Time after GRPC_MAX_CONNECTION_AGE in which the calls in flight can end. Then rls closes the connection. 0 means no bound."`
	GRPCServerUseTLS          bool          `envconfig:"GRPC_SERVER_USE_TLS" default:"false" desc:"Use TLS on the gRPC listener. The service reads the files of the certificate, key and authorities again when they change."`
	GRPCServerTLSCert         string        `envconfig:"GRPC_SERVER_TLS_CERT" desc:"PEM file of the certificate chain of the gRPC listener."`
	GRPCServerTLSKey          string        `envconfig:"GRPC_SERVER_TLS_KEY" desc:"PEM file of the key of GRPC_SERVER_TLS_CERT."`
	GRPCClientTLSCACert       string        `envconfig:"GRPC_CLIENT_TLS_CACERT" desc:"PEM file of certificate authorities. If set, gRPC clients need a certificate that one of these authorities has signed (mTLS)."`
	GRPCClientTLSSAN          string        `envconfig:"GRPC_CLIENT_TLS_SAN" desc:"DNS name that the certificate of a gRPC client must contain."`
	CallerDomainsFile         string        `envconfig:"CALLER_DOMAINS_FILE" only:"rls" desc:"YAML file that binds the names in client certificates to the domains that these clients may use. Calls for other domains fail with PERMISSION_DENIED. The setting needs GRPC_CLIENT_TLS_CACERT. The service reads the file again when it changes. See docs/security.md."`

	Host      string `envconfig:"HOST" default:"0.0.0.0" desc:"Address of the HTTP listener (/json, /v1/check, /healthcheck)."`
	Port      int    `envconfig:"PORT" default:"8080" min:"0" max:"65535" desc:"Port of the HTTP listener."`
	DebugHost string `envconfig:"DEBUG_HOST" default:"127.0.0.1" desc:"Address of the debug listener (/rlconfig, /metrics, /debug/pprof). By default, only callers on the same host reach the listener. With 0.0.0.0, all callers reach it, but /debug/pprof still answers only callers on the same host. See docs/security.md."`
	DebugPort int    `envconfig:"DEBUG_PORT" default:"6070" min:"0" max:"65535" desc:"Port of the debug listener."`

	DebugNames names `envconfig:"DEBUG_NAMES" only:"rls" desc:"Comma-separated names of this service on the internet, such as rls.example.com. A browser may read the debug pages, and post to port 8080, only if the URL has one of these names, an IP address, localhost, or a name of the cluster. See docs/security.md."`

	DebugTLSCert         string      `envconfig:"DEBUG_TLS_CERT" only:"rls" desc:"PEM file of a certificate chain. If set, the debug listener uses TLS. The service reads the files again when they change."`
	DebugTLSKey          string      `envconfig:"DEBUG_TLS_KEY" only:"rls" desc:"PEM file of the key of DEBUG_TLS_CERT."`
	DebugTLSClientCACert string      `envconfig:"DEBUG_TLS_CLIENT_CACERT" only:"rls" desc:"PEM file of certificate authorities. Clients with a certificate that one of these authorities has signed can use the admin API. The other pages need no certificate."`
	AdminTokens          adminTokens `envconfig:"ADMIN_TOKEN" only:"rls" secret:"true" desc:"Turns on the admin API on the debug listener (docs/overrides.md). The value is a token, or a list name:token,name:token. In a list, write a name before each token: an item without a name is itself a token, of the name admin. The audit log shows the names. The commands rls limits and rls reset send the first token. If your shell has ADMIN_TOKEN for these commands, start no service there, because the service would accept your token."`
	AdminTokensFile      string      `envconfig:"ADMIN_TOKENS_FILE" only:"rls" desc:"YAML file of further tokens for the admin API. The file can allow a token only to read, or only to use some domains (docs/overrides.md). The service reads the file again when it changes."`

	UsePrometheus      bool   `envconfig:"USE_PROMETHEUS" default:"false" desc:"Serve metrics at PROMETHEUS_ADDR. The debug listener always serves metrics at /metrics."`
	PrometheusAddr     string `envconfig:"PROMETHEUS_ADDR" default:":9090" desc:"Address of the metrics listener, host:port."`
	PrometheusPath     string `envconfig:"PROMETHEUS_PATH" default:"/metrics" desc:"Path of the metrics on the metrics listener."`
	ResponseTimeMillis bool   `envconfig:"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS" default:"false" desc:"Report ratelimit_service_response_time_seconds in milliseconds, although its name says seconds. The setting has no effect on metrics that PROMETHEUS_MAPPER_YAML renames."`
	PrometheusMapper   string `envconfig:"PROMETHEUS_MAPPER_YAML" desc:"File with mappings in the format of statsd_exporter. On the metrics listener, the metrics of envoyproxy/ratelimit then have the names and labels that the mappings give. If the file is missing, the setting has no effect. See docs/lab/differences.md."`

	UseStatsd           bool          `envconfig:"USE_STATSD" default:"false" desc:"Send metrics to a statsd server. The default is true if STATSD_HOST or STATSD_PORT is set, and both USE_DOG_STATSD and USE_PROMETHEUS are false. If you set USE_STATSD to false, and both other settings are false, metrics go to the log."`
	UseDogStatsd        bool          `envconfig:"USE_DOG_STATSD" default:"false" desc:"Send metrics to DogStatsD over UDP, with tags."`
	StatsdHost          string        `envconfig:"STATSD_HOST" default:"localhost" desc:"Host of the statsd server or DogStatsD."`
	StatsdPort          int           `envconfig:"STATSD_PORT" default:"8125" min:"1" max:"65535" desc:"Port of the statsd server or DogStatsD."`
	StatsdProtocol      string        `envconfig:"STATSD_PROTOCOL" default:"tcp" oneof:"tcp udp" desc:"tcp or udp, for USE_STATSD."`
	DogStatsdMogrifiers names         `envconfig:"USE_DOG_STATSD_MOGRIFIERS" desc:"Names of mogrifiers: NAME,NAME. A mogrifier is a pattern that renames metrics for DogStatsD. rls applies the first mogrifier whose pattern matches. See docs/lab/differences.md."`
	ExtraTags           tags          `envconfig:"EXTRA_TAGS" desc:"Tags that all metrics get: name:value,name:value. For Prometheus, these tags are labels."`
	StatsFlushInterval  time.Duration `envconfig:"STATS_FLUSH_INTERVAL" default:"10s" min:"1ms" desc:"Interval at which metrics go to statsd, DogStatsD or the log."`
	DisableStats        bool          `envconfig:"DISABLE_STATS" default:"false" desc:"Turn off statsd, DogStatsD, metrics in the log, and USE_PROMETHEUS. The debug listener still serves /metrics."`

	NearLimitRatio   float64 `envconfig:"NEAR_LIMIT_RATIO" default:"0.8" desc:"Share of a limit. If more than this share is spent, hits count in ratelimit_service_rate_limit_near_limit."`
	MetricsRuleLabel bool    `envconfig:"METRICS_RULE_LABEL" only:"rls" default:"true" desc:"Give the metrics of rules the label rule. If false, rules with the same labels domain, key1 and key2 share their series, as in envoyproxy/ratelimit."`
	MetricsMaxSeries int     `envconfig:"METRICS_MAX_SERIES" only:"rls" default:"1000" min:"1" max:"1000000" desc:"Maximum number of values that can have metrics of their own, for each limit with value_to_metric or detailed_metric. Hits with further values count under the value \"other\". See docs/metrics.md."`

	DrainDelay   time.Duration `envconfig:"DRAIN_DELAY" only:"rls" default:"8s" min:"0s" desc:"Time after SIGTERM in which the service still accepts calls while load balancers notice the stop. During this time, its health is NOT_SERVING. Ctrl-C (SIGINT) skips this time. See docs/envoy.md."`
	DrainTimeout time.Duration `envconfig:"DRAIN_TIMEOUT" only:"rls" default:"15s" min:"0s" desc:"Time after DRAIN_DELAY in which the calls in flight can end. After this time, requests for debug pages and metrics have up to 3s more."`

	LogLevel  string `envconfig:"LOG_LEVEL" default:"info" oneof:"debug info warn error trace warning fatal panic" desc:"Lowest level of the lines that the log has: debug, info, warn or error. trace means debug. fatal and panic mean error."`
	LogFormat string `envconfig:"LOG_FORMAT" default:"text" desc:"Format of the log: text or json. The log goes to stderr."`

	DecisionLog             string  `envconfig:"DECISION_LOG" only:"rls" default:"off" oneof:"denied all off" desc:"Which decisions the service writes as JSON lines: denied (denials and errors), all or off. See docs/observability.md."`
	DecisionLogPath         string  `envconfig:"DECISION_LOG_PATH" only:"rls" desc:"File of the decision log. The service opens the file again on SIGHUP and when the file is renamed. If the setting is empty, the log goes to stdout."`
	DecisionLogSample       float64 `envconfig:"DECISION_LOG_SAMPLE" only:"rls" default:"1" min:"0" max:"1" desc:"Share of the calls whose decisions are written, from 0 to 1."`
	DecisionLogMaxPerSecond int     `envconfig:"DECISION_LOG_MAX_PER_SECOND" only:"rls" default:"1000" min:"0" max:"1000000" desc:"Maximum number of lines of the decision log in a second. rls first drops lines of the busiest keys. The log says how many lines were dropped. 0 means no maximum."`
	TopKeys                 string  `envconfig:"TOP_KEYS" only:"rls" default:"on" oneof:"on hashed off" desc:"The live page and rls top show the busiest keys as they are (on), as an HMAC with a key of the process (hashed), or not at all (off). Even if the setting is on, callers who are not allowed to see values of requests get hashes. See docs/observability.md."`
	DecisionLogHashKey      string  `envconfig:"DECISION_LOG_HASH_KEY" only:"rls" secret:"true" desc:"Secret key. If set, the decision log, live decisions and debug lines have a hash (HMAC-SHA256) in place of each value of a descriptor, and of each caller."`

	TracingEnabled           bool    `envconfig:"TRACING_ENABLED" default:"false" desc:"Send traces of calls to a collector (OTLP). OTEL_TRACES_EXPORTER=otlp does the same. The variables OTEL_… of the OpenTelemetry SDK also apply, such as OTEL_EXPORTER_OTLP_ENDPOINT. See docs/observability.md."`
	TracingServiceName       string  `envconfig:"TRACING_SERVICE_NAME" desc:"Service name in traces. If the setting is empty, the name is OTEL_SERVICE_NAME, or else RateLimit."`
	TracingServiceNamespace  string  `envconfig:"TRACING_SERVICE_NAMESPACE" desc:"Service namespace in traces."`
	TracingServiceInstanceID string  `envconfig:"TRACING_SERVICE_INSTANCE_ID" desc:"Id of this replica in traces. If the setting is empty, the id is a random UUID."`
	TracingExporterProtocol  string  `envconfig:"TRACING_EXPORTER_PROTOCOL" oneof:"http grpc" desc:"Protocol of the collector: http or grpc. If the setting is empty, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or else OTEL_EXPORTER_OTLP_PROTOCOL names the protocol. Without these variables, the protocol is http."`
	TracingSamplingRate      float64 `envconfig:"TRACING_SAMPLING_RATE" default:"1" desc:"Share of the calls that rls traces, from 0 to 1. If Envoy has decided whether a call is traced, rls does the same as Envoy. If the setting is empty and OTEL_TRACES_SAMPLER is set, the sampler of this name decides."`
	OTELSDKDisabled          bool    `envconfig:"OTEL_SDK_DISABLED" only:"rls" default:"false" desc:"Turn tracing off."`
	OTELTracesExporter       string  `envconfig:"OTEL_TRACES_EXPORTER" only:"rls" oneof:"otlp none" desc:"otlp turns tracing on, and none turns it off."`
	OTELEndpoint             string  `envconfig:"OTEL_EXPORTER_OTLP_ENDPOINT" desc:"URL of the collector, such as http://localhost:4318 for http or http://localhost:4317 for grpc. With https the connection uses TLS."`
	OTELTracesProtocol       string  `envconfig:"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" only:"rls" oneof:"http/protobuf grpc" desc:"See TRACING_EXPORTER_PROTOCOL."`
	OTELProtocol             string  `envconfig:"OTEL_EXPORTER_OTLP_PROTOCOL" only:"rls" oneof:"http/protobuf grpc" desc:"See TRACING_EXPORTER_PROTOCOL."`

	LimitsPath                      string        `envconfig:"LIMITS_PATH" only:"rls" desc:"Limits file, or directory of limits files. If LIMITS_PATH is set, the RUNTIME_ settings of paths have no effect. The flag --limits replaces LIMITS_PATH."`
	LimitsCandidate                 string        `envconfig:"LIMITS_CANDIDATE" only:"rls" desc:"Limits file, or directory of limits files, to evaluate beside the limits in force. The candidate changes no answer. Metrics, the live page and explain show what the candidate would deny. See docs/planning-limits.md."`
	RuntimeRoot                     string        `envconfig:"RUNTIME_ROOT" default:"/srv/runtime_data/current" desc:"The service reads limits from RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY."`
	RuntimeSubdirectory             string        `envconfig:"RUNTIME_SUBDIRECTORY" desc:"See RUNTIME_ROOT."`
	RuntimeAppDirectory             string        `envconfig:"RUNTIME_APPDIRECTORY" default:"config" desc:"See RUNTIME_ROOT."`
	RuntimeWatchRoot                bool          `envconfig:"RUNTIME_WATCH_ROOT" default:"true" desc:"If true, the service also reads a file RUNTIME_APPDIRECTORY.yaml beside the directory. The service watches the files even if the value is false."`
	RuntimeIgnoreDotFiles           bool          `envconfig:"RUNTIME_IGNOREDOTFILES" default:"false" desc:"Skip files and directories whose names start with a dot. Names that start with two dots are always skipped."`
	SourcePollInterval              time.Duration `envconfig:"SOURCE_POLL_INTERVAL" only:"rls" default:"500ms" min:"100ms" desc:"Interval at which limits files are checked for changes. A change is in force after one to two intervals."`
	MergeDomainConfig               bool          `envconfig:"MERGE_DOMAIN_CONFIG" default:"false" desc:"Merge files of the same domain. If false, two files of the same domain are an error."`
	CalendarMonths                  bool          `envconfig:"USE_CALENDAR_MONTH_RATE_LIMIT" default:"false" desc:"Let fixed windows of a month follow the calendar of UTC, unless a limit has another timezone. If false, a month is 30 days. See docs/limits.md."`
	ForceStartWithoutInitialConfig  bool          `envconfig:"FORCE_START_WITHOUT_INITIAL_CONFIG" default:"false" desc:"Start even without valid limits files. Calls fail with FAILED_PRECONDITION until valid limits arrive. A service with xDS always starts without limits. Before the first update, such a service is healthy only if this setting is true."`
	HealthyWithAtLeastOneConfigLoad bool          `envconfig:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" default:"false" desc:"Be healthy only while at least one domain is loaded."`

	OverridesEnabled bool `envconfig:"OVERRIDES_ENABLED" only:"rls" default:"false" desc:"Keep changes of limits at run time (overrides, rules and switches) in Redis (REDIS_URL), for all replicas. A process that counts in its own memory does not need this setting: it keeps the changes of the admin API in its memory. See docs/overrides.md."`

	ConfigType         string        `envconfig:"CONFIG_TYPE" default:"FILE" oneof:"FILE GRPC_XDS_SOTW" desc:"Source of limits: FILE, or GRPC_XDS_SOTW for an xDS server."`
	XDSServer          string        `envconfig:"CONFIG_GRPC_XDS_SERVER_URL" default:"localhost:18000" desc:"Address of the xDS server, host:port."`
	XDSNodeID          string        `envconfig:"CONFIG_GRPC_XDS_NODE_ID" default:"default" desc:"Node id that the service sends to the xDS server."`
	XDSNodeMetadata    nodeMetadata  `envconfig:"CONFIG_GRPC_XDS_NODE_METADATA" desc:"Metadata of the node: name=value,name=value."`
	XDSHeaders         headers       `envconfig:"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS" secret:"true" desc:"Headers to send to the xDS server: name:value,name:value."`
	XDSUseTLS          bool          `envconfig:"CONFIG_GRPC_XDS_SERVER_USE_TLS" default:"false" desc:"Use TLS to the xDS server."`
	XDSTLSCert         string        `envconfig:"CONFIG_GRPC_XDS_CLIENT_TLS_CERT" desc:"PEM file of the certificate of rls."`
	XDSTLSKey          string        `envconfig:"CONFIG_GRPC_XDS_CLIENT_TLS_KEY" desc:"PEM file of the key of CONFIG_GRPC_XDS_CLIENT_TLS_CERT."`
	XDSTLSCACert       string        `envconfig:"CONFIG_GRPC_XDS_SERVER_TLS_CACERT" desc:"PEM file of certificate authorities to trust, in addition to the authorities of the system."`
	XDSTLSSAN          string        `envconfig:"CONFIG_GRPC_XDS_SERVER_TLS_SAN" desc:"Name to verify in the server's certificate instead of the host."`
	XDSBackoffInitial  time.Duration `envconfig:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" default:"1s" min:"1ms" desc:"Pause after the first failed attempt to reach the xDS server. Each further failure doubles the pause."`
	XDSBackoffMax      time.Duration `envconfig:"XDS_CLIENT_BACKOFF_MAX_INTERVAL" default:"60s" min:"1ms" desc:"Longest pause between two attempts. XDS_CLIENT_BACKOFF_RANDOM_FACTOR can still make the pause longer."`
	XDSBackoffRandom   float64       `envconfig:"XDS_CLIENT_BACKOFF_RANDOM_FACTOR" default:"0.5" min:"0" desc:"Share by which a pause is randomly longer or shorter. With 0.5, a pause of 10s takes 5s to 15s. Values above 1 count as 1."`
	XDSBackoffJitter   bool          `envconfig:"XDS_CLIENT_BACKOFF_JITTER" default:"true" desc:"Vary pauses by XDS_CLIENT_BACKOFF_RANDOM_FACTOR."`
	XDSMaxMessageBytes int           `envconfig:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES" default:"0" min:"0" desc:"Maximum size of a response of the xDS server in bytes. 0 means 16 MiB."`

	ShadowMode              bool   `envconfig:"SHADOW_MODE" default:"false" desc:"Answer OK to every request. The status of a denied descriptor is still OVER_LIMIT."`
	QuotaMode               bool   `envconfig:"QUOTA_MODE" default:"false" desc:"Treat every descriptor as if its rule had quota_mode: a request is denied only if all its descriptors are over their limits."`
	ResponseHeadersEnabled  bool   `envconfig:"LIMIT_RESPONSE_HEADERS_ENABLED" default:"false" desc:"Send the headers that the next three settings name."`
	LimitHeader             string `envconfig:"LIMIT_LIMIT_HEADER" default:"RateLimit-Limit" desc:"Name of the header with requests_per_unit."`
	RemainingHeader         string `envconfig:"LIMIT_REMAINING_HEADER" default:"RateLimit-Remaining" desc:"Name of the header with the remaining hits."`
	ResetHeader             string `envconfig:"LIMIT_RESET_HEADER" default:"RateLimit-Reset" desc:"Name of the header with the seconds until the limit resets."`
	PolicyHeadersEnabled    bool   `envconfig:"LIMIT_POLICY_HEADERS_ENABLED" only:"rls" default:"false" desc:"Send the headers RateLimit and RateLimit-Policy of the IETF draft, and Retry-After with denials. See docs/envoy.md."`
	ResponseDynamicMetadata bool   `envconfig:"RESPONSE_DYNAMIC_METADATA" default:"false" desc:"Add the request and the metadata of the matched rules to the dynamic metadata of the response."`
	ResponseRuleMetadata    bool   `envconfig:"RESPONSE_RULE_METADATA" only:"rls" default:"false" desc:"Add the rule, limit, code, remaining hits and source of each decision to the dynamic metadata of the response, for Envoy's access log. See docs/observability.md."`

	BackendType  string `envconfig:"BACKEND_TYPE" oneof:"redis memcache local" desc:"Place of the counters: redis, memcache (see docs/memcached.md) or local. An empty value means redis if REDIS_URL is set, or else local. If neither REDIS_URL nor BACKEND_TYPE is set, other settings of Redis (REDIS_…) are an error."`
	LocalMaxKeys int    `envconfig:"LOCAL_MAX_KEYS" only:"rls" default:"1000000" min:"1" desc:"Maximum number of counters in the memory of this process. When the memory has this number of counters, rls evicts expired counters first, and then the counters that have spent the least."`
	AllOrNone    bool   `envconfig:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" default:"false" desc:"If one descriptor of a request is over its limit, charge none of the descriptors. If the setting is false, the other descriptors are charged. See docs/redis.md."`

	DenyCacheBytes          int     `envconfig:"LOCAL_CACHE_SIZE_IN_BYTES" default:"4194304" max:"17179869184" desc:"Memory for cached denials, up to 16 GiB. The process answers a cached denial without Redis until the denial ends. A denial takes 64 bytes. 0 means no cache."`
	CacheKeyPrefix          string  `envconfig:"CACHE_KEY_PREFIX" max:"64" desc:"Prefix of every key in Redis or memcached. The prefix has at most 64 bytes."`
	ExpirationJitterMax     int64   `envconfig:"EXPIRATION_JITTER_MAX_SECONDS" default:"300" max:"31536000" desc:"Longest random time, in seconds, that rls adds to the expiry of a key in Redis or memcached. With this time, keys do not all expire at once."`
	RedisType               string  `envconfig:"REDIS_TYPE" default:"single" oneof:"single sentinel cluster" desc:"Kind of Redis: single, sentinel or cluster."`
	RedisURL                string  `envconfig:"REDIS_URL" secret:"login" desc:"Address of Redis. For the type single, this is host:port, the path of a socket, or a URL with redis://, rediss:// or unix://. For sentinel: the name of the master, then the sentinels, as in master,host:port,host:port. For cluster: nodes, as in host:port,host:port."`
	RedisSocketType         string  `envconfig:"REDIS_SOCKET_TYPE" oneof:"tcp unix" desc:"Kind of connection to Redis: tcp or unix. An empty value means unix if the URL is a path, or else tcp."`
	RedisAuth               string  `envconfig:"REDIS_AUTH" secret:"true" desc:"Password of Redis, or user:password."`
	RedisAuthFile           string  `envconfig:"REDIS_AUTH_FILE" only:"rls" desc:"File with password or user:password, in place of REDIS_AUTH. The service reads the file for each new connection, so a changed password needs no restart. See docs/redis.md."`
	RedisSentinelAuth       string  `envconfig:"REDIS_SENTINEL_AUTH" secret:"true" desc:"As REDIS_AUTH, for sentinels."`
	RedisPoolSize           int     `envconfig:"REDIS_POOL_SIZE" default:"0" min:"0" max:"65535" desc:"Maximum number of connections to each node. 0 means enough connections for all batches in flight. With fewer connections, fewer batches are in flight. In a cluster, the number is at least REDIS_CLUSTER_PARTITIONS."`
	RedisTimeout            Timeout `envconfig:"REDIS_TIMEOUT" default:"50ms" desc:"Time limit of a whole operation: queue, round trip, retries and redirects. If Redis hangs, calls wait for this time. The value auto follows the measured round trip, from 50ms to 500ms. The timeout applies to Redis and to memcached. For memcached, auto means 50ms. If the value is above 1s, the service logs a warning. See docs/redis.md."`
	RedisFallbackRatio      float64 `envconfig:"REDIS_FALLBACK_RATIO" only:"rls" default:"0.5" above:"0" max:"1" desc:"Share of each limit that each replica admits while Redis or memcached is down. The share is above 0, and at most 1. See docs/failure.md."`
	RedisFailureMode        string  `envconfig:"REDIS_FAILURE_MODE" only:"rls" default:"local" oneof:"local allow deny" desc:"While Redis or memcached is down, the service counts in this process (local), admits all hits (allow), or denies all hits (deny). See docs/failure.md."`
	RedisPartitions         int     `envconfig:"REDIS_CLUSTER_PARTITIONS" only:"rls" default:"12" min:"1" max:"1024" desc:"Number of partitions of the keys in a cluster. All replicas need the same value. See docs/redis.md."`
	RedisMaxInflightBatches int     `envconfig:"REDIS_MAX_INFLIGHT_BATCHES" only:"rls" default:"1" min:"1" max:"1024" desc:"Maximum number of batches in flight to Redis. In a cluster, each partition has this maximum."`
	RedisMaxQueueSize       int     `envconfig:"REDIS_MAX_QUEUE_SIZE" only:"rls" default:"4096" min:"1" max:"1048576" desc:"Maximum number of hits that wait for a batch. In a cluster, each partition has this maximum. Further hits are decided without Redis, but do not count as a failure of Redis."`
	RedisWaitReplicas       int     `envconfig:"REDIS_WAIT_REPLICAS" only:"rls" default:"0" min:"0" desc:"Number of Redis replicas that must have a charge before the call is answered. A failover then loses fewer charges. The wait takes at most a quarter of REDIS_TIMEOUT. See docs/failure.md."`
	RedisTLS                bool    `envconfig:"REDIS_TLS" default:"false" desc:"Use TLS to Redis and to sentinels."`
	RedisTLSClientCert      string  `envconfig:"REDIS_TLS_CLIENT_CERT" desc:"PEM file of the certificate of rls."`
	RedisTLSClientKey       string  `envconfig:"REDIS_TLS_CLIENT_KEY" desc:"PEM file of the key of REDIS_TLS_CLIENT_CERT."`
	RedisTLSCACert          string  `envconfig:"REDIS_TLS_CACERT" desc:"PEM file of certificate authorities to trust, in addition to the authorities of the system."`
	RedisTLSSkipHostname    bool    `envconfig:"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION" default:"false" desc:"Verify the server's certificate, but not its name."`
	RedisHealthCheckActive  bool    `envconfig:"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION" default:"false" desc:"Be unhealthy while Redis or memcached is down. If false, an outage does not affect health, because the service works without Redis."`
	PerSecond               bool    `envconfig:"REDIS_PERSECOND" default:"false" desc:"Count limits with a window of one second in a separate Redis. If a call needs both Redis servers, rls asks them at the same time."`
	PerSecondType           string  `envconfig:"REDIS_PERSECOND_TYPE" default:"single" oneof:"single sentinel cluster" desc:"As REDIS_TYPE."`
	PerSecondURL            string  `envconfig:"REDIS_PERSECOND_URL" secret:"login" desc:"As REDIS_URL."`
	PerSecondSocketType     string  `envconfig:"REDIS_PERSECOND_SOCKET_TYPE" oneof:"tcp unix" desc:"As REDIS_SOCKET_TYPE."`
	PerSecondAuth           string  `envconfig:"REDIS_PERSECOND_AUTH" secret:"true" desc:"As REDIS_AUTH."`
	PerSecondAuthFile       string  `envconfig:"REDIS_PERSECOND_AUTH_FILE" only:"rls" desc:"As REDIS_AUTH_FILE."`
	PerSecondSentinelAuth   string  `envconfig:"REDIS_PERSECOND_SENTINEL_AUTH" secret:"true" desc:"As REDIS_SENTINEL_AUTH."`
	PerSecondPoolSize       int     `envconfig:"REDIS_PERSECOND_POOL_SIZE" default:"0" min:"0" max:"65535" desc:"As REDIS_POOL_SIZE."`
	PerSecondTLS            bool    `envconfig:"REDIS_PERSECOND_TLS" default:"false" desc:"As REDIS_TLS, with the same files."`

	Region             string        `envconfig:"REGION" only:"rls" desc:"Name of this region, such as eu-west-1. REDIS_GLOBAL_URL needs it. All replicas of a region have the same name. See docs/regions.md."`
	Regions            int           `envconfig:"REGIONS" only:"rls" default:"0" min:"0" max:"1000" desc:"Number of regions with the same REDIS_GLOBAL_URL. It must be equal in all regions."`
	RegionFloor        float64       `envconfig:"REGION_FLOOR" only:"rls" default:"0.1" min:"0" max:"0.5" desc:"Share of a limit with scope: global that all regions together can admit without REDIS_GLOBAL_URL. Each region has an equal part. It must be equal in all regions."`
	RegionWaste        float64       `envconfig:"REGION_WASTE" only:"rls" default:"0.25" min:"0.01" max:"1" desc:"Largest share of a limit with scope: global that regions may have bought and not used. Each region has a part in proportion to its demand. It must be equal in all regions."`
	GlobalType         string        `envconfig:"REDIS_GLOBAL_TYPE" only:"rls" default:"single" oneof:"single sentinel cluster" desc:"As REDIS_TYPE."`
	GlobalURL          string        `envconfig:"REDIS_GLOBAL_URL" only:"rls" secret:"login" desc:"Redis of all regions, as REDIS_URL. It divides limits with scope: global among the regions. Overrides are there too. See docs/regions.md."`
	GlobalAuth         string        `envconfig:"REDIS_GLOBAL_AUTH" only:"rls" secret:"true" desc:"As REDIS_AUTH."`
	GlobalAuthFile     string        `envconfig:"REDIS_GLOBAL_AUTH_FILE" only:"rls" desc:"As REDIS_AUTH_FILE."`
	GlobalSentinelAuth string        `envconfig:"REDIS_GLOBAL_SENTINEL_AUTH" only:"rls" secret:"true" desc:"As REDIS_SENTINEL_AUTH."`
	GlobalTLS          bool          `envconfig:"REDIS_GLOBAL_TLS" only:"rls" default:"false" desc:"As REDIS_TLS, with the same files."`
	GlobalTimeout      time.Duration `envconfig:"REDIS_GLOBAL_TIMEOUT" only:"rls" default:"1s" min:"1ms" max:"2s" desc:"Maximum time of a purchase in REDIS_GLOBAL_URL. No call waits for it."`

	MemcacheHostPort        names         `envconfig:"MEMCACHE_HOST_PORT" desc:"Servers for BACKEND_TYPE=memcache: host:port,host:port. A path is a socket. All replicas need the same servers in the same order. See docs/memcached.md."`
	MemcacheSRV             string        `envconfig:"MEMCACHE_SRV" desc:"Name whose SRV records list the servers, such as _memcache._tcp.example.com. The setting replaces MEMCACHE_HOST_PORT. If the name has no records at the start, the service does not start."`
	MemcacheSRVRefresh      time.Duration `envconfig:"MEMCACHE_SRV_REFRESH" default:"0s" min:"0s" desc:"Pause between two lookups of MEMCACHE_SRV. With 0, rls looks the name up only at the start."`
	MemcacheMaxIdleConns    int           `envconfig:"MEMCACHE_MAX_IDLE_CONNS" default:"16" min:"1" max:"65535" desc:"Maximum number of connections to each server, idle or in use. This is also the maximum number of calls that use memcached at the same time. Further calls wait."`
	MemcacheTLS             bool          `envconfig:"MEMCACHE_TLS" default:"false" desc:"Use TLS to memcached."`
	MemcacheTLSClientCert   string        `envconfig:"MEMCACHE_TLS_CLIENT_CERT" desc:"PEM file of the certificate of rls."`
	MemcacheTLSClientKey    string        `envconfig:"MEMCACHE_TLS_CLIENT_KEY" desc:"PEM file of the key of MEMCACHE_TLS_CLIENT_CERT."`
	MemcacheTLSCACert       string        `envconfig:"MEMCACHE_TLS_CACERT" desc:"PEM file of certificate authorities to trust, in addition to the authorities of the system."`
	MemcacheTLSSkipHostname bool          `envconfig:"MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION" default:"false" desc:"Verify the server's certificate, but not its name."`

	LocalGuardRatio   string `envconfig:"LOCAL_GUARD_RATIO" only:"rls" desc:"The deny cache denies hot keys too."`
	OverridesResync   string `envconfig:"OVERRIDES_RESYNC_INTERVAL" only:"rls" desc:"A replica reads all overrides every 30s."`
	RedisMaxBatchSize string `envconfig:"REDIS_MAX_BATCH_SIZE" only:"rls" desc:"A batch has at most 256 hits."`
}

var settings = reflect.VisibleFields(reflect.TypeFor[Settings]())

// Warning is a valid setting that is probably a mistake. Message is for the log.
type Warning struct {
	Message, Setting, Reason string
}

const noEffect = "setting without effect"

// Load reads the environment. The error lists all problems, one a line.
func Load() (settings *Settings, warnings []Warning, err error) {
	settings = new(Settings)
	warnings, errs := parse(settings)
	if os.Getenv("USE_STATSD") == "" && nonEmptyVariables("STATSD_HOST", "STATSD_PORT") != "" {
		settings.UseStatsd = !settings.UseDogStatsd && !settings.UsePrometheus
	}
	errs = append(errs, settings.check()...)
	warnings = append(warnings, settings.warnings()...)
	return settings, slices.Concat(warnings, unusedWarnings(os.Environ()), misspeltWarnings(os.Environ())), errors.Join(errs...)
}

// Backend returns the place of the counters: BackendRedis, BackendMemcache or BackendLocal.
func (s *Settings) Backend() string {
	if s.BackendType == "" && s.RedisURL != "" {
		return BackendRedis
	}
	return cmp.Or(s.BackendType, BackendLocal)
}

// LimitsOptions returns the options for reading limits.
func (s *Settings) LimitsOptions() limitsfile.Options {
	limitsOptions := limitsfile.Options{MergeDomains: s.MergeDomainConfig, CalendarMonths: s.CalendarMonths}
	limitsOptions.HasGlobalRedis = s.GlobalURL != ""
	if s.Backend() == BackendMemcache {
		limitsOptions.StoreWithoutHolds = "memcached"
	}
	return limitsOptions
}

// OverridesPlace says where rls stores overrides, rules and switches that are set at run time.
type OverridesPlace uint8

// The places.
const (
	OverridesOff OverridesPlace = iota
	OverridesInRedis
	OverridesInMemory // in the memory of this process
)

// OverridesPlace returns the place of overrides. Without Redis, no other replica shares the
// counters, so overrides in memory are enough for the admin API.
func (s *Settings) OverridesPlace() OverridesPlace {
	hasAdminAPI := len(s.AdminTokens) > 0 || s.AdminTokensFile != "" || s.DebugTLSClientCACert != ""
	switch {
	case s.OverridesEnabled:
		return OverridesInRedis
	case s.Backend() == BackendLocal && hasAdminAPI:
		return OverridesInMemory
	}
	return OverridesOff
}

// Redis returns the Redis of REDIS_URL. The caller adds TLS.
func (s *Settings) Redis() redis.Server {
	return redis.Server{
		Kind:         redis.Kind(s.RedisType),
		URL:          s.RedisURL,
		SocketType:   s.RedisSocketType,
		Auth:         s.RedisAuth,
		AuthFile:     s.RedisAuthFile,
		SentinelAuth: s.RedisSentinelAuth,
		PoolSize:     s.RedisPoolSize,
	}
}

// PerSecondRedis returns the Redis of REDIS_PERSECOND_URL. The caller adds TLS.
func (s *Settings) PerSecondRedis() redis.Server {
	return redis.Server{
		Kind:         redis.Kind(s.PerSecondType),
		URL:          s.PerSecondURL,
		SocketType:   s.PerSecondSocketType,
		Auth:         s.PerSecondAuth,
		AuthFile:     s.PerSecondAuthFile,
		SentinelAuth: s.PerSecondSentinelAuth,
		PoolSize:     s.PerSecondPoolSize,
	}
}

// GlobalRedis returns the Redis of REDIS_GLOBAL_URL. The caller adds TLS.
func (s *Settings) GlobalRedis() redis.Server {
	return redis.Server{Kind: redis.Kind(s.GlobalType), URL: s.GlobalURL, Auth: s.GlobalAuth, AuthFile: s.GlobalAuthFile, SentinelAuth: s.GlobalSentinelAuth}
}

// SharedRegions returns how the regions divide limits.
func (s *Settings) SharedRegions() limit.Regions {
	return limit.Regions{Count: s.Regions, Floor: s.RegionFloor, Waste: s.RegionWaste}
}

// TracesCalls reports whether the service sends traces of calls.
func (s *Settings) TracesCalls() bool {
	isRequested := s.TracingEnabled || s.OTELTracesExporter == "otlp"
	return isRequested && s.OTELTracesExporter != "none" && !s.OTELSDKDisabled
}

// TracingProtocol returns the protocol of the collector, http or grpc.
func (s *Settings) TracingProtocol() string {
	protocol := cmp.Or(s.TracingExporterProtocol, s.OTELTracesProtocol, s.OTELProtocol, "http")
	return strings.TrimSuffix(protocol, "/protobuf")
}

var logLevels = map[string]slog.Level{
	"trace": slog.LevelDebug, "debug": slog.LevelDebug,
	"info": slog.LevelInfo,
	"warn": slog.LevelWarn, "warning": slog.LevelWarn,
	"error": slog.LevelError, "fatal": slog.LevelError, "panic": slog.LevelError,
}

// Logger returns a logger that writes to w.
func (s *Settings) Logger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: logLevels[s.LogLevel]}
	if strings.ToLower(s.LogFormat) != "json" {
		return slog.New(slog.NewTextHandler(w, o))
	}
	o.ReplaceAttr = renameForIncumbent
	return slog.New(slog.NewJSONHandler(w, o))
}

// renameForIncumbent gives the fields of JSON logs the names that envoyproxy/ratelimit
// uses, because users have log pipelines for them.
func renameForIncumbent(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return attr
	}
	switch attr.Key {
	case slog.TimeKey:
		attr.Key = "@timestamp"
	case slog.MessageKey:
		attr.Key = "@message"
	case slog.LevelKey:
		attr = slog.String("level", strings.ToLower(attr.Value.String()))
	}
	return attr
}
