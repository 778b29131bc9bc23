package page_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/testkit/pagetest"
)

// states are the states of the process that the page must show well. texts must be on the
// page.
var states = map[string]struct {
	snapshot func() *live.Snapshot
	texts    []string
}{
	"busy":       {pagetest.Busy, []string{"Counting in Redis", "1,240", "31.2", "override until", "remote_address=10.0.0.0", "Redis is back", "dana"}},
	"no-traffic": {pagetest.Quiet, []string{"No calls in the last five minutes", "rls hit -a localhost:9081 -d partner quiet=0 -n 8", "0 of 16 with traffic"}},
	"no-limits":  {pagetest.NoLimits, []string{"No limits loaded", "No limits are loaded", "no such file"}},
	"redis-away": {pagetest.RedisAway, []string{"Redis away for 00:41", "at most 310 hits too many", "connection refused", "decided here/s"}},
	"unmatched": {pagetest.Unmatched, []string{
		"Calls arrive, but no limit has counted a hit", "No rule limits 19.1 descriptors per second", "remote_addr=10.0.0.1", "shop > path > method", "unknown domain",
	}},
	"local": {func() *live.Snapshot {
		s := pagetest.Busy()
		s.State.Redis, s.State.Backend = nil, "local"
		return s
	}, []string{"Time of a call, p50"}},
	"refused": {pagetest.Refused, []string{"1 problem, so the newest limits are not in force", "did you mean minute?"}},
	"hostile": {pagetest.Hostile, []string{"<script>alert(1)</script>", "tenant=شركة السلام", "🛒👩‍💻", "%1B[31mred"}},
	"many":    {func() *live.Snapshot { return pagetest.Many(3000) }, []string{"2,800 more rules", "3,000 of 3,040 with traffic"}},
}

// appearances are the themes and widths of the screenshots.
var appearances = map[string]appearance{
	"light-1280": {}, "dark-1280": {dark: true},
	"light-768": {width: mediumWidth}, "dark-768": {width: mediumWidth, dark: true},
	"light-360": {width: narrowWidth}, "dark-360": {width: narrowWidth, dark: true},
}

// overflow returns the number of pixels by which the page is wider than the screen.
const overflow = `document.documentElement.scrollWidth - document.documentElement.clientWidth`

// TestEachStateIsReadable checks texts, contrast and width of each state in each appearance, and
// keeps a screenshot.
func TestEachStateIsReadable(t *testing.T) {
	for name, state := range states {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fixture := serve(t, state.snapshot())
			b := openTab(t, fixture.URL+"/", appearance{})
			b.awaitTrue(isUpdated)
			for _, text := range state.texts {
				assert.Contains(t, b.text("body"), text)
			}
			for suffix, l := range appearances {
				b.setAppearance(l)
				assert.Empty(t, eval[[]string](b, lowContrast), suffix)
				assert.LessOrEqual(t, eval[int](b, overflow), 0, suffix)
				b.screenshot(name + "-" + suffix)
			}
			b.setAppearance(appearance{zoom: 2})
			assert.LessOrEqual(t, eval[int](b, overflow), 0, "at a zoom of 200 %")
			b.screenshot(name + "-zoom")
		})
	}
}

// isUpdated is true once the script has shown a snapshot of the stream.
const isUpdated = `typeof snapshot !== 'undefined' && snapshot !== null`

// lowContrast lists visible texts with a contrast below 4.5 to the ground behind them.
const lowContrast = `(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = color => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, bottom) => [0, 1, 2].map(i => top[i] * top[3] + bottom[i] * (1 - top[3])).concat(1);
  const ground = e => {
    const layers = [];
    for (; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((bottom, top) => over(top, bottom), rgba(getComputedStyle(document.body).backgroundColor));
  };
  const opacity = e => e ? getComputedStyle(e).opacity * opacity(e.parentElement) : 1;
  const luminance = c => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
    const v = c[i] / 255;
    return sum + weight * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const low = new Set(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let checked = 0;
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || e.closest('template, noscript, script, .reader') || !e.checkVisibility()) continue;
    checked++;
    const behind = ground(e), color = rgba(getComputedStyle(e).color);
    color[3] *= opacity(e);
    const [a, b] = [luminance(over(color, behind)), luminance(behind)].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) low.add(e.tagName + '.' + e.className + ' ' + contrast.toFixed(2) + ': ' + texts.currentNode.textContent.trim().slice(0, 40));
  }
  return checked < 20 ? ['only ' + checked + ' texts found'] : [...low];
})()`

