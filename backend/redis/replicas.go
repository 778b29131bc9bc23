package redis

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// process has cmd executed, and waits for replicas if it is to.
func (t *trip) process(ctx context.Context, cmd once) error {
	o := &t.limiter.options
	if o.WaitReplicas == 0 {
		return t.pool.client.Process(ctx, cmd)
	}
	node, err := t.pool.node(ctx, t.names[0])
	if err != nil {
		return err
	}
	// WAIT speaks of its own connection's writes, so the two go together. That it
	// fails, or finds too few replicas, changes nothing of what is charged.
	pipe := node.Pipeline()
	_ = pipe.Process(ctx, cmd)
	pipe.Do(ctx, "WAIT", o.WaitReplicas, max(o.Timeout/4, time.Millisecond).Milliseconds())
	_, _ = pipe.Exec(ctx)
	switch refusal(cmd.Err()) {
	case "MOVED", "ASK": // it was not executed, and the client knows the way
		cmd.SetErr(nil)
		return t.pool.client.Process(ctx, cmd)
	}
	return cmd.Err()
}

// node is the master that has a key.
func (p *pool) node(ctx context.Context, key string) (*goredis.Client, error) {
	if c, ok := p.client.(*goredis.ClusterClient); ok {
		return c.MasterForKey(ctx, key)
	}
	return p.client.(*goredis.Client), nil
}
