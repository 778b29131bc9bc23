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
)

// TLS makes a listener speak TLS 1.2 or later. The files are PEM, may be in
// different directories, and are read again when they change; connections from
// before go on.
type TLS struct {
	// CertFile and KeyFile are the server's certificate chain and its key.
	CertFile, KeyFile string

	// ClientCAFile, if set, requires of every client a certificate signed by
	// one of these authorities.
	ClientCAFile string

	// ClientCertOptional lets clients without a certificate in, too: those that
	// have been verified are the ones with http.Request.TLS.VerifiedChains. A
	// certificate that is given must still be good. It needs ClientCAFile.
	ClientCertOptional bool

	// ClientSAN, if set, is a DNS name that the client's certificate must
	// carry, compared without case and without wildcards. It needs
	// ClientCAFile.
	ClientSAN string

	// ReloadEvery is how often the files are looked at; default 10s. Looking
	// (rather than being notified) sees every kind of replacement: rename,
	// write in place, the symlink swap of a Kubernetes secret, network mounts.
	ReloadEvery time.Duration
}

// tlsReloader holds the TLS configuration for the next handshake.
//
// It is ours because grpc's pemfile provider, the library for it, requires
// certificate and key in one directory, starts without them, and on a bad pair
// prints the private key to the log.
type tlsReloader struct {
	opts    TLS
	log     *slog.Logger
	current atomic.Pointer[tls.Config]

	files   [][]byte // what current was made of
	lastErr string   // to log a fault once, not on every look
}

// newTLSReloader reads the files a first time; here any fault is an error.
func newTLSReloader(opts TLS, log *slog.Logger) (*tlsReloader, error) {
	if opts.ClientSAN != "" && opts.ClientCAFile == "" {
		return nil, errors.New("a client SAN is required but no client CA is given, so no client certificate would be checked")
	}
	if opts.ClientCertOptional && opts.ClientCAFile == "" {
		return nil, errors.New("client certificates are optional but no client CA is given, so none could be verified")
	}
	if opts.CertFile == "" || opts.KeyFile == "" {
		return nil, errors.New("both certificate and key are required")
	}
	opts.ReloadEvery = cmp.Or(opts.ReloadEvery, 10*time.Second)
	r := &tlsReloader{opts: opts, log: log}
	if _, err := r.load(); err != nil {
		return nil, err
	}
	return r, nil
}

// config is the listener's configuration: it asks for the current one at each
// handshake.
func (r *tlsReloader) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return r.current.Load(), nil
		},
	}
}

// run looks at the files until ctx is done. Files that don't make a valid set
// leave the current one in force.
func (r *tlsReloader) run(ctx context.Context) {
	tick := time.NewTicker(r.opts.ReloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.reload()
		}
	}
}

func (r *tlsReloader) reload() {
	changed, err := r.load()
	switch {
	case err != nil && err.Error() != r.lastErr:
		r.lastErr = err.Error()
		r.log.Error("TLS files are not usable, the earlier ones stay in force", "error", err)
	case err == nil:
		r.lastErr = ""
		if changed {
			leaf := r.current.Load().Certificates[0].Leaf
			r.log.Info("TLS files reloaded", "subject", leaf.Subject.String(), "not_after", leaf.NotAfter)
		}
	}
}

// load reads all files and, if any has changed and all are good, puts them in
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
			return false, fmt.Errorf("client CA %s holds no certificate", r.opts.ClientCAFile)
		}
	}
	if r.opts.ClientSAN != "" {
		// VerifyConnection, unlike VerifyPeerCertificate, also runs when a
		// session is resumed.
		config.VerifyConnection = requireSAN(r.opts.ClientSAN)
	}
	r.current.Store(config)
	r.files = files
	return true, nil
}

// requireSAN wants name among the DNS names of a verified client certificate.
// Whether there must be one is for ClientAuth to say.
func requireSAN(name string) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return nil
		}
		has := state.PeerCertificates[0].DNSNames
		if slices.ContainsFunc(has, func(n string) bool { return strings.EqualFold(n, name) }) {
			return nil
		}
		return fmt.Errorf("client certificate is for %q, not for %q", has, name)
	}
}
