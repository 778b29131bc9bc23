package limitstest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/explain"
	"github.com/seed-81f232ab/rls/internal/boundedyaml"
	"github.com/seed-81f232ab/rls/limit"
)

// Bounds of a test file.
const (
	MaxFileBytes = 16 << 20
	MaxRepeat    = 100_000
	MaxRequests  = 1_000_000 // of all tests, with repetitions

	maxNodes    = 2_000_000 // nodes behind an alias count at each use
	maxProblems = 100
)

// Times of tests are in this range.
var (
	minTime = time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC)
	maxTime = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// defaultStart is the start of a test without its own start. It is the start of a second, a
// minute, an hour, a day and a week.
var defaultStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Parse reads a test file. The error is limitsfile.Problems: every mistake with its place.
func Parse(name string, data []byte) (*File, error) {
	p := &parser{file: &File{Name: name}, start: defaultStart}
	if root := p.root(data); root != nil {
		p.parseFile(root)
	}
	if len(p.problems) > 0 {
		slices.SortStableFunc(p.problems, func(a, b limitsfile.Problem) int {
			return cmp.Or(a.Line-b.Line, a.Column-b.Column)
		})
		return nil, slices.Compact(p.problems)
	}
	return p.file, nil
}

// parser reads one test file.
type parser struct {
	file     *File
	problems limitsfile.Problems
	nodes    int // read so far
	requests int // of all tests so far, with repetitions

	domain string    // default of the tests
	start  time.Time // default of the tests
	test   string    // name of the test that is read
}

func (p *parser) errorf(n *yaml.Node, format string, args ...any) {
	if len(p.problems) >= maxProblems {
		return
	}
	problem := limitsfile.Problem{File: p.file.Name, Path: p.test, Reason: fmt.Sprintf(format, args...)}
	if n != nil {
		problem.Line, problem.Column = n.Line, n.Column
	}
	p.problems = append(p.problems, problem)
}

// root returns the root of the YAML document, or nil after a mistake.
func (p *parser) root(data []byte) *yaml.Node {
	if len(data) > MaxFileBytes {
		p.errorf(nil, "file is %d bytes; maximum is %d", len(data), MaxFileBytes)
		return nil
	}
	doc, err := boundedyaml.Parse(data, boundedyaml.Bounds{})
	if problem, ok := errors.AsType[*boundedyaml.Problem](err); ok {
		p.errorf(&yaml.Node{Line: problem.Line, Column: problem.Column}, "%s", problem.Reason)
		return nil
	}
	if err != nil {
		p.errorf(nil, "%v: limits and tests are missing", err)
		return nil
	}
	if doc.Second != nil {
		p.errorf(doc.Second, "file has a second YAML document; put all tests into one")
	}
	return doc.Root
}

var (
	fileFields    = []string{"limits", "merge", "domain", "start", "settings", "tests"}
	settingFields = []string{"shadow_mode", "quota_mode", "all_or_none"}
	testFields    = []string{"name", "domain", "start", "requests"}
	requestFields = []string{"descriptor", "descriptors", "domain", "at", "repeat", "every", "hits", "limit", "want"}
	targetFields  = []string{"descriptor", "hits", "limit"}
	wantFields    = []string{"code", "error", "admitted", "headers", "body", "rule", "denied_in_shadow", "limit", "remaining", "reset", "statuses"}
	statusFields  = []string{"code", "rule", "denied_in_shadow", "limit", "remaining", "reset"}
)

func (p *parser) parseFile(root *yaml.Node) {
	f := p.file
	m := p.mapping(root, "test file", fileFields)
	if m == nil {
		return
	}
	if n := m["limits"]; n != nil {
		for _, item := range p.listOrOne(n, "limits") {
			if path := p.text(item, "limits"); path != "" {
				f.Limits = append(f.Limits, path)
			}
		}
	} else {
		p.errorf(root, "limits is missing; write limits: and the path of a limits file, relative to this file")
	}
	f.Merge = p.flag(m["merge"], "merge")
	p.domain = p.text(m["domain"], "domain")
	if n := m["start"]; n != nil {
		p.start = p.moment(n)
	}
	if n := m["settings"]; n != nil {
		s := p.mapping(n, "settings", settingFields)
		f.Settings = Settings{
			ShadowMode: p.flag(s["shadow_mode"], "shadow_mode"),
			QuotaMode:  p.flag(s["quota_mode"], "quota_mode"),
			AllOrNone:  p.flag(s["all_or_none"], "all_or_none"),
		}
	}
	if m["tests"] == nil {
		p.errorf(root, "tests is missing; write a list of tests, each with name and requests")
		return
	}
	lines := map[string]int{}
	for _, n := range p.list(m["tests"], "tests") {
		t := p.parseTest(n)
		if line := lines[t.Name]; line > 0 && t.Name != "" {
			p.errorf(n, "the test in line %d has the same name; give each test its own", line)
		}
		lines[t.Name] = n.Line
		f.Tests = append(f.Tests, t)
		p.test = ""
	}
}

