package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Sentinels is a master and its replica with three sentinels.
type Sentinels struct {
	Name            string // the sentinels' name of the master
	Master, Replica *Server
	Sentinels       []*Server
}

// StartSentinels runs all servers and returns when they know each other.
func StartSentinels(tb testing.TB) *Sentinels {
	tb.Helper()
	sentinels := &Sentinels{Name: "counters", Master: Start(tb)}
	host, port, _ := strings.Cut(sentinels.Master.Addr, ":")
	sentinels.Replica = sentinels.Master.StartReplica(tb)
	for range 3 {
		sentinels.Sentinels = append(sentinels.Sentinels, sentinels.startSentinel(tb, host, port))
	}
	err := eventually(20*time.Second, func(ctx context.Context) error {
		for _, sentinel := range sentinels.Sentinels {
			info, err := sentinel.command(ctx, "INFO", "sentinel")
			if err != nil {
				return err
			}
			if !strings.Contains(info, "status=ok") || !strings.Contains(info, "slaves=1,sentinels=3") {
				return fmt.Errorf("%s says:\n%s", sentinel.Addr, info)
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return sentinels
}

func (s *Sentinels) startSentinel(tb testing.TB, host, port string) *Server {
	tb.Helper()
	sentinel, err := onFreePort(func(sentinelPort int) (*Server, error) {
		dir := tb.TempDir()
		file := filepath.Join(dir, "sentinel.conf") // the sentinel writes to this file
		text := fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %s\nsentinel monitor %[3]s %s %s 2\n"+
			"sentinel down-after-milliseconds %[3]s 500\nsentinel failover-timeout %[3]s 2000\n", sentinelPort, dir, s.Name, host, port)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		return run(sentinelPort, nil, file, "--sentinel")
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(sentinel.Kill)
	return sentinel
}

// URL returns the master's name and the addresses of the sentinels.
func (s *Sentinels) URL() string {
	url := s.Name
	for _, sentinel := range s.Sentinels {
		url += "," + sentinel.Addr
	}
	return url
}
