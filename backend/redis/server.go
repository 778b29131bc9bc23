package redis

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// client is the connection pool of a redisInstance.
type client interface {
	// Process sends cmd and follows the redirects of a Cluster.
	Process(ctx context.Context, cmd goredis.Cmder) error

	Ping(ctx context.Context) *goredis.StatusCmd
	PoolStats() *goredis.PoolStats
	Close() error
	pipeliner

	// masterOf returns the master that has key.
	masterOf(ctx context.Context, key string) (*server, error)

	// forEachMaster calls f with each master, possibly at the same time. It returns the first error.
	forEachMaster(ctx context.Context, f func(ctx context.Context, node *goredis.Client) error) error

	// roundTrip returns the time of a round trip to the slowest server, or 0 if none has been measured.
	roundTrip() time.Duration

	// findServersAgain looks for the servers again in the background. It forgets failedServer, unless it is nil.
	findServersAgain(failedServer *server)
}

// server is one Redis server that executes commands: a single Redis, or a master.
type server struct {
	pipeliner           // the same client as node
	node                *goredis.Client
	clock               serverClock
	nextWaitCommandTime atomic.Int64 // rls sends no WAIT before this time, in microseconds since processStart
}

// pipeliner opens pipelines to one server. It is a client or a connection of go-redis.
type pipeliner interface{ Pipeline() goredis.Pipeliner }

func (s *server) execute(ctx context.Context, commands []goredis.Cmder) {
	runPipeline(ctx, s, commands)
}

func (s *server) measureClock(ctx context.Context) error {
	cmd := goredis.NewCmd(ctx, "TIME")
	start := microsSinceProcessStart()
	s.execute(ctx, []goredis.Cmder{cmd})
	return s.clock.addReply(start, cmd)
}

type servers struct {
	goredis.UniversalClient
	cluster      *goredis.ClusterClient // nil without a Cluster
	singleServer *server                // nil in a Cluster

	masters sync.Map // the *server of each master of a Cluster; the key is the *goredis.Client
}

func newServers(c goredis.UniversalClient) *servers {
	s := &servers{UniversalClient: c}
	if cluster, ok := c.(*goredis.ClusterClient); ok {
		s.cluster = cluster
	} else {
		s.singleServer = newServer(c.(*goredis.Client))
	}
	return s
}

func newServer(c *goredis.Client) *server { return &server{pipeliner: c, node: c} }

// runPipeline sends commands in one step, and sets the reply or the error of each command.
func runPipeline(ctx context.Context, p pipeliner, commands []goredis.Cmder) {
	pipe := p.Pipeline()
	_ = pipe.BatchProcess(ctx, commands...)
	_, err := pipe.Exec(ctx)
	if err != nil && firstError(commands) == nil { // no connection was opened
		for _, cmd := range commands {
			cmd.SetErr(err)
		}
	}
}

func firstError(commands []goredis.Cmder) (err error) {
	for i := 0; i < len(commands) && err == nil; i++ {
		err = commands[i].Err()
	}
	return err
}

func (s *servers) masterOf(ctx context.Context, key string) (*server, error) {
	if s.cluster == nil {
		return s.singleServer, nil
	}
	node, err := s.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	if master, ok := s.masters.Load(node); ok {
		return master.(*server), nil
	}
	master, _ := s.masters.LoadOrStore(node, newServer(node))
	return master.(*server), nil
}

func (s *servers) forEachMaster(ctx context.Context, f func(ctx context.Context, node *goredis.Client) error) error {
	if s.cluster == nil {
		return f(ctx, s.singleServer.node)
	}
	return s.cluster.ForEachMaster(ctx, f)
}

// findServersAgain implements client. go-redis looks for the new servers of a Cluster only after errors of commands that
// it may repeat, and it must not repeat the commands of rls.
func (s *servers) findServersAgain(failedServer *server) {
	if s.cluster != nil {
		if failedServer != nil {
			s.masters.Delete(failedServer.node)
		}
		s.cluster.ReloadState(context.Background())
	}
}
