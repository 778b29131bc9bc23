package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

// TLS makes a listener speak TLS 1.2 or later. The files are PEM and may be in different
// directories. The listener reads them again when they change, which does not affect
// existing connections.
type TLS struct {
	// CertFile and KeyFile are the server's certificate chain and its key.
	CertFile, KeyFile string

	// ClientCAFile contains certificate authorities. If set, every client must show a
	// certificate that one of them has signed.
	ClientCAFile string

	// ClientCertOptional also accepts clients without a certificate. If a client sends a
	// certificate, it must be valid, and http.Request.TLS.VerifiedChains contains it.
	// ClientCertOptional needs ClientCAFile.
	ClientCertOptional bool

	// ClientSAN is a DNS name that the client's certificate must contain, unless empty.
	// The comparison ignores case and knows no wildcards. ClientSAN needs ClientCAFile.
	ClientSAN string

	// ReloadEvery is how often the listener reads the files; default 1s. Unlike
	// notifications, polling sees every kind of replacement: a rename, a write in place,
	// the symlink swap of a Kubernetes secret, a network mount.
	ReloadEvery time.Duration
}

// tlsReloader keeps the TLS configuration for the next handshake.
//
// The pemfile provider of grpc does not fit. It requires certificate and key in one
// directory and starts without them. It logs the private key of a bad pair.
type tlsReloader struct {
	opts    TLS
	observe func(subject string, err error)
	log     *slog.Logger
	current atomic.Pointer[tls.Config]

	files   [][]byte // the contents that current was made from
	lastErr string   // the fault logged last, so that each fault is logged once
}

// newTLSReloader reads the files and returns an error for any fault.
func newTLSReloader(opts TLS, observe func(subject string, err error), log *slog.Logger) (*tlsReloader, error) {
	if opts.ClientSAN != "" && opts.ClientCAFile == "" {
		return nil, errors.New("a client SAN needs a client CA, without which no client certificate is verified")
	}
	if opts.ClientCertOptional && opts.ClientCAFile == "" {
		return nil, errors.New("optional client certificates need a client CA, without which none is verified")
	}
	if opts.CertFile == "" || opts.KeyFile == "" {
		return nil, errors.New("certificate and key are both required")
	}
	opts.ReloadEvery = cmp.Or(opts.ReloadEvery, time.Second)
	r := &tlsReloader{opts: opts, observe: observe, log: log}
	if _, err := r.load(); err != nil {
		return nil, err
	}
	return r, nil
}

// config returns the listener's configuration. At each handshake, it switches to the current
// configuration.
func (r *tlsReloader) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return r.current.Load(), nil
		},
	}
}

// run reloads the files each ReloadEvery until ctx is done. If the files are invalid, the
// current configuration stays in force.
func (r *tlsReloader) run(ctx context.Context) {
	for wait.Sleep(ctx, r.opts.ReloadEvery) {
		r.reload()
	}
}

func (r *tlsReloader) reload() {
	changed, err := r.load()
	switch {
	case err != nil && err.Error() != r.lastErr:
		r.lastErr = err.Error()
		r.log.Error("TLS files rejected; the former files stay in force", "error", err)
		r.observe("", err)
	case err == nil:
		r.lastErr = ""
		if changed {
			leaf := r.current.Load().Certificates[0].Leaf
			r.log.Info("TLS files reloaded", "subject", leaf.Subject.String(), "not_after", leaf.NotAfter)
			r.observe(leaf.Subject.String(), nil)
		}
	}
}

// load reads all files. If any file has changed and all are valid, load puts them in
// force together.
func (r *tlsReloader) load() (changed bool, err error) {
	paths := []string{r.opts.CertFile, r.opts.KeyFile}
	if r.opts.ClientCAFile != "" {
		paths = append(paths, r.opts.ClientCAFile)
	}
	var files [][]byte
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return false, err
		}
		files = append(files, content)
	}
	if slices.EqualFunc(files, r.files, bytes.Equal) {
		return false, nil
	}

	config := &tls.Config{MinVersion: tls.VersionTLS12}
	pair, err := tls.X509KeyPair(files[0], files[1])
	if err != nil {
		return false, fmt.Errorf("certificate %s with key %s: %w", r.opts.CertFile, r.opts.KeyFile, err)
	}
	config.Certificates = []tls.Certificate{pair}

	if len(files) == 3 {
		config.ClientAuth = tls.RequireAndVerifyClientCert
		if r.opts.ClientCertOptional {
			config.ClientAuth = tls.VerifyClientCertIfGiven
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(files[2]) {
			return false, fmt.Errorf("client CA %s contains no certificate", r.opts.ClientCAFile)
		}
	}
	if r.opts.ClientSAN != "" {
		// Unlike VerifyPeerCertificate, VerifyConnection also runs for resumed sessions.
		config.VerifyConnection = requireSAN(r.opts.ClientSAN)
	}
	r.current.Store(config)
	r.files = files
	return true, nil
}

// requireSAN returns a check that a client certificate contains the DNS name. A client
// without a certificate passes, because ClientAuth decides whether one is required.
func requireSAN(name string) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return nil
		}
		names := state.PeerCertificates[0].DNSNames
		if slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) }) {
			return nil
		}
		return fmt.Errorf("client certificate: got DNS names %q, want %q", names, name)
	}
}
