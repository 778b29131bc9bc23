package redis

import (
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// maxConnections is the number of connections that Connect opens to a node, at most.
const maxConnections = 4

// Connect returns a client of s for everything but counting: for few commands, which may
// run twice. go-redis repeats them up to three times if Redis fails or moves. timeout
// bounds each attempt. Connect ignores PoolSize.
//
// The client connects at its first use. The caller must close it. The name describes s in
// logs. Name and errors hold no secrets.
func Connect(s Server, timeout time.Duration) (client goredis.UniversalClient, name string, err error) {
	a, err := parse(s)
	if err != nil {
		return nil, "", fmt.Errorf("redis: %w", err)
	}
	if timeout < time.Millisecond {
		return nil, "", fmt.Errorf("redis: timeout: got %v, want 1ms or more", timeout)
	}
	return a.open(clientOptions{timeout: timeout, poolSize: maxConnections}), a.name(), nil
}
