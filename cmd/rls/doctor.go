package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/server"
	filesource "github.com/seed-81f232ab/rls/internal/source/file"
)

// levelOK is the level of a diagnosis that needs no attention. The other levels are those of
// package redis.
const levelOK redis.Level = "ok"

// diagnosis is a result of rls doctor.
type diagnosis struct {
	Level   redis.Level `json:"level"`
	Area    string      `json:"area"`    // settings, limits, listeners, certificates, files or redis
	Subject string      `json:"subject"` // a setting, a file or an address
	Text    string      `json:"text"`
	Advice  string      `json:"advice,omitempty"`
}

// doctor examines what a service with these settings needs.
type doctor struct {
	settings *env.Settings
	now      time.Time
	results  []diagnosis
}

func (d *doctor) addResult(level redis.Level, area, subject, text, advice string) {
	d.results = append(d.results, diagnosis{level, area, subject, text, advice})
}

// runChecks returns the results of all checks. warnings and problems are those of the settings.
func (d *doctor) runChecks(ctx context.Context, warnings []env.Warning, problems error) []diagnosis {
	d.checkSettings(warnings, problems)
	d.checkLimits()
	d.checkListeners(ctx)
	d.checkCertificates()
	if problems == nil {
		d.checkRedis(ctx)
	}
	return d.results
}

func (d *doctor) checkSettings(warnings []env.Warning, problems error) {
	for _, w := range warnings {
		d.addResult(redis.LevelWarning, "settings", w.Setting, w.Message+": "+w.Reason, "")
	}
	if problems == nil {
		d.addResult(levelOK, "settings", "environment", "the settings are valid", "")
		return
	}
	for line := range strings.SplitSeq(problems.Error(), "\n") {
		d.addResult(redis.LevelProblem, "settings", "environment", line, "")
	}
}

func (d *doctor) checkLimits() {
	const area = "limits"
	s := d.settings
	if s.ConfigType == env.ConfigXDS {
		d.addResult(redis.LevelNote, area, env.WithoutLogin(s.XDSServer), "limits come from the xDS server, and are not checked here", "")
		return
	}
	place := limitsPlace(s)
	subject := filepath.Join(place.Root, place.Subdirectory, place.AppDirectory)
	files, _, err := place.Read()
	if err != nil {
		d.addResult(redis.LevelProblem, area, subject, err.Error(), "set LIMITS_PATH to the limits files, and check their rights")
		return
	}
	set, err := filesource.Parse(files, limitsfile.Options{MergeDomains: s.MergeDomainConfig, LimitedStore: s.LimitedStore()})
	if list := fields.Problems(nil); errors.As(err, &list) {
		for _, p := range list {
			d.addResult(redis.LevelProblem, area, subject, p.String(), "")
		}
		return
	}
	if err != nil {
		d.addResult(redis.LevelProblem, area, subject, err.Error(), "")
		return
	}
	for _, w := range set.Warnings {
		d.addResult(redis.LevelWarning, area, subject, w.String(), "")
	}
	d.addResult(levelOK, area, subject, fmt.Sprintf("the limits are valid (files: %d, domains: %d)", len(files), len(set.Domains)), "")
	for _, f := range files {
		if info, err := os.Stat(f.Name); err == nil && info.Mode().Perm()&0o002 != 0 {
			d.addResult(redis.LevelWarning, "files", f.Name, "every user of this machine can change the limits", "run chmod o-w")
		}
	}
}

// checkListeners examines whether the addresses of the service are free, or rls serves them.
func (d *doctor) checkListeners(ctx context.Context) {
	s := d.settings
	if s.GRPCUDS != "" {
		d.checkSocket(ctx, "GRPC_UDS", s.GRPCUDS, isRLSOverGRPC(s.GRPCServerUseTLS))
	} else {
		d.checkListener(ctx, "GRPC_PORT", server.Addr{Host: s.GRPCHost, Port: s.GRPCPort}.String(), isRLSOverGRPC(s.GRPCServerUseTLS))
	}
	d.checkListener(ctx, "PORT", server.Addr{Host: s.Host, Port: s.Port}.String(), isRLSOverHTTP("http", "/json", "Bad Request: proto:"))
	scheme := "http"
	if s.DebugTLSCert != "" {
		scheme = "https"
	}
	d.checkListener(ctx, "DEBUG_PORT", server.Addr{Host: s.DebugHost, Port: s.DebugPort}.String(), isRLSOverHTTP(scheme, "/metrics", "rls_build_info"))
	if s.UsePrometheus && !s.DisableStats {
		d.checkListener(ctx, "PROMETHEUS_ADDR", s.PrometheusAddr, isRLSOverHTTP("http", s.PrometheusPath, "rls_build_info"))
	}
}

