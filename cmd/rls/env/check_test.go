package env

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
)

func TestLoadReportsAllConflictsOfSettings(t *testing.T) {
	pair := certtest.New(t).Issue("localhost")
	fileWithoutCert := filepath.Join(t.TempDir(), "text.pem")
	require.NoError(t, os.WriteFile(fileWithoutCert, []byte("text"), 0o600))
	for name, test := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"Redis settings without a URL": {
			map[string]string{"REDIS_AUTH": "s3cret", "REDIS_TYPE": "cluster"},
			[]string{"REDIS_TYPE, REDIS_AUTH: REDIS_URL is empty; set REDIS_URL, or set BACKEND_TYPE=local, with which each replica counts alone"},
		},
		"Redis required without a URL": {
			map[string]string{"BACKEND_TYPE": "redis", "REDIS_AUTH": "s3cret", "OVERRIDES_ENABLED": "true"},
			[]string{
				"BACKEND_TYPE=redis needs REDIS_URL, for example 127.0.0.1:6379",
				"OVERRIDES_ENABLED=true needs REDIS_URL, for example 127.0.0.1:6379",
			},
		},
		"unknown backend": {
			map[string]string{"BACKEND_TYPE": "etcd", "REDIS_AUTH": "s3cret"},
			[]string{`BACKEND_TYPE: got "etcd", want one of redis, memcache, local`},
		},
		"memcached without a server": {
			map[string]string{"BACKEND_TYPE": "memcache", "CACHE_KEY_PREFIX": "a b"},
			[]string{
				"BACKEND_TYPE=memcache needs MEMCACHE_HOST_PORT, for example 127.0.0.1:11211, or MEMCACHE_SRV",
				`CACHE_KEY_PREFIX: got "a b", want no spaces and control characters, which memcached does not allow`,
			},
		},
		"memcached with wrong names": {
			map[string]string{"BACKEND_TYPE": "memcache", "MEMCACHE_HOST_PORT": "a:1,b", "MEMCACHE_SRV": "cache.example.com", "MEMCACHE_MAX_IDLE_CONNS": "0"},
			[]string{
				"MEMCACHE_HOST_PORT and MEMCACHE_SRV: got both, want one of them",
				`MEMCACHE_HOST_PORT: got "b", want host:port, or the path of a socket`,
				`MEMCACHE_SRV: got "cache.example.com", want a name such as _memcache._tcp.example.com`,
				`MEMCACHE_MAX_IDLE_CONNS: got "0", want a whole number from 1 to 65535`,
			},
		},
		"overrides with memcached": {
			map[string]string{"BACKEND_TYPE": "memcache", "MEMCACHE_HOST_PORT": "a:1", "OVERRIDES_ENABLED": "true"},
			[]string{"OVERRIDES_ENABLED=true needs REDIS_URL, for example 127.0.0.1:6379"},
		},
		"certificate of memcached without its key": {
			map[string]string{"BACKEND_TYPE": "memcache", "MEMCACHE_HOST_PORT": "a:1", "MEMCACHE_TLS": "true", "MEMCACHE_TLS_CLIENT_CERT": pair.CertFile},
			[]string{fmt.Sprintf("MEMCACHE_TLS_CLIENT_CERT=%q needs MEMCACHE_TLS_CLIENT_KEY, its key", pair.CertFile)},
		},
		"the URL of an unknown kind is not checked": {
			map[string]string{"REDIS_URL": "a:1,b:1", "REDIS_TYPE": "ring"},
			[]string{`REDIS_TYPE: got "ring", want one of single, sentinel, cluster`},
		},
		"two Redis": {
			map[string]string{
				"REDIS_URL": "redis://:s3cret@a", "REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": "a:1,b", "REDIS_PERSECOND_TYPE": "CLUSTER",
				"CACHE_KEY_PREFIX": "{rls}",
			},
			[]string{
				`REDIS_PERSECOND_URL: node 2 of the URL: got "b", want host:port`,
				`CACHE_KEY_PREFIX: got "{rls}", want no brace, because a cluster would take it as a hash tag`,
			},
		},
		"second Redis without a URL": {
			map[string]string{"REDIS_URL": "a:1", "REDIS_PERSECOND": "true"},
			[]string{"REDIS_PERSECOND=true needs REDIS_PERSECOND_URL, for example 127.0.0.1:6379"},
		},
		"a global Redis without its region": {
			map[string]string{"REDIS_URL": "a:1", "REDIS_GLOBAL_URL": "g:1"},
			[]string{
				"REDIS_GLOBAL_URL needs REGION, the name of this region, for example eu-west-1",
				"REDIS_GLOBAL_URL needs REGIONS, the number of all regions, for example 3",
			},
		},
		"a wrong global Redis": {
			map[string]string{"REDIS_URL": "a:1", "REDIS_GLOBAL_URL": "g", "REGION": "e u", "REGIONS": "3"},
			[]string{`REGION: got "e u", want letters, digits and -`, `REDIS_GLOBAL_URL: URL: got "g", want host:port`},
		},
		"passwords are secret": {
			map[string]string{"REDIS_URL": "user:s3cret@a:1"},
			[]string{"REDIS_URL: URL: got an @ without redis://, want redis://user:password@host:port, or the password in its own setting"},
		},
		"only overrides in Redis": {
			map[string]string{"REDIS_URL": "nowhere", "BACKEND_TYPE": "local", "OVERRIDES_ENABLED": "true"},
			[]string{`REDIS_URL: URL: got "nowhere", want host:port`},
		},
		"files of Redis": {
			map[string]string{"REDIS_URL": "a:1", "REDIS_TLS": "true", "REDIS_TLS_CLIENT_CERT": pair.CertFile, "REDIS_TLS_CACERT": "/no/ca.pem"},
			[]string{
				`REDIS_TLS_CLIENT_CERT="` + pair.CertFile + `" needs REDIS_TLS_CLIENT_KEY, its key`,
				`REDIS_TLS_CACERT="/no/ca.pem" can't be read: no such file or directory`,
			},
		},
		"files of gRPC": {
			map[string]string{"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": pair.CertFile, "GRPC_CLIENT_TLS_SAN": "envoy"},
			[]string{
				`GRPC_SERVER_TLS_CERT="` + pair.CertFile + `" needs GRPC_SERVER_TLS_KEY, its key`,
				`GRPC_CLIENT_TLS_SAN="envoy" needs GRPC_CLIENT_TLS_CACERT, without which no client certificate is verified`,
			},
		},
		"gRPC TLS without files": {
			map[string]string{"GRPC_SERVER_USE_TLS": "true"},
			[]string{"GRPC_SERVER_USE_TLS=true needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY"},
		},
		"files of the debug listener": {
			map[string]string{"DEBUG_TLS_KEY": "/no/key.pem", "DEBUG_TLS_CLIENT_CACERT": fileWithoutCert},
			[]string{
				`DEBUG_TLS_KEY="/no/key.pem" needs DEBUG_TLS_CERT, its certificate`,
				`DEBUG_TLS_KEY="/no/key.pem" can't be read: no such file or directory`,
				`DEBUG_TLS_CLIENT_CACERT="` + fileWithoutCert + `" contains no PEM certificate`,
			},
		},
		"files of xDS": {
			map[string]string{
				"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
				"CONFIG_GRPC_XDS_CLIENT_TLS_CERT": pair.CertFile, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": fileWithoutCert,
			},
			[]string{`CONFIG_GRPC_XDS_CLIENT_TLS_CERT="` + pair.CertFile + `" and CONFIG_GRPC_XDS_CLIENT_TLS_KEY="` + fileWithoutCert + `" are not a certificate and its key: tls: failed to find any PEM data in key input`},
		},
		"collector of traces": {
			map[string]string{"TRACING_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317", "TRACING_EXPORTER_PROTOCOL": "udp"},
			[]string{
				`TRACING_EXPORTER_PROTOCOL: got "udp", want one of http, grpc`,
				`OTEL_EXPORTER_OTLP_ENDPOINT: got "localhost:4317", want a URL such as http://localhost:4317`,
			},
		},
		"metrics": {
			map[string]string{"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": "9090", "PROMETHEUS_PATH": "m"},
			[]string{
				`PROMETHEUS_ADDR: "9090" is not host:port with a port from 0 to 65535; for example :9090`,
				`PROMETHEUS_PATH: got "m", want a path that begins with /`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := read(t, test.env)
			require.Error(t, err)
			assert.ElementsMatch(t, test.want, strings.Split(err.Error(), "\n"))
		})
	}
}

