package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"
	"github.com/spf13/cobra"
)

// settings are the environment. Each field names its variable, its default and
// what it means; docs/settings.md is made of them (make docs).
type settings struct {
	GRPCHost                  string        `envconfig:"GRPC_HOST" default:"0.0.0.0" desc:"Address the gRPC listener binds to; :: for IPv6 and IPv4."`
	GRPCPort                  int           `envconfig:"GRPC_PORT" default:"8081" desc:"Port of the gRPC listener."`
	GRPCUDS                   string        `envconfig:"GRPC_UDS" desc:"Path of a unix socket for gRPC, instead of host and port. A stale socket file is replaced."`
	GRPCMaxMessageBytes       int           `envconfig:"GRPC_MAX_MESSAGE_BYTES" default:"4194304" desc:"Largest request accepted, by gRPC and by /json."`
	GRPCMaxConnectionAge      time.Duration `envconfig:"GRPC_MAX_CONNECTION_AGE" default:"24h" desc:"When a client is asked to connect anew, so that load spreads over new replicas (±10%)."`
	GRPCMaxConnectionAgeGrace time.Duration `envconfig:"GRPC_MAX_CONNECTION_AGE_GRACE" default:"1h" desc:"How long calls may still take after that."`
	GRPCServerUseTLS          bool          `envconfig:"GRPC_SERVER_USE_TLS" default:"false" desc:"TLS on the gRPC listener. The files are read again when they change."`
	GRPCServerTLSCert         string        `envconfig:"GRPC_SERVER_TLS_CERT" desc:"PEM file of the server's certificate chain."`
	GRPCServerTLSKey          string        `envconfig:"GRPC_SERVER_TLS_KEY" desc:"PEM file of its key."`
	GRPCClientTLSCACert       string        `envconfig:"GRPC_CLIENT_TLS_CACERT" desc:"PEM file of the authorities that client certificates must come from; set, it requires them (mTLS)."`
	GRPCClientTLSSAN          string        `envconfig:"GRPC_CLIENT_TLS_SAN" desc:"DNS name that the client's certificate must carry as well."`

	Host      string `envconfig:"HOST" default:"0.0.0.0" desc:"Address the HTTP listener (/json, /healthcheck) binds to."`
	Port      int    `envconfig:"PORT" default:"8080" desc:"Port of the HTTP listener."`
	DebugHost string `envconfig:"DEBUG_HOST" default:"0.0.0.0" desc:"Address the debug listener (/rlconfig, /debug/pprof) binds to. pprof answers callers on the same host only."`
	DebugPort int    `envconfig:"DEBUG_PORT" default:"6070" desc:"Port of the debug listener."`

	DrainDelay   time.Duration `envconfig:"DRAIN_DELAY" default:"0s" desc:"On SIGTERM: how long calls are still taken after health has turned NOT_SERVING."`
	DrainTimeout time.Duration `envconfig:"DRAIN_TIMEOUT" default:"20s" desc:"On SIGTERM: how long calls in flight may take to finish."`

	LogLevel  string `envconfig:"LOG_LEVEL" default:"info" desc:"debug, info, warn or error (also trace, as debug, and fatal or panic, as error)."`
	LogFormat string `envconfig:"LOG_FORMAT" default:"text" desc:"text or json. Logs go to stderr."`

	LimitsPath                      string        `envconfig:"LIMITS_PATH" desc:"Limits file, or directory of them. Used instead of the RUNTIME_ settings. The flag --limits comes first."`
	RuntimeRoot                     string        `envconfig:"RUNTIME_ROOT" default:"/srv/runtime_data/current" desc:"Limits are read from RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY."`
	RuntimeSubdirectory             string        `envconfig:"RUNTIME_SUBDIRECTORY" desc:"See RUNTIME_ROOT."`
	RuntimeAppDirectory             string        `envconfig:"RUNTIME_APPDIRECTORY" default:"config" desc:"See RUNTIME_ROOT."`
	RuntimeWatchRoot                bool          `envconfig:"RUNTIME_WATCH_ROOT" default:"true" desc:"true: a file RUNTIME_APPDIRECTORY.yaml beside the directory counts too."`
	RuntimeIgnoreDotFiles           bool          `envconfig:"RUNTIME_IGNOREDOTFILES" default:"false" desc:"Skip files and directories whose names start with a dot. Those starting with two dots are always skipped."`
	LimitsPollInterval              time.Duration `envconfig:"LIMITS_POLL_INTERVAL" default:"30s" desc:"How often limits files are looked at without the system telling of a change; for network file systems."`
	MergeDomainConfig               bool          `envconfig:"MERGE_DOMAIN_CONFIG" default:"false" desc:"Unite files of one domain; else that is an error."`
	ForceStartWithoutInitialConfig  bool          `envconfig:"FORCE_START_WITHOUT_INITIAL_CONFIG" default:"false" desc:"Start although there are no valid limits. Calls are refused with FAILED_PRECONDITION until there are."`
	HealthyWithAtLeastOneConfigLoad bool          `envconfig:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" default:"false" desc:"Report healthy only while at least one domain is loaded."`

	ShadowMode              bool   `envconfig:"SHADOW_MODE" default:"false" desc:"Answer OK overall whatever the statuses say."`
	QuotaMode               bool   `envconfig:"QUOTA_MODE" default:"false" desc:"Treat every descriptor as one in quota_mode."`
	ResponseHeadersEnabled  bool   `envconfig:"LIMIT_RESPONSE_HEADERS_ENABLED" default:"false" desc:"Send the three headers below."`
	LimitHeader             string `envconfig:"LIMIT_LIMIT_HEADER" default:"RateLimit-Limit" desc:"Name of the header with requests_per_unit."`
	RemainingHeader         string `envconfig:"LIMIT_REMAINING_HEADER" default:"RateLimit-Remaining" desc:"Name of the header with what remains."`
	ResetHeader             string `envconfig:"LIMIT_RESET_HEADER" default:"RateLimit-Reset" desc:"Name of the header with the seconds until it resets."`
	ResponseDynamicMetadata bool   `envconfig:"RESPONSE_DYNAMIC_METADATA" default:"false" desc:"Add the request and the matched rules' metadata to the response's dynamic metadata."`

	BackendType  string `envconfig:"BACKEND_TYPE" desc:"redis or local: where counters are. Empty: redis if REDIS_URL is set, else local."`
	LocalMaxKeys int    `envconfig:"LOCAL_MAX_KEYS" default:"1000000" desc:"Most counters held in this process. When full, expired ones go first, then those with the least spent."`
	AllOrNone    bool   `envconfig:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" default:"false" desc:"Charge all descriptors of a request or, if one is over its limit, none."`

	DenyCacheBytes         int           `envconfig:"LOCAL_CACHE_SIZE_IN_BYTES" default:"4194304" desc:"Memory for denials that are answered here until they end, without asking Redis; 64 bytes each. 0: none."`
	CacheKeyPrefix         string        `envconfig:"CACHE_KEY_PREFIX" desc:"Start of every key in Redis, up to 64 bytes."`
	ExpirationJitterMax    int64         `envconfig:"EXPIRATION_JITTER_MAX_SECONDS" default:"300" desc:"Most seconds by which a key in Redis outlives its use, at random, so that not all expire at once."`
	RedisType              string        `envconfig:"REDIS_TYPE" default:"single" desc:"single, sentinel or cluster."`
	RedisURL               string        `envconfig:"REDIS_URL" desc:"single: host:port, a socket's path, redis://, rediss:// or unix://. sentinel: master,host:port,…. cluster: host:port,…."`
	RedisSocketType        string        `envconfig:"REDIS_SOCKET_TYPE" desc:"tcp or unix. Empty: unix if the URL is a path."`
	RedisAuth              string        `envconfig:"REDIS_AUTH" desc:"password or user:password."`
	RedisSentinelAuth      string        `envconfig:"REDIS_SENTINEL_AUTH" desc:"The same, for sentinels."`
	RedisPoolSize          int           `envconfig:"REDIS_POOL_SIZE" default:"0" desc:"Most connections to each node. 0: enough for all trips that can be in flight."`
	RedisTimeout           time.Duration `envconfig:"REDIS_TIMEOUT" default:"50ms" desc:"Budget of a whole operation: waiting, the trip, retries and redirects. See docs/redis.md."`
	RedisFallbackRatio     float64       `envconfig:"REDIS_FALLBACK_RATIO" default:"0.5" desc:"Share of each limit that this replica grants while Redis can't be reached, over 0 up to 1. See docs/failure.md."`
	RedisFailureMode       string        `envconfig:"REDIS_FAILURE_MODE" default:"local" desc:"What limits do meanwhile: local (count in this process), allow or deny."`
	RedisPartitions        int           `envconfig:"REDIS_CLUSTER_PARTITIONS" default:"16" desc:"Over how many hash tags keys are spread in a cluster. The same for all replicas."`
	RedisMaxHits           int           `envconfig:"REDIS_MAX_HITS_PER_TRIP" default:"64" desc:"Most hits in one trip to Redis."`
	RedisTrips             int           `envconfig:"REDIS_TRIPS_IN_FLIGHT" default:"1" desc:"Most trips in flight, in a cluster for each partition."`
	RedisMaxQueue          int           `envconfig:"REDIS_MAX_QUEUED_HITS" default:"4096" desc:"Most hits that wait for a trip, in a cluster for each partition. Over it they fail at once."`
	RedisTLS               bool          `envconfig:"REDIS_TLS" default:"false" desc:"TLS to Redis and to sentinels."`
	RedisTLSClientCert     string        `envconfig:"REDIS_TLS_CLIENT_CERT" desc:"PEM file of the client's certificate."`
	RedisTLSClientKey      string        `envconfig:"REDIS_TLS_CLIENT_KEY" desc:"PEM file of its key."`
	RedisTLSCACert         string        `envconfig:"REDIS_TLS_CACERT" desc:"PEM file of authorities to trust besides the system's."`
	RedisTLSSkipHostname   bool          `envconfig:"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION" default:"false" desc:"Verify the server's certificate, but not the name in it."`
	RedisHealthCheckActive bool          `envconfig:"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION" default:"false" desc:"Report unhealthy while Redis can't be reached. Without it Redis has no part in health, as the service goes on without it."`
	PerSecond              bool          `envconfig:"REDIS_PERSECOND" default:"false" desc:"Count limits of one second in a Redis of their own, asked at the same time as the other."`
	PerSecondType          string        `envconfig:"REDIS_PERSECOND_TYPE" default:"single" desc:"As REDIS_TYPE."`
	PerSecondURL           string        `envconfig:"REDIS_PERSECOND_URL" desc:"As REDIS_URL."`
	PerSecondSocketType    string        `envconfig:"REDIS_PERSECOND_SOCKET_TYPE" desc:"As REDIS_SOCKET_TYPE."`
	PerSecondAuth          string        `envconfig:"REDIS_PERSECOND_AUTH" desc:"As REDIS_AUTH."`
	PerSecondSentinelAuth  string        `envconfig:"REDIS_PERSECOND_SENTINEL_AUTH" desc:"As REDIS_SENTINEL_AUTH."`
	PerSecondPoolSize      int           `envconfig:"REDIS_PERSECOND_POOL_SIZE" default:"0" desc:"As REDIS_POOL_SIZE."`
	PerSecondTLS           bool          `envconfig:"REDIS_PERSECOND_TLS" default:"false" desc:"As REDIS_TLS; the files are the same."`
}

