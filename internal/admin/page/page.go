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

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// Options are the options of New. Explain, GRPCAddr and SignIn can be empty.
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
	SignIn   string       // path of the page that asks for a token; empty without tokens
	Log      *slog.Logger // gets the error of a page that can't be rendered
}

// Paths of the page and of its assets on the debug listener.
const (
	Path       = "/{$}"
	AssetsPath = "/assets/"
)

//go:embed assets page.html
var files embed.FS

// spareText matches indents and lines of comments, which browsers need not load.
var spareText = regexp.MustCompile(`(?m)^ +(//.*\n)?|^//.*\n`)

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
		Snapshot:   s,
		Choice:     c,
		Limited:    newLimitedTable(s),
		Rules:      newRuleTable(s, rules, more, details, c),
		SignIn:     p.o.SignIn,
		HitCommand: p.hitCommand,
		Explain:    p.explain(r, query.Get("domain"), query.Get("descriptor")),
	})
}

// hitCommand returns a command that sends calls to a rule, or an empty text if no rule can deny calls.
func (p *Page) hitCommand() string {
	rules, _ := p.o.Rules("")
	i := slices.IndexFunc(rules, func(r live.Rule) bool {
		return slices.ContainsFunc(r.Limits, func(l live.Limit) bool { return !l.Unlimited && !l.Disabled })
	})
	if i < 0 {
		return ""
	}
	command := "rls hit "
	if p.o.GRPCAddr != "" {
		command += "-a " + ShellWord(p.o.GRPCAddr) + " "
	}
	return command + "-d " + ShellWord(rules[i].Domain) + " " + ShellWord(exampleDescriptor(rules[i].Path)) + " -n 8"
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
		text = spareText.ReplaceAll(text, nil)
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(text)))
		w.Header().Set("Cache-Control", "no-cache") // the browser asks with the tag
		w.Header().Set("X-Content-Type-Options", "nosniff")
		http.ServeContent(w, r, r.URL.Path, time.Time{}, bytes.NewReader(text))
	})
}

// view is what the template shows. File assets/page.js makes the same texts from a snapshot.
type view struct {
	*live.Snapshot
	Choice     choice
	SignIn     string
	Limited    limitedTable
	Rules      ruleTable
	HitCommand func() string
	Explain    explainForm
}

// asTime returns the time that a text of an event consists of, or nil.
func asTime(text string) *time.Time {
	if at, err := time.Parse(time.RFC3339, text); err == nil && strings.HasSuffix(text, "Z") {
		return &at
	}
	return nil
}

// functions are the functions of the template. The empty values fill the templates from which the script makes rows.
var functions = template.FuncMap{
	"figure": func(id, name, value, unit, class, secondName, second string, s spark) figure {
		return figure{id, name, value, unit, class, secondName, second, s}
	},
	"spark":    newSpark,
	"times":    func(a, b live.Value) live.Value { return a * b },
	"seconds":  formatSeconds,
	"duration": FormatDuration,
	"keys":     newKeyList,
	"keysNote": keysNote,
	"process":  processText,
	"sources":  backend.Sources,

	"clock":   func(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }, // the script replaces it with local time
	"utc":     func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"minute":  func(t time.Time) string { return t.UTC().Format("15:04 UTC") },
	"asTime":  asTime,
	"stamp":   func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"count":   live.Thousands,
	"counted": live.Count[int],
	"number":  func(n int) string { return live.Thousands(int64(n)) },
	"left":    func(n int64) string { return live.Thousands(max(n, 0)) }, // a negative count is debt
	"join":    func(texts []string) string { return strings.Join(texts, ", ") },
	"rate":    FormatRate,
	"share":   FormatShare,
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
