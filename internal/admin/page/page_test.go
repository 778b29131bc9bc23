package page_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/admin/page"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/testkit/pagetest"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/service/quota"
)

// optionsFor returns options of a page that shows s. The page has one quiet rule.
func optionsFor(snapshot *live.Snapshot) page.Options {
	return page.Options{
		Snapshot: func(*http.Request) *live.Snapshot { return snapshot },
		Rules: func(filter string) ([]live.Rule, int) {
			quietRule := pagetest.Rule("shop > tenant=it's", "5 per second", "fixed_window", 0, 0, 0)
			if !strings.Contains(quietRule.Path, strings.ToLower(filter)) {
				return nil, 0
			}
			return []live.Rule{quietRule}, 0
		},
		Rule: func(_ *http.Request, path string) (live.Rule, live.TopKeys, bool) {
			for _, r := range snapshot.Rules.Shown {
				if r.Path == path {
					return r, snapshot.Keys, true
				}
			}
			return live.Rule{}, live.TopKeys{}, false
		},
	}
}

func get(t *testing.T, o page.Options, address string) (http.Header, string) {
	t.Helper()
	w := httptest.NewRecorder()
	page.New(o).ServeHTTP(w, httptest.NewRequest(http.MethodGet, address, nil))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	return w.Header(), w.Body.String()
}

func TestPageLoadsFromItsServerOnly(t *testing.T) {
	header, body := get(t, optionsFor(pagetest.Busy()), "/")
	assert.Equal(t, "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'", header.Get("Content-Security-Policy"))
	assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
	assert.Equal(t, "no-store", header.Get("Cache-Control"))
	for _, inline := range []string{"://", "<style", " style=", "<script>", "onclick", "ZgotmplZ"} {
		assert.NotContains(t, body, inline)
	}
}

func TestTextsAreEscaped(t *testing.T) {
	s := pagetest.Hostile()
	s.Instance = "<b>"
	_, body := get(t, optionsFor(s), "/?filter=%22%3E%3Cb%3E&domain=%3Cb%3E&descriptor=%3Cb%3E&rule=%3Cb%3E")
	assert.NotContains(t, body, "<script>alert")
	assert.NotContains(t, body, "<b>")
	assert.NotContains(t, body, "<img")
}

func TestHintHasACommandForARule(t *testing.T) {
	options := optionsFor(pagetest.Quiet())
	_, body := get(t, options, "/")
	assert.Contains(t, body, `rls hit -d shop &#39;tenant=it&#39;\&#39;&#39;s&#39; -n 8`)
	options.GRPCAddr = "localhost:9000"
	_, body = get(t, options, "/")
	assert.Contains(t, body, `rls hit -a localhost:9000 -d shop`)
	options.Rules = func(string) ([]live.Rule, int) { return nil, 0 }
	_, body = get(t, options, "/")
	assert.NotContains(t, body, "rls hit")
	_, body = get(t, optionsFor(pagetest.NoLimits()), "/")
	assert.Contains(t, body, "No limits are loaded")
}

func TestKeysThatOnlyShadowModeLetsPassAreMarked(t *testing.T) {
	s := pagetest.Busy()
	key := pagetest.Key("shop|trial=x", "shop > trial", 10, 0.5)
	key.Shadow = true
	s.Keys.Denied = append(s.Keys.Denied, key)
	_, body := get(t, optionsFor(s), "/")
	assert.Contains(t, body, "12 of 60, shadow")
}

func TestOverridesShowWhenTheyWereSet(t *testing.T) {
	s := pagetest.Busy()
	_, body := get(t, optionsFor(s), "/")
	assert.Contains(t, body, "<bdi data-author>dana</bdi><span class=\"sub\" data-set><time datetime=\"")
}

