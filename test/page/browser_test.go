package page_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

// Widths of a screen in pixels.
const (
	wideWidth   = 1280
	mediumWidth = 768
	narrowWidth = 360
)

// appearance is how a tab shows pages.
type appearance struct {
	width    int64 // default wideWidth
	dark     bool
	noScript bool
	zoom     float64 // default 1
}

// tab is a tab of the browser with its own cookies and cache. A test fails if the page
// writes an error to the console or asks another host.
type tab struct {
	*testing.T
	ctx context.Context

	mu              sync.Mutex
	problems        []string
	requests        []string
	allowedProblems []string // parts of problems that the test expects
}

// openTab opens an address in a new tab.
func openTab(t *testing.T, address string, appearance appearance) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &tab{T: t, ctx: ctx}
	ctx, stop := context.WithTimeout(ctx, maxTest)
	t.Cleanup(stop)
	require.NoError(t, chromedp.Do(b.ctx)) // the tab lives as long as b.ctx
	b.ctx = ctx
	go b.watch(chromedp.Console(ctx))
	requests := chromedp.Events(ctx, network.RequestWillBeSent)
	go func() {
		for e, err := range requests {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.requests = append(b.requests, e.Request.URL)
			b.mu.Unlock()
		}
	}()
	t.Cleanup(func() { b.check(address) })
	b.setAppearance(appearance)
	b.run(
		call(network.Enable, network.EnableParams{}),
		chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
			_, err := cdp.Call(ctx, target, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: appearance.noScript})
			return err
		}),
		chromedp.Navigate(address),
	)
	return b
}

// call returns an action that sends a command.
func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, command, params)
		return err
	})
}

// setAppearance changes the size and the theme of the tab.
func (b *tab) setAppearance(l appearance) {
	b.Helper()
	width, zoom := l.width, l.zoom
	if width == 0 {
		width = wideWidth
	}
	if zoom == 0 {
		zoom = 1
	}
	theme := "light"
	if l.dark {
		theme = "dark"
	}
	b.run(
		// A browser at a zoom of 2 lays the page out in half the width.
		chromedp.EmulateViewport(int64(float64(width)/zoom), int64(900/zoom), chromedp.EmulateScale(zoom)),
		call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}}),
	)
}

func (b *tab) watch(messages func(func(chromedp.ConsoleMessage, error) bool)) {
	for m, err := range messages {
		if err != nil {
			return
		}
		if m.IsException() || m.Type == "error" || m.Type == "warning" || m.Type == "assert" {
			b.mu.Lock()
			b.problems = append(b.problems, m.String())
			b.mu.Unlock()
		}
	}
}

// check fails the test if the page had problems or asked another host.
func (b *tab) check(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		isExpected := false
		for _, part := range b.allowedProblems {
			isExpected = isExpected || strings.Contains(p, part)
		}
		assert.True(b, isExpected, "console: %s", p)
	}
	host := strings.Join(strings.SplitN(address, "/", 4)[:3], "/")
	for _, r := range b.requests {
		assert.True(b, strings.HasPrefix(r, host+"/"), "the page asked for %s", r)
	}
}

func (b *tab) run(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	require.NoError(b, chromedp.Do(b.ctx, steps...))
}

// eval returns the value of an expression of JavaScript. It works without scripts of the
// page, too.
func eval[T any](b *tab, expression string) T {
	b.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, awaitPromise))
	require.NoError(b, err, expression)
	return v
}

func awaitPromise(p *runtime.EvaluateParams) { p.AwaitPromise = new(true) }

// text returns the text of the first element that a CSS selector matches, or "".
func (b *tab) text(selector string) string {
	b.Helper()
	return eval[string](b, `document.querySelector(`+quote(selector)+`)?.textContent ?? ''`)
}

// awaitTrue waits until the expression is true.
func (b *tab) awaitTrue(expression string) {
	b.Helper()
	polltest.Until(b, maxWait, func() bool { return eval[bool](b, `!!(`+expression+`)`) }, expression)
}

// screenshot keeps a picture of the whole page.
func (b *tab) screenshot(name string) {
	b.Helper()
	image, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	require.NoError(b, err)
	require.NoError(b, os.WriteFile(filepath.Join(screenshots, name+".png"), image, 0o644))
}
