//go:build e2e

// Package e2e_test runs the examples on a real Envoy. Envoy, rls and redis-server are
// processes, and the tests are HTTP clients. make e2e runs the package. A missing
// program makes it fail, not skip.
package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed-81f232ab/rls/test/envoyconf"
)

const root = "../.."

// maxWait is the longest time that a test waits for an event on a busy machine.
const maxWait = 30 * time.Second

// The programs under test, set by TestMain.
var envoyBin, rlsBin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rls-e2e")
	if err == nil {
		err = prepare(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// prepare finds Envoy and builds rls.
func prepare(dir string) (err error) {
	if envoyBin, err = envoyconf.Program(os.Getenv("ENVOY_BIN"), root); err != nil {
		return err
	}
	version, err := exec.Command(envoyBin, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", envoyBin, err)
	}
	fmt.Printf("envoy: %s %s\n", envoyBin, version)

	rlsBin = filepath.Join(dir, "rls")
	build := exec.Command("go", "build", "-o", rlsBin, "./cmd/rls")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}
