// Package env reads the settings of the service from the environment.
package env

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"
)

// The values of BACKEND_TYPE.
const (
	BackendRedis = "redis"
	BackendLocal = "local"
)

// ConfigXDS is the CONFIG_TYPE of limits from an xDS server.
const ConfigXDS = "GRPC_XDS_SOTW"

// Settings are the environment. Each field names its variable, its default and
// what it means, and, where not all values of its type will do, which (parse.go);
// what they need of each other is in check.go. docs/settings.md is made of
// them (make docs).
type Settings struct {
	GRPCHost                  string        `envconfig:"GRPC_HOST" default:"0.0.0.0" desc:"Address the gRPC listener binds to; :: for IPv6 and IPv4."`
	GRPCPort                  int           `envconfig:"GRPC_PORT" default:"8081" min:"0" max:"65535" desc:"Port of the gRPC listener."`
	GRPCUDS                   string        `envconfig:"GRPC_UDS" desc:"Path of a unix socket for gRPC, instead of host and port. A stale socket file is replaced."`
	GRPCMaxMessageBytes       int           `envconfig:"GRPC_MAX_MESSAGE_BYTES" default:"4194304" min:"1" desc:"Largest request accepted, by gRPC and by /json."`
	GRPCMaxConnectionAge      time.Duration `envconfig:"GRPC_MAX_CONNECTION_AGE" default:"24h" min:"0s" desc:"When a client is asked to connect anew, so that load spreads over new replicas (±10%). 0: never."`
	GRPCMaxConnectionAgeGrace time.Duration `envconfig:"GRPC_MAX_CONNECTION_AGE_GRACE" default:"1h" min:"0s" desc:"How long calls may still take after that. 0: no bound."`
	GRPCServerUseTLS          bool          `envconfig:"GRPC_SERVER_USE_TLS" default:"false" desc:"TLS on the gRPC listener. The files are read again when they change."`
	GRPCServerTLSCert         string        `envconfig:"GRPC_SERVER_TLS_CERT" desc:"PEM file of the server's certificate chain."`
	GRPCServerTLSKey          string        `envconfig:"GRPC_SERVER_TLS_KEY" desc:"PEM file of its key."`
	GRPCClientTLSCACert       string        `envconfig:"GRPC_CLIENT_TLS_CACERT" desc:"PEM file of the authorities that client certificates must come from; set, it requires them (mTLS)."`
	GRPCClientTLSSAN          string        `envconfig:"GRPC_CLIENT_TLS_SAN" desc:"DNS name that the client's certificate must carry as well."`

	Host      string `envconfig:"HOST" default:"0.0.0.0" desc:"Address the HTTP listener (/json, /healthcheck) binds to."`
	Port      int    `envconfig:"PORT" default:"8080" min:"0" max:"65535" desc:"Port of the HTTP listener."`
	DebugHost string `envconfig:"DEBUG_HOST" default:"0.0.0.0" desc:"Address the debug listener (/rlconfig, /metrics, /debug/pprof) binds to. pprof answers callers on the same host only."`
	DebugPort int    `envconfig:"DEBUG_PORT" default:"6070" min:"0" max:"65535" desc:"Port of the debug listener."`

	DebugTLSCert         string      `envconfig:"DEBUG_TLS_CERT" desc:"PEM file of a certificate chain; set, the debug listener speaks TLS. The files are read again when they change."`
	DebugTLSKey          string      `envconfig:"DEBUG_TLS_KEY" desc:"PEM file of its key."`
	DebugTLSClientCACert string      `envconfig:"DEBUG_TLS_CLIENT_CACERT" desc:"PEM file of the authorities of client certificates. Who has one may use the admin API; the other pages need none."`
	AdminTokens          adminTokens `envconfig:"ADMIN_TOKEN" secret:"true" desc:"Turns on the admin API on the debug listener (docs/overrides.md): a token, or name:token,name:token, whose names the audit log tells. Also what rls limits and rls counter send, the first of several."`

	UsePrometheus  bool   `envconfig:"USE_PROMETHEUS" default:"false" desc:"Serve metrics at PROMETHEUS_ADDR as well as at /metrics of the debug listener."`
	PrometheusAddr string `envconfig:"PROMETHEUS_ADDR" default:":9090" desc:"Address of that listener, host:port."`
	PrometheusPath string `envconfig:"PROMETHEUS_PATH" default:"/metrics" desc:"Path of the metrics there."`

	DrainDelay   time.Duration `envconfig:"DRAIN_DELAY" default:"0s" min:"0s" desc:"On SIGTERM: how long calls are still taken after health has turned NOT_SERVING."`
	DrainTimeout time.Duration `envconfig:"DRAIN_TIMEOUT" default:"20s" min:"0s" desc:"On SIGTERM: how long calls in flight may take to finish. Debug pages and metrics then have up to 3s more."`

	LogLevel  string `envconfig:"LOG_LEVEL" default:"info" oneof:"debug info warn error trace warning fatal panic" desc:"debug, info, warn or error (also trace, as debug, and fatal or panic, as error)."`
	LogFormat string `envconfig:"LOG_FORMAT" default:"text" desc:"text or json. Logs go to stderr."`

	LimitsPath                      string        `envconfig:"LIMITS_PATH" desc:"Limits file, or directory of them. Used instead of the RUNTIME_ settings. The flag --limits comes first."`
	RuntimeRoot                     string        `envconfig:"RUNTIME_ROOT" default:"/srv/runtime_data/current" desc:"Limits are read from RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY."`
	RuntimeSubdirectory             string        `envconfig:"RUNTIME_SUBDIRECTORY" desc:"See RUNTIME_ROOT."`
	RuntimeAppDirectory             string        `envconfig:"RUNTIME_APPDIRECTORY" default:"config" desc:"See RUNTIME_ROOT."`
	RuntimeWatchRoot                bool          `envconfig:"RUNTIME_WATCH_ROOT" default:"true" desc:"true: a file RUNTIME_APPDIRECTORY.yaml beside the directory counts too. All kinds of changes are seen with both values."`
	RuntimeIgnoreDotFiles           bool          `envconfig:"RUNTIME_IGNOREDOTFILES" default:"false" desc:"Skip files and directories whose names start with a dot. Those starting with two dots are always skipped."`
	SourcePollInterval              time.Duration `envconfig:"SOURCE_POLL_INTERVAL" default:"1s" min:"100ms" desc:"Interval at which limits files are checked for changes. A change is in force after one to two intervals."`
	MergeDomainConfig               bool          `envconfig:"MERGE_DOMAIN_CONFIG" default:"false" desc:"Unite files of one domain; else that is an error."`
	ForceStartWithoutInitialConfig  bool          `envconfig:"FORCE_START_WITHOUT_INITIAL_CONFIG" default:"false" desc:"Start although there are no valid limits files; calls are refused with FAILED_PRECONDITION until there are. With xDS, which always starts so, health is good before the first update."`
	HealthyWithAtLeastOneConfigLoad bool          `envconfig:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" default:"false" desc:"Report healthy only while at least one domain is loaded."`

	OverridesEnabled bool          `envconfig:"OVERRIDES_ENABLED" default:"false" desc:"Overrides of single limits at run time, kept in Redis (REDIS_URL) and shared by all replicas. See docs/overrides.md."`
	OverridesResync  time.Duration `envconfig:"OVERRIDES_RESYNC_INTERVAL" default:"30s" min:"100ms" desc:"How often all overrides are read again, as a message about a change can get lost."`

	ConfigType         string        `envconfig:"CONFIG_TYPE" default:"FILE" oneof:"FILE GRPC_XDS_SOTW" desc:"Where limits come from: FILE, or GRPC_XDS_SOTW for an xDS management server."`
	XDSServer          string        `envconfig:"CONFIG_GRPC_XDS_SERVER_URL" default:"localhost:18000" desc:"Address of the xDS server, host:port."`
	XDSNodeID          string        `envconfig:"CONFIG_GRPC_XDS_NODE_ID" default:"default" desc:"Node id that the xDS server knows this service by."`
	XDSNodeMetadata    nodeMetadata  `envconfig:"CONFIG_GRPC_XDS_NODE_METADATA" desc:"Metadata of the node: name=value,name=value."`
	XDSHeaders         headers       `envconfig:"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS" secret:"true" desc:"Headers to send to the xDS server: name:value,name:value."`
	XDSUseTLS          bool          `envconfig:"CONFIG_GRPC_XDS_SERVER_USE_TLS" default:"false" desc:"TLS to the xDS server."`
	XDSTLSCert         string        `envconfig:"CONFIG_GRPC_XDS_CLIENT_TLS_CERT" desc:"PEM file of the client's certificate."`
	XDSTLSKey          string        `envconfig:"CONFIG_GRPC_XDS_CLIENT_TLS_KEY" desc:"PEM file of its key."`
	XDSTLSCACert       string        `envconfig:"CONFIG_GRPC_XDS_SERVER_TLS_CACERT" desc:"PEM file of authorities to trust besides the system's."`
	XDSTLSSAN          string        `envconfig:"CONFIG_GRPC_XDS_SERVER_TLS_SAN" desc:"Name to verify the server's certificate against, instead of the host."`
	XDSBackoffInitial  time.Duration `envconfig:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" default:"1s" min:"1ms" desc:"Pause after the first failure to reach the xDS server; each further one doubles it."`
	XDSBackoffMax      time.Duration `envconfig:"XDS_CLIENT_BACKOFF_MAX_INTERVAL" default:"60s" min:"1ms" desc:"Longest such pause, before it is made random."`
	XDSBackoffRandom   float64       `envconfig:"XDS_CLIENT_BACKOFF_RANDOM_FACTOR" default:"0.5" min:"0" desc:"Share by which a pause is longer or shorter at random; over 1 counts as 1."`
	XDSBackoffJitter   bool          `envconfig:"XDS_CLIENT_BACKOFF_JITTER" default:"true" desc:"false: pauses aren't random."`
	XDSMaxMessageBytes int           `envconfig:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES" default:"0" min:"0" desc:"Largest update taken from the xDS server. 0: 16 MiB."`

	ShadowMode              bool   `envconfig:"SHADOW_MODE" default:"false" desc:"Answer OK overall whatever the statuses say."`
	QuotaMode               bool   `envconfig:"QUOTA_MODE" default:"false" desc:"Treat every descriptor as one in quota_mode."`
	ResponseHeadersEnabled  bool   `envconfig:"LIMIT_RESPONSE_HEADERS_ENABLED" default:"false" desc:"Send the three headers below."`
	LimitHeader             string `envconfig:"LIMIT_LIMIT_HEADER" default:"RateLimit-Limit" desc:"Name of the header with requests_per_unit."`
	RemainingHeader         string `envconfig:"LIMIT_REMAINING_HEADER" default:"RateLimit-Remaining" desc:"Name of the header with what remains."`
	ResetHeader             string `envconfig:"LIMIT_RESET_HEADER" default:"RateLimit-Reset" desc:"Name of the header with the seconds until it resets."`
	ResponseDynamicMetadata bool   `envconfig:"RESPONSE_DYNAMIC_METADATA" default:"false" desc:"Add the request and the matched rules' metadata to the response's dynamic metadata."`

	BackendType  string `envconfig:"BACKEND_TYPE" oneof:"redis local" desc:"redis or local: where counters are. Empty: redis if REDIS_URL is set, else local, unless other settings for Redis (REDIS_…) are set: then a start is refused."`
	LocalMaxKeys int    `envconfig:"LOCAL_MAX_KEYS" default:"1000000" min:"1" desc:"Most counters held in this process. When full, expired ones go first, then those with the least spent."`
	AllOrNone    bool   `envconfig:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" default:"false" desc:"Charge all descriptors of a request or, if one is over its limit, none."`

	DenyCacheBytes          int           `envconfig:"LOCAL_CACHE_SIZE_IN_BYTES" default:"4194304" max:"17179869184" desc:"Memory for denials that are answered here until they end, without asking Redis; 64 bytes each, up to 16 GiB. 0: none."`
	LocalGuardRatio         float64       `envconfig:"LOCAL_GUARD_RATIO" default:"0" min:"0" desc:"From 1: a replica that alone has had this much of a fixed_window limit charged denies the rest of the window without asking Redis; 1.2 is a good value. 0: never. Not with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT."`
	CacheKeyPrefix          string        `envconfig:"CACHE_KEY_PREFIX" max:"64" desc:"Start of every key in Redis, up to 64 bytes."`
	ExpirationJitterMax     int64         `envconfig:"EXPIRATION_JITTER_MAX_SECONDS" default:"300" max:"31536000" desc:"Most seconds by which a key in Redis outlives its use, at random, so that not all expire at once."`
	RedisType               string        `envconfig:"REDIS_TYPE" default:"single" oneof:"single sentinel cluster" desc:"single, sentinel or cluster."`
	RedisURL                string        `envconfig:"REDIS_URL" secret:"true" desc:"single: host:port, a socket's path, redis://, rediss:// or unix://. sentinel: master,host:port,…. cluster: host:port,…."`
	RedisSocketType         string        `envconfig:"REDIS_SOCKET_TYPE" oneof:"tcp unix" desc:"tcp or unix. Empty: unix if the URL is a path."`
	RedisAuth               string        `envconfig:"REDIS_AUTH" secret:"true" desc:"password or user:password."`
	RedisSentinelAuth       string        `envconfig:"REDIS_SENTINEL_AUTH" secret:"true" desc:"The same, for sentinels."`
	RedisPoolSize           int           `envconfig:"REDIS_POOL_SIZE" default:"0" min:"0" max:"65535" desc:"Most connections to each node. 0: enough for all trips that can be in flight."`
	RedisTimeout            time.Duration `envconfig:"REDIS_TIMEOUT" default:"50ms" min:"1ms" desc:"Budget of a whole operation: waiting, the trip, retries and redirects. Calls wait that long while Redis hangs; over 1s a warning says so. See docs/redis.md."`
	RedisFallbackRatio      float64       `envconfig:"REDIS_FALLBACK_RATIO" default:"0.5" over:"0" max:"1" desc:"Share of each limit that this replica grants while Redis can't be reached, over 0 up to 1. See docs/failure.md."`
	RedisFailureMode        string        `envconfig:"REDIS_FAILURE_MODE" default:"local" oneof:"local allow deny" desc:"What limits do meanwhile: local (count in this process), allow or deny."`
	RedisPartitions         int           `envconfig:"REDIS_CLUSTER_PARTITIONS" default:"16" min:"1" max:"1024" desc:"Over how many hash tags keys are spread in a cluster. The same for all replicas."`
	RedisMaxBatchSize       int           `envconfig:"REDIS_MAX_BATCH_SIZE" default:"64" min:"1" max:"4096" desc:"Most hits in one trip to Redis."`
	RedisMaxInflightBatches int           `envconfig:"REDIS_MAX_INFLIGHT_BATCHES" default:"1" min:"1" max:"1024" desc:"Most trips in flight, in a cluster for each partition."`
	RedisMaxQueueSize       int           `envconfig:"REDIS_MAX_QUEUE_SIZE" default:"4096" min:"1" max:"1048576" desc:"Most hits that wait for a trip, in a cluster for each partition. Those over it are decided at once, as while Redis is away; it doesn't count as a failure of Redis."`
	RedisWaitReplicas       int           `envconfig:"REDIS_WAIT_REPLICAS" default:"0" min:"0" desc:"How many replicas of Redis must have a charge before it is answered, so that a failover loses less. Waits a quarter of REDIS_TIMEOUT at most. See docs/failure.md."`
	RedisTLS                bool          `envconfig:"REDIS_TLS" default:"false" desc:"TLS to Redis and to sentinels."`
	RedisTLSClientCert      string        `envconfig:"REDIS_TLS_CLIENT_CERT" desc:"PEM file of the client's certificate."`
	RedisTLSClientKey       string        `envconfig:"REDIS_TLS_CLIENT_KEY" desc:"PEM file of its key."`
	RedisTLSCACert          string        `envconfig:"REDIS_TLS_CACERT" desc:"PEM file of authorities to trust besides the system's."`
	RedisTLSSkipHostname    bool          `envconfig:"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION" default:"false" desc:"Verify the server's certificate, but not the name in it."`
	RedisHealthCheckActive  bool          `envconfig:"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION" default:"false" desc:"Report unhealthy while Redis can't be reached. Without it Redis has no part in health, as the service goes on without it."`
	PerSecond               bool          `envconfig:"REDIS_PERSECOND" default:"false" desc:"Count limits of one second in a Redis of their own, asked at the same time as the other."`
	PerSecondType           string        `envconfig:"REDIS_PERSECOND_TYPE" default:"single" oneof:"single sentinel cluster" desc:"As REDIS_TYPE."`
	PerSecondURL            string        `envconfig:"REDIS_PERSECOND_URL" secret:"true" desc:"As REDIS_URL."`
	PerSecondSocketType     string        `envconfig:"REDIS_PERSECOND_SOCKET_TYPE" oneof:"tcp unix" desc:"As REDIS_SOCKET_TYPE."`
	PerSecondAuth           string        `envconfig:"REDIS_PERSECOND_AUTH" secret:"true" desc:"As REDIS_AUTH."`
	PerSecondSentinelAuth   string        `envconfig:"REDIS_PERSECOND_SENTINEL_AUTH" secret:"true" desc:"As REDIS_SENTINEL_AUTH."`
	PerSecondPoolSize       int           `envconfig:"REDIS_PERSECOND_POOL_SIZE" default:"0" min:"0" max:"65535" desc:"As REDIS_POOL_SIZE."`
	PerSecondTLS            bool          `envconfig:"REDIS_PERSECOND_TLS" default:"false" desc:"As REDIS_TLS; the files are the same."`
}

