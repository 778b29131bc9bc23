package main

import (
	"cmp"
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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/server"
)

func newDoctor() *cobra.Command {
	var asJSON, isStrict, listsSettings bool
	var limitsPath string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check settings, limits, ports, certificates and Redis",
		Long: "Checks what the service needs, with the settings of this environment: the settings, the\n" +
			"limits files, the addresses of the listeners, the certificates, the rights of files, and\n" +
			"Redis (rights of the user, settings and state). The command writes only its own keys to Redis,\n" +
			"and deletes these keys.\n" +
			"With --settings, the command only prints each setting with its value in this environment, and whether\n" +
			"the setting does the same as in envoyproxy/ratelimit, something different, or nothing. It prints no\n" +
			"secrets. Exit code: 0 if there is no problem, else 1.",
		Args: noArgs("--limits PATH (or LIMITS_PATH) names the limits file or its directory"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limitsPath != "" {
				_ = os.Setenv("LIMITS_PATH", limitsPath)
			}
			redis.LogTo(slog.New(slog.DiscardHandler)) // the results have all errors
			settings, warnings, problems := env.Load()
			if listsSettings {
				return errors.Join(printAnswer(cmd.OutOrStdout(), asJSON, settings.Variables(), "settings"), problems)
			}
			d := &doctor{settings: settings, now: time.Now()}
			d.checkSettings(warnings, problems)
			d.checkLimits()
			d.checkListeners(cmd.Context())
			d.checkCertificates()
			if problems == nil {
				d.checkStore(cmd.Context())
			}
			err := printAnswer(cmd.OutOrStdout(), asJSON, d.results, "diagnoses")
			isBad := func(d diagnosis) bool {
				return d.Level == redis.LevelProblem || isStrict && d.Level == redis.LevelWarning
			}
			if err == nil && slices.ContainsFunc(d.results, isBad) {
				return exitCode(1)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&isStrict, "strict", false, "treat warnings as problems")
	cmd.Flags().BoolVar(&listsSettings, "settings", false, "print all settings with their values, and check nothing else")
	cmd.Flags().StringVar(&limitsPath, "limits", "", "limits file, or directory of limits files (LIMITS_PATH)")
	return cmd
}

// levelOK is the level of a diagnosis that needs no attention. Package redis has the other levels.
const levelOK redis.Level = "ok"

type diagnosis struct {
	Level   redis.Level `json:"level"`
	Area    string      `json:"area"`    // settings, limits, listeners, certificates, files or redis
	Subject string      `json:"subject"` // a setting, a file or an address
	Text    string      `json:"text"`
	Advice  string      `json:"advice,omitempty"`
}

type doctor struct {
	settings *env.Settings
	now      time.Time
	results  []diagnosis
}

func (d *doctor) addResult(level redis.Level, area, subject, text, advice string) {
	d.results = append(d.results, diagnosis{level, area, subject, text, advice})
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
	settings := d.settings
	if settings.ConfigType == env.ConfigXDS {
		d.addResult(redis.LevelNote, area, env.WithoutLogin(settings.XDSServer), "limits come from the xDS server, and are not checked here", "")
		return
	}
	place := limitsPlace(settings)
	subject := filepath.Join(place.Root, place.Subdirectory, place.AppDirectory)
	files, _, err := place.Read()
	if err != nil {
		d.addResult(redis.LevelProblem, area, subject, err.Error(), "set LIMITS_PATH to the limits files, and check their rights")
		return
	}
	check, limits := newLimitsCheck(files, nil, false, settings.LimitsOptions())
	for _, p := range check.Problems {
		d.addResult(redis.LevelProblem, area, subject, p.String(), "")
	}
	for _, w := range check.Warnings {
		d.addResult(redis.LevelWarning, area, subject, w.String(), "")
	}
	if !check.OK {
		return
	}
	d.addResult(levelOK, area, subject, fmt.Sprintf("the limits are valid (files: %d, domains: %d)", len(files), len(limits.Domains())), "")
	for _, f := range files {
		if info, err := os.Stat(f.Name); err == nil && info.Mode().Perm()&0o002 != 0 {
			d.addResult(redis.LevelWarning, "files", f.Name, "every user of this machine can change the limits", "run chmod o-w")
		}
	}
}

// checkListeners checks that each address of the service is free, or that rls serves it.
func (d *doctor) checkListeners(ctx context.Context) {
	settings := d.settings
	isRLSOverHTTP := func(scheme, path, want string) func(address string) bool {
		return func(address string) bool { return answerContains(ctx, scheme+"://"+address+path, want) }
	}
	isRLSOverGRPC := func(address string) bool { return isHealthy(ctx, address, settings.GRPCServerUseTLS) }
	if settings.GRPCUDS != "" {
		d.checkSocket("GRPC_UDS", settings.GRPCUDS, isRLSOverGRPC)
	} else {
		d.checkListener("GRPC_PORT", server.Addr{Host: settings.GRPCHost, Port: settings.GRPCPort}.String(), isRLSOverGRPC)
	}
	d.checkListener("PORT", server.Addr{Host: settings.Host, Port: settings.Port}.String(), isRLSOverHTTP("http", "/json", "Bad Request: proto:"))
	scheme := "http"
	if settings.DebugTLSCert != "" {
		scheme = "https"
	}
	d.checkListener("DEBUG_PORT", server.Addr{Host: settings.DebugHost, Port: settings.DebugPort}.String(), isRLSOverHTTP(scheme, "/metrics", "rls_build_info"))
	if settings.UsePrometheus && !settings.DisableStats {
		d.checkListener("PROMETHEUS_ADDR", settings.PrometheusAddr, isRLSOverHTTP("http", settings.PrometheusPath, "rls_build_info"))
	}
}

// checkListener checks an address. setting is the name of the setting that has the address.
func (d *doctor) checkListener(setting, address string, isRLS func(address string) bool) {
	const area = "listeners"
	subject := setting + " " + address
	listener, err := net.Listen("tcp", address)
	switch {
	case err == nil:
		_ = listener.Close()
		d.addResult(levelOK, area, subject, "the address is free", "")
	case !errors.Is(err, syscall.EADDRINUSE):
		d.addResult(redis.LevelProblem, area, subject, "the service can't listen: "+err.Error(), "set another address or port")
	case isRLS(address):
		d.addResult(levelOK, area, subject, "rls serves this address", "")
	default:
		port, _ := server.ParseAddr(address)
		program := cmp.Or(server.ListeningProgram(port.Port), "another program")
		d.addResult(redis.LevelProblem, area, subject, program+" uses the address", "end the program, or set another port")
	}
}

// checkSocket checks the path of a unix socket. It does not listen there, because that would replace the socket.
func (d *doctor) checkSocket(setting, path string, isRLS func(address string) bool) {
	const area = "listeners"
	subject, directory := setting+" "+path, filepath.Dir(path)
	socket, socketErr := os.Stat(path)
	info, err := os.Stat(directory)
	switch {
	case err != nil || !info.IsDir():
		d.addResult(redis.LevelProblem, area, subject, "the directory of the socket does not exist", "create "+directory)
	case socketErr != nil:
		d.addResult(levelOK, area, subject, "the path is free", "")
	case socket.Mode().Type() != os.ModeSocket:
		d.addResult(redis.LevelProblem, area, subject, "the path has a file that is no socket", "remove the file, or set another path")
	case isRLS("unix:" + path):
		d.addResult(levelOK, area, subject, "rls serves this socket", "")
	default:
		d.addResult(redis.LevelNote, area, subject, "the path has a socket that no rls serves", "rls replaces the socket if its process has ended")
	}
}

const listenerTimeout = 3 * time.Second

// isHealthy reports whether rls serves gRPC at an address. If useTLS is true, a server that asks for a client
// certificate also counts as rls, because the doctor has no certificate.
func isHealthy(ctx context.Context, address string, useTLS bool) bool {
	ctx, cancel := context.WithTimeout(ctx, listenerTimeout)
	defer cancel()
	transport := insecure.NewCredentials()
	if useTLS {
		transport = credentials.NewTLS(insecureTLS)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(transport))
	if err != nil {
		return false
	}
	defer conn.Close()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "ratelimit"})
	return err == nil || useTLS && strings.Contains(err.Error(), "certificate required")
}

