// Package page serves the live page: the state of the process, its traffic, its rules and keys, its changes, and a
// form for explain. The server renders the whole page. A script keeps it up to date from the stream of snapshots.
package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// Options are the options of New. Explain, GRPCAddr, Sources and Links can be empty.
type Options struct {
	// Snapshot returns what the page shows to a caller. The page does not change it.
	Snapshot func(*http.Request) *live.Snapshot

	// Rules returns rules whose path or limit contains the filter. Quiet rules are included.
	// more is the number of further rules.
	Rules func(filter string) (rules []live.Rule, more int)

	// Rule returns the rule of a path and its busiest keys, as the caller may see them.
	Rule func(r *http.Request, path string) (rule live.Rule, keys live.TopKeys, known bool)

	// Explain explains a request with one descriptor, or returns why the caller may not
	// ask or why the descriptor can't be parsed.
	Explain func(r *http.Request, domain, descriptor string) (*explain.Report, error)

	GRPCAddr string       // of the service, if rls hit does not reach it by default
	Sources  []string     // names of the parts that make decisions
	Links    []Link       // at the top
	Log      *slog.Logger // gets the error of a page that can't be rendered
}

// Link is a link to another page of the debug listener.
type Link struct{ Href, Name string }

// Paths of the page and of its assets on the debug listener.
const (
	Path       = "/{$}"
	AssetsPath = "/assets/"
)

//go:embed assets page.html
var files embed.FS

// policy lets the page load from its own server only, and keeps other sites from framing it.
const policy = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"

// Page is the live page.
type Page struct {
	o        Options
	template *template.Template
}

// New returns the page.
func New(o Options) *Page {
	return &Page{o: o, template: template.Must(template.New("").Funcs(functions).ParseFS(files, "page.html"))}
}

// ServeHTTP serves the page. With part=rule in the query, it serves the details of the open rule only.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	c := parseChoice(query)
	var details *ruleDetails
	if c.Rule != "" {
		rule, keys, known := p.o.Rule(r, c.Rule)
		if !known {
			rule = live.Rule{Path: c.Rule}
		}
		details = newRuleDetails(&rule, &keys)
		details.Effective = p.effectiveLimits(r, &rule)
	}
	if query.Get("part") == "rule" {
		p.render(w, "opened", details)
		return
	}
	s := p.o.Snapshot(r)
	rules, more := s.Rules.Shown, s.Rules.More
	if c.Quiet || c.Filter != "" {
		var filtered []live.Rule
		filtered, more = p.o.Rules(c.Filter)
		rules = slices.Concat(rules, filtered)
	}
	p.render(w, "page", &view{
		Snapshot: s,
		Choice:   c,
		Rules:    newRuleTable(s, rules, more, details, c),
		Links:    p.o.Links,
		Sources:  p.o.Sources,
		Hint:     p.hint(s),
		Explain:  p.explain(r, query.Get("domain"), query.Get("descriptor")),
	})
}

// hint returns what to do if there is nothing to show, or nil.
func (p *Page) hint(s *live.Snapshot) *hint {
	switch {
	case !s.State.Limits.Loaded:
		return &hint{Text: "No limits are loaded. The page of problems says why.", Href: "/rlconfig/problems", LinkName: "Problems"}
	case s.Rules.Total == 0:
		return &hint{Text: "The limits in force have no rule."}
	case len(s.Rules.Shown) > 0:
		return nil
	case s.Figures.Calls.HadTraffic():
		return &hint{Text: "Calls arrive, but no limit has counted a hit in the last five minutes."}
	}
	h := &hint{Text: "No calls in the last five minutes.", IsIdle: true}
	rules, _ := p.o.Rules("")
	limits := func(r live.Rule) bool {
		return slices.ContainsFunc(r.Limits, func(l live.Limit) bool { return !l.Unlimited && !l.Disabled })
	}
	if i := slices.IndexFunc(rules, limits); i >= 0 {
		h.Text += " This command sends some calls:"
		h.Command = "rls hit "
		if p.o.GRPCAddr != "" {
			h.Command += "-a " + ShellWord(p.o.GRPCAddr) + " "
		}
		h.Command += "-d " + ShellWord(rules[i].Domain) + " " + ShellWord(exampleDescriptor(rules[i].Path)) + " -n 8"
	}
	return h
}

// plainWord matches a word that a shell takes as it is.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_=,./:@%+-]+$`)

