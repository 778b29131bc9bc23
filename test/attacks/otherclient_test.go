//go:build attacks

package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// otherClient is a process with a client that is no attacker. In the process of the attackers, it
// would wait for their goroutines, and its times would say nothing of the service.
type otherClient struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *json.Decoder
}

// otherClientEnv names the environment variable with the calls of the process and their address.
const otherClientEnv = "RLS_OTHER_CLIENT"

// The names in otherCalls.
const (
	oneConnectionCalls = ""
	newConnectionCalls = "new connections"
	envoyCalls         = "envoy"
	callsAndQuota      = "calls and quota"
)

// otherCalls returns the call of the other client for an address: of the service, or of its Envoy.
var otherCalls = map[string]func(addr string) func(context.Context) error{
	oneConnectionCalls: func(addr string) func(context.Context) error {
		client, _ := newClient(addr, net.Dialer{})
		return func(ctx context.Context) error {
			_, err := client.ShouldRateLimit(ctx, request("other", 1))
			return err
		}
	},
	newConnectionCalls: func(addr string) func(context.Context) error {
		return func(ctx context.Context) error {
			client, closeClient := newClient(addr, attackerDialer)
			defer closeClient()
			_, err := client.ShouldRateLimit(ctx, request("other", 1))
			return err
		}
	},
	envoyCalls: func(addr string) func(context.Context) error {
		return func(ctx context.Context) error { return callEnvoy(ctx, addr) }
	},
	callsAndQuota: callWithQuota,
}

// startOtherClient starts the process.
func startOtherClient(t *testing.T, calls, addr string) *otherClient {
	program, err := os.Executable()
	require.NoError(t, err)
	c := &otherClient{t: t, cmd: exec.CommandContext(t.Context(), program)}
	c.cmd.Env = append(os.Environ(), otherClientEnv+"="+calls+"@"+addr)
	c.cmd.Stderr = os.Stderr
	c.stdin, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.lines = json.NewDecoder(stdout)
	require.NoError(t, c.cmd.Start())
	var readyLine string
	require.NoError(t, c.lines.Decode(&readyLine))
	return c
}

// begin lets the process call.
func (c *otherClient) begin() {
	_, err := io.WriteString(c.stdin, "\n")
	require.NoError(c.t, err)
}

// end ends the process and returns its answers.
func (c *otherClient) end() (a answers) {
	require.NoError(c.t, c.stdin.Close())
	require.NoError(c.t, c.lines.Decode(&a))
	require.NoError(c.t, c.cmd.Wait())
	require.NotEmpty(c.t, a.Times)
	slices.Sort(a.Times)
	return a
}

// runOtherClient is the process: it calls from the first line of its input to the end of its input.
func runOtherClient(call func(context.Context) error) {
	answers := json.NewEncoder(os.Stdout)
	_ = answers.Encode("ready")
	_, _ = os.Stdin.Read(make([]byte, 1))
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	_ = answers.Encode(callAtFixedTimes(ctx, call))
}

// answers are what the other client got.
type answers struct {
	Times  []time.Duration
	Errors []string
}

// otherClientRate is the number of calls of the other client in a second.
const otherClientRate = 60

// callAtFixedTimes starts 60 calls a second until ctx is done, and waits for their answers. A call
// starts at its due time, also if earlier calls have no answer, and its time begins then.
func callAtFixedTimes(ctx context.Context, call func(context.Context) error) (a answers) {
	var calls sync.WaitGroup
	var mu sync.Mutex // guards a
	sendTime := time.Now()
	for ctx.Err() == nil {
		start := sendTime
		calls.Go(func() {
			callCtx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			err := call(callCtx)
			mu.Lock()
			defer mu.Unlock()
			a.Times = append(a.Times, time.Since(start))
			if err != nil {
				a.Errors = append(a.Errors, err.Error())
			}
		})
		sendTime = sendTime.Add(time.Second / otherClientRate)
		time.Sleep(time.Until(sendTime))
	}
	calls.Wait()
	return a
}

// quantile returns the time that the fraction q of the calls does not exceed.
func (a *answers) quantile(q float64) time.Duration { return a.Times[int(q*float64(len(a.Times)-1))] }

// row returns a row of the table.
func (a *answers) row(name string, peakMemory int64, refusedCounts []string) string {
	return fmt.Sprintf("| %s | %d | %.1f | %.1f | %d of %d | %s |", name, peakMemory>>20,
		a.quantile(0.5).Seconds()*1000, a.quantile(0.99).Seconds()*1000, len(a.Errors), len(a.Times), strings.Join(refusedCounts, ", "))
}
