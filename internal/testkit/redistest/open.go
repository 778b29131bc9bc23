package redistest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/internal/testkit/proctest"
)

// DB is a test's share of the server that all tests of the process use.
type DB struct {
	*Server

	// Prefix starts the keys of this test. They are deleted when the test ends.
	Prefix string
}

// Open returns the test's share of a server. The server starts with the first Open and ends
// with the process. A test that kills, fills or reconfigures a server must use Start.
func Open(tb testing.TB) DB {
	tb.Helper()
	s, err := sharedServer()
	if err != nil {
		tb.Fatal(err)
	}
	db := DB{Server: s, Prefix: fmt.Sprintf("t%d:", prefixNumber.Add(1))}
	tb.Cleanup(func() { db.clear(tb) })
	return db
}

var (
	prefixNumber atomic.Int64
	sharedServer = sync.OnceValues(func() (*Server, error) { return startAnywhere() })
)

// Keys returns the existing keys of this test.
func (db DB) Keys(tb testing.TB) []string {
	tb.Helper()
	return scan(tb, db.Client(tb), db.Prefix)
}

func (db DB) clear(tb testing.TB) {
	tb.Helper()
	checkCounters(tb, db.Server, db.Prefix)
	c := goredis.NewClient(&goredis.Options{Addr: db.Addr})
	defer c.Close()
	for _, key := range scan(tb, c, db.Prefix) {
		c.Del(context.Background(), key)
	}
}

func scan(tb testing.TB, c *goredis.Client, prefix string) []string {
	tb.Helper()
	var keys []string
	ctx := context.Background()
	it := c.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for it.Next(ctx) {
		keys = append(keys, it.Val())
	}
	if err := it.Err(); err != nil {
		tb.Fatal(err)
	}
	return keys
}

// IgnoreShared returns options of goleak for the goroutines of the shared server, and for a
// goroutine of go-redis that ends within a second after its pool.
func IgnoreShared() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
		proctest.IgnoreStarter(),
		goleak.IgnoreAnyFunction("github.com/seed-81f232ab/rls/internal/testkit/redistest.(*Server).spawn.func1"),
		goleak.IgnoreAnyFunction("os/exec.(*Cmd).writerDescriptor.func1"),
	}
}
