package env

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/service/callers"
)

// problems collects errors, each with the name of a variable.
type problems []error

func (ps *problems) addIf(isProblem bool, format string, args ...any) {
	if isProblem {
		*ps = append(*ps, fmt.Errorf(format, args...))
	}
}

// check returns the conflicts between settings, and the problems of the files that settings name. If parse has rejected
// the value of a field, the field is zero. check ignores settings that have no effect.
func (s *Settings) check() []error {
	var ps problems
	for _, f := range s.TLSFiles() {
		if f.isUsed {
			ps.checkTLSFiles(f)
		}
	}
	if s.GRPCServerUseTLS {
		ps.addIf(s.GRPCServerTLSCert == "" && s.GRPCServerTLSKey == "", "GRPC_SERVER_USE_TLS=true needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY")
		ps.addIf(s.GRPCClientTLSSAN != "" && s.GRPCClientTLSCACert == "",
			"GRPC_CLIENT_TLS_SAN=%q needs GRPC_CLIENT_TLS_CACERT, without which no client certificate is verified", s.GRPCClientTLSSAN)
	}
	if s.CallerDomainsFile != "" {
		ps.addIf(!s.GRPCServerUseTLS || s.GRPCClientTLSCACert == "",
			"CALLER_DOMAINS_FILE=%q needs GRPC_SERVER_USE_TLS=true and GRPC_CLIENT_TLS_CACERT, without which no client certificate is verified", s.CallerDomainsFile)
		err := callers.Check(s.CallerDomainsFile)
		ps.addIf(err != nil, "CALLER_DOMAINS_FILE: %w", err)
	}
	if s.AdminTokensFile != "" {
		err := admin.CheckTokenFile(s.AdminTokensFile)
		ps.addIf(err != nil, "ADMIN_TOKENS_FILE: %w", err)
	}
	ps.addIf(s.CallerHeader != "" && !httpguts.ValidHeaderFieldName(s.CallerHeader), "CALLER_HEADER: got %q, want the name of a header, such as x-envoy-node", s.CallerHeader)
	ps.addIf(s.DebugTLSClientCACert != "" && s.DebugTLSCert == "" && s.DebugTLSKey == "",
		"DEBUG_TLS_CLIENT_CACERT needs DEBUG_TLS_CERT and DEBUG_TLS_KEY, because without TLS there are no client certificates")
	if s.UsePrometheus && !s.DisableStats {
		_, err := server.ParseAddr(s.PrometheusAddr)
		ps.addIf(err != nil, "PROMETHEUS_ADDR: %w", err)
		ps.addIf(!strings.HasPrefix(s.PrometheusPath, "/"), "PROMETHEUS_PATH: got %q, want a path that begins with /", s.PrometheusPath)
	}
	s.checkStats(&ps)
	hasScheme := strings.HasPrefix(s.OTELEndpoint, "http://") || strings.HasPrefix(s.OTELEndpoint, "https://")
	ps.addIf(s.TracesCalls() && s.OTELEndpoint != "" && !hasScheme,
		"OTEL_EXPORTER_OTLP_ENDPOINT: got %q, want a URL such as http://localhost:4317", WithoutLogin(s.OTELEndpoint))
	ps.addIf(s.ConfigType == ConfigXDS && strings.Contains(s.XDSServer, "@"),
		"CONFIG_GRPC_XDS_SERVER_URL: got a user or password, want host:port; CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS can have a secret")
	s.checkRedis(&ps)
	if s.Backend() == BackendMemcache {
		s.checkMemcached(&ps)
	}
	return ps
}