func TestFilterFindsQuietRules(t *testing.T) {
	_, body := get(t, optionsFor(pagetest.Busy()), "/?filter=TENANT")
	assert.Contains(t, body, `data-path="shop &gt; tenant=acme"`)
	assert.Contains(t, body, `data-path="shop &gt; tenant=it&#39;s"`)
	assert.NotContains(t, body, `data-path="shop &gt; remote_address"`)

	_, body = get(t, optionsFor(pagetest.Busy()), "/?filter=burst+100")
	assert.Contains(t, body, `data-path="shop &gt; path=/api/*"`, "the filter finds limits too")
}

func TestTableSaysHowManyRulesItLeavesOut(t *testing.T) {
	snapshot := pagetest.Many(250)
	snapshot.Rules.More = 1000
	_, body := get(t, optionsFor(snapshot), "/")
	assert.Contains(t, body, "1,050 more rules.")
	_, body = get(t, optionsFor(snapshot), "/?filter=svc-0001")
	assert.NotContains(t, body, "more rules.")
}

func TestOpenRuleHasItsDetails(t *testing.T) {
	for _, address := range []string{"/?rule=shop+%3E+tenant%3Dacme", "/?part=rule&rule=shop+%3E+tenant%3Dacme"} {
		_, body := get(t, optionsFor(pagetest.Busy()), address)
		for _, text := range []string{"limits.yaml:12", "shop|tenant=acme", "dana", "6,000 per minute", "descriptor=tenant%3Dacme"} {
			assert.Contains(t, body, text)
		}
	}
	_, body := get(t, optionsFor(pagetest.Busy()), "/?part=rule&rule=gone")
	assert.Contains(t, body, "gone")
}

func TestOpenRuleSaysWhereItsFieldsComeFrom(t *testing.T) {
	options, rule := optionsFor(pagetest.Busy()), "shop > tenant=acme"
	options.Explain = func(_ *http.Request, domain, descriptor string) (*explain.Report, error) {
		assert.Equal(t, []string{"shop", "tenant=acme"}, []string{domain, descriptor})
		return &explain.Report{Descriptors: []explain.Descriptor{{Rule: rule, Limits: []explain.Limit{{
			Limit: "6000 per minute", Algorithm: "fixed_window", Burst: 7, Place: "limits.yaml:14", FromDefaults: []string{"scope"}, DefaultsPlace: "limits.yaml:2", FromOverride: []string{"requests_per_unit"},
		}}}}}, nil
	}
	_, body := get(t, options, "/?part=rule&rule=shop+%3E+tenant%3Dacme")
	for _, text := range []string{"burst 7", "limits.yaml:14", "from the defaults: scope", "limits.yaml:2", "from an override: requests_per_unit"} {
		assert.Contains(t, body, text)
	}
	rule = "shop > tenant" // the example gets another rule
	_, body = get(t, options, "/?part=rule&rule=shop+%3E+tenant%3Dacme")
	assert.NotContains(t, body, "burst 7")
	assert.Contains(t, body, "6,000 per minute")
}

// TestKeysLinkToExplain follows the link of a key whose value has the characters that the
// form of explain escapes.
func TestKeysLinkToExplain(t *testing.T) {
	snapshot := pagetest.Busy()
	snapshot.Keys.Hottest = []live.Key{pagetest.Key(`shop|path=/a,b\%2A|k%3D1=v%3D2`, "shop > path", 1, 1)}
	snapshot.Keys.Denied = nil
	_, body := get(t, optionsFor(snapshot), "/")
	i := strings.Index(body, "descriptor=path")
	require.Positive(t, i)
	query, err := url.ParseQuery(strings.ReplaceAll(body[i:i+strings.IndexByte(body[i:], '#')], "&amp;", "&"))
	require.NoError(t, err)
	assert.Equal(t, url.Values{"domain": {"shop"}, "descriptor": {`path=/a\,b\\*,k\=1=v=2`}}, query)

	snapshot.Keys.Mode = live.KeysHashed
	_, body = get(t, optionsFor(snapshot), "/")
	assert.NotContains(t, body, "descriptor=path", "a hash links to nothing")
}

