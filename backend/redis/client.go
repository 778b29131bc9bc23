package redis

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	maxRedirects   = 8 // the most MOVED and ASK replies that the client follows for a command
	maxConnections = 4 // the most connections of a client of Connect to a node
)

// Connect returns a client of s that does not count hits. The client is for few commands, and may run a command twice.
// timeout bounds each attempt, and is at least 1 ms. name describes s in logs. name and err hold no secrets.
func Connect(s Server, timeout time.Duration) (client goredis.UniversalClient, name string, err error) {
	a, err := parse(s)
	if err != nil {
		return nil, "", fmt.Errorf("redis: %w", err)
	}
	return a.open(a.options(timeout, maxConnections)), a.name(), nil
}

// options returns the options of a client. timeout bounds the dialling, and each read, write and wait for a connection.
func (a address) options(timeout time.Duration, poolSize int) *goredis.UniversalOptions {
	o := &goredis.UniversalOptions{
		Addrs: a.nodes, DB: a.db, MasterName: a.master, TLSConfig: a.tls,
		Username: a.login.user, Password: a.login.password,
		SentinelUsername: a.sentinelLogin.user, SentinelPassword: a.sentinelLogin.password,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: timeout,
		PoolSize: poolSize, ContextTimeoutEnabled: true, Protocol: 2, DisableIdentity: true, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if a.authFile != "" {
		o.CredentialsProviderContext = newLoginReader(a.authFile, a.login)
		o.ConnMaxLifetime = maxLoginAge
	}
	o.Dialer = boundReplies(defaultDial(o))
	return o
}

// maxLoginAge is the age at which rls replaces connections with a login of an AuthFile, because ElastiCache breaks
// connections 12 hours after a login with a token.
const maxLoginAge = 11 * time.Hour

// newLoginReader returns a function that reads the login in file, which overrides urlLogin. If the function can't read
// the file, it returns the login of its last successful read.
func newLoginReader(file string, urlLogin login) func(context.Context) (user, password string, err error) {
	var lastLogin atomic.Pointer[login]
	return func(context.Context) (user, password string, err error) {
		auth, err := ReadAuthFile(file)
		if err == nil {
			newLogin := urlLogin
			newLogin.override(auth)
			lastLogin.Store(&newLogin)
		}
		if savedLogin := lastLogin.Load(); savedLogin != nil {
			return savedLogin.user, savedLogin.password, nil
		}
		return "", "", err
	}
}

const maxAuthBytes = 64 << 10

// ReadAuthFile returns the Auth in an AuthFile, without the space around it. Errors hold no secrets.
func ReadAuthFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxAuthBytes+1))
	auth := strings.TrimSpace(string(content))
	switch {
	case err != nil:
		return "", err
	case auth == "" || len(content) > maxAuthBytes:
		return "", fmt.Errorf("%s: got %d bytes, want a password or user:password", path, len(content))
	}
	return auth, nil
}

// maxDefaultConnections bounds the default number of connections to a node, unless more batches can be in flight.
const maxDefaultConnections = 64

// connectionsAndBatches returns the number of connections to a node, and the number of batches of a partition that can
// be in flight. Each batch gets a connection at once, even if one node has all partitions. A wait for a connection would
// look like a failure of Redis.
func (a address) connectionsAndBatches(o Options) (connections, batches int) {
	partitions := 1
	if a.kind == Cluster {
		partitions = o.Partitions
	}
	connections = a.poolSize
	if connections == 0 {
		maxBatches := o.MaxInflightBatches * partitions
		connections = max(min(max(2*maxBatches, 4), maxDefaultConnections), maxBatches)
	}
	connections = max(connections, partitions)
	return connections, min(o.MaxInflightBatches, connections/partitions)
}

// limiterOptions returns the options of a client for batches. This client must not run a script twice.
func (a address) limiterOptions(o Options) *goredis.UniversalOptions {
	size, _ := a.connectionsAndBatches(o)
	c := a.options(o.Timeout, size)
	c.ReadTimeout = o.Timeout + lateAnswerTime // the context of a batch ends the wait earlier
	c.DialTimeout = c.ReadTimeout
	dial := dialFunc(o.Dial)
	if dial == nil {
		dial = defaultDial(c)
	}
	c.Dialer = boundReplies(dial)
	c.MaxRetries, c.MaxRedirects = -1, maxRedirects
	c.PipelinePoolSize = -1 // all batches share the connections
	c.MinRetryBackoff, c.MaxRetryBackoff = time.Millisecond, 8*time.Millisecond
	return c
}

func (a address) open(o *goredis.UniversalOptions) goredis.UniversalClient {
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

// LogTo sends the messages of go-redis in the whole process to log at debug level instead of stderr.
func LogTo(log *slog.Logger) { goredis.SetLogger(clientLog{log}) }

type clientLog struct{ log *slog.Logger }

// Printf implements the logger interface of go-redis.
func (l clientLog) Printf(ctx context.Context, format string, v ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, v...))
	}
}
