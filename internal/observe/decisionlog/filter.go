package decisionlog

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/seed-81f232ab/rls/backend"
)

// Filter selects records. Empty fields select all.
type Filter struct {
	Domain string
	Rule   string // a part of the path of the rule
	Code   Code
	Source string

	// Entries are entries that the descriptor must have. An Entry without a Value selects
	// all values of its Key.
	Entries []Entry
}

// Names of the parameters of a Filter in a query.
const (
	domainParam = "domain"
	ruleParam   = "rule"
	codeParam   = "code"
	sourceParam = "source"
	entryParam  = "entry"
)

var codes = []Code{OK, OverLimit, Failed}

// ParseFilter returns the Filter of a query. Codes and sources match in any case. An empty
// value selects all. The error names an unknown parameter or value.
func ParseFilter(query url.Values) (Filter, error) {
	var f Filter
	for name, values := range query {
		if len(values) > 1 && name != entryParam {
			return f, fmt.Errorf("filter %s: got %d values, want one", name, len(values))
		}
		for _, value := range values {
			if err := f.setParam(name, value); err != nil {
				return f, err
			}
		}
	}
	return f, nil
}

// setParam adds a parameter to f.
func (f *Filter) setParam(name, value string) error {
	switch name {
	case domainParam, ruleParam, codeParam, sourceParam, entryParam:
	default:
		return fmt.Errorf("filter: got %q, want domain, rule, code, source or entry", name)
	}
	if value == "" {
		return nil
	}
	switch name {
	case domainParam:
		f.Domain = value
	case ruleParam:
		f.Rule = value
	case codeParam:
		i := slices.IndexFunc(codes, func(c Code) bool { return strings.EqualFold(string(c), value) })
		if i < 0 {
			return fmt.Errorf("filter code: got %q, want one of %v", value, codes)
		}
		f.Code = codes[i]
	case sourceParam:
		sources := backend.Sources()
		i := slices.IndexFunc(sources, func(s backend.Source) bool { return strings.EqualFold(s.String(), value) })
		if i < 0 {
			return fmt.Errorf("filter source: got %q, want one of %v", value, sources)
		}
		f.Source = sources[i].String()
	case entryParam:
		key, value, _ := strings.Cut(value, "=")
		if key == "" {
			return fmt.Errorf("filter entry: got %q, want KEY or KEY=VALUE", "="+value)
		}
		f.Entries = append(f.Entries, Entry{key, value})
	}
	return nil
}

// Query returns the query that ParseFilter parses.
func (f *Filter) Query() url.Values {
	query := url.Values{}
	add := func(name, value string) {
		if value != "" {
			query.Add(name, value)
		}
	}
	add(domainParam, f.Domain)
	add(ruleParam, f.Rule)
	add(codeParam, string(f.Code))
	add(sourceParam, f.Source)
	for _, e := range f.Entries {
		if e.Value != "" {
			e.Key += "=" + e.Value
		}
		add(entryParam, e.Key)
	}
	return query
}

// selects reports whether f selects the record of o.
func (f *Filter) selects(o *outcome) bool {
	switch {
	case f.Code != "" && o.code != f.Code:
	case f.Domain != "" && o.call.Request.GetDomain() != f.Domain:
	case f.Rule != "" && !strings.Contains(o.rule(), f.Rule):
	case f.Source != "" && o.source() != f.Source:
	default:
		return f.selectsEntries(o)
	}
	return false
}

func (f *Filter) selectsEntries(o *outcome) bool {
	for _, want := range f.Entries {
		found := false
		for _, e := range o.requestEntries() {
			found = found || e.GetKey() == want.Key && (want.Value == "" || e.GetValue() == want.Value)
		}
		if !found {
			return false
		}
	}
	return true
}