func TestLimitedKeysStandBelowTheState(t *testing.T) {
	limitedSection := func(change func(*live.Snapshot)) string {
		snapshot := pagetest.Busy()
		change(snapshot)
		options := optionsFor(snapshot)
		options.SignIn = "/signin"
		_, body := get(t, options, "/")
		_, section, _ := strings.Cut(body, `id="limited"`)
		section, _, _ = strings.Cut(section, "</section>")
		return section
	}
	for name, test := range map[string]struct {
		change             func(*live.Snapshot)
		texts, absentTexts []string
	}{
		"keys": {
			func(*live.Snapshot) {},
			[]string{"6 keys", "remote_address=203.0.113.0, path=/login", "12:41:31 UTC", "14:02:35 UTC", ">now<", `path%3D%2Flogin&amp;domain=shop#explain"`},
			[]string{"203.0.113.248"}, // it is denied, but not now
		},
		"hits beyond the limit": {func(s *live.Snapshot) { s.Keys.Denied[0].PassesAt = nil }, []string{"never: more hits than the limit"}, nil},
		"no limited key":        {func(s *live.Snapshot) { s.Keys.Denied = s.Keys.Denied[7:] }, []string{"No key is limited", "<table id=\"limited-table\" hidden>"}, nil},
		"many keys": {
			func(s *live.Snapshot) { s.Keys.Denied = append(s.Keys.Denied, s.Keys.Denied[:6]...) },
			[]string{"The most denied keys."},
			nil,
		},
		"shadow mode":  {func(s *live.Snapshot) { s.State.ShadowMode = true }, []string{"the whole service is in shadow mode"}, []string{"203.0.113"}},
		"keys are off": {func(s *live.Snapshot) { s.Keys.Mode, s.Keys.Denied = live.KeysOff, nil }, []string{"Keys are off"}, nil},
		"hidden values": {
			func(s *live.Snapshot) { s.Keys.Mode, s.Keys.Hidden = live.KeysHashed, true },
			[]string{`data-hidden-note>Values are hidden. <a href="/signin">Sign in</a> to see them.`},
			[]string{"#explain"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			section := limitedSection(test.change)
			for _, text := range test.texts {
				assert.Contains(t, section, text)
			}
			for _, text := range test.absentTexts {
				assert.NotContains(t, section, text)
			}
		})
	}
}

func TestPageShowsAllReplicas(t *testing.T) {
	section := func(s *live.Snapshot) string {
		_, body := get(t, optionsFor(s), "/")
		_, section, _ := strings.Cut(body, `<section id="replicas" aria-label="Replicas">`)
		section, _, _ = strings.Cut(section, "</section>")
		_, part := get(t, optionsFor(s), "/?part=replicas")
		assert.Equal(t, part, section, "the script gets the same table")
		return section
	}
	sectionOfBusyPage := section(pagetest.Busy())
	for _, text := range []string{
		"rls-7d9f-x2k4p/1", "1,240", "39.7", "0.42", "84.3\u202fMB", "v0.9.0", "9f4e11aa<", "<td>now\n",
		"rls-7d9f-8rq2m/1", "3 s ago", `<bdi class="cut">rls-7d9f-v6c9d/1</bdi><td><td>`, `<td class="failed">lost, 34 s ago`,
	} {
		assert.Contains(t, sectionOfBusyPage, text)
	}
	assert.NotContains(t, sectionOfBusyPage, "unknown")
	sectionDuringOutage := section(pagetest.RedisAway())
	assert.Contains(t, sectionDuringOutage, `Other replicas unknown since <time datetime="2026-03-14T14:01:50Z"`)
	assert.NotContains(t, sectionDuringOutage, "8rq2m")

	snapshot := pagetest.Busy()
	snapshot.Fleet = live.NewFleet(make([]live.Replica, 101), 2)
	assert.Contains(t, section(snapshot), "3 more replicas")
	snapshot.Fleet = live.NewFleet(snapshot.Fleet.Replicas[:1], 0)
	assert.Contains(t, section(snapshot), "Only this replica: without shared overrides, replicas do not report themselves")
}

