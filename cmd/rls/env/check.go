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

// complaints are what is wrong with settings, each with its variable's name.
type complaints []error

func (c *complaints) add(format string, args ...any) { *c = append(*c, fmt.Errorf(format, args...)) }

// check tells what is wrong with settings whose values are good by themselves: with
// what they need of each other, and with the files they name. A value that is not is
// zero here, and told already. What is not in use is not looked at.
func (s *Settings) check() []error {
	var c complaints
	s.checkListeners(&c)
	s.checkXDS(&c)
	s.checkRedis(&c)
	return c
}

func (s *Settings) checkListeners(c *complaints) {
	if s.GRPCServerUseTLS {
		cert, key := pemFile{"GRPC_SERVER_TLS_CERT", s.GRPCServerTLSCert}, pemFile{"GRPC_SERVER_TLS_KEY", s.GRPCServerTLSKey}
		if cert.path == "" && key.path == "" {
			c.add("GRPC_SERVER_USE_TLS=true needs %s and %s", cert.name, key.name)
		}
		c.pair(cert, key)
		c.authorities(pemFile{"GRPC_CLIENT_TLS_CACERT", s.GRPCClientTLSCACert})
		if s.GRPCClientTLSSAN != "" && s.GRPCClientTLSCACert == "" {
			c.add("GRPC_CLIENT_TLS_SAN=%q needs GRPC_CLIENT_TLS_CACERT: without it no client certificate is checked", s.GRPCClientTLSSAN)
		}
	}
	if s.DebugTLSClientCACert != "" && s.DebugTLSCert == "" && s.DebugTLSKey == "" {
		c.add("DEBUG_TLS_CLIENT_CACERT needs DEBUG_TLS_CERT and DEBUG_TLS_KEY: without TLS there are no client certificates")
	}
	c.pair(pemFile{"DEBUG_TLS_CERT", s.DebugTLSCert}, pemFile{"DEBUG_TLS_KEY", s.DebugTLSKey})
	c.authorities(pemFile{"DEBUG_TLS_CLIENT_CACERT", s.DebugTLSClientCACert})
	if s.UsePrometheus {
		if _, err := server.ParseAddr(s.PrometheusAddr); err != nil {
			c.add("PROMETHEUS_ADDR=%w", err)
		}
		if !strings.HasPrefix(s.PrometheusPath, "/") {
			c.add("PROMETHEUS_PATH=%q is not a path that begins with /", s.PrometheusPath)
		}
	}
}

