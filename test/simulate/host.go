package simulate

import (
	"bufio"
	"bytes"
	"context"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/seed-81f232ab/rls/test/simulate/redismodel"
	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

// host is what a run uses outside of the program: its clock, and its models of Redis with the last
// reply. The scripts of Redis are ten times faster there.
type host struct {
	clock   clock
	servers [maxServers]*redismodel.Server
	reply   []byte
}

// maxServers is the number of simulated Redis servers: one for each of three regions, and the global Redis.
const maxServers = 4

func newHost() *host {
	h := new(host)
	for i := range h.servers {
		h.servers[i] = redismodel.New()
	}
	return h
}

func (h *host) close() {
	for _, s := range h.servers {
		s.Close()
	}
}

// hostKey is the key of a *host in the context of a run.
type hostKey struct{}

func hostOf(ctx context.Context) *host { return ctx.Value(hostKey{}).(*host) }

// addHost gives programs in r the functions with which they use their host.
func addHost(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder("host")
	b = b.NewFunctionBuilder().WithFunc(func(ctx context.Context, m api.Module, server uint32, now int64, command, size uint32) uint32 {
		data, ok := m.Memory().Read(command, size)
		if !ok {
			panic("simulate: the command lies outside of the memory")
		}
		args, err := resp.ReadCommand(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			panic(err) // the program has written the command
		}
		h := hostOf(ctx)
		h.reply = resp.AppendReply(h.reply[:0], h.servers[server].Do(time.UnixMicro(now), args))
		return uint32(len(h.reply))
	}).Export("execute")
	b = b.NewFunctionBuilder().WithFunc(func(ctx context.Context, m api.Module, buffer uint32) {
		m.Memory().Write(buffer, hostOf(ctx).reply)
	}).Export("reply")
	b = b.NewFunctionBuilder().WithFunc(func(ctx context.Context, nanos int64) { hostOf(ctx).clock.sleep(nanos) }).Export("pause")
	_, err := b.Instantiate(ctx)
	return err
}

// clock is the virtual clock of a run. It moves when the program sleeps or gets no CPU time, and
// a little at each look.
type clock struct{ nanos int64 }

// lookTime is how far the clock moves at a look. Without it, the program would compute in no time.
const lookTime = 100

// wallStart is the wall time at the start of a run, in seconds since 1970.
const wallStart = 1_800_000_000

func (c *clock) now() int64 {
	c.nanos += lookTime
	return c.nanos
}

func (c *clock) wall() (seconds int64, nanos int32) {
	now := c.now()
	return wallStart + now/int64(time.Second), int32(now % int64(time.Second))
}

func (c *clock) sleep(nanos int64) { c.nanos += max(nanos, 0) }
