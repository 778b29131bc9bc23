//go:build redis

package bench

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// pipelineCost returns the CPU time that Redis takes for a pipeline, in microseconds. Each
// connection sends its next pipeline when the last is answered. The client sends fixed bytes,
// so that it is faster than Redis.
func pipelineCost(t *testing.T, addr string, connections, commands int, d time.Duration) float64 {
	client := goredis.NewClient(&goredis.Options{Addr: addr})
	defer client.Close()
	servers := []*goredis.Client{client}
	var senders errgroup.Group
	counts := make([]int, connections)
	cpuBefore, _, _ := redisFigures(t, servers)
	endTime := time.Now().Add(d)
	for i := range connections {
		senders.Go(func() (err error) {
			counts[i], err = sendPipelines(addr, i, commands, endTime)
			return err
		})
	}
	require.NoError(t, senders.Wait())
	cpuAfter, _, _ := redisFigures(t, servers)
	sum := 0
	for _, n := range counts {
		sum += n
	}
	require.Positive(t, sum)
	return (cpuAfter - cpuBefore) / float64(sum)
}

// sendPipelines sends pipelines of INCRBY over a connection until a time. It returns their
// number. The keys are like those of rls.
func sendPipelines(addr string, connection, commands int, endTime time.Time) (sent int, err error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	const variants = 16
	var texts [variants][]byte
	for v := range texts {
		var text bytes.Buffer
		for i := range commands {
			n := (connection*variants+v)*commands*7919 + i*104_729
			key := fmt.Sprintf("av2:fw3600:bench|service=checkout|ip=10.0.%03d.%03d@1763784000", n>>8%40, n&255)
			fmt.Fprintf(&text, "*3\r\n$6\r\nINCRBY\r\n$%d\r\n%s\r\n$1\r\n1\r\n", len(key), key)
		}
		texts[v] = text.Bytes()
	}
	buffer := make([]byte, 64<<10)
	for time.Now().Before(endTime) {
		if _, err := conn.Write(texts[sent%variants]); err != nil {
			return sent, err
		}
		for answers := 0; answers < commands; {
			n, err := conn.Read(buffer)
			if err != nil {
				return sent, err
			}
			if bytes.IndexByte(buffer[:n], '-') >= 0 {
				return sent, fmt.Errorf("pipeline: got %q, want integers: %w", buffer[:n], io.ErrUnexpectedEOF)
			}
			answers += bytes.Count(buffer[:n], []byte{'\n'})
		}
		sent++
	}
	return sent, nil
}