// ShellWord quotes a word for a shell if needed.
func ShellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// effectiveLimits returns the limits of a rule with the origin of their fields. It returns
// nil if the caller has no right to use explain, or if another rule limits the example.
func (p *Page) effectiveLimits(r *http.Request, rule *live.Rule) []explain.Limit {
	if p.o.Explain == nil {
		return nil
	}
	report, err := p.o.Explain(r, rule.Domain, exampleDescriptor(rule.Path))
	if err != nil || len(report.Descriptors) == 0 || report.Descriptors[0].Rule != rule.Path {
		return nil
	}
	return report.Descriptors[0].Limits
}

// explain returns the form of explain, and the answer if the form is filled in.
func (p *Page) explain(r *http.Request, domain, descriptor string) explainForm {
	f := explainForm{Domain: domain, Descriptor: descriptor}
	if p.o.Explain == nil || domain == "" && descriptor == "" {
		return f
	}
	report, err := p.o.Explain(r, domain, descriptor)
	if err != nil {
		f.Problem = err.Error()
	} else {
		f.Report = report
	}
	return f
}

// explainForm is the form of explain and its answer. At most one of Problem and Report is set.
type explainForm struct {
	Domain, Descriptor string
	Problem            string
	Report             *explain.Report
}

func (p *Page) render(w http.ResponseWriter, name string, data any) {
	var body bytes.Buffer
	if err := p.template.ExecuteTemplate(&body, name, data); err != nil {
		p.o.Log.Error("live page not rendered", "error", err)
		http.Error(w, "the page could not be rendered; the log has the reason", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write(body.Bytes())
}

// Assets serves the style, the script and the icon.
func Assets() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := files.ReadFile(strings.TrimPrefix(r.URL.Path, "/"))
		if err != nil || !strings.HasPrefix(r.URL.Path, AssetsPath) {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(text)))
		w.Header().Set("Cache-Control", "no-cache") // the browser asks with the tag
		w.Header().Set("X-Content-Type-Options", "nosniff")
		http.ServeContent(w, r, r.URL.Path, time.Time{}, bytes.NewReader(text))
	})
}

// view is what the template shows. File assets/page.js makes the same texts from a snapshot.
type view struct {
	*live.Snapshot
	Choice  choice
	Links   []Link
	Rules   ruleTable
	Hint    *hint
	Explain explainForm
	Sources []string
}

// hint says what to do if there is nothing to show.
type hint struct {
	Text, Href, LinkName, Command string
	IsIdle                        bool // no call has arrived
}

func keysNote(k *live.TopKeys) string {
	note := "TOP_KEYS=" + string(k.Mode)
	if k.Mode != live.KeysOff && k.SampledShare < 1 {
		note += ", from " + FormatShare(k.SampledShare) + " of the decisions"
	}
	return note
}

func limitsNote(l *live.Limits) string {
	if !l.Loaded {
		return "No limits in force"
	}
	note := live.Count(l.Rules, "rule") + " in " + live.Count(len(l.Domains), "domain") + ", from " + l.Source
	if l.Hash != "" {
		note += ", hash " + l.Hash[:min(len(l.Hash), 8)]
	}
	return note
}

func overridesNote(l *live.OverrideList) string {
	switch {
	case !l.Enabled:
		return "OVERRIDES_ENABLED=false"
	case len(l.Shown) == 0:
		return "None"
	case l.More > 0:
		return live.Thousands(int64(l.More)) + " more; rls limits list shows all"
	}
	return live.Thousands(int64(len(l.Shown)))
}

// functions are the functions of the template. The empty values fill the templates from which the script makes rows.
var functions = template.FuncMap{
	"figures":       figures,
	"keys":          newKeyList,
	"keysNote":      keysNote,
	"limitsNote":    limitsNote,
	"overridesNote": overridesNote,
	"unmatchedKeys": unmatchedList,
	"unmatchedSpark": func(f *live.Figures) spark {
		return newSpark("Descriptors without a rule per second", f, FormatRate, f.Unmatched.Points, nil)
	},

	"clock": func(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }, // the script replaces it with local time
	"utc":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"stamp": func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"count": live.Thousands,
	"left":  func(n int64) string { return live.Thousands(max(n, 0)) }, // a negative count is debt
	"join":  func(texts []string) string { return strings.Join(texts, ", ") },
	"rate":  FormatRate,
	"share": FormatShare,
	"rateClass": func(v live.Value, class string) string { // class is for rates above 0
		if v > 0 {
			return class
		}
		return "zero"
	},
	"percent":       func(v live.Value) int { return min(max(roundHalfUp(numberOrZero(v)*100), 0), 100) },
	"emptyRule":     func() *ruleRow { return &ruleRow{treeRow: treeRow{Rule: &live.Rule{Use: live.Unknown}}} },
	"emptyKey":      func() keyRow { return keyRow{} },
	"emptyChange":   func() timeline.Event { return timeline.Event{} },
	"emptyOverride": func() live.Override { return live.Override{} },
}