// checkListener examines an address, which is the value of setting.
func (d *doctor) checkListener(ctx context.Context, setting, address string, isRLS func(context.Context, string) bool) {
	const area = "listeners"
	subject := setting + " " + address
	listener, err := net.Listen("tcp", address)
	switch {
	case err == nil:
		_ = listener.Close()
		d.addResult(levelOK, area, subject, "it is free", "")
	case !errors.Is(err, syscall.EADDRINUSE):
		d.addResult(redis.LevelProblem, area, subject, "the service can't listen: "+err.Error(), "set another address or port")
	case isRLS(ctx, dialableAddress(address)):
		d.addResult(levelOK, area, subject, "rls serves it", "")
	default:
		d.addResult(redis.LevelProblem, area, subject, "another program uses it", "end the program, or set another port")
	}
}

// checkSocket examines the path of a unix socket. It does not listen, as this would replace the
// socket.
func (d *doctor) checkSocket(ctx context.Context, setting, path string, isRLS func(context.Context, string) bool) {
	const area = "listeners"
	subject, directory := setting+" "+path, filepath.Dir(path)
	socket, socketErr := os.Stat(path)
	info, err := os.Stat(directory)
	switch {
	case err != nil || !info.IsDir():
		d.addResult(redis.LevelProblem, area, subject, "the directory of the socket does not exist", "create "+directory)
	case socketErr != nil:
		d.addResult(levelOK, area, subject, "it is free", "")
	case socket.Mode().Type() != os.ModeSocket:
		d.addResult(redis.LevelProblem, area, subject, "the path has a file that is no socket", "remove the file, or set another path")
	case isRLS(ctx, "unix:"+path):
		d.addResult(levelOK, area, subject, "rls serves it", "")
	default:
		d.addResult(redis.LevelNote, area, subject, "the path has a socket that no rls serves", "rls replaces the socket if its process has ended")
	}
}

// dialableAddress returns the address of a listener with a host that clients can dial.
func dialableAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// listenerTimeout bounds a request to a listener.
const listenerTimeout = 3 * time.Second

// isRLSOverGRPC returns a function that reports whether rls serves gRPC at an address. A server
// that rejects the certificate of this client counts as rls if it needs TLS.
func isRLSOverGRPC(useTLS bool) func(context.Context, string) bool {
	return func(ctx context.Context, address string) bool {
		ctx, cancel := context.WithTimeout(ctx, listenerTimeout)
		defer cancel()
		transport := insecure.NewCredentials()
		if useTLS {
			transport = credentials.NewTLS(acceptAnyCertificate())
		}
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(transport))
		if err != nil {
			return false
		}
		defer conn.Close()
		_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "ratelimit"})
		return err == nil || useTLS && strings.Contains(err.Error(), "certificate required")
	}
}

// isRLSOverHTTP returns a function that reports whether rls answers at a path. Its answer to an
// empty GET contains want.
func isRLSOverHTTP(scheme, path, want string) func(context.Context, string) bool {
	return func(ctx context.Context, address string) bool {
		ctx, cancel := context.WithTimeout(ctx, listenerTimeout)
		defer cancel()
		transport := &http.Transport{TLSClientConfig: acceptAnyCertificate(), DisableKeepAlives: true}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+path, http.NoBody)
		if err != nil {
			return false
		}
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(response.Body, 16<<20))
		return strings.Contains(string(body), want)
	}
}

// acceptAnyCertificate returns a configuration that accepts each server. The doctor sends no secret,
// and only asks who listens on this machine.
func acceptAnyCertificate() *tls.Config { return &tls.Config{InsecureSkipVerify: true} } //nolint:gosec // see above

// expiryWarningTime is the time before the end of a certificate in which the doctor warns.
const expiryWarningTime = 14 * 24 * time.Hour

// checkCertificates examines the files of certificates and keys.
func (d *doctor) checkCertificates() {
	s := d.settings
	for _, c := range []struct{ setting, cert, keySetting, key string }{
		{"GRPC_SERVER_TLS_CERT", s.GRPCServerTLSCert, "GRPC_SERVER_TLS_KEY", s.GRPCServerTLSKey},
		{"GRPC_CLIENT_TLS_CACERT", s.GRPCClientTLSCACert, "", ""},
		{"DEBUG_TLS_CERT", s.DebugTLSCert, "DEBUG_TLS_KEY", s.DebugTLSKey},
		{"DEBUG_TLS_CLIENT_CACERT", s.DebugTLSClientCACert, "", ""},
		{"REDIS_TLS_CLIENT_CERT", s.RedisTLSClientCert, "REDIS_TLS_CLIENT_KEY", s.RedisTLSClientKey},
		{"REDIS_TLS_CACERT", s.RedisTLSCACert, "", ""},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", s.XDSTLSCert, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", s.XDSTLSKey},
		{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", s.XDSTLSCACert, "", ""},
	} {
		if c.cert == "" {
			continue
		}
		d.checkCertificate(c.setting+" "+c.cert, c.cert)
		if c.key == "" {
			continue
		}
		if _, err := tls.LoadX509KeyPair(c.cert, c.key); err != nil {
			d.addResult(redis.LevelProblem, "certificates", c.keySetting+" "+c.key, "the key can't be used: "+err.Error(), "set the key of the certificate, and let the user of rls read it")
		}
		d.checkKeyRights(c.keySetting+" "+c.key, c.key)
	}
}

