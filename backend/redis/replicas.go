package redis

import (
	"context"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// replicaPause is the time without WAIT after too few replicas had the charges of a batch. So
	// hits don't spend their budget on replicas that are gone.
	replicaPause = time.Second

	// waitMargin is the time that Redis gets to send its answer after the timeout of WAIT. An idle
	// Redis checks the timeout only every 100 ms. If the answer comes later than waitMargin, the
	// connection is closed.
	waitMargin = time.Millisecond
)

// replicaState is the state of the replicas of a server.
type replicaState struct {
	pausedUntil atomic.Int64 // result of microsSinceProcessStart; no WAIT is sent before pausedUntil
}

// sendAndAwaitReplicas sends the commands of the batch, and then waits until enough replicas have the charges.
// The wait changes no reply, because the charges stand in any case. The wait ends early enough for the
// answers to reach their callers.
func (b *batch) sendAndAwaitReplicas(ctx context.Context, s *server) {
	if microsSinceProcessStart() < s.replicas.pausedUntil.Load() {
		b.replicasMissing = true
		s.execute(ctx, b.commands)
		return
	}
	conn := s.node.Conn() // WAIT concerns the writes of its own connection
	defer func() { _ = conn.Close() }()
	runPipeline(ctx, conn, b.commands)
	if !b.awaitReplicas(ctx, conn) {
		b.replicasMissing = true
		s.replicas.pausedUntil.Store(microsSinceProcessStart() + replicaPause.Microseconds())
	}
}

// awaitReplicas reports whether enough replicas have the charges of the connection. It takes at
// most a quarter of Timeout, and half of the time that is left for the batch.
func (b *batch) awaitReplicas(ctx context.Context, conn *goredis.Conn) bool {
	o := &b.queue.limiter.options
	waitTime := min(b.queue.limiter.Timeout()/4, time.Until(b.deadline)/2) - waitMargin
	ctx, cancel := context.WithTimeout(ctx, waitTime+waitMargin)
	defer cancel()
	cmd := goredis.NewIntCmd(ctx, "WAIT", o.WaitReplicas, max(waitTime.Milliseconds(), 1))
	return conn.Process(ctx, cmd) == nil && cmd.Val() >= int64(o.WaitReplicas)
}