// Load reads the environment. The error tells all that is wrong with it,
// one a line; notes are what else the user should know.
func Load() (s *Settings, notes []string, err error) {
	s = new(Settings)
	notes, errs := readEnvironment(s)
	errs = append(errs, s.check()...)
	if strings.EqualFold(os.Getenv("BACKEND_TYPE"), "memcache") {
		errs = append(errs, errors.New("memcached can't charge and check in one step, so rls doesn't count in it: use BACKEND_TYPE=redis or local"))
	}
	return s, append(notes, s.notes()...), errors.Join(errs...)
}

// Backend is where counters are.
func (s *Settings) Backend() string {
	if s.BackendType == "" && s.RedisURL != "" {
		return BackendRedis
	}
	return cmp.Or(s.BackendType, BackendLocal)
}

// Logger makes the logger that the settings ask for.
func (s *Settings) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	switch s.LogLevel {
	case "trace", "debug":
		level = slog.LevelDebug
	case "info":
		level = slog.LevelInfo
	case "warn", "warning":
		level = slog.LevelWarn
	case "error", "fatal", "panic":
		level = slog.LevelError
	}
	if strings.ToLower(s.LogFormat) != "json" {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: incumbentNames}))
}

// incumbentNames gives JSON log lines the field names that users of
// envoyproxy/ratelimit have set their log pipelines to.
func incumbentNames(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		a.Key = "@timestamp"
	case slog.MessageKey:
		a.Key = "@message"
	case slog.LevelKey:
		a = slog.String("level", strings.ToLower(a.Value.String()))
	}
	return a
}
