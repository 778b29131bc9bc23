package server

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/watchfile"
)

// TLS makes a listener speak TLS 1.2 or later. Changes of the PEM files do not affect existing connections.
type TLS struct {
	// CertFile and KeyFile are the server's certificate chain and its key.
	CertFile, KeyFile string

	// ClientCAFile has the certificates of authorities. One of them must have signed the certificate of each client.
	ClientCAFile string

	// ClientCertOptional also accepts clients without a certificate. It needs ClientCAFile.
	ClientCertOptional bool

	// ClientSAN is a DNS name that the certificate of a client must contain, in upper or lower case and without
	// wildcards; empty means any name. It needs ClientCAFile.
	ClientSAN string

	// ReloadEvery is the interval at which the listener reads the files; default 0.5s. A change comes into force when
	// two reads in a row have found the same change, because somebody may still be writing the files.
	ReloadEvery time.Duration
}

// tlsReloader keeps the TLS configuration for the next handshake. The pemfile provider of grpc is no alternative: it starts
// even if files are missing, and it logs the private key if key and certificate do not match.
type tlsReloader struct {
	options       TLS
	files         *watchfile.Files
	currentConfig atomic.Pointer[tls.Config]
	listener      string
	observer      Observer
	log           *slog.Logger
	expiryTimer   *time.Timer // logs a line when the certificate in force expires
}

func newTLSReloader(options TLS, listener string, observer Observer, log *slog.Logger) (*tlsReloader, error) {
	paths := []string{options.CertFile, options.KeyFile}
	switch {
	case options.ClientCAFile != "":
		paths = append(paths, options.ClientCAFile)
	case options.ClientSAN != "":
		return nil, errors.New("a client SAN needs a client CA; without a client CA, no client certificate is verified")
	case options.ClientCertOptional:
		return nil, errors.New("optional client certificates need a client CA; without a client CA, no client certificate is verified")
	}
	if options.CertFile == "" || options.KeyFile == "" {
		return nil, errors.New("certificate and key are both required")
	}
	r := &tlsReloader{options: options, listener: listener, observer: observer, log: log.With("listener", listener)}
	var err error
	r.files, err = watchfile.Read(watchfile.Options{
		Paths: paths, ContentName: "TLS files", Apply: r.apply, Interval: cmp.Or(options.ReloadEvery, 500*time.Millisecond), Log: r.log,
		Details: func() []any {
			return []any{"subject", r.certificate().Subject.String(), "not_after", r.certificate().NotAfter}
		},
		Observe: func(err error) {
			if err != nil {
				observer.TLSReloaded(listener, "", err)
			} else {
				observer.TLSReloaded(listener, r.certificate().Subject.String(), nil)
			}
		},
	})
	return r, err
}

func (r *tlsReloader) certificate() *x509.Certificate {
	return r.currentConfig.Load().Certificates[0].Leaf
}

// config returns the configuration of a listener. Each handshake uses the current configuration.
func (r *tlsReloader) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return r.currentConfig.Load(), nil
		},
	}
}

func (r *tlsReloader) apply(files [][]byte) error {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	cert, key := files[0], files[1]
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", r.options.CertFile, r.options.KeyFile, err)
	}
	config.Certificates = []tls.Certificate{pair}

	if hasClientCA := len(files) == 3; hasClientCA {
		config.ClientAuth = tls.RequireAndVerifyClientCert
		if r.options.ClientCertOptional {
			config.ClientAuth = tls.VerifyClientCertIfGiven
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(files[2]) {
			return fmt.Errorf("client CA %s contains no certificate", r.options.ClientCAFile)
		}
	}
	if r.options.ClientSAN != "" {
		// Unlike VerifyPeerCertificate, VerifyConnection also runs for resumed sessions.
		config.VerifyConnection = requireSAN(r.options.ClientSAN)
	}
	r.currentConfig.Store(config)
	r.observer.CertificateInForce(r.listener, pair.Leaf.NotAfter)
	if r.expiryTimer != nil {
		r.expiryTimer.Stop()
	}
	r.expiryTimer = time.AfterFunc(time.Until(pair.Leaf.NotAfter), func() {
		r.log.Error("TLS certificate expired; clients refuse it", "file", r.options.CertFile, "subject", pair.Leaf.Subject.String(),
			"expired_since", pair.Leaf.NotAfter, "advice", "replace the files; new connections use them within a second")
	})
	return nil
}

// requireSAN returns a check that a client certificate contains the DNS name. A client without a certificate passes.
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