func (s *Settings) checkMemcached(ps *problems) {
	hasServers, hasName := len(s.MemcacheHostPort) > 0, s.MemcacheSRV != ""
	ps.addIf(!hasServers && !hasName, "BACKEND_TYPE=memcache needs MEMCACHE_HOST_PORT, for example 127.0.0.1:11211, or MEMCACHE_SRV")
	ps.addIf(hasServers && hasName, "MEMCACHE_HOST_PORT and MEMCACHE_SRV: got both, want one of them")
	for _, address := range s.MemcacheHostPort {
		_, _, err := net.SplitHostPort(address)
		ps.addIf(err != nil && !strings.Contains(address, "/"), "MEMCACHE_HOST_PORT: got %q, want host:port, or the path of a socket", address)
	}
	ps.addIf(hasName && (!strings.HasPrefix(s.MemcacheSRV, "_") || !strings.Contains(s.MemcacheSRV, "._")),
		"MEMCACHE_SRV: got %q, want a name such as _memcache._tcp.example.com", s.MemcacheSRV)
	ps.addIf(strings.ContainsFunc(s.CacheKeyPrefix, func(r rune) bool { return r <= ' ' || r == 0x7F }),
		"CACHE_KEY_PREFIX: got %q, want no spaces and control characters, which memcached does not allow", s.CacheKeyPrefix)
}

func (s *Settings) checkRedis(ps *problems) {
	const example = "for example 127.0.0.1:6379"
	if s.RedisURL == "" {
		variables := nonEmptyVariablesWithPrefix("REDIS_")
		ps.addIf(s.BackendType == BackendRedis, "BACKEND_TYPE=redis needs REDIS_URL, %s", example)
		ps.addIf(os.Getenv("BACKEND_TYPE") == "" && variables != "",
			"%s: REDIS_URL is empty; set REDIS_URL, or set BACKEND_TYPE=local, with which each replica counts alone", strings.ReplaceAll(variables, ",", ", "))
		ps.addIf(s.OverridesEnabled, "OVERRIDES_ENABLED=true needs REDIS_URL, %s", example)
	}
	if !s.usesRedis() {
		return
	}
	ps.checkServer("REDIS", s.Redis())
	hasCluster := s.Redis().Kind == redis.Cluster
	if s.usesPerSecond() {
		ps.addIf(s.PerSecondURL == "", "REDIS_PERSECOND=true needs REDIS_PERSECOND_URL, %s", example)
		ps.checkServer("REDIS_PERSECOND", s.PerSecondRedis())
		hasCluster = hasCluster || s.PerSecondRedis().Kind == redis.Cluster
	}
	if s.GlobalURL != "" {
		ps.addIf(s.Backend() != BackendRedis, "REDIS_GLOBAL_URL needs REDIS_URL, the Redis of this region, %s", example)
		ps.addIf(s.Region == "", "REDIS_GLOBAL_URL needs REGION, the name of this region, for example eu-west-1")
		ps.addIf(strings.ContainsFunc(s.Region, func(r rune) bool { return r <= ' ' || r > '~' }), "REGION: got %q, want letters, digits and -", s.Region)
		ps.addIf(s.Regions == 0, "REDIS_GLOBAL_URL needs REGIONS, the number of all regions, for example 3")
		ps.checkServer("REDIS_GLOBAL", s.GlobalRedis())
		hasCluster = hasCluster || s.GlobalRedis().Kind == redis.Cluster
	}
	ps.addIf(hasCluster && strings.ContainsAny(s.CacheKeyPrefix, "{}"),
		"CACHE_KEY_PREFIX: got %q, want no brace, because a cluster would take it as a hash tag", s.CacheKeyPrefix)
}

// checkServer checks the URL and the password of a Redis, whose variables begin with prefix.
func (ps *problems) checkServer(prefix string, r redis.Server) {
	if r.URL != "" && r.Kind != "" { // parse has reported a kind that is not allowed
		err := r.Check()
		ps.addIf(err != nil, "%s_URL: %w", prefix, err)
	}
	if r.AuthFile != "" {
		ps.addIf(r.Auth != "", "%s_AUTH and %[1]s_AUTH_FILE: got both, want one of them", prefix)
		_, err := redis.ReadAuthFile(r.AuthFile)
		ps.addIf(err != nil, "%s_AUTH_FILE: %w", prefix, err)
	}
}

// MaxAllEntries returns the maximum number of entries of all descriptors of a request.
func (s *Settings) MaxAllEntries() int { return 64 * s.MaxDescriptors }

func (s *Settings) usesRedis() bool { return s.Backend() == BackendRedis || s.OverridesEnabled }

func (s *Settings) usesPerSecond() bool { return s.Backend() == BackendRedis && s.PerSecond }

// File is a setting that names a file.
type File struct{ Setting, Path string }

