package redis

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-81f232ab/rls/internal/clienttls"
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

// manners are how a client treats its Redis. Where retries, redirects and pauses are
// 0, they are go-redis' own.
type manners struct {
	timeout            time.Duration // of dialling, and of each read, write and wait for a connection
	poolSize           int           // connections to a node
	retries            int           // of a command after the first attempt; -1: none
	redirects          int           // in Cluster, where each attempt counts
	minPause, maxPause time.Duration // between them
}

// counting are the manners of a client for trips. go-redis' own retries are off: it
// can't know that a script must not run twice.
func (a address) counting(o Options) manners {
	size := a.poolSize
	if size == 0 {
		size = 2 * o.Trips
		if a.kind == Cluster {
			size = o.Trips * o.Partitions
		}
		size = min(max(size, 4), 64)
	}
	return manners{
		timeout: o.Timeout, poolSize: size, retries: -1, redirects: redirects,
		minPause: time.Millisecond, maxPause: 8 * time.Millisecond,
	}
}

// open makes the client. It connects when it is first used.
func (a address) open(m manners) goredis.UniversalClient {
	switch a.kind {
	case Sentinel:
		return goredis.NewFailoverClient(&goredis.FailoverOptions{
			MasterName: a.master, SentinelAddrs: a.nodes,
			SentinelUsername: a.sentinels.user, SentinelPassword: a.sentinels.password,
			Username: a.login.user, Password: a.login.password, TLSConfig: a.tls,
			Protocol: 2, DisableIdentity: true, MaxRetries: m.retries, DialerRetries: 1,
			MinRetryBackoff: m.minPause, MaxRetryBackoff: m.maxPause,
			DialTimeout: m.timeout, ReadTimeout: m.timeout, WriteTimeout: m.timeout, PoolTimeout: m.timeout,
			ContextTimeoutEnabled: true, PoolSize: m.poolSize,
		})
	case Cluster:
		return goredis.NewClusterClient(&goredis.ClusterOptions{
			Addrs: a.nodes, Username: a.login.user, Password: a.login.password, TLSConfig: a.tls,
			Protocol: 2, DisableIdentity: true, MaxRetries: m.retries, DialerRetries: 1, MaxRedirects: m.redirects,
			MinRetryBackoff: m.minPause, MaxRetryBackoff: m.maxPause,
			DialTimeout: m.timeout, ReadTimeout: m.timeout, WriteTimeout: m.timeout, PoolTimeout: m.timeout,
			ContextTimeoutEnabled: true, PoolSize: m.poolSize, DisableRoutingPolicies: true, MaintNotificationsConfig: noMaintenance(),
		})
	}
	return goredis.NewClient(&goredis.Options{
		Network: a.network, Addr: a.nodes[0], DB: a.db, Username: a.login.user, Password: a.login.password, TLSConfig: a.tls,
		Protocol: 2, DisableIdentity: true, MaxRetries: m.retries, DialerRetries: 1,
		MinRetryBackoff: m.minPause, MaxRetryBackoff: m.maxPause,
		DialTimeout: m.timeout, ReadTimeout: m.timeout, WriteTimeout: m.timeout, PoolTimeout: m.timeout,
		ContextTimeoutEnabled: true, PoolSize: m.poolSize, MaintNotificationsConfig: noMaintenance(),
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
	c, err := clienttls.Files{CA: f.CA, Cert: f.Cert, Key: f.Key}.Config()
	if err != nil {
		return nil, fmt.Errorf("redis TLS: %w", err)
	}
	if f.SkipHostname {
		c.InsecureSkipVerify = true // the name; VerifyConnection does the rest
		c.VerifyConnection = func(s tls.ConnectionState) error { return verifyChain(s, c.RootCAs) }
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