func (p *parser) parseTest(n *yaml.Node) Test {
	t := Test{Line: n.Line}
	m := p.mapping(n, "test", testFields)
	if m == nil {
		return t
	}
	if t.Name = p.text(m["name"], "name"); t.Name == "" {
		p.errorf(n, "name is missing; write name: and what the test shows")
	}
	p.test = limitsfile.Printable(t.Name)
	domain := cmp.Or(p.text(m["domain"], "domain"), p.domain)
	start := p.start
	if at := m["start"]; at != nil {
		start = p.moment(at)
	}
	if m["requests"] == nil {
		p.errorf(n, "requests is missing; write a list of requests, each with descriptor and want")
		return t
	}
	now := start
	for _, item := range p.list(m["requests"], "requests") {
		r := p.parseRequest(item, domain, start, now)
		now = r.time(max(r.Repeat, 1) - 1)
		if now.After(maxTime) || now.Before(r.At) { // the multiplication can overflow
			p.errorf(item, "repeat and every: the last request is after the year 2199")
			now = r.At
		}
		t.Requests = append(t.Requests, r)
	}
	return t
}

// parseRequest reads a request. now is the time of the request before it.
func (p *parser) parseRequest(n *yaml.Node, domain string, start, now time.Time) Request {
	r := Request{Line: n.Line, At: now, Repeat: 1, Message: &rlsv3.RateLimitRequest{}}
	m := p.mapping(n, "request", requestFields)
	if m == nil {
		return r
	}
	if at := m["at"]; at != nil {
		if r.At = p.offset(at, start); r.At.Before(now) {
			p.errorf(at, "at: got %s, which is before the request above (%s); put the requests in the order of their times", display(at), now.Sub(start))
		}
	}
	if repeat := m["repeat"]; repeat != nil {
		r.Repeat = max(int(p.number(repeat, "repeat", 1, MaxRepeat)), 1)
	}
	if p.requests += r.Repeat; p.requests > MaxRequests && p.requests-r.Repeat <= MaxRequests {
		p.errorf(n, "file has more than %d requests, with repetitions; split it", MaxRequests)
	}
	if every := m["every"]; every != nil {
		if r.Repeat == 1 {
			p.errorf(every, "every has no meaning without repeat")
		}
		r.Every = p.duration(every, "every")
	}
	r.Message.Domain = cmp.Or(p.text(m["domain"], "domain"), domain)
	if r.Message.Domain == "" {
		p.errorf(n, "domain is missing; write domain: in the request, its test or the root of the file")
		r.Message.Domain = NoRule // the descriptors are still read
	}
	var targets []*yaml.Node
	switch one, all := m["descriptor"], m["descriptors"]; {
	case one != nil && all != nil:
		p.errorf(all, "descriptor and descriptors are both given; put all into descriptors")
	case one != nil:
		targets = []*yaml.Node{one}
	case all != nil:
		targets = p.list(all, "descriptors")
	default:
		p.errorf(n, "descriptor is missing; write descriptor: key=value,key=value")
	}
	for _, target := range targets {
		p.parseTarget(&r, target, m["hits"], m["limit"])
	}
	if want := m["want"]; want != nil {
		p.parseWant(&r, want)
	} else {
		p.errorf(n, "want is missing; write want: {code: OK} or what else the answer must be")
	}
	return r
}

// parseTarget adds a descriptor to r. hits and ownLimit are those of the request, or nil.
func (p *parser) parseTarget(r *Request, n, hits, ownLimit *yaml.Node) {
	text := n
	if n.Kind == yaml.MappingNode {
		m := p.mapping(n, "descriptor", targetFields)
		if text = m["descriptor"]; text == nil {
			p.errorf(n, "descriptor is missing; write descriptor: key=value,key=value")
			return
		}
		hits, ownLimit = cmp.Or(m["hits"], hits), cmp.Or(m["limit"], ownLimit)
	}
	descriptor := p.text(text, "descriptor")
	if descriptor == "" {
		return
	}
	limitText := p.text(ownLimit, "limit")
	req, err := explain.NewRequest(r.Message.Domain, []string{descriptor}, limitText)
	if err != nil {
		place := text
		if _, withoutLimit := explain.NewRequest(r.Message.Domain, []string{descriptor}, ""); withoutLimit == nil {
			place = ownLimit
		}
		p.errorf(place, "%v", err)
		return
	}
	d := req.Descriptors[0]
	if hits != nil {
		count := p.number(hits, "hits", -limit.MaxHits, limit.MaxHits)
		d.IsNegativeHits = count < 0
		d.HitsAddend = wrapperspb.UInt64(uint64(max(count, -count)))
	}
	r.Descriptors = append(r.Descriptors, descriptor)
	r.Message.Descriptors = append(r.Message.Descriptors, d)
}