// String returns the setting and the path.
func (f File) String() string { return f.Setting + " " + f.Path }

// TLSFiles are a certificate, its key and authorities. Each can be missing.
type TLSFiles struct {
	Cert, Key, CA File

	isUsed bool
	reason string // the reason why the files are not used, if isUsed is false
}

// TLSFiles returns the files for which TLS is on or could be turned on.
func (s *Settings) TLSFiles() []TLSFiles {
	files := []TLSFiles{
		s.tlsFiles(s.GRPCServerUseTLS, "GRPC_SERVER_USE_TLS is not true", "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT"),
		s.tlsFiles(true, "", "DEBUG_TLS_CERT", "DEBUG_TLS_KEY", "DEBUG_TLS_CLIENT_CACERT"),
	}
	if s.ConfigType == ConfigXDS {
		files = append(files, s.tlsFiles(s.XDSUseTLS, "CONFIG_GRPC_XDS_SERVER_USE_TLS is not true",
			"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"))
	}
	if s.usesRedis() {
		files = append(files, s.tlsFiles(s.RedisTLS || s.usesPerSecond() && s.PerSecondTLS || s.GlobalURL != "" && s.GlobalTLS, "REDIS_TLS is not true",
			"REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY", "REDIS_TLS_CACERT"))
	}
	if s.Backend() == BackendMemcache {
		files = append(files, s.tlsFiles(s.MemcacheTLS, "MEMCACHE_TLS is not true",
			"MEMCACHE_TLS_CLIENT_CERT", "MEMCACHE_TLS_CLIENT_KEY", "MEMCACHE_TLS_CACERT"))
	}
	return files
}

func (s *Settings) tlsFiles(isUsed bool, reason, cert, key, ca string) TLSFiles {
	paths := map[string]string{}
	for _, f := range settings {
		paths[f.Tag.Get("envconfig")] = reflect.ValueOf(s).Elem().FieldByIndex(f.Index).String()
	}
	return TLSFiles{File{cert, paths[cert]}, File{key, paths[key]}, File{ca, paths[ca]}, isUsed, reason}
}

func (ps *problems) checkTLSFiles(f TLSFiles) {
	caPEM := ps.read(f.CA)
	ps.addIf(caPEM != nil && !x509.NewCertPool().AppendCertsFromPEM(caPEM), "%s=%q contains no PEM certificate", f.CA.Setting, f.CA.Path)

	cert, key := f.Cert, f.Key
	ps.addIf(cert.Path != "" && key.Path == "", "%s=%q needs %s, its key", cert.Setting, cert.Path, key.Setting)
	ps.addIf(cert.Path == "" && key.Path != "", "%s=%q needs %s, its certificate", key.Setting, key.Path, cert.Setting)
	certPEM, keyPEM := ps.read(cert), ps.read(key)
	if certPEM != nil && keyPEM != nil {
		_, err := tls.X509KeyPair(certPEM, keyPEM)
		ps.addIf(err != nil, "%s=%q and %s=%q are not a certificate and its key: %w", cert.Setting, cert.Path, key.Setting, key.Path, err)
	}
}

// read reads a file. It returns nil if the setting is empty or the file can't be read.
func (ps *problems) read(f File) []byte {
	if f.Path == "" {
		return nil
	}
	content, err := os.ReadFile(f.Path)
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	ps.addIf(err != nil, "%s=%q can't be read: %w", f.Setting, f.Path, err)
	return content
}

func nonEmptyVariablesWithPrefix(prefix string, exceptions ...string) string {
	var names []string
	for _, f := range settings {
		if name := f.Tag.Get("envconfig"); strings.HasPrefix(name, prefix) && !slices.Contains(exceptions, name) {
			names = append(names, name)
		}
	}
	return nonEmptyVariables(names...)
}

// nonEmptyTracingVariables returns the names of the variables that are set and have an effect only on traces.
func nonEmptyTracingVariables() string {
	var names []string
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "TRACING_") && name != "TRACING_ENABLED" || strings.HasPrefix(name, "OTEL_EXPORTER_OTLP_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return nonEmptyVariables(names...)
}