func TestTextsOfRequestsRunNoScript(t *testing.T) {
	fixture := serve(t, pagetest.Busy())
	b := openTab(t, fixture.URL+"/?filter=%3Cscript%3Ealert(1)%3C/script%3E&domain=%22%3E%3Cimg+src=x%3E&descriptor=%3Cimg+src=x%3E", appearance{})
	b.awaitTrue(isUpdated)
	fixture.send(pagetest.Hostile())
	b.awaitTrue(`document.querySelector('#changes').textContent.includes('alert')`)
	assert.Equal(t, 0, eval[int](b, `document.querySelectorAll('img, body script').length`))
	assert.Equal(t, "<script>alert(1)</script>", eval[string](b, `document.querySelector('#filter').value`))
	assert.Contains(t, eval[string](b, `document.querySelector('#changes dt').outerHTML`), "&lt;script&gt;")
}

func TestPolicyBlocksInlineCode(t *testing.T) {
	fixture := serve(t, pagetest.Busy())
	b := openTab(t, fixture.URL+"/", appearance{})
	b.allowedProblems = []string{"Content Security Policy"}
	assert.Equal(t, 0, eval[int](b, `document.querySelectorAll('[style], style, script:not([src]), [onclick]').length`))
	blockedURLs := eval[[]string](b, `new Promise(resolve => {
		const blocked = [];
		document.addEventListener('securitypolicyviolation', e => { blocked.push(e.effectiveDirective); if (blocked.length === 3) resolve(blocked.sort()); });
		const script = document.createElement('script');
		script.textContent = 'window.ran = true';
		document.head.append(script);
		const style = document.createElement('style');
		style.textContent = 'body { color: red }';
		document.head.append(style);
		new Image().src = 'https://example.com/';
	})`)
	assert.Equal(t, []string{"img-src", "script-src-elem", "style-src-elem"}, blockedURLs)
	assert.False(t, eval[bool](b, `!!window.ran`))
	b.mu.Lock()
	b.requests = nil // the blocked image
	b.mu.Unlock()
}

func TestPageWorksWithoutScript(t *testing.T) {
	fixture := serve(t, pagetest.Busy())
	b := openTab(t, fixture.URL+"/?rule=shop+%3E+remote_address", appearance{noScript: true})
	for _, text := range []string{"Counting in Redis", "1,240", "31.2", "rls tail", "loads again every 5 seconds", "14:02:31 UTC", "Defined in"} {
		assert.Contains(t, b.text("body"), text)
	}
	assert.Equal(t, "5", eval[string](b, `document.querySelector('meta[http-equiv=refresh]').content`))
	b.screenshot("no-script")
	fixture.send(pagetest.RedisAway())
	b.awaitTrue(`document.body?.textContent.includes('Redis away')`) // loaded again
}

func TestPrintedPageShowsAllRowsWithoutNavigation(t *testing.T) {
	fixture := serve(t, pagetest.Busy())
	b := openTab(t, fixture.URL+"/", appearance{width: 800})
	b.awaitTrue(isUpdated)
	b.run(call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"}))
	assert.False(t, eval[bool](b, `document.querySelector('nav').checkVisibility()`))
	assert.True(t, eval[bool](b, `document.querySelector('#rules-table').checkVisibility()`))
	assert.True(t, eval[bool](b, `[...document.querySelectorAll('.box')].every(e => e.scrollHeight <= e.clientHeight)`), "a box hides a part")
	b.screenshot("print")
}

func TestElementsHaveNamesForScreenReaders(t *testing.T) {
	fixture := serve(t, pagetest.Busy())
	b := openTab(t, fixture.URL+"/?rule=shop+%3E+remote_address", appearance{})
	b.awaitTrue(isUpdated)
	for _, rule := range []struct{ elements, condition string }{
		{"table", `e.caption && e.caption.textContent.trim()`},
		{"thead th", `e.scope === 'col' && e.textContent.trim()`},
		{"tbody > tr > th:not(thead th)", `e.scope === 'row'`},
		{"input:not([type=hidden]), select", `e.labels.length && e.labels[0].textContent.trim()`},
		{"svg", `e.getAttribute('aria-hidden') === 'true' || e.getAttribute('role') === 'img' && e.getAttribute('aria-label')`},
		{"section, nav, [role=region]", `e.getAttribute('aria-label') || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent`},
		{"a[href], button", `e.textContent.trim() || e.getAttribute('aria-label')`},
		{"[tabindex]", `e.tabIndex === 0`},
		{"[id]", `document.querySelectorAll('#' + e.id).length === 1`},
	} {
		badElements := eval[[]string](b, fmt.Sprintf(`[...document.querySelectorAll(%s)].filter(e => !e.closest('template') && !(%s)).map(e => e.outerHTML.slice(0, 120))`, quote(rule.elements), rule.condition))
		assert.Empty(t, badElements, rule.elements)
		assert.NotZero(t, eval[int](b, fmt.Sprintf(`document.querySelectorAll(%s).length`, quote(rule.elements))), rule.elements)
	}
}
