package redis

import (
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// connections is how many Connect opens to a node, at most.
const connections = 4

// Connect makes a client of s for what is not counting: few commands, which may run
// twice, as go-redis repeats them (up to three times) when Redis fails or moves.
// timeout bounds each attempt. PoolSize doesn't count here.
//
// It connects when it is first used; who called closes it. The name tells s in logs,
// without secrets, and so do the errors, which say what is wrong with s.
func Connect(s Server, timeout time.Duration) (client goredis.UniversalClient, name string, err error) {
	a, err := parse(s)
	if err != nil {
		return nil, "", fmt.Errorf("redis: %w", err)
	}
	if timeout < time.Millisecond {
		return nil, "", fmt.Errorf("redis: the timeout is %v; it can be from 1ms", timeout)
	}
	return a.open(manners{timeout: timeout, poolSize: connections}), a.name(), nil
}
