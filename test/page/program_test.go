package page_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

const limits = `domain: shop
descriptors:
  - key: remote_address
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: tenant
    rate_limit: {name: tenants, unit: minute, requests_per_unit: 100000, algorithm: sliding_window}
  - key: tenant
    value: trial
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: quiet
    rate_limit: {unit: hour, requests_per_unit: 1}
`

// TestPageFollowsTheProgram runs mixed traffic, sets an override, makes a bad edit, kills
// Redis and starts it again, and at last kills the program. Each is visible on one open page.
func TestPageFollowsTheProgram(t *testing.T) {
	redis := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(file, []byte(limits), 0o600))
	env := []string{"REDIS_URL=" + redis.Addr, "OVERRIDES_ENABLED=true"}
	service := startService(t, file, env...)
	otherService := startService(t, file, append(env, "ADMIN_TOKEN=dana:secret")...)

	b := openTab(t, service.debug+"/", appearance{})
	b.awaitTrue(isUpdated)
	assert.Contains(t, b.text("#headline"), "Counting in Redis")
	assert.Contains(t, b.text("#hint"), "rls hit -d shop remote_address=example -n 8")
	assert.Contains(t, b.text("#rules-count"), "0 of 4")
	b.screenshot("program-start")

	stop := sendTraffic(t, service.http)
	defer stop()
	row := func(path string) string {
		return fmt.Sprintf(`document.querySelector('[data-path="shop > %s"]')`, path)
	}
	b.awaitTrue(row("remote_address") + `?.querySelector('[data-denied].hot')`)
	b.awaitTrue(row("tenant") + `?.querySelector('[data-ok]').textContent > 0`)
	b.awaitTrue(row("tenant=trial") + `?.querySelector('[data-shadow].shadow')`)
	b.awaitTrue(`parseFloat(document.querySelector('#figure-calls [data-value]').textContent) > 1`)
	b.awaitTrue(`document.querySelector('#figure-duration [data-unit]').textContent`)
	b.awaitTrue(`document.querySelector('#figure-redis [data-unit]').textContent`)
	b.awaitTrue(`document.querySelector('#hottest').textContent.includes('tenant=acme')`)
	b.awaitTrue(`document.querySelector('#most-denied').textContent.includes('remote_address=10.0.0.1')`)
	b.awaitTrue(`document.querySelector('#hint').hidden`)
	b.awaitTrue(`document.querySelector('#unmatched').textContent.includes('tennant=acme')`)
	assert.Contains(t, b.text("#rules-quiet"), "Show 1 quiet rule")

	b.run(chromedp.ScrollIntoView(chromedp.CSS("#decisions-box")))
	b.awaitTrue(`document.querySelector('#decisions').textContent.includes('✕ denied')`)
	b.awaitTrue(`document.querySelector('#decisions').textContent.includes('◌ shadow')`)

	detailsTab := openTab(t, service.debug+"/?rule=shop+%3E+remote_address", appearance{})
	assert.Contains(t, detailsTab.text("tr.opened"), file+":3")
	assert.Contains(t, detailsTab.text("tr.opened"), "remote_address=10.0.0.1")

	explainTab := openTab(t, service.debug+"/?domain=shop&descriptor=remote_address%3D10.0.0.1#explain", appearance{})
	assert.Contains(t, explainTab.text(".verdict"), "Denied")
	assert.Contains(t, explainTab.text(".report"), "shop > remote_address")
	explainTab.screenshot("program-explain")

	setCommand := exec.Command(rlsBin, "limits", "set", "-d", "shop", "tenant=acme", "requests_per_unit=7", "--for", "1h", "--admin", otherService.debug)
	setCommand.Env = append(os.Environ(), "ADMIN_TOKEN=dana:secret")
	out, err := setCommand.CombinedOutput()
	require.NoError(t, err, string(out))
	b.awaitTrue(`document.querySelector('#overrides').textContent.includes('tenant=acme')`)
	b.awaitTrue(`document.querySelector('#changes').textContent.includes('override')`)
	b.awaitTrue(row("tenant=acme") + `?.querySelector('[data-marks]').textContent.includes('override until')`)

	require.NoError(t, os.WriteFile(file, []byte(limits+"  - key: [\n"), 0o600))
	b.awaitTrue(`document.querySelector('#state').dataset.level === 'warning'`)
	b.awaitTrue(`document.querySelector('#changes .failed')?.textContent.includes('limits.yaml')`)
	b.screenshot("program-bad-edit")
	require.NoError(t, os.WriteFile(file, []byte(limits), 0o600))
	b.awaitTrue(`document.querySelector('#state').dataset.level === 'well'`)

	redis.Kill()
	b.awaitTrue(`document.querySelector('#headline').textContent.startsWith('Redis away for')`)
	b.awaitTrue(`document.querySelector('#headline').textContent.includes('decided without Redis')`)
	assert.Equal(t, "trouble", eval[string](b, `document.querySelector('#state').dataset.level`))
	b.awaitTrue(`document.querySelector('#announcement').textContent.includes('Redis away')`)
	b.awaitTrue(`document.querySelector('#figure-redis [data-value]').textContent === 'away'`)
	b.screenshot("program-redis-away")
	redis.Restart(t)
	b.awaitTrue(`/^Redis lost counters at .*counting in Redis/.test(document.querySelector('#headline').textContent)`) // the restarted Redis is empty
	b.awaitTrue(`document.querySelector('#details').textContent.includes('without Redis')`)
	for _, kind := range []string{"start", "override", "refusal", "reload", "breaker"} {
		assert.Contains(t, b.text("#changes"), kind)
	}
	for suffix, l := range appearances {
		b.setAppearance(l)
		b.screenshot("program-" + suffix)
	}

	stop()
	for _, viewer := range []*tab{b, detailsTab, explainTab} {
		viewer.mu.Lock()
		viewer.allowedProblems = []string{"net::ERR_"} // of the lost connection
		viewer.mu.Unlock()
	}
	service.kill()
	b.awaitTrue(`!document.querySelector('#connection').hidden`)
	assert.Regexp(t, `^Figures of \d\d:\d\d:\d\d, trying again\.`, b.text("#connection"))
	b.setAppearance(appearance{})
	b.screenshot("program-lost")
}

