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
	// Snapshot returns the snapshot that a caller may see. The page does not change the snapshot.
	Snapshot func(*http.Request) *live.Snapshot

	// Rules returns rules whose path or limit contains the filter, even rules without recent traffic.
	// hiddenRules is the number of such rules that are not in the list.
	Rules func(filter string) (rules []live.Rule, hiddenRules int)

	// Rule returns the rule with a path and its busiest keys, as the caller may see them.
	Rule func(r *http.Request, path string) (rule live.Rule, keys live.TopKeys, isKnown bool)

	// Explain explains a request with one descriptor. The error says that the caller may not use
	// explain, or that the descriptor is invalid.
	Explain func(r *http.Request, domain, descriptor string) (*explain.Report, error)

	GRPCAddr string       // the address that rls hit needs; empty if its default address works
	SignIn   string       // the path of the page that asks for a token; empty if there are no tokens
	Log      *slog.Logger // gets the error of a page that the server can't render
}

// Paths of the page and of its assets on the debug listener.
const (
	Path       = "/{$}"
	AssetsPath = "/assets/"
)

//go:embed assets page.html
var files embed.FS

// removableText matches the indents, empty lines and comment lines that Assets removes, because browsers do not need them.
var removableText = regexp.MustCompile(`(?m)^ *(//.*|/\*.*\*/)?\n|^ +`)

// contentPolicy allows the page to load files of its own server only, and forbids other sites to show the page in a frame.
const contentPolicy = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"

// Page is the live page.
type Page struct {
	options  Options
	template *template.Template
}

// New returns the page.
func New(options Options) *Page {
	return &Page{options: options, template: template.Must(template.New("").Funcs(functions).ParseFS(files, "page.html"))}
}

// ServeHTTP serves the page. With part=rule in the query, it serves the details of the open rule only. With
// part=replicas or part=quotas, it serves this table only.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	choice := parseChoice(query)
	var details *ruleDetails
	if choice.Rule != "" {
		rule, keys, isKnown := p.options.Rule(r, choice.Rule)
		if !isKnown {
			rule = live.Rule{Path: choice.Rule}
		}
		details = newRuleDetails(&rule, &keys)
		details.EffectiveLimits = p.effectiveLimits(r, &rule)
	}
	if query.Get("part") == "rule" {
		p.render(w, "opened", details)
		return
	}
	snapshot := p.options.Snapshot(r)
	if part := query.Get("part"); part == "replicas" || part == "quotas" {
		p.render(w, part, snapshot)
		return
	}
	rules, hiddenRules := snapshot.Rules.Shown, snapshot.Rules.More
	if choice.ShowsQuietRules || choice.Filter != "" {
		var filteredRules []live.Rule
		filteredRules, hiddenRules = p.options.Rules(choice.Filter)
		rules = slices.Concat(rules, filteredRules)
	}
	p.render(w, "page", &view{
		Snapshot:    snapshot,
		Choice:      choice,
		LimitedKeys: newLimitedKeys(snapshot),
		Rules:       newRuleTable(snapshot, rules, hiddenRules, details, choice),
		SignIn:      p.options.SignIn,
		HitCommand:  p.hitCommand,
		Explain:     p.explain(r, query.Get("domain"), query.Get("descriptor")),
	})
}

// hitCommand returns a command that sends calls to a rule, or an empty text if no rule can deny calls.
func (p *Page) hitCommand() string {
	rules, _ := p.options.Rules("")
	i := slices.IndexFunc(rules, func(r live.Rule) bool {
		return slices.ContainsFunc(r.Limits, func(l live.Limit) bool { return !l.Unlimited && !l.Disabled })
	})
	if i < 0 {
		return ""
	}
	command := "rls hit "
	if p.options.GRPCAddr != "" {
		command += "-a " + ShellWord(p.options.GRPCAddr) + " "
	}
	return command + "-d " + ShellWord(rules[i].Domain) + " " + ShellWord(exampleDescriptor(rules[i].Path)) + " -n 8"
}

// plainWord matches a word that needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_=,./:@%+-]+$`)

// ShellWord returns word as a shell reads it. It quotes a word with special characters.
func ShellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// effectiveLimits returns the limits of a rule with the origin of their fields. It returns nil if the caller may not use
// explain, or if another rule limits the example descriptor of the rule.
func (p *Page) effectiveLimits(r *http.Request, rule *live.Rule) []explain.Limit {
	if p.options.Explain == nil {
		return nil
	}
	report, err := p.options.Explain(r, rule.Domain, exampleDescriptor(rule.Path))
	if err != nil || len(report.Descriptors) == 0 || report.Descriptors[0].Rule != rule.Path {
		return nil
	}
	return report.Descriptors[0].Limits
}

func (p *Page) explain(r *http.Request, domain, descriptor string) explainForm {
	form := explainForm{Domain: domain, Descriptor: descriptor}
	if p.options.Explain == nil || domain == "" && descriptor == "" {
		return form
	}
	report, err := p.options.Explain(r, domain, descriptor)
	if err != nil {
		form.Problem = err.Error()
	} else {
		form.Report = report
	}
	return form
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
		p.options.Log.Error("live page not rendered", "error", err)
		http.Error(w, "the page could not be rendered; the log has the reason", http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy", contentPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
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
		text = removableText.ReplaceAll(text, nil)
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(text)))
		w.Header().Set("Cache-Control", "no-cache") // the browser asks each time whether the ETag is still the same
		w.Header().Set("X-Content-Type-Options", "nosniff")
		http.ServeContent(w, r, r.URL.Path, time.Time{}, bytes.NewReader(text))
	})
}

// view has the values that the template shows. File assets/page.js makes the same texts from a snapshot.
type view struct {
	*live.Snapshot
	Choice      userChoice
	SignIn      string
	LimitedKeys limitedKeys
	Rules       ruleTable
	HitCommand  func() string
	Explain     explainForm
}

// parseUTCTime returns the time that text states, such as "2026-01-01T09:30:00Z", or nil if text is not such a time.
func parseUTCTime(text string) *time.Time {
	if moment, err := time.Parse(time.RFC3339, text); err == nil && strings.HasSuffix(text, "Z") {
		return &moment
	}
	return nil
}

// functions are the functions of the template. The functions empty… return empty rows, which the script copies and fills.
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

	"clock":     func(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }, // the script replaces it with local time
	"utc":       func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"minute":    func(t time.Time) string { return t.UTC().Format("15:04 UTC") },
	"asTime":    parseUTCTime,
	"stamp":     func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"count":     live.Thousands,
	"counted":   live.Count[int],
	"number":    func(n int) string { return live.Thousands(int64(n)) },
	"left":      func(n int64) string { return live.Thousands(max(n, 0)) }, // a negative count is debt
	"join":      func(texts []string) string { return strings.Join(texts, ", ") },
	"rate":      FormatRate,
	"perSecond": formatNumber,
	"megabytes": formatMegabytes,
	"share":     FormatShare,
	"rateClass": func(v live.Value, class string) string { // returns class for a rate above 0
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
