package redis

import (
	"context"
	"sync"

	goredis "github.com/redis/go-redis/v9"
)

// client is one Redis with all its servers.
type client interface {
	// Process sends cmd and follows the redirects of a Cluster.
	Process(ctx context.Context, cmd goredis.Cmder) error

	Ping(ctx context.Context) *goredis.StatusCmd
	Close() error

	// masterOf returns the server that has key.
	masterOf(ctx context.Context, key string) (*server, error)

	// eachMaster calls f with each master, possibly at the same time. It returns the first error.
	eachMaster(ctx context.Context, f func(ctx context.Context, node *goredis.Client) error) error

	Pipeline() goredis.Pipeliner

	// reload looks for the servers again, in the background. failed is a server that has not
	// answered, or nil.
	reload(failed *server)
}

// server is a Redis process that commands are sent to.
type server struct {
	node     *goredis.Client
	clock    serverClock
	replicas replicaState

	// execute sends commands in one step, and sets the reply or the error of each.
	execute func(ctx context.Context, commands []goredis.Cmder)
}

// measureClock asks the server for its time.
func (s *server) measureClock(ctx context.Context) error {
	cmd := goredis.NewTimeCmd(ctx, "TIME")
	start := sinceStart()
	s.execute(ctx, []goredis.Cmder{cmd})
	if err := cmd.Err(); err != nil {
		return err
	}
	s.clock.add(start, sinceStart(), cmd.Val().UnixMicro())
	return nil
}

// servers is a client over go-redis.
type servers struct {
	goredis.UniversalClient
	cluster *goredis.ClusterClient // nil without a Cluster
	single  *server                // nil in a Cluster

	masters sync.Map // *server by the *goredis.Client of each master of a Cluster
}

func newServers(c goredis.UniversalClient) *servers {
	s := &servers{UniversalClient: c}
	if cluster, ok := c.(*goredis.ClusterClient); ok {
		s.cluster = cluster
	} else {
		s.single = newServer(c.(*goredis.Client))
	}
	return s
}

// newServer returns the server behind c.
func newServer(c *goredis.Client) *server {
	return &server{node: c, execute: func(ctx context.Context, commands []goredis.Cmder) { executeIn(ctx, c, commands) }}
}

// executeIn sends commands to c in one step, and sets the reply or the error of each.
func executeIn(ctx context.Context, c interface{ Pipeline() goredis.Pipeliner }, commands []goredis.Cmder) {
	pipe := c.Pipeline()
	_ = pipe.BatchProcess(ctx, commands...)
	_, err := pipe.Exec(ctx)
	if err == nil {
		return
	}
	for _, cmd := range commands {
		if cmd.Err() != nil {
			return
		}
	}
	for _, cmd := range commands { // Redis refused the connection
		cmd.SetErr(err)
	}
}

// masterOf implements client.
func (s *servers) masterOf(ctx context.Context, key string) (*server, error) {
	if s.cluster == nil {
		return s.single, nil
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

// eachMaster implements client.
func (s *servers) eachMaster(ctx context.Context, f func(ctx context.Context, node *goredis.Client) error) error {
	if s.cluster == nil {
		return f(ctx, s.single.node)
	}
	return s.cluster.ForEachMaster(ctx, f)
}

// reload implements client. go-redis reloads the slots of a Cluster itself only for commands
// that it may repeat. reload forgets the failed server, which may never come back.
func (s *servers) reload(failed *server) {
	if s.cluster != nil {
		if failed != nil {
			s.masters.Delete(failed.node)
		}
		s.cluster.ReloadState(context.Background())
	}
}
