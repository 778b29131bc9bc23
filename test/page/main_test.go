package page_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// maxWait is the longest time that a test waits for an event on a busy machine.
const maxWait = 30 * time.Second

// maxTest is the longest time that one test may take.
const maxTest = 2 * time.Minute

// screenshots is the folder that keeps the screenshots of the last run.
const screenshots = "screenshots"

var (
	browser context.Context // of chromedp
	rlsBin  string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "rls-page")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	stop, err := prepare(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	return m.Run()
}

// prepare starts Chromium and builds rls.
func prepare(dir string) (stop func(), err error) {
	if err := os.RemoveAll(screenshots); err != nil {
		return nil, err
	}
	if err := os.Mkdir(screenshots, 0o755); err != nil {
		return nil, err
	}
	rlsBin = filepath.Join(dir, "rls")
	build := exec.Command("go", "build", "-o", rlsBin, "./cmd/rls")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	program, err := findChromium()
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.Env("TZ=Europe/Berlin", "HOME="+dir))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium has no sandbox for root
	}
	allocator, stopAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, stopBrowser := chromedp.NewContext(allocator)
	if err := chromedp.Do(ctx); err != nil {
		stopAllocator()
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	browser = ctx
	return func() {
		stopBrowser()
		stopAllocator()
	}, nil
}

// findChromium returns CHROMIUM_BIN, else a browser on the PATH.
func findChromium() (string, error) {
	if program := os.Getenv("CHROMIUM_BIN"); program != "" {
		return program, nil
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if program, err := exec.LookPath(name); err == nil {
			return program, nil
		}
	}
	return "", fmt.Errorf("chromium not found: set CHROMIUM_BIN, put chromium on the PATH, or run make test-page to install it")
}
