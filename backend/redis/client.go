package redis

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// client is what a trip needs of go-redis.
type client interface {
	Process(ctx context.Context, cmd goredis.Cmder) error
	Ping(ctx context.Context) *goredis.StatusCmd
	Close() error
}

// redirects is how many MOVED and ASK a command follows; each costs a round trip,
// so the timeout ends it before.
const redirects = 8

// open makes the client. It connects when it is first used. go-redis' own retries
// are off: it can't know that a script must not run twice.
func (a address) open(o Options) client {
	size := a.poolSize
	if size == 0 {
		size = 2 * o.Trips
		if a.kind == Cluster {
			size = o.Trips * o.Partitions
		}
		size = min(max(size, 4), 64)
	}
	switch a.kind {
	case Sentinel:
		return goredis.NewFailoverClient(&goredis.FailoverOptions{
			MasterName: a.master, SentinelAddrs: a.nodes,
			SentinelUsername: a.sentinels.user, SentinelPassword: a.sentinels.password,
			Username: a.login.user, Password: a.login.password, TLSConfig: a.tls,
			Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
			DialTimeout: o.Timeout, ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, PoolTimeout: o.Timeout,
			ContextTimeoutEnabled: true, PoolSize: size,
		})
	case Cluster:
		return goredis.NewClusterClient(&goredis.ClusterOptions{
			Addrs: a.nodes, Username: a.login.user, Password: a.login.password, TLSConfig: a.tls,
			Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1, MaxRedirects: redirects,
			MinRetryBackoff: time.Millisecond, MaxRetryBackoff: 8 * time.Millisecond,
			DialTimeout: o.Timeout, ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, PoolTimeout: o.Timeout,
			ContextTimeoutEnabled: true, PoolSize: size, DisableRoutingPolicies: true, MaintNotificationsConfig: noMaintenance(),
		})
	}
	return goredis.NewClient(&goredis.Options{
		Network: a.network, Addr: a.nodes[0], DB: a.db, Username: a.login.user, Password: a.login.password, TLSConfig: a.tls,
		Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: o.Timeout, ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, PoolTimeout: o.Timeout,
		ContextTimeoutEnabled: true, PoolSize: size, MaintNotificationsConfig: noMaintenance(),
	})
}

func noMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// TLSFiles are the files, all PEM, that make up a TLS configuration. All are
// optional.
type TLSFiles struct {
	CA        string // certificates to trust besides the system's
	Cert, Key string // the client's own

	// SkipHostname accepts any name in the server's certificate, whose chain is
	// verified all the same.
	SkipHostname bool
}

// LoadTLS reads the files.
func LoadTLS(f TLSFiles) (*tls.Config, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("redis TLS: the CA file: %w", err)
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("redis TLS: the CA file %s holds no certificate in PEM", f.CA)
		}
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	switch {
	case f.Cert != "" && f.Key != "":
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("redis TLS: the client certificate %s and key %s: %w", f.Cert, f.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	case f.Cert != "" || f.Key != "":
		return nil, errors.New("redis TLS: the client certificate and its key must be given together")
	}
	if f.SkipHostname {
		c.InsecureSkipVerify = true // the name; VerifyConnection does the rest
		c.VerifyConnection = func(s tls.ConnectionState) error { return verifyChain(s, roots) }
	}
	return c, nil
}

func verifyChain(s tls.ConnectionState, roots *x509.CertPool) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the server sent no certificate")
	}
	others := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		others.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: others})
	return err
}