func nonEmptyVariables(names ...string) string {
	isEmpty := func(name string) bool { return os.Getenv(name) == "" }
	return strings.Join(slices.DeleteFunc(names, isEmpty), ",")
}

func trueVariables(names ...string) string {
	isNotTrue := func(name string) bool { isTrue, _ := strconv.ParseBool(os.Getenv(name)); return !isTrue }
	return strings.Join(slices.DeleteFunc(names, isNotTrue), ",")
}

func (s *Settings) warnings() []Warning {
	const longTimeout = time.Second
	var warnings []Warning
	if s.Backend() != BackendLocal && s.RedisTimeout > Timeout(longTimeout) {
		warnings = append(warnings, Warning{"long timeout set", "REDIS_TIMEOUT", fmt.Sprintf(
			"got %v, default 50ms; the timeout bounds a whole call to Redis or memcached, not only connecting, so calls wait up to %[1]v while the server hangs", s.RedisTimeout)})
	}
	warnIf := func(isUnused bool, variables, reason string) {
		if isUnused && variables != "" {
			warnings = append(warnings, Warning{noEffect, variables, reason})
		}
	}
	warnIf(s.GlobalURL == "", nonEmptyVariablesWithPrefix("REGION"), "REDIS_GLOBAL_URL is empty, so each region admits its limits alone")
	isMemcached, sendsStats := s.Backend() == BackendMemcache, !s.DisableStats
	warnIf(s.BackendType == BackendLocal && !s.OverridesEnabled, nonEmptyVariablesWithPrefix("REDIS_"), "BACKEND_TYPE=local counts in this process")
	warnIf(isMemcached && !s.OverridesEnabled,
		nonEmptyVariablesWithPrefix("REDIS_", "REDIS_TIMEOUT", "REDIS_FALLBACK_RATIO", "REDIS_FAILURE_MODE", "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"),
		"BACKEND_TYPE=memcache counts in memcached")
	warnIf(!isMemcached, nonEmptyVariablesWithPrefix("MEMCACHE_"), "BACKEND_TYPE is not memcache")
	warnIf(s.DecisionLog == DecisionLogOff, nonEmptyVariables("DECISION_LOG_PATH"), "DECISION_LOG is off; set denied or all")
	warnIf(true, nonEmptyVariables("LOCAL_GUARD_RATIO"), "the setting is deprecated, because the deny cache denies hot keys; remove the setting")
	warnIf(true, nonEmptyVariables("OVERRIDES_RESYNC_INTERVAL"), "the setting is deprecated, because a replica reads all overrides every 30s; remove the setting")
	warnIf(true, nonEmptyVariables("REDIS_MAX_BATCH_SIZE"), "the setting is deprecated, because a batch has at most 256 hits; remove the setting")
	warnIf(!sendsStats, trueVariables("USE_DOG_STATSD", "USE_PROMETHEUS", "USE_STATSD"), "DISABLE_STATS=true turns these settings off")
	warnIf(sendsStats && !s.UseStatsd && !s.UseDogStatsd, nonEmptyVariables("STATSD_HOST", "STATSD_PORT", "STATSD_PROTOCOL", "USE_DOG_STATSD_MOGRIFIERS"),
		"neither USE_STATSD nor USE_DOG_STATSD is true")
	warnIf(sendsStats && s.UseStatsd, nonEmptyVariables("USE_DOG_STATSD_MOGRIFIERS"), "USE_DOG_STATSD is not true")
	warnIf(sendsStats && s.UseDogStatsd && s.StatsdProtocol != "udp", nonEmptyVariables("STATSD_PROTOCOL"), "DogStatsD is always reached over UDP")
	warnIf(s.ConfigType == ConfigXDS, nonEmptyVariables("LIMITS_PATH"), "limits come from the xDS server (CONFIG_TYPE)")
	warnIf(!s.TracesCalls(), nonEmptyTracingVariables(), "tracing is off (TRACING_ENABLED, OTEL_TRACES_EXPORTER, OTEL_SDK_DISABLED)")
	for _, f := range s.TLSFiles() {
		warnIf(!f.isUsed, nonEmptyVariables(f.Cert.Setting, f.Key.Setting, f.CA.Setting), f.reason)
	}
	return warnings
}
