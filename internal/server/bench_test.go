package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

// BenchmarkServerCPU compares our options with the defaults of grpc. The service does nothing, and has 4 connections.
// The server is a separate process, and server-µs/op is the CPU time of the server. With 64 calls in flight, compare
// server-µs/op, because most of ns/op is time of the client. With 1 call in flight, ns/op is the latency.
//
//	GOGC=400 go test -run='^$' -bench=ServerCPU -benchtime=40000x -count=12 ./internal/server
//
// Medians on two shared cores (Xeon, Go 1.26, grpc 1.85), in µs of CPU:
//
//	64 in flight  defaults  ours
//	GOGC=400          15.9  11.9
//	GOGC=100          21.4  18.5
//	1 in flight, GOGC=400
//	CPU               34.9  30.8
//	latency           71.5  66.2
func BenchmarkServerCPU(b *testing.B) {
	for _, inFlight := range []int{64, 1} {
		for _, variant := range []string{"defaults", "ours"} {
			b.Run(fmt.Sprintf("%s/in_flight=%d", variant, inFlight), func(b *testing.B) {
				benchmarkServer(b, variant, inFlight, 4)
			})
		}
	}
}

func benchmarkServer(b *testing.B, variant string, inFlight, conns int) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchServerEnv+"="+variant)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(b, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(b, err)

	var clients []rlsv3.RateLimitServiceClient
	for range conns {
		clients = append(clients, rlsv3.NewRateLimitServiceClient(dial(b, strings.TrimSpace(addr))))
	}

	var calls sync.WaitGroup
	var callsLeft atomic.Int64
	callsLeft.Store(int64(b.N))
	b.ResetTimer()
	for i := range inFlight {
		calls.Go(func() {
			for callsLeft.Add(-1) >= 0 {
				if _, err := clients[i%conns].ShouldRateLimit(b.Context(), shopRequest); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	calls.Wait()
	b.StopTimer()

	require.NoError(b, stdin.Close())
	require.NoError(b, cmd.Wait())
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "server-µs/op")
}

// benchServerEnv is the name of an environment variable that makes the test binary run a server. The value is the
// variant.
const benchServerEnv = "RLS_BENCH_SERVER"

// benchServer prints its address and serves until its input ends.
func benchServer(variant string) {
	var server *grpc.Server
	switch variant {
	case "defaults":
		server = grpc.NewServer()
		rlsv3.RegisterRateLimitServiceServer(server, alwaysOK)
	case "ours":
		o := withDefaults(Options{Services: servicesOf(alwaysOK), ObserveMethod: func(string) func(time.Duration) { return func(time.Duration) {} }})
		server = newGRPCServer(&o, nil, new(callCounter), context.Background())
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr())
	go server.Serve(listener)
	_, _ = io.Copy(io.Discard, os.Stdin)
}