// loadSettings reads the environment.
func loadSettings() (*settings, error) {
	var s settings
	err := envconfig.Process("", &s)
	var bad *envconfig.ParseError
	if errors.As(err, &bad) {
		return nil, fmt.Errorf("%s=%q is not %s", bad.KeyName, bad.Value, kindName(bad.TypeName))
	}
	return &s, err
}

// kindName says in words what values of a setting's type are.
func kindName(typeName string) string {
	switch typeName {
	case "bool":
		return "true or false"
	case "int", "int64":
		return "a whole number"
	case "float64":
		return "a number"
	case "time.Duration":
		return "a duration with its unit, such as 50ms or 10s"
	}
	return "a " + typeName
}

// logger makes the logger that the settings ask for.
func (s *settings) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	switch strings.ToLower(s.LogLevel) {
	case "trace", "debug":
		level = slog.LevelDebug
	case "info":
		level = slog.LevelInfo
	case "warn", "warning":
		level = slog.LevelWarn
	case "error", "fatal", "panic":
		level = slog.LevelError
	default:
		return nil, fmt.Errorf("LOG_LEVEL=%q is not one of debug, info, warn, error", s.LogLevel)
	}
	if strings.ToLower(s.LogFormat) != "json" {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})), nil
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: incumbentNames})), nil
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

// newSettings is the hidden command behind make docs.
func newSettings() *cobra.Command {
	return &cobra.Command{
		Use:    "settings",
		Short:  "Print docs/settings.md",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return writeSettings(cmd.OutOrStdout())
		},
	}
}

func writeSettings(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Settings\n\nAll are environment variables. This page is made from the code by `make docs`.\n\n" +
		"| variable | default | meaning |\n|---|---|---|\n")
	for _, f := range reflect.VisibleFields(reflect.TypeFor[settings]()) {
		value := f.Tag.Get("default")
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Tag.Get("envconfig"), value, f.Tag.Get("desc"))
	}
	b.WriteString("\nBooleans are true or false (also 1, 0, t, f), durations carry a unit (`50ms`, `10s`, `24h`).\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// getenv is os.Getenv, here so that no other file of this package reads the
// environment.
var getenv = os.Getenv
