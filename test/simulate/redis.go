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

// redisModel is the model of Redis of a run, with its last reply. It runs outside of the program,
// because the scripts are ten times faster there.
type redisModel struct {
	server *redismodel.Server
	reply  []byte
}

// modelKey is the key of a *redisModel in the context of a run.
type modelKey struct{}

// addRedis gives programs in r the functions with which they use the redisModel of their run.
func addRedis(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder("redis")
	b = b.NewFunctionBuilder().WithFunc(func(ctx context.Context, m api.Module, now int64, command, size uint32) uint32 {
		model := ctx.Value(modelKey{}).(*redisModel)
		data, ok := m.Memory().Read(command, size)
		if !ok {
			panic("simulate: the command lies outside of the memory")
		}
		args, err := resp.ReadCommand(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			panic(err) // the program has written the command
		}
		model.reply = resp.AppendReply(model.reply[:0], model.server.Do(time.UnixMicro(now), args))
		return uint32(len(model.reply))
	}).Export("execute")
	b = b.NewFunctionBuilder().WithFunc(func(ctx context.Context, m api.Module, buffer uint32) {
		m.Memory().Write(buffer, ctx.Value(modelKey{}).(*redisModel).reply)
	}).Export("reply")
	_, err := b.Instantiate(ctx)
	return err
}