// TestCallersWithoutTokenSeeHashesOnly opens the page of a service with ADMIN_TOKEN.
func TestCallersWithoutTokenSeeHashesOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(file, []byte(limits), 0o600))
	service := startService(t, file, "ADMIN_TOKEN=secret")
	stop := sendTraffic(t, service.http)
	defer stop()
	b := openTab(t, service.debug+"/?domain=shop&descriptor=tenant%3Dacme#explain", appearance{})
	b.allowedProblems = []string{"401"}
	b.awaitTrue(`document.querySelectorAll('#hottest tbody tr').length > 1`)
	assert.Contains(t, b.text("#explain [role=alert]"), "send a token")
	b.awaitTrue(`document.querySelectorAll('#unmatched-keys tbody tr').length === 1`)
	assert.NotContains(t, b.text("#unmatched"), "acme")
	assert.NotContains(t, b.text("#hottest"), "acme")
	for _, section := range []string{"#limited", "#keys"} {
		assert.True(t, eval[bool](b, `document.querySelector('`+section+` [data-hidden-note]').checkVisibility()`), section)
		assert.Equal(t, "/signin", eval[string](b, `document.querySelector('`+section+` [data-hidden-note] a').getAttribute('href')`))
	}
	b.run(chromedp.ScrollIntoView(chromedp.CSS("#decisions-box")))
	b.awaitTrue(`document.querySelector('#decisions-note').textContent.includes('rls tail')`)
}

// sendTraffic sends calls until stop is called.
func sendTraffic(t *testing.T, address string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	callers.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			descriptor := []string{`{"key":"remote_address","value":"10.0.0.1"}`, `{"key":"tenant","value":"acme"}`, `{"key":"tenant","value":"trial"}`, `{"key":"tenant","value":"beta"}`, `{"key":"tennant","value":"acme"}`}[i%5]
			body := fmt.Sprintf(`{"domain":"shop","descriptors":[{"entries":[%s]}]}`, descriptor)
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, address+"/json", bytes.NewReader([]byte(body)))
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		callers.Wait()
	})
}
