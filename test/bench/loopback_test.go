// Package bench measures the whole service over loopback gRPC, and servers that do nothing for
// comparison. Each server is a separate process of this test binary, so its CPU time does not
// include the client's.
package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	inFlight    = 64
	connections = 2
	keys        = 10_000
)

func BenchmarkLoopback(b *testing.B) {
	for _, s := range serverKinds {
		for _, calls := range []int{1, inFlight} {
			b.Run(fmt.Sprintf("%s/in-flight=%d", s.name, calls), func(b *testing.B) {
				measure(b, startServer(b, s.name), calls)
			})
		}
	}
}

// measure makes b.N calls, a number of them in flight, and reports the server's CPU time per
// call.
func measure(b *testing.B, srv *child, calls int) {
	clients := make([]rlsv3.RateLimitServiceClient, connections)
	for i := range clients {
		conn, err := grpc.NewClient(srv.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(b, err)
		defer conn.Close()
		clients[i] = rlsv3.NewRateLimitServiceClient(conn)
	}
	requests := make([]*rlsv3.RateLimitRequest, keys)
	for i := range requests {
		requests[i] = &rlsv3.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
				{Key: "service", Value: "checkout"},
				{Key: "ip", Value: "10.0." + strconv.Itoa(i>>8) + "." + strconv.Itoa(i&255)},
			},
		}}}
	}
	call := func(worker, i int) error {
		_, err := clients[worker%connections].ShouldRateLimit(context.Background(), requests[i%keys])
		return err
	}
	for i := range 200 { // connections, first keys
		require.NoError(b, call(i, i))
	}

	cpu := srv.cpu(b)
	b.ResetTimer()
	var nextKey atomic.Int64
	var failed atomic.Value
	var workers sync.WaitGroup
	for w := range calls {
		workers.Go(func() {
			for {
				i := int(nextKey.Add(1))
				if i > b.N {
					return
				}
				if err := call(w, i); err != nil {
					failed.Store(err)
					return
				}
			}
		})
	}
	workers.Wait()
	b.StopTimer()
	require.Nil(b, failed.Load())
	b.ReportMetric(float64((srv.cpu(b)-cpu).Nanoseconds())/float64(b.N), "server-cpu-ns/op")
}

// child is a server process.
type child struct {
	cmd  *exec.Cmd
	addr string
}

func startServer(b testing.TB, kind string) *child {
	b.Helper()
	c := &child{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), serverKindEnv+"="+kind)
	c.cmd.Stderr = os.Stderr
	stdin, err := c.cmd.StdinPipe() // closes with this process, which ends the child
	require.NoError(b, err)
	stdout, err := c.cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, c.cmd.Start())
	b.Cleanup(func() {
		_ = stdin.Close()
		_ = c.cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(b, err)
	c.addr = strings.TrimSpace(line)
	return c
}

// cpu returns the CPU time of the server.
func (c *child) cpu(b testing.TB) time.Duration { return cpuOf(b, c.cmd.Process.Pid) }

// cpuOf returns the CPU time that a process has used. It reads the CPU clock of the process,
// because /proc counts in steps of 10 ms.
func cpuOf(b testing.TB, pid int) time.Duration {
	var usedTime syscall.Timespec
	clock := ^pid<<3 | 2 // as clock_getcpuclockid(3) makes it
	_, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&usedTime)), 0)
	require.Zero(b, err)
	return time.Duration(usedTime.Nano())
}