func (s *Settings) checkXDS(c *complaints) {
	if s.ConfigType == ConfigXDS && s.XDSUseTLS {
		c.pair(pemFile{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", s.XDSTLSCert}, pemFile{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", s.XDSTLSKey})
		c.authorities(pemFile{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", s.XDSTLSCACert})
	}
}

func (s *Settings) checkRedis(c *complaints) {
	if r := s.LocalGuardRatio; r > 0 && r < 1 {
		c.add(`LOCAL_GUARD_RATIO="%v" is not 0 or a number from 1: below 1 it would deny what is within a limit`, r)
	}
	const example = "for example 127.0.0.1:6379"
	counts := s.Backend() == BackendRedis
	switch set := redisVariables(); {
	case s.RedisURL != "":
	case s.BackendType == BackendRedis:
		c.add("BACKEND_TYPE=redis needs REDIS_URL; %s", example)
	case os.Getenv("BACKEND_TYPE") == "" && len(set) > 0:
		c.add("REDIS_URL is empty, but %s would need it: give it, or BACKEND_TYPE=local to count in this process, where replicas don't share budgets",
			strings.Join(set, ", "))
	}
	if s.OverridesEnabled && s.RedisURL == "" {
		c.add("OVERRIDES_ENABLED=true needs REDIS_URL; %s", example)
	}
	if !counts && !s.OverridesEnabled {
		return
	}
	c.redis("REDIS_URL", redis.Server{Kind: redis.Kind(s.RedisType), URL: s.RedisURL, SocketType: s.RedisSocketType})
	perSecond := counts && s.PerSecond
	if perSecond {
		if s.PerSecondURL == "" {
			c.add("REDIS_PERSECOND=true needs REDIS_PERSECOND_URL; %s", example)
		}
		c.redis("REDIS_PERSECOND_URL", redis.Server{Kind: redis.Kind(s.PerSecondType), URL: s.PerSecondURL, SocketType: s.PerSecondSocketType})
	}
	cluster := string(redis.Cluster)
	if (s.RedisType == cluster || perSecond && s.PerSecondType == cluster) && strings.ContainsAny(s.CacheKeyPrefix, "{}") {
		c.add("CACHE_KEY_PREFIX=%q holds a brace, which in a cluster would be the hash tag", s.CacheKeyPrefix)
	}
	if s.RedisTLS || perSecond && s.PerSecondTLS {
		c.pair(pemFile{"REDIS_TLS_CLIENT_CERT", s.RedisTLSClientCert}, pemFile{"REDIS_TLS_CLIENT_KEY", s.RedisTLSClientKey})
		c.authorities(pemFile{"REDIS_TLS_CACERT", s.RedisTLSCACert})
	}
}

// redis tells what is wrong with the address in the variable of that name, if one is
// given and its kind is known.
func (c *complaints) redis(name string, s redis.Server) {
	if s.URL == "" || s.Kind == "" {
		return
	}
	if err := s.Check(); err != nil {
		c.add("%s: %w", name, err)
	}
}

// pemFile is a variable that names a file, and what it says; empty: none.
type pemFile struct{ name, path string }

// pair tells what is wrong with a certificate and its key, which go together.
func (c *complaints) pair(cert, key pemFile) {
	switch {
	case cert.path == "" && key.path == "":
		return
	case key.path == "":
		c.add("%s=%q needs %s, its key", cert.name, cert.path, key.name)
	case cert.path == "":
		c.add("%s=%q needs %s, its certificate", key.name, key.path, cert.name)
	}
	certPEM, certOK := c.read(cert)
	keyPEM, keyOK := c.read(key)
	if !certOK || !keyOK {
		return
	}
	if _, err := tls.X509KeyPair(certPEM, keyPEM); err != nil {
		c.add("%s=%q and %s=%q are not a certificate and its key: %w", cert.name, cert.path, key.name, key.path, err)
	}
}

// authorities tells what is wrong with a file of certificates.
func (c *complaints) authorities(f pemFile) {
	if pem, ok := c.read(f); ok && !x509.NewCertPool().AppendCertsFromPEM(pem) {
		c.add("%s=%q holds no certificate in PEM", f.name, f.path)
	}
}

// read reads the file; it is not ok if there is none, or it can't be read.
func (c *complaints) read(f pemFile) (content []byte, ok bool) {
	if f.path == "" {
		return nil, false
	}
	content, err := os.ReadFile(f.path)
	if err != nil {
		if at := (*fs.PathError)(nil); errors.As(err, &at) {
			err = at.Err
		}
		c.add("%s=%q can't be read: %w", f.name, f.path, err)
	}
	return content, err == nil
}

// redisVariables are the names of the settings for Redis alone that are set, but for
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

// notes are what is good but may be meant otherwise.
func (s *Settings) notes() []string {
	const longTimeout = time.Second
	var notes []string
	switch {
	case s.Backend() == BackendRedis && s.RedisTimeout > longTimeout:
		notes = append(notes, fmt.Sprintf("REDIS_TIMEOUT=%v is the budget of a whole call to Redis here, not only of connecting: "+
			"while Redis hangs, calls wait up to that long before they are decided without it; the default is 50ms", s.RedisTimeout))
	case s.BackendType == BackendLocal && !s.OverridesEnabled:
		set := redisVariables()
		if s.RedisURL != "" {
			set = append([]string{"REDIS_URL"}, set...)
		}
		if len(set) > 0 {
			notes = append(notes, strings.Join(set, ", ")+": without effect, as BACKEND_TYPE=local counts in this process")
		}
	}
	inRedis := s.Backend() == BackendRedis || s.OverridesEnabled
	redisTLS := s.RedisTLS || s.PerSecond && s.PerSecondTLS
	for _, t := range []struct {
		off   bool
		why   string
		files []pemFile
	}{
		{!s.GRPCServerUseTLS, "GRPC_SERVER_USE_TLS is not true: the gRPC listener speaks plain text", []pemFile{
			{"GRPC_SERVER_TLS_CERT", s.GRPCServerTLSCert}, {"GRPC_SERVER_TLS_KEY", s.GRPCServerTLSKey}, {"GRPC_CLIENT_TLS_CACERT", s.GRPCClientTLSCACert},
		}},
		{s.ConfigType == ConfigXDS && !s.XDSUseTLS, "CONFIG_GRPC_XDS_SERVER_USE_TLS is not true: the xDS server is spoken to in plain text", []pemFile{
			{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", s.XDSTLSCert}, {"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", s.XDSTLSKey}, {"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", s.XDSTLSCACert},
		}},
		{inRedis && !redisTLS, "REDIS_TLS is not true", []pemFile{
			{"REDIS_TLS_CLIENT_CERT", s.RedisTLSClientCert}, {"REDIS_TLS_CLIENT_KEY", s.RedisTLSClientKey}, {"REDIS_TLS_CACERT", s.RedisTLSCACert},
		}},
	} {
		var set []string
		for _, f := range t.files {
			if f.path != "" {
				set = append(set, f.name)
			}
		}
		if t.off && len(set) > 0 {
			notes = append(notes, strings.Join(set, ", ")+": without effect, as "+t.why)
		}
	}
	return notes
}