func TestUnusedSettingsAreNotChecked(t *testing.T) {
	pair := certtest.New(t).Issue("localhost")
	for name, env := range map[string]map[string]string{
		"variables of a Kubernetes service redis":  {"REDIS_PORT": "tcp://10.0.0.1:6379", "REDIS_SERVICE_HOST": "10.0.0.1"},
		"settings of the incumbent without effect": {"REDIS_PIPELINE_WINDOW": "75us"},
		"Redis settings with BACKEND_TYPE=local":   {"BACKEND_TYPE": "local", "REDIS_URL": "nowhere", "REDIS_TLS": "true", "REDIS_TLS_CACERT": "/no/ca.pem"},
		"second Redis":                             {"REDIS_URL": "a:1", "REDIS_PERSECOND_URL": "nowhere", "REDIS_TLS_CACERT": "/no/ca.pem"},
		"memcached with the path of a socket":      {"BACKEND_TYPE": "MEMCACHE", "MEMCACHE_HOST_PORT": "/run/memcached.sock,a:1", "REDIS_TIMEOUT": "80ms"},
		"memcached with an SRV name":               {"BACKEND_TYPE": "memcache", "MEMCACHE_SRV": "_memcache._tcp.example.com", "MEMCACHE_SRV_REFRESH": "10s"},
		"files without TLS":                        {"GRPC_SERVER_TLS_CERT": "/no/cert.pem", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": "/no/cert.pem"},
		"metrics":                                  {"PROMETHEUS_ADDR": "9090", "PROMETHEUS_PATH": "m"},
		"good settings": {
			"REDIS_URL": "a:1", "REDIS_TLS": "true", "REDIS_TLS_CLIENT_CERT": pair.CertFile, "REDIS_TLS_CLIENT_KEY": pair.KeyFile,
			"CACHE_KEY_PREFIX": "{rls}", "USE_PROMETHEUS": "true",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range env {
				t.Setenv(variable, value)
			}
			_, _, err := read(t, env)
			assert.NoError(t, err)
		})
	}
}

