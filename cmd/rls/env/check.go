package env

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/server"
)

// problems collects errors, each with the name of a variable.
type problems []error

func (ps *problems) add(format string, args ...any) { *ps = append(*ps, fmt.Errorf(format, args...)) }

// check returns problems between settings, and problems of the files that they name. A
// field whose value is not allowed is zero here, and its problem is already known. Unused
// settings are not checked.
func (s *Settings) check() []error {
	var ps problems
	s.checkListeners(&ps)
	s.checkXDS(&ps)
	s.checkRedis(&ps)
	return ps
}

func (s *Settings) checkListeners(ps *problems) {
	if s.GRPCServerUseTLS {
		cert, key := pemFile{"GRPC_SERVER_TLS_CERT", s.GRPCServerTLSCert}, pemFile{"GRPC_SERVER_TLS_KEY", s.GRPCServerTLSKey}
		if cert.path == "" && key.path == "" {
			ps.add("GRPC_SERVER_USE_TLS=true needs %s and %s", cert.name, key.name)
		}
		ps.checkPair(cert, key)
		ps.checkAuthorities(pemFile{"GRPC_CLIENT_TLS_CACERT", s.GRPCClientTLSCACert})
		if s.GRPCClientTLSSAN != "" && s.GRPCClientTLSCACert == "" {
			ps.add("GRPC_CLIENT_TLS_SAN=%q needs GRPC_CLIENT_TLS_CACERT, without which no client certificate is verified", s.GRPCClientTLSSAN)
		}
	}
	if s.DebugTLSClientCACert != "" && s.DebugTLSCert == "" && s.DebugTLSKey == "" {
		ps.add("DEBUG_TLS_CLIENT_CACERT needs DEBUG_TLS_CERT and DEBUG_TLS_KEY, because without TLS there are no client certificates")
	}
	ps.checkPair(pemFile{"DEBUG_TLS_CERT", s.DebugTLSCert}, pemFile{"DEBUG_TLS_KEY", s.DebugTLSKey})
	ps.checkAuthorities(pemFile{"DEBUG_TLS_CLIENT_CACERT", s.DebugTLSClientCACert})
	if s.UsePrometheus {
		if _, err := server.ParseAddr(s.PrometheusAddr); err != nil {
			ps.add("PROMETHEUS_ADDR: %w", err)
		}
		if !strings.HasPrefix(s.PrometheusPath, "/") {
			ps.add("PROMETHEUS_PATH: got %q, want a path that begins with /", s.PrometheusPath)
		}
	}
}

func (s *Settings) checkXDS(ps *problems) {
	if s.ConfigType == ConfigXDS && s.XDSUseTLS {
		ps.checkPair(pemFile{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", s.XDSTLSCert}, pemFile{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", s.XDSTLSKey})
		ps.checkAuthorities(pemFile{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", s.XDSTLSCACert})
	}
}

func (s *Settings) checkRedis(ps *problems) {
	if r := s.LocalGuardRatio; r > 0 && r < 1 {
		ps.add(`LOCAL_GUARD_RATIO: got "%v", want 0 or a number of at least 1, because a lower ratio would deny hits within a limit`, r)
	}
	const example = "for example 127.0.0.1:6379"
	countsInRedis := s.Backend() == BackendRedis
	switch variables := redisVariables(); {
	case s.RedisURL != "":
	case s.BackendType == BackendRedis:
		ps.add("BACKEND_TYPE=redis needs REDIS_URL, %s", example)
	case os.Getenv("BACKEND_TYPE") == "" && len(variables) > 0:
		ps.add("%s: REDIS_URL is empty; set REDIS_URL, or set BACKEND_TYPE=local to count in each process, where replicas share no budgets",
			strings.Join(variables, ", "))
	}
	if s.OverridesEnabled && s.RedisURL == "" {
		ps.add("OVERRIDES_ENABLED=true needs REDIS_URL, %s", example)
	}
	if !countsInRedis && !s.OverridesEnabled {
		return
	}
	ps.checkRedisURL("REDIS_URL", redis.Server{Kind: redis.Kind(s.RedisType), URL: s.RedisURL, SocketType: s.RedisSocketType})
	perSecond := countsInRedis && s.PerSecond
	if perSecond {
		if s.PerSecondURL == "" {
			ps.add("REDIS_PERSECOND=true needs REDIS_PERSECOND_URL, %s", example)
		}
		ps.checkRedisURL("REDIS_PERSECOND_URL", redis.Server{Kind: redis.Kind(s.PerSecondType), URL: s.PerSecondURL, SocketType: s.PerSecondSocketType})
	}
	cluster := string(redis.Cluster)
	if (s.RedisType == cluster || perSecond && s.PerSecondType == cluster) && strings.ContainsAny(s.CacheKeyPrefix, "{}") {
		ps.add("CACHE_KEY_PREFIX: got %q, want no brace, because a cluster would take it as a hash tag", s.CacheKeyPrefix)
	}
	if s.RedisTLS || perSecond && s.PerSecondTLS {
		ps.checkPair(pemFile{"REDIS_TLS_CLIENT_CERT", s.RedisTLSClientCert}, pemFile{"REDIS_TLS_CLIENT_KEY", s.RedisTLSClientKey})
		ps.checkAuthorities(pemFile{"REDIS_TLS_CACERT", s.RedisTLSCACert})
	}
}

// checkRedisURL checks the URL of the variable name, unless the URL is empty or its kind
// is not allowed.
func (ps *problems) checkRedisURL(name string, s redis.Server) {
	if s.URL == "" || s.Kind == "" {
		return
	}
	if err := s.Check(); err != nil {
		ps.add("%s: %w", name, err)
	}
}

// pemFile is a variable and the path it contains; the path can be empty.
type pemFile struct{ name, path string }

// checkPair checks a certificate and its key.
func (ps *problems) checkPair(cert, key pemFile) {
	switch {
	case cert.path == "" && key.path == "":
		return
	case key.path == "":
		ps.add("%s=%q needs %s, its key", cert.name, cert.path, key.name)
	case cert.path == "":
		ps.add("%s=%q needs %s, its certificate", key.name, key.path, cert.name)
	}
	certPEM, certOK := ps.read(cert)
	keyPEM, keyOK := ps.read(key)
	if !certOK || !keyOK {
		return
	}
	if _, err := tls.X509KeyPair(certPEM, keyPEM); err != nil {
		ps.add("%s=%q and %s=%q are not a certificate and its key: %w", cert.name, cert.path, key.name, key.path, err)
	}
}

// checkAuthorities checks a file of certificates.
func (ps *problems) checkAuthorities(f pemFile) {
	if pem, ok := ps.read(f); ok && !x509.NewCertPool().AppendCertsFromPEM(pem) {
		ps.add("%s=%q contains no PEM certificate", f.name, f.path)
	}
}

// read reads a file. ok is false if the path is empty or the file can't be read.
func (ps *problems) read(f pemFile) (content []byte, ok bool) {
	if f.path == "" {
		return nil, false
	}
	content, err := os.ReadFile(f.path)
	if err != nil {
		if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		ps.add("%s=%q can't be read: %w", f.name, f.path, err)
	}
	return content, err == nil
}

// redisVariables returns the names of all set variables that are for Redis only, except
// REDIS_URL.
func redisVariables() []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		if name := f.Tag.Get("envconfig"); strings.HasPrefix(name, "REDIS_") && name != "REDIS_URL" && os.Getenv(name) != "" {
			names = append(names, name)
		}
	}
	return names
}

