package simulate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"github.com/seed-81f232ab/rls/test/simulate/redismodel"
)

// Program is the compiled program. It is safe for concurrent use.
type Program struct {
	runtime wazero.Runtime
	module  wazero.CompiledModule
}

// compileWorkers is the number of threads that compile.
const compileWorkers = 4

// Compile builds the program from the source in the folder program.
func Compile(ctx context.Context) (*Program, error) {
	dir, err := os.MkdirTemp("", "rls-simulate-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "program.wasm")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "./program")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build program: %w: %s", err, out)
	}
	binary, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	config := wazero.NewRuntimeConfig()
	if user, err := os.UserCacheDir(); err == nil { // the compilation takes half a minute
		cache, err := wazero.NewCompilationCacheWithDir(filepath.Join(user, "rls-simulate"))
		if err != nil {
			return nil, err
		}
		config = config.WithCompilationCache(cache)
	}
	p := &Program{runtime: wazero.NewRuntimeWithConfig(ctx, config)}
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, p.runtime); err != nil {
		return nil, err
	}
	if err := addRedis(ctx, p.runtime); err != nil {
		return nil, err
	}
	p.module, err = p.runtime.CompileModule(experimental.WithCompilationWorkers(ctx, compileWorkers), binary)
	return p, err
}

// Close frees the program.
func (p *Program) Close(ctx context.Context) error { return p.runtime.Close(ctx) }

// Run is the result of a run.
type Run struct {
	Hash     string   // of the trace
	Problems []string // broken promises
	Trace    []byte   // the schedule and all events
}

// clock is the virtual clock of a run. It moves when the program sleeps, and a little at each
// look.
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

// Run runs the schedule of a seed, or the schedule with this name.
func (p *Program) Run(ctx context.Context, seed uint64, name string) (Run, error) {
	var (
		trace, problems bytes.Buffer
		c               clock
		random          = rand.NewChaCha8(sha256.Sum256([]byte(strconv.FormatUint(seed, 10))))
		hash            = sha256.New()
	)
	args := []string{"program", strconv.FormatUint(seed, 10)}
	if name != "" {
		args = append(args, name)
	}
	config := wazero.NewModuleConfig().WithName("").WithArgs(args...).
		WithStdout(io.MultiWriter(hash, &trace)).WithStderr(&problems).WithRandSource(random).
		WithNanotime(c.now, lookTime).WithWalltime(c.wall, lookTime).WithNanosleep(c.sleep)
	model := redisModel{server: redismodel.New()}
	defer model.server.Close()
	instance, err := p.runtime.InstantiateModule(context.WithValue(ctx, modelKey{}, &model), p.module, config)
	if instance != nil {
		_ = instance.Close(ctx)
	}
	run := Run{Hash: hex.EncodeToString(hash.Sum(nil)), Trace: trace.Bytes()}
	var exit *sys.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit) && exit.ExitCode() == 0:
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		run.Problems = strings.Split(strings.TrimSpace(problems.String()), "\n")
	default:
		return run, fmt.Errorf("run seed %d: %w: %s", seed, err, problems.String())
	}
	return run, nil
}