func TestLoadWarnsOfProbableMistakes(t *testing.T) {
	for name, test := range map[string]struct {
		env  map[string]string
		want string // empty if no warning is expected
	}{
		"timeout of the incumbent":                     {map[string]string{"REDIS_URL": "a:1", "REDIS_TIMEOUT": "10s"}, "long timeout set: REDIS_TIMEOUT: got 10s, default 50ms; the timeout bounds a whole call to Redis"},
		"timeout of one second":                        {map[string]string{"REDIS_URL": "a:1", "REDIS_TIMEOUT": "1s"}, ""},
		"counting in the process, with Redis settings": {map[string]string{"BACKEND_TYPE": "local", "REDIS_URL": "a:1", "REDIS_TIMEOUT": "10s"}, "setting without effect: REDIS_URL,REDIS_TIMEOUT: BACKEND_TYPE=local counts in this process"},
		"with overrides in Redis":                      {map[string]string{"BACKEND_TYPE": "local", "REDIS_URL": "a:1", "REDIS_TIMEOUT": "10s", "OVERRIDES_ENABLED": "true"}, ""},
		"memcached in the process":                     {map[string]string{"MEMCACHE_SRV": "_a._tcp.b", "MEMCACHE_TLS": "true"}, "setting without effect: MEMCACHE_SRV,MEMCACHE_TLS: BACKEND_TYPE is not memcache"},
		"Redis beside memcached":                       {map[string]string{"BACKEND_TYPE": "memcache", "MEMCACHE_HOST_PORT": "a:1", "REDIS_URL": "a:1", "REDIS_FALLBACK_RATIO": "0.1"}, "setting without effect: REDIS_URL: BACKEND_TYPE=memcache counts in memcached"},
		"memcached without TLS":                        {map[string]string{"BACKEND_TYPE": "memcache", "MEMCACHE_HOST_PORT": "a:1", "MEMCACHE_TLS_CACERT": "c"}, "MEMCACHE_TLS_CACERT: MEMCACHE_TLS is not true"},
		"timeout of memcached":                         {map[string]string{"BACKEND_TYPE": "memcache", "MEMCACHE_HOST_PORT": "a:1", "REDIS_TIMEOUT": "10s"}, "long timeout set: REDIS_TIMEOUT"},
		"certificates without TLS":                     {map[string]string{"GRPC_SERVER_TLS_KEY": "k", "GRPC_CLIENT_TLS_CACERT": "c"}, "GRPC_SERVER_TLS_KEY,GRPC_CLIENT_TLS_CACERT: GRPC_SERVER_USE_TLS is not true"},
		"certificates for plain xDS":                   {map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": "c"}, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT: CONFIG_GRPC_XDS_SERVER_USE_TLS is not true"},
		"certificates for no xDS":                      {map[string]string{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT": "c"}, ""},
		"traces without tracing":                       {map[string]string{"TRACING_SAMPLING_RATE": "0.1", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317"}, "setting without effect: OTEL_EXPORTER_OTLP_ENDPOINT,TRACING_SAMPLING_RATE: tracing is off"},
		"tracing that is turned off":                   {map[string]string{"TRACING_ENABLED": "true", "OTEL_TRACES_EXPORTER": "none", "TRACING_SERVICE_NAME": "x"}, "setting without effect: TRACING_SERVICE_NAME: tracing is off"},
		"tracing":                                      {map[string]string{"OTEL_TRACES_EXPORTER": "OTLP", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317"}, ""},
		"certificates for plain Redis":                 {map[string]string{"REDIS_URL": "a:1", "REDIS_TLS_CACERT": "c"}, "REDIS_TLS_CACERT: REDIS_TLS is not true"},
		"counting in the process, without Redis":       {map[string]string{"BACKEND_TYPE": "local"}, ""},
		"setting of the removed guard":                 {map[string]string{"REDIS_URL": "a:1", "LOCAL_GUARD_RATIO": "1.2"}, "setting without effect: LOCAL_GUARD_RATIO: the setting is deprecated, because the deny cache denies hot keys; remove the setting"},
		"deprecated size of batches":                   {map[string]string{"REDIS_URL": "a:1", "REDIS_MAX_BATCH_SIZE": "5000"}, "setting without effect: REDIS_MAX_BATCH_SIZE: the setting is deprecated, because a batch has at most 256 hits; remove the setting"},
		"deprecated interval of reads":                 {map[string]string{"OVERRIDES_RESYNC_INTERVAL": "1ms"}, "setting without effect: OVERRIDES_RESYNC_INTERVAL: the setting is deprecated, because a replica reads all overrides every 30s; remove the setting"},
		"path of no decision log":                      {map[string]string{"DECISION_LOG_PATH": "decisions.log"}, "setting without effect: DECISION_LOG_PATH: DECISION_LOG is off; set denied or all"},
		"path of a decision log":                       {map[string]string{"DECISION_LOG": "all", "DECISION_LOG_PATH": "decisions.log"}, ""},
		"files with xDS":                               {map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "LIMITS_PATH": "x"}, "LIMITS_PATH: limits come from the xDS server"},
	} {
		t.Run(name, func(t *testing.T) {
			_, warnings, err := read(t, test.env)
			require.NoError(t, err)
			if test.want == "" {
				assert.Empty(t, warnings)
				return
			}
			require.Len(t, warnings, 1)
			w := warnings[0]
			assert.Contains(t, w.Message+": "+w.Setting+": "+w.Reason, test.want)
		})
	}
}
