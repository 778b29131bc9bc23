package redistest

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// counterKey matches the keys of counters, which docs/redis.md lists.
var counterKey = regexp.MustCompile(`v[12]:(fw|fh|sw|sl|tb|cc)\d*[:#]`)

// isOverrideKey reports whether a key belongs to overrides. Such a key needs no time to live.
func isOverrideKey(key string) bool {
	return strings.Contains(key, "rls:") && !counterKey.MatchString(key)
}

// keysByExpiry has the keys of a server: expiringKeys have a time to live, and lastingKeys have none.
type keysByExpiry struct{ expiringKeys, lastingKeys []string }

// readKeysByExpiry returns the keys that start with prefix, except for the keys of overrides.
func readKeysByExpiry(ctx context.Context, c *goredis.Client, prefix string) (result keysByExpiry, err error) {
	for cursor := uint64(0); ; {
		var keys []string
		if keys, cursor, err = c.Scan(ctx, cursor, prefix+"*", 1000).Result(); err != nil {
			return result, fmt.Errorf("scan keys: %w", err)
		}
		times, err := c.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for _, key := range keys {
				p.PTTL(ctx, key)
			}
			return nil
		})
		if err != nil {
			return result, fmt.Errorf("read times to live: %w", err)
		}
		for i, key := range keys {
			switch timeLeft := times[i].(*goredis.DurationCmd).Val(); {
			case timeLeft == -2 || isOverrideKey(key): // -2: the key has expired since the scan
			case timeLeft < 0:
				result.lastingKeys = append(result.lastingKeys, key)
			default:
				result.expiringKeys = append(result.expiringKeys, key)
			}
		}
		if cursor == 0 {
			return result, nil
		}
	}
}

// Keys returns the keys of the servers with and without a time to live, except for the keys of overrides.
func Keys(tb testing.TB, servers ...*Server) (expiring, lasting []string) {
	tb.Helper()
	for _, s := range servers {
		keys := keysByExpiryOf(tb, s, "")
		expiring, lasting = append(expiring, keys.expiringKeys...), append(lasting, keys.lastingKeys...)
	}
	return expiring, lasting
}

// RequireAllExpire fails the test if a key of the servers has no time to live. Keys of overrides need
// none. It returns the number of other keys. For a Cluster, pass its masters.
func RequireAllExpire(tb testing.TB, servers ...*Server) (keys int) {
	tb.Helper()
	for _, s := range servers {
		keys += keysByExpiryOf(tb, s, "").require(tb, s)
	}
	return keys
}

// RequireAllExpire is the function RequireAllExpire for the keys of this test.
func (db DB) RequireAllExpire(tb testing.TB) (keys int) {
	tb.Helper()
	return keysByExpiryOf(tb, db.Server, db.Prefix).require(tb, db.Server)
}

// keysByExpiryOf is readKeysByExpiry for a server that answers.
func keysByExpiryOf(tb testing.TB, s *Server, prefix string) keysByExpiry {
	tb.Helper()
	c := s.newClient()
	defer c.Close()
	keys, err := readKeysByExpiry(context.Background(), c, prefix)
	if err != nil {
		tb.Fatalf("%s: %v", s.Addr, err)
	}
	return keys
}

// require fails the test if a key of s has no time to live. It returns the number of keys.
func (k keysByExpiry) require(tb testing.TB, s *Server) (keys int) {
	tb.Helper()
	if len(k.lastingKeys) > 0 {
		tb.Fatalf("%s: %d keys have no time to live, %d have one: %q", s.Addr, len(k.lastingKeys), len(k.expiringKeys), firstKeys(k.lastingKeys))
	}
	return len(k.expiringKeys)
}

// firstKeys returns up to ten keys.
func firstKeys(keys []string) []string { return keys[:min(len(keys), 10)] }

// checkTime bounds the check of a server at the end of a test.
const checkTime = 10 * time.Second

// checkCounters reports each counter without a time to live at the end of a test. It skips keys that are
// no counters. It also skips servers that the test has killed or frozen, and replicas of a Cluster, which
// send clients to their masters.
func checkCounters(tb testing.TB, server *Server, prefix string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if server.PID() == 0 {
		return
	}
	if _, err := server.command(ctx, "PING"); err != nil {
		return
	}
	ctx, cancel = context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	c := server.newClient()
	defer c.Close()
	keys, err := readKeysByExpiry(ctx, c, prefix)
	switch {
	case err != nil && strings.Contains(err.Error(), "MOVED "):
		return
	case err != nil:
		tb.Errorf("%s: %v", server.Addr, err)
	}
	var counters []string
	for _, key := range keys.lastingKeys {
		if counterKey.MatchString(key) {
			counters = append(counters, key)
		}
	}
	if len(counters) > 0 {
		tb.Errorf("%s: %d counters have no time to live at the end of the test: %q", server.Addr, len(counters), firstKeys(counters))
	}
}