func answerContains(ctx context.Context, url, want string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	client := http.Client{Timeout: listenerTimeout, Transport: &http.Transport{TLSClientConfig: insecureTLS, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	return strings.Contains(string(body), want)
}

// insecureTLS accepts the certificate of each server. The doctor sends no secret. It only finds out which program listens
// on this machine.
var insecureTLS = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // see above

func (d *doctor) checkCertificates() {
	for _, files := range d.settings.TLSFiles() {
		for _, file := range []env.File{files.Cert, files.CA} {
			if file.Path != "" {
				d.checkCertificate(file.String(), file.Path)
			}
		}
		if files.Cert.Path == "" || files.Key.Path == "" {
			continue
		}
		if _, err := tls.LoadX509KeyPair(files.Cert.Path, files.Key.Path); err != nil {
			d.addResult(redis.LevelProblem, "certificates", files.Key.String(), "the key can't be used: "+err.Error(), "set the key of the certificate, and let the user of rls read it")
		}
		d.checkKeyRights(files.Key.String(), files.Key.Path)
	}
}

const expiryWarningTime = 14 * 24 * time.Hour // a certificate that expires within this time causes a warning

func (d *doctor) checkCertificate(subject, path string) {
	const area = "certificates"
	data, err := os.ReadFile(path)
	if err != nil {
		d.addResult(redis.LevelProblem, area, subject, err.Error(), "check the path, and let the user of rls read it")
		return
	}
	var start, end time.Time // all certificates are valid from start to end
	for block, remainingData := pem.Decode(data); block != nil; block, remainingData = pem.Decode(remainingData) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			d.addResult(redis.LevelProblem, area, subject, err.Error(), "replace the certificate")
			return
		}
		if certificate.NotBefore.After(start) {
			start = certificate.NotBefore
		}
		if end.IsZero() || certificate.NotAfter.Before(end) {
			end = certificate.NotAfter
		}
	}
	endText := end.UTC().Format(time.RFC3339)
	switch remainingTime := end.Sub(d.now); {
	case end.IsZero():
		d.addResult(redis.LevelProblem, area, subject, "the file has no certificate", "replace the file by a PEM file")
	case d.now.Before(start):
		d.addResult(redis.LevelProblem, area, subject, "a certificate is valid only from "+start.UTC().Format(time.RFC3339), "check the clock of this machine")
	case remainingTime <= 0:
		d.addResult(redis.LevelProblem, area, subject, "a certificate has expired at "+endText, "replace the certificate")
	case remainingTime < expiryWarningTime:
		d.addResult(redis.LevelWarning, area, subject, "a certificate expires "+relativeTime(remainingTime)+", at "+endText, "replace the certificate")
	default:
		d.addResult(levelOK, area, subject, "the certificate is valid until "+endText, "")
	}
}