func (p *parser) parseWant(r *Request, n *yaml.Node) {
	m := p.mapping(n, "want", wantFields)
	if m == nil {
		return
	}
	if len(m) == 0 {
		p.errorf(n, "want is empty; write want: {code: OK} or what else the answer must be")
	}
	w := &r.Want
	w.Code = p.code(m["code"])
	if e := m["error"]; e != nil {
		w.Error = new(p.text(e, "error"))
		for _, name := range wantFields {
			if name != "error" && m[name] != nil {
				p.errorf(m[name], "%s has no meaning beside error, because a failed call has no answer", name)
			}
		}
	}
	if a := m["admitted"]; a != nil {
		w.Admitted = new(int(p.number(a, "admitted", 0, int64(r.Repeat))))
	}
	if h := m["headers"]; h != nil {
		w.Headers = p.headers(h)
	}
	if b := m["body"]; b != nil {
		w.Body = new(p.text(b, "body"))
	}
	if list := m["statuses"]; list != nil {
		for _, name := range statusFields[1:] { // the code is that of the whole answer
			if m[name] != nil {
				p.errorf(m[name], "%s has no meaning beside statuses; it belongs in an item of statuses", name)
			}
		}
		items := p.list(list, "statuses")
		if len(items) != len(r.Descriptors) {
			p.errorf(list, "statuses: got %d items, want one for each of the %d descriptors", len(items), len(r.Descriptors))
			return
		}
		for _, item := range items {
			status := p.mapping(item, "status", statusFields)
			s := p.status(status)
			s.Code = p.code(status["code"])
			w.Statuses = append(w.Statuses, s)
		}
		return
	}
	s := p.status(m)
	if s == (WantStatus{}) {
		return
	}
	if len(r.Descriptors) > 1 {
		p.errorf(n, "the request has %d descriptors; write statuses: and one item for each of them", len(r.Descriptors))
		return
	}
	w.Statuses = []WantStatus{s}
}

// status reads all fields of a wanted status but the code.
func (p *parser) status(m map[string]*yaml.Node) WantStatus {
	var s WantStatus
	if n := m["rule"]; n != nil {
		s.Rule = new(p.text(n, "rule"))
	}
	if n := m["denied_in_shadow"]; n != nil {
		s.DeniedInShadow = new(p.flag(n, "denied_in_shadow"))
	}
	if n := m["limit"]; n != nil {
		s.Limit = new(p.text(n, "limit"))
	}
	if n := m["remaining"]; n != nil {
		s.Remaining = new(uint32(p.number(n, "remaining", 0, math.MaxUint32)))
	}
	if n := m["reset"]; n != nil {
		s.Reset = new(p.duration(n, "reset"))
	}
	return s
}

func (p *parser) code(n *yaml.Node) *string {
	if n == nil {
		return nil
	}
	text := p.text(n, "code")
	if text != codeOK && text != codeOverLimit {
		p.errorf(n, "code: got %s, want %s", display(n), limitsfile.OneOf(text, []string{codeOK, codeOverLimit}))
	}
	return &text
}

func (p *parser) headers(n *yaml.Node) map[string]string {
	if n.Kind != yaml.MappingNode {
		p.errorf(n, "headers: got %s, want a mapping of names to values", display(n))
		return nil
	}
	headers := map[string]string{}
	for i := 0; i+1 < len(n.Content) && p.visit(n); i += 2 {
		name := strings.ToLower(p.text(deref(n.Content[i]), "name of a header"))
		headers[name] = p.text(deref(n.Content[i+1]), "value of header "+limitsfile.Printable(name))
	}
	return headers
}

// mapping returns the values of a mapping by name. It returns nil if n is no mapping.
func (p *parser) mapping(n *yaml.Node, level string, names []string) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		p.errorf(n, "%s: got %s, want a mapping with %s", level, display(n), strings.Join(names, ", "))
		return nil
	}
	m := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content) && p.visit(n); i += 2 {
		key, value := deref(n.Content[i]), deref(n.Content[i+1])
		switch name := key.Value; {
		case key.Kind != yaml.ScalarNode || !slices.Contains(names, name):
			p.errorf(key, "unknown key %s in %s; want %s", display(key), level, limitsfile.OneOf(name, names))
		case m[name] != nil:
			p.errorf(key, "%s is given twice; remove one", name)
		case value.ShortTag() == "!!null":
			p.errorf(value, "%s has no value", name)
		default:
			m[name] = value
		}
	}
	return m
}

