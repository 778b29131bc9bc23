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

// client is the part of a go-redis client that counting needs.
type client interface {
	Process(ctx context.Context, cmd goredis.Cmder) error
	Ping(ctx context.Context) *goredis.StatusCmd
	Close() error
}

// maxRedirects is the number of MOVED and ASK replies that a command follows. Each costs
// a round trip, so that the timeout usually comes first.
const maxRedirects = 8

// clientOptions configure a client. For retries, redirects and pauses, 0 means the
// default of go-redis.
type clientOptions struct {
	timeout            time.Duration // of dialling, and of each read, write and wait for a connection
	poolSize           int           // connections to a node
	retries            int           // of a command after the first attempt; -1: none
	redirects          int           // in Cluster, where each attempt counts
	minPause, maxPause time.Duration // between retries
}

// limiterOptions returns the options of a client for batches. The retries of go-redis are
// off because a script must not run twice.
func (a address) limiterOptions(o Options) clientOptions {
	size := a.poolSize
	if size == 0 {
		size = 2 * o.MaxInflightBatches
		if a.kind == Cluster {
			size = o.MaxInflightBatches * o.Partitions
		}
		size = min(max(size, 4), 64)
	}
	return clientOptions{
		timeout: o.Timeout, poolSize: size, retries: -1, redirects: maxRedirects,
		minPause: time.Millisecond, maxPause: 8 * time.Millisecond,
	}
}

// open returns a client, which connects at its first use.
func (a address) open(c clientOptions) goredis.UniversalClient {
	o := &goredis.UniversalOptions{
		Addrs: a.nodes, DB: a.db, MasterName: a.master, TLSConfig: a.tls,
		Username: a.login.user, Password: a.login.password,
		SentinelUsername: a.sentinels.user, SentinelPassword: a.sentinels.password,
		DialTimeout: c.timeout, ReadTimeout: c.timeout, WriteTimeout: c.timeout, PoolTimeout: c.timeout,
		PoolSize: c.poolSize, ContextTimeoutEnabled: true, Protocol: 2, DisableIdentity: true,
		MaxRetries: c.retries, MaxRedirects: c.redirects, MinRetryBackoff: c.minPause, MaxRetryBackoff: c.maxPause, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	switch a.kind {
	case Sentinel:
		return goredis.NewFailoverClient(o.Failover())
	case Cluster:
		cluster := o.Cluster()
		cluster.DisableRoutingPolicies = true
		return goredis.NewClusterClient(cluster)
	}
	single := o.Simple()
	single.Network = a.network
	return goredis.NewClient(single)
}

// TLSFiles are the PEM files of a TLS configuration. Each is optional.
type TLSFiles struct {
	CA        string // certificates to trust in addition to the system's
	Cert, Key string // of the client

	// SkipHostname accepts any name in the server's certificate. The chain of the
	// certificate is still verified.
	SkipHostname bool
}

// LoadTLS returns the TLS configuration of the files.
func LoadTLS(f TLSFiles) (*tls.Config, error) {
	c, err := clienttls.Files{CA: f.CA, Cert: f.Cert, Key: f.Key}.Config()
	if err != nil {
		return nil, fmt.Errorf("redis TLS: %w", err)
	}
	if f.SkipHostname {
		c.InsecureSkipVerify = true // the name only: VerifyConnection verifies the chain
		c.VerifyConnection = func(s tls.ConnectionState) error { return verifyChain(s, c.RootCAs) }
	}
	return c, nil
}

func verifyChain(s tls.ConnectionState, roots *x509.CertPool) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("certificate of the server: got none")
	}
	intermediates := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates})
	return err
}
