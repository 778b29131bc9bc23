package decisionlog

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/backend"
)

// Filter selects records. An empty field selects all records.
type Filter struct {
	Domain string
	Rule   string // a part of the path of the rule
	Code   Code
	Source string

	Entries []Entry // entries that the descriptor must have; an entry without a Value selects all values of the Key
}

// ParseFilter returns the Filter of a query. Codes and sources ignore case. An empty value selects all records.
func ParseFilter(query url.Values) (Filter, error) {
	var filter Filter
	for name, values := range query {
		if len(values) > 1 && name != "entry" {
			return filter, fmt.Errorf("filter %s: got %d values, want one", name, len(values))
		}
		for _, value := range values {
			if err := filter.setParam(name, value); err != nil {
				return filter, err
			}
		}
	}
	return filter, nil
}

func (f *Filter) setParam(name, value string) (err error) {
	switch name {
	case "domain":
		f.Domain = value
	case "rule":
		f.Rule = value
	case "code":
		f.Code, err = parseName(name, value, []Code{OK, OverLimit, Failed})
	case "source":
		var names []string
		for _, source := range backend.Sources() {
			names = append(names, source.String())
		}
		f.Source, err = parseName(name, value, names)
	case "entry":
		key, entryValue, _ := strings.Cut(value, "=")
		switch {
		case key != "":
			f.Entries = append(f.Entries, Entry{key, entryValue})
		case value != "":
			return fmt.Errorf("filter entry: got %q, want KEY or KEY=VALUE", value)
		}
	default:
		return fmt.Errorf("filter: got %q, want domain, rule, code, source or entry", name)
	}
	return err
}

// parseName returns the name in names that is equal to value, in upper or lower case. It returns an empty value unchanged.
func parseName[T ~string](param, value string, names []T) (T, error) {
	if value == "" {
		return "", nil
	}
	for _, name := range names {
		if strings.EqualFold(string(name), value) {
			return name, nil
		}
	}
	return "", fmt.Errorf("filter %s: got %q, want one of %v", param, value, names)
}

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
	entries := o.requestEntries()
	for _, want := range f.Entries {
		if !slices.ContainsFunc(entries, func(e *ratelimitv3.RateLimitDescriptor_Entry) bool {
			return e.GetKey() == want.Key && (want.Value == "" || e.GetValue() == want.Value)
		}) {
			return false
		}
	}
	return true
}