// checkCertificate examines the dates of all certificates in a PEM file.
func (d *doctor) checkCertificate(subject, path string) {
	const area = "certificates"
	data, err := os.ReadFile(path)
	if err != nil {
		d.addResult(redis.LevelProblem, area, subject, err.Error(), "check the path, and let the user of rls read it")
		return
	}
	var earliest time.Time
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			d.addResult(redis.LevelProblem, area, subject, err.Error(), "replace the certificate")
			return
		}
		if d.now.Before(c.NotBefore) {
			d.addResult(redis.LevelProblem, area, subject, "a certificate is valid only from "+c.NotBefore.UTC().Format(time.RFC3339), "check the clock of this machine")
			return
		}
		if earliest.IsZero() || c.NotAfter.Before(earliest) {
			earliest = c.NotAfter
		}
	}
	until := earliest.UTC().Format(time.RFC3339)
	switch left := earliest.Sub(d.now); {
	case earliest.IsZero():
		d.addResult(redis.LevelProblem, area, subject, "the file has no certificate", "replace the file by a PEM file")
	case left <= 0:
		d.addResult(redis.LevelProblem, area, subject, "a certificate has expired at "+until, "replace the certificate")
	case left < expiryWarningTime:
		d.addResult(redis.LevelWarning, area, subject, "a certificate expires "+relativeTime(left)+", at "+until, "replace the certificate")
	default:
		d.addResult(levelOK, area, subject, "it is valid until "+until, "")
	}
}

// checkKeyRights examines who can use the file of a key.
func (d *doctor) checkKeyRights(subject, path string) {
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	switch mode := info.Mode().Perm(); {
	case mode&0o022 != 0:
		d.addResult(redis.LevelWarning, "files", subject, "other users can change the key (mode "+strconv.FormatUint(uint64(mode), 8)+")", "run chmod 600")
	case mode&0o004 != 0:
		d.addResult(redis.LevelNote, "files", subject, "every user of this machine can read the key (mode "+strconv.FormatUint(uint64(mode), 8)+")", "run chmod 600 if others use this machine")
	}
}

// checkMemcached asks all servers of memcached for an answer.
func (d *doctor) checkMemcached(ctx context.Context) {
	const area = "memcached"
	subject := "MEMCACHE_HOST_PORT"
	if d.settings.MemcacheSRV != "" {
		subject = "MEMCACHE_SRV"
	}
	client, err := newMemcached(d.settings, d.settings.CacheKeyPrefix, slog.New(slog.DiscardHandler))
	if err != nil {
		d.addResult(redis.LevelProblem, area, subject, err.Error(), "")
		return
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		d.addResult(redis.LevelProblem, area, subject, err.Error(), "check that memcached runs there")
		return
	}
	d.addResult(levelOK, area, subject, "all servers answer", "")
}

// checkRedis runs the checks of Redis that the service also runs.
func (d *doctor) checkRedis(ctx context.Context) {
	const area = "redis"
	s := d.settings
	switch s.Backend() {
	case env.BackendMemcache:
		d.checkMemcached(ctx)
		return
	case env.BackendLocal:
		d.addResult(redis.LevelNote, area, "BACKEND_TYPE", "each replica counts alone, without Redis", "set REDIS_URL to share counters")
		return
	}
	client, err := newRedis(s, s.CacheKeyPrefix, nil, nil)
	if err != nil {
		d.addResult(redis.LevelProblem, area, "REDIS_URL", err.Error(), "")
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, events.RedisCheckTimeout)
	defer cancel()
	isGood := true
	for _, f := range client.Check(ctx) {
		isGood = isGood && f.Level == redis.LevelNote
		d.addResult(f.Level, area, f.Role.String()+" "+f.Address+" "+f.Check, f.Text, f.Advice)
	}
	if isGood {
		d.addResult(levelOK, area, "REDIS_URL", "connection, rights, role and state are good", "")
	}
}
