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
)

// Program is the compiled program. It is safe for concurrent use.
type Program struct {
	runtime wazero.Runtime
	module  wazero.CompiledModule
}

// compileWorkers is the number of threads that compile.
const compileWorkers = 4

// Compile builds the program from the source in the folder program. Further arguments go to the
// build command.
func Compile(ctx context.Context, args ...string) (*Program, error) {
	dir, err := os.MkdirTemp("", "rls-simulate-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "program.wasm")
	args = append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", file}, args...)
	build := exec.CommandContext(ctx, "go", append(args, "./program")...)
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
		cacheDir := filepath.Join(user, "rls-simulate")
		removeOldFiles(cacheDir)
		cache, err := wazero.NewCompilationCacheWithDir(cacheDir)
		if err != nil {
			return nil, err
		}
		config = config.WithCompilationCache(cache)
	}
	p := &Program{runtime: wazero.NewRuntimeWithConfig(ctx, config)}
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, p.runtime); err != nil {
		return nil, err
	}
	if err := addHost(ctx, p.runtime); err != nil {
		return nil, err
	}
	p.module, err = p.runtime.CompileModule(experimental.WithCompilationWorkers(ctx, compileWorkers), binary)
	return p, err
}

// removeOldFiles removes files of dir that are older than a day. Each version of the program has a
// file of 230 MB, and wazero keeps all of them.
func removeOldFiles(dir string) {
	_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil //nolint:nilerr // the cache can work without the removal
		}
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.Remove(path)
		}
		return nil
	})
}

// Close frees the program.
func (p *Program) Close(ctx context.Context) error { return p.runtime.Close(ctx) }

// Run is the result of a run.
type Run struct {
	Hash     string   // of the trace
	Problems []string // broken promises
	Trace    []byte   // the schedule and all events
}

// Run runs the schedule of a seed, or the schedule with this name.
func (p *Program) Run(ctx context.Context, seed uint64, name string) (Run, error) {
	return p.RunMutant(ctx, seed, name, "")
}

// RunMutant is Run with a defect that the program contains under a name.
func (p *Program) RunMutant(ctx context.Context, seed uint64, name, mutant string) (Run, error) {
	var (
		trace, problems bytes.Buffer
		h               = newHost()
		random          = rand.NewChaCha8(sha256.Sum256([]byte(strconv.FormatUint(seed, 10))))
		hash            = sha256.New()
	)
	args := []string{"program", strconv.FormatUint(seed, 10)}
	if name != "" {
		args = append(args, name)
	}
	defer h.close()
	config := wazero.NewModuleConfig().WithName("").WithArgs(args...).WithEnv("MUTANT", mutant).
		WithStdout(io.MultiWriter(hash, &trace)).WithStderr(&problems).WithRandSource(random).
		WithNanotime(h.clock.now, lookTime).WithWalltime(h.clock.wall, lookTime).WithNanosleep(h.clock.sleep)
	instance, err := p.runtime.InstantiateModule(context.WithValue(ctx, hostKey{}, h), p.module, config)
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