func (d *doctor) checkKeyRights(subject, path string) {
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	switch mode := info.Mode().Perm(); {
	case mode&0o022 != 0:
		d.addResult(redis.LevelWarning, "files", subject, fmt.Sprintf("other users can change the key (mode %o)", mode), "run chmod 600")
	case mode&0o004 != 0:
		d.addResult(redis.LevelNote, "files", subject, fmt.Sprintf("every user of this machine can read the key (mode %o)", mode), "run chmod 600 if others use this machine")
	}
}

func (d *doctor) checkGlobalRedis(ctx context.Context) {
	ledger, err := newLedger(d.settings)
	if err == nil {
		defer ledger.Close()
		err = ledger.Ping(ctx)
	}
	if err != nil {
		d.addResult(redis.LevelProblem, "redis", "REDIS_GLOBAL_URL", err.Error(), redis.AdviceFor(err))
		return
	}
	d.addResult(levelOK, "redis", "REDIS_GLOBAL_URL", "the Redis of all regions answers", "")
}

// checkStore runs the checks of Redis that the service also runs, or asks all servers of memcached for an answer.
func (d *doctor) checkStore(ctx context.Context) {
	const area = "redis"
	settings := d.settings
	switch settings.Backend() {
	case env.BackendLocal:
		d.addResult(redis.LevelNote, area, "BACKEND_TYPE", "with the settings of this environment, each replica counts alone, without Redis", "set REDIS_URL to share counters; to check a running service, run rls doctor with its settings")
	case env.BackendMemcache:
		area, setting := "memcached", "MEMCACHE_HOST_PORT"
		if settings.MemcacheSRV != "" {
			setting = "MEMCACHE_SRV"
		}
		client, err := newMemcached(settings, settings.CacheKeyPrefix, slog.New(slog.DiscardHandler))
		if err == nil {
			defer client.Close()
			err = client.Ping(ctx)
		}
		if err != nil {
			d.addResult(redis.LevelProblem, area, setting, err.Error(), "check that memcached runs there")
			return
		}
		d.addResult(levelOK, area, setting, "all servers answer", "")
	default:
		client, err := newRedis(settings, settings.CacheKeyPrefix, nil, nil)
		if err != nil {
			d.addResult(redis.LevelProblem, area, "REDIS_URL", err.Error(), "")
			return
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(ctx, events.RedisCheckTimeout)
		defer cancel()
		isGood := true
		for _, finding := range append(client.Check(ctx), client.FindStalls(ctx)...) {
			isGood = isGood && finding.Level == redis.LevelNote
			d.addResult(finding.Level, area, finding.Role.String()+" "+finding.Address+" "+finding.Check, finding.Text, finding.Advice)
		}
		if isGood {
			d.addResult(levelOK, area, "REDIS_URL", "connection, rights, role and state are good", "")
		}
		if settings.GlobalURL != "" {
			d.checkGlobalRedis(ctx)
		}
	}
}