func TestPageShowsLimitsThatEnvoysShare(t *testing.T) {
	snapshot := pagetest.Busy()
	_, page := get(t, optionsFor(snapshot), "/")
	assert.Contains(t, page, `<section id="quotas" aria-label="Quotas"></section>`, "without quotas the section is empty, so it takes no space")
	snapshot.Quotas = []quota.RuleStats{{Path: "shop > tenant", Buckets: 1200, Granted: 99, Demanded: 150.5}}
	_, page = get(t, optionsFor(snapshot), "/")
	_, part := get(t, optionsFor(snapshot), "/?part=quotas")
	assert.Contains(t, page, part, "the script gets the same table")
	assert.Regexp(t, `shop &gt; tenant</bdi><td>1,200<td>15[01]<td>99`, part)
}

func TestCaptionsOfThePageNameNoSettings(t *testing.T) {
	for _, mode := range []live.KeyMode{live.KeysOn, live.KeysHashed} {
		snapshot := pagetest.Busy()
		snapshot.Keys.Mode, snapshot.Overrides = mode, live.OverrideList{}
		_, body := get(t, optionsFor(snapshot), "/")
		assert.NotRegexp(t, "[A-Z]+_[A-Z]+=?", strings.ReplaceAll(body, "OVER_LIMIT", ""))
	}
}

func TestExplainAnswersTheForm(t *testing.T) {
	options := optionsFor(pagetest.Busy())
	explainedRequest := ""
	options.Explain = func(_ *http.Request, domain, descriptor string) (*explain.Report, error) {
		explainedRequest = domain + "|" + descriptor
		if descriptor == "bad" {
			return nil, errors.New("no = found")
		}
		return &explain.Report{UnknownDomain: &explain.UnknownDomain{Nearest: "shop"}}, nil
	}
	_, _ = get(t, options, "/")
	assert.Empty(t, explainedRequest, "an empty form explains nothing")
	_, body := get(t, options, "/?domain=shp&descriptor=a%3Db")
	assert.Equal(t, "shp|a=b", explainedRequest)
	assert.Contains(t, body, "The nearest domain is")
	_, body = get(t, options, "/?domain=shop&descriptor=bad")
	assert.Contains(t, body, "no = found")
}

func TestExplainShowsTheOverridesOfARule(t *testing.T) {
	options := optionsFor(pagetest.Busy())
	options.Explain = func(*http.Request, string, string) (*explain.Report, error) {
		return &explain.Report{Descriptors: []explain.Descriptor{{
			Rule: "shop > tenant=acme", Overrides: []explain.Override{{Target: "shop|tenant=acme", Author: "dana", BaseLimits: "60 per minute"}},
		}}}, nil
	}
	_, body := get(t, options, "/?domain=shop&descriptor=tenant%3Dacme")
	assert.Contains(t, body, "set by <bdi>dana</bdi>. Without the override: 60 per minute.")
}

func TestAssetsAreKeptUntilTheyChange(t *testing.T) {
	ask := func(path, tag string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("If-None-Match", tag)
		w := httptest.NewRecorder()
		page.Assets().ServeHTTP(w, r)
		return w
	}
	for _, name := range []string{"page.css", "page.js", "icon.svg"} {
		firstAnswer := ask("/assets/"+name, "")
		assert.Equal(t, http.StatusOK, firstAnswer.Code)
		assert.Equal(t, http.StatusNotModified, ask("/assets/"+name, firstAnswer.Header().Get("ETag")).Code)
	}
	assert.Equal(t, http.StatusNotFound, ask("/assets/", "").Code)
	assert.Equal(t, http.StatusNotFound, ask("/assets/../page.html", "").Code)
}