// warnings returns warnings about settings that other settings turn off, and about a long
// REDIS_TIMEOUT.
func (s *Settings) warnings() []Warning {
	const longTimeout = time.Second
	var warnings []Warning
	countsInRedis := s.Backend() == BackendRedis
	switch {
	case countsInRedis && s.RedisTimeout > longTimeout:
		warnings = append(warnings, Warning{"long timeout set", "REDIS_TIMEOUT", fmt.Sprintf(
			"got %v, default 50ms; here it bounds a whole call to Redis, not only connecting, and calls wait that long while Redis hangs", s.RedisTimeout)})
	case s.BackendType == BackendLocal && !s.OverridesEnabled:
		variables := redisVariables()
		if s.RedisURL != "" {
			variables = append([]string{"REDIS_URL"}, variables...)
		}
		if len(variables) > 0 {
			warnings = append(warnings, Warning{noEffect, strings.Join(variables, ","), "BACKEND_TYPE=local counts in this process"})
		}
	}
	if countsInRedis && s.LocalGuardRatio > 0 && s.AllOrNone {
		warnings = append(warnings, Warning{noEffect, "LOCAL_GUARD_RATIO", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT turns the guard off"})
	}
	if s.ConfigType == ConfigXDS && s.LimitsPath != "" {
		warnings = append(warnings, Warning{noEffect, "LIMITS_PATH", "limits come from the xDS server (CONFIG_TYPE)"})
	}
	for _, t := range []struct {
		unused bool
		reason string
		files  []pemFile
	}{
		{!s.GRPCServerUseTLS, "GRPC_SERVER_USE_TLS is not true", []pemFile{
			{"GRPC_SERVER_TLS_CERT", s.GRPCServerTLSCert}, {"GRPC_SERVER_TLS_KEY", s.GRPCServerTLSKey}, {"GRPC_CLIENT_TLS_CACERT", s.GRPCClientTLSCACert},
		}},
		{s.ConfigType == ConfigXDS && !s.XDSUseTLS, "CONFIG_GRPC_XDS_SERVER_USE_TLS is not true", []pemFile{
			{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", s.XDSTLSCert}, {"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", s.XDSTLSKey}, {"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", s.XDSTLSCACert},
		}},
		{(countsInRedis || s.OverridesEnabled) && !s.RedisTLS && (!s.PerSecond || !s.PerSecondTLS), "REDIS_TLS is not true", []pemFile{
			{"REDIS_TLS_CLIENT_CERT", s.RedisTLSClientCert}, {"REDIS_TLS_CLIENT_KEY", s.RedisTLSClientKey}, {"REDIS_TLS_CACERT", s.RedisTLSCACert},
		}},
	} {
		var names []string
		for _, f := range t.files {
			if f.path != "" {
				names = append(names, f.name)
			}
		}
		if t.unused && len(names) > 0 {
			warnings = append(warnings, Warning{noEffect, strings.Join(names, ","), t.reason})
		}
	}
	return warnings
}