// list returns the items of a list.
func (p *parser) list(n *yaml.Node, name string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode {
		p.errorf(n, "%s: got %s, want a list", name, display(n))
		return nil
	}
	if len(n.Content) == 0 {
		p.errorf(n, "%s is empty; want at least one item", name)
	}
	var items []*yaml.Node
	for _, item := range n.Content {
		if !p.visit(item) {
			break
		}
		items = append(items, deref(item))
	}
	return items
}

// listOrOne returns the items of a list, or n if n is no list.
func (p *parser) listOrOne(n *yaml.Node, name string) []*yaml.Node {
	if n.Kind == yaml.SequenceNode {
		return p.list(n, name)
	}
	return []*yaml.Node{n}
}

// visit counts a node and reports whether to go on.
func (p *parser) visit(n *yaml.Node) bool {
	if p.nodes == maxNodes {
		p.errorf(n, "file has more than %d keys and values (aliases count at each use)", maxNodes)
	}
	p.nodes++
	return p.nodes <= maxNodes && len(p.problems) < maxProblems
}

// text returns the text of a scalar, or "" if n is nil or after a mistake.
func (p *parser) text(n *yaml.Node, name string) string {
	if n == nil {
		return ""
	}
	if n.Kind != yaml.ScalarNode {
		p.errorf(n, "%s: got %s, want a text", name, display(n))
		return ""
	}
	if n.Value == "" {
		p.errorf(n, "%s is empty", name)
	}
	return n.Value
}

func (p *parser) flag(n *yaml.Node, name string) bool {
	if n == nil {
		return false
	}
	value, err := strconv.ParseBool(n.Value)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || err != nil {
		p.errorf(n, "%s: got %s, want true or false", name, display(n))
	}
	return value
}

func (p *parser) number(n *yaml.Node, name string, least, most int64) int64 {
	value, err := strconv.ParseInt(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || err != nil || value < least || value > most {
		p.errorf(n, "%s: got %s, want a whole number from %d to %d", name, display(n), least, most)
		return 0
	}
	return value
}

const wantDuration = "want a duration such as 500ms, 90s, 1h30m or 30d"

func (p *parser) duration(n *yaml.Node, name string) time.Duration {
	d, ok := parseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || !ok {
		p.errorf(n, "%s: got %s, %s", name, display(n), wantDuration)
	}
	return d
}

// parseDuration parses a duration of time.ParseDuration with days (d) in front. It rejects
// negative durations and fractions of a microsecond.
func parseDuration(text string) (time.Duration, bool) {
	const day, maxDays = 24 * time.Hour, 100_000
	var days uint64
	rest := text
	if before, after, ok := strings.Cut(text, "d"); ok {
		var err error
		if days, err = strconv.ParseUint(before, 10, 32); err != nil || days > maxDays {
			return 0, false
		}
		rest = cmp.Or(after, "0")
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || d > maxDays*day || d%time.Microsecond != 0 {
		return 0, false
	}
	return time.Duration(days)*day + d, days*uint64(day)+uint64(d) <= maxDays*uint64(day)
}

// moment reads a time.
func (p *parser) moment(n *yaml.Node) time.Time {
	t, err := time.Parse(time.RFC3339, n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || t.Before(minTime) || t.After(maxTime) {
		p.errorf(n, "start: got %s, want a time such as 2026-01-01T09:30:00Z, from 1971 to 2199", display(n))
		return defaultStart
	}
	return t.UTC()
}

// offset reads the time of a request: a duration since start, or a time.
func (p *parser) offset(n *yaml.Node, start time.Time) time.Time {
	t, err := time.Parse(time.RFC3339, n.Value)
	if d, ok := parseDuration(n.Value); ok {
		t, err = start.Add(d), nil
	}
	if n.Kind != yaml.ScalarNode || err != nil || t.Before(minTime) || t.After(maxTime) {
		p.errorf(n, "at: got %s, %s since the start of the test, or a time such as 2026-01-01T09:30:00Z", display(n), wantDuration)
		return start
	}
	return t.UTC()
}

func deref(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// display returns n for a message.
func display(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	const maxBytes = 80
	text := n.Value
	if len(text) > maxBytes {
		text = strings.ToValidUTF8(text[:maxBytes], "") + "…"
	}
	if text == "" {
		return "an empty text"
	}
	return limitsfile.Printable(text)
}
