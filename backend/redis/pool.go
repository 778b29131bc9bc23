package redis

import (
	"context"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// pool is one Redis: a single one, the master of Sentinel, or a Cluster.
type pool struct {
	name      string // addresses without secrets, for errors
	client    client
	queues    []*queue   // of each partition
	keyspaces []keyspace // of each partition
}

func (l *Limiter) newPool(ctx context.Context, s Server) (*pool, error) {
	a, err := parse(s)
	if err != nil {
		return nil, err
	}
	tags := []string{""}
	if a.kind == Cluster {
		if strings.ContainsAny(l.options.KeyPrefix, "{}") {
			return nil, fmt.Errorf("key prefix: got %q with a brace, which a cluster takes for a hash tag; want no braces", l.options.KeyPrefix)
		}
		tags = hashTags(l.options.Partitions)
	}
	p := &pool{name: a.name(), client: a.open(a.limiterOptions(l.options))}
	for _, tag := range tags {
		p.keyspaces = append(p.keyspaces, keyspace{head: l.options.KeyPrefix + tag + layout})
		p.queues = append(p.queues, newQueue(ctx, l, p))
	}
	return p, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// partition returns the partition of key. All counters of a key lie in one partition, so
// that one step charges several limits of one descriptor.
func (p *pool) partition(key []byte) int {
	if len(p.queues) == 1 {
		return 0
	}
	return int(crc32.Checksum(key, castagnoli) % uint32(len(p.queues)))
}

// reloadTopology makes a Cluster client find the present owners of all slots. The client
// does so itself only for commands that it may repeat.
func (p *pool) reloadTopology(ctx context.Context) {
	if c, ok := p.client.(interface{ ReloadState(context.Context) }); ok {
		c.ReloadState(ctx)
	}
}

// master returns the client of the master that owns key.
func (p *pool) master(ctx context.Context, key string) (*goredis.Client, error) {
	if c, ok := p.client.(*goredis.ClusterClient); ok {
		return c.MasterForKey(ctx, key)
	}
	return p.client.(*goredis.Client), nil
}

// process sends cmd. With WaitReplicas it then waits for replicas.
func (b *batch) process(ctx context.Context, cmd unrepeatedCmd) error {
	o := &b.limiter.options
	if o.WaitReplicas == 0 {
		return b.pool.client.Process(ctx, cmd)
	}
	node, err := b.pool.master(ctx, string(b.hits[0].name()))
	if err != nil {
		return err
	}
	// WAIT concerns the writes of its own connection, so both commands share one. The
	// charges stand even if WAIT fails or finds too few replicas.
	pipe := node.Pipeline()
	_ = pipe.Process(ctx, cmd)
	pipe.Do(ctx, "WAIT", o.WaitReplicas, max(o.Timeout/4, time.Millisecond).Milliseconds())
	_, _ = pipe.Exec(ctx)
	switch errorCode(cmd.Err()) {
	case "MOVED", "ASK": // it was not executed, and the client follows the redirect
		cmd.SetErr(nil)
		return b.pool.client.Process(ctx, cmd)
	}
	return cmd.Err()
}
