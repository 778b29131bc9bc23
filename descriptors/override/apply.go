package override

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// maxCopies bounds the copies of descriptors for single values. Children count too.
const maxCopies = 100_000

// outcome is the result of applying one override. apply sets neither Kind nor Target and Value of the State.
type outcome struct {
	State
	newRuleProblems fields.Problems // the problems that reject a new rule; if the rule exists already, it stays in force
}

// apply returns base with overrides, rules and switches of different fields, and the outcome of each of them. It leaves out
// the overrides that don't fit. The result shares all unchanged descriptors with base.
//
// Rules apply first, so overrides can change them. Switches apply last.
//
// Several overrides can apply to one request. An override for any value, such as tenant, applies before an override for a
// single value, such as tenant=acme. If two targets have several entries, the first entry that is a single value in only
// one of them decides. The target with this single value applies last: tenant > path=/a applies before tenant=acme > path.
func apply(base *limitsfile.Set, overrides []*Override) (*limitsfile.Set, []outcome) {
	outcomes := make([]outcome, len(overrides))
	base = addRules(base, overrides, outcomes)
	matchFinder := &finder{map[string]*limitsfile.Domain{}, map[**limitsfile.Descriptor]*descriptors.Index{}}
	for _, d := range base.Domains {
		matchFinder.domains[d.Name] = d
	}
	var matches []*match
	for i, o := range overrides {
		if o.Patch == nil {
			continue
		}
		m, problem := matchFinder.find(o)
		if problem != nil {
			outcomes[i].Problem, outcomes[i].IsWaiting = fields.Problems{*problem}, true
			continue
		}
		m.outcome = &outcomes[i]
		matches = append(matches, m)
	}
	slices.SortFunc(matches, func(a, b *match) int {
		overridesFirst := cmp.Compare(a.Kind, b.Kind) // "override" sorts before "switch", and other kinds have no match
		return cmp.Or(overridesFirst, slices.Compare(a.singleValues, b.singleValues), cmp.Compare(a.Target.String(), b.Target.String()))
	})
	for {
		set := buildSet(base, matches)
		fittingMatches := slices.DeleteFunc(slices.Clone(matches), func(m *match) bool { return m.outcome.Problem != nil })
		if len(fittingMatches) == len(matches) {
			applySwitches(set, overrides, outcomes)
			return set, outcomes
		}
		matches = fittingMatches
	}
}

type match struct {
	*Override
	outcome *outcome

	// trail has a descriptor of the base for each entry of the target.
	trail []*limitsfile.Descriptor

	// singleValues has an element for each entry of the target. It is 1 if the descriptor of trail matches many values and
	// the entry has a single one of these values. Otherwise it is 0.
	singleValues []int
}

func (o *Override) problem(path, format string, args ...any) fields.Problem {
	return limitsfile.TargetProblem(o.Kind.noun(), o.Target.String(), path, fmt.Sprintf(format, args...))
}

type finder struct {
	domains map[string]*limitsfile.Domain                  // the key is the name
	indexes map[**limitsfile.Descriptor]*descriptors.Index // the key is the address of the first element of a list
}

func (f *finder) find(o *Override) (*match, *fields.Problem) {
	result, target := &match{Override: o}, o.Target
	fail := func(format string, args ...any) (*match, *fields.Problem) {
		path := ""
		if f.domains[target.Domain] != nil {
			path = pathOf(target, len(result.trail))
		}
		p := o.problem(path, format, args...)
		return nil, &p
	}
	domain := f.domains[target.Domain]
	if domain == nil {
		return fail("%s", unknownDomain(target.Domain, slices.Sorted(maps.Keys(f.domains))))
	}
	list := domain.Descriptors
	for i, e := range target.Entries {
		if len(list) == 0 {
			return fail("the descriptor has no children")
		}
		if f.indexes[&list[0]] == nil {
			f.indexes[&list[0]] = descriptors.NewIndex(list)
		}
		index := f.indexes[&list[0]]
		d, isExact := index.Find(target.Entries[:i+1])
		if conditionOwner := index.ConditionOnOtherEntries(e.GetKey()); conditionOwner != nil && !isExact && e.GetValue() != "" {
			return fail("the value alone does not decide whether %s matches, because its expression reads other entries; want the target of a descriptor, such as %s",
				fields.Printable(entryText(e)), conditionOwner.Label())
		}
		if d == nil {
			return fail("unknown descriptor %s; %s", fields.Printable(entryText(e)), adviceForUnknown(list, e))
		}
		result.trail, result.singleValues = append(result.trail, d), append(result.singleValues, 1)
		if isExact {
			result.singleValues[i] = 0
		}
		list = d.Descriptors
	}
	return result, nil
}

func unknownDomain(domain string, names []string) string {
	advice := "no limits are loaded"
	if len(names) > 0 {
		advice = "want " + fields.OneOf(domain, names)
	}
	return fmt.Sprintf("unknown domain %s; %s", fields.Printable(domain), advice)
}

func pathOf(t descriptors.Target, n int) string {
	var trail []*limitsfile.Descriptor
	for _, e := range t.Entries[:n] {
		trail = append(trail, &limitsfile.Descriptor{Key: e.GetKey(), Value: e.GetValue()})
	}
	return limitsfile.Path(t.Domain, trail)
}

// buildSet returns base with the matches applied in their order. If a match does not fit, its outcome gets the problem.
func buildSet(base *limitsfile.Set, matches []*match) *limitsfile.Set {
	set := &limitsfile.Set{Warnings: base.Warnings}
	copiesLeft := maxCopies
	for _, d := range base.Domains {
		domain := *d
		b := &builder{&domain, &copiesLeft}
		var domainMatches []activeMatch
		for _, m := range matches {
			if m.Target.Domain == domain.Name {
				domainMatches = append(domainMatches, activeMatch{m, true})
			}
		}
		domain.Descriptors = b.buildChildren(d.Descriptors, nil, domainMatches)
		set.Domains = append(set.Domains, &domain)
	}
	return set
}

type builder struct {
	domain     *limitsfile.Domain
	copiesLeft *int // the number of copies that the builders may still make
}

// activeMatch is a match that applies at or below the descriptor that the builder makes.
type activeMatch struct {
	*match

	// isOnTarget reports whether the builder makes a descriptor of the target of the match. It is false if the match is for
	// any value, but the builder makes a copy for a single value.
	isOnTarget bool
}

// buildChildren returns list with the matches applied, and with copies for single values at the end. trail has the
// descriptors from the root of the domain to the parent of list.
func (b *builder) buildChildren(list, trail []*limitsfile.Descriptor, matches []activeMatch) []*limitsfile.Descriptor {
	if len(matches) == 0 {
		return list
	}
	depth := len(trail)
	matchesOf := map[*limitsfile.Descriptor][]activeMatch{}
	for _, m := range matches {
		matchesOf[m.trail[depth]] = append(matchesOf[m.trail[depth]], m)
	}
	list = slices.Clone(list)
	for i, original := range slices.Clone(list) {
		matches := matchesOf[original]
		if len(matches) == 0 {
			continue
		}
		indexes := map[string][]int{} // the indexes of the matches with the same entry; the key of matches for any value is ""
		for i, m := range matches {
			entry := ""
			if m.singleValues[depth] == 1 {
				entry = entryText(m.Target.Entries[depth])
			}
			indexes[entry] = append(indexes[entry], i)
		}
		d, deeperMatches := b.applyMatches(*original, trail, selectMatches(matches, depth, indexes[""]))
		d.Descriptors = b.buildChildren(original.Descriptors, slices.Clip(append(trail, d)), deeperMatches)
		list[i] = d
		for i, m := range matches {
			if m.singleValues[depth] == 0 {
				continue
			}
			sameEntry := indexes[entryText(m.Target.Entries[depth])]
			if sameEntry[0] < i {
				continue // the entry has a copy
			}
			selectedIndexes := slices.Concat(indexes[""], sameEntry)
			slices.Sort(selectedIndexes)
			if c := b.makeCopy(m, original, d, trail, selectMatches(matches, depth, selectedIndexes)); c != nil {
				list = append(list, c)
			}
		}
	}
	return list
}

// selectMatches returns the matches with these indexes. The builder makes the descriptor for a single value at depth if one
// of the matches has a single value. Otherwise it makes the descriptor for any value.
func selectMatches(matches []activeMatch, depth int, indexes []int) []activeMatch {
	isCopy := slices.ContainsFunc(indexes, func(i int) bool { return matches[i].singleValues[depth] == 1 })
	var selected []activeMatch
	for _, i := range indexes {
		m := matches[i]
		selected = append(selected, activeMatch{m.match, m.isOnTarget && isCopy == (m.singleValues[depth] == 1)})
	}
	return selected
}

// makeCopy returns a copy of original for the single value of m, with the matches applied. patchedOriginal is original with
// the matches for any value. The copy shares the children of patchedOriginal, unless a match for the single value changes a
// child. If there would be too many copies, makeCopy returns nil.
func (b *builder) makeCopy(m activeMatch, original, patchedOriginal *limitsfile.Descriptor, trail []*limitsfile.Descriptor, matches []activeMatch) *limitsfile.Descriptor {
	depth := len(trail)
	hasOwnChildren := slices.ContainsFunc(matches, func(m activeMatch) bool { return m.singleValues[depth] == 1 && len(m.trail) > depth+1 })
	copies := 1
	if hasOwnChildren {
		copies += countDescriptors(original.Descriptors, func(*limitsfile.Descriptor) bool { return true })
	}
	if copies > *b.copiesLeft {
		for _, m := range matches {
			if m.singleValues[depth] == 1 {
				reason := fmt.Sprintf("overrides for single values would copy more than %d descriptors, counting children", maxCopies)
				m.outcome.Problem = fields.Problems{m.problem(pathOf(m.Target, len(m.trail)), "%s", reason)}
			}
		}
		return nil
	}
	*b.copiesLeft -= copies
	c := *original
	c.Key, c.Value = m.Target.Entries[depth].GetKey(), m.Target.Entries[depth].GetValue()
	c.HasWildcardKey, c.HasWildcardValue, c.Condition = false, false, nil
	c.Original = original
	d, deeperMatches := b.applyMatches(c, trail, matches)
	d.ShareThreshold = false
	d.Descriptors = patchedOriginal.Descriptors
	if hasOwnChildren {
		d.Descriptors = b.buildChildren(original.Descriptors, slices.Clip(append(trail, d)), deeperMatches)
	}
	return d
}

// applyMatches applies the matches that end at d. It returns the changed descriptor, and the matches that end below d.
// trail has the descriptors from the root of the domain to the parent of d.
func (b *builder) applyMatches(d limitsfile.Descriptor, trail []*limitsfile.Descriptor, matches []activeMatch) (changed *limitsfile.Descriptor, deeperMatches []activeMatch) {
	trail = append(slices.Clip(trail), &d)
	for _, m := range matches {
		if len(m.trail) > len(trail) {
			deeperMatches = append(deeperMatches, m)
			continue
		}
		path, result := limitsfile.Path(b.domain.Name, trail), m.outcome
		if m.isOnTarget {
			result.Path, result.BaseLimits, result.Limits, result.KeepsCounters = path, d.Summary(), "", false
		}
		newDescriptor, problems := m.Apply(b.domain, path, &d)
		if len(problems) > 0 {
			if result.Problem == nil {
				result.Problem = problems
			}
			continue
		}
		newDescriptor.Overrides = append(slices.Clip(d.Overrides), limitsfile.AppliedOverride{
			Target: m.Target.String(), Notes: m.Override.Notes, IsSwitch: m.Kind == KindSwitch, BaseLimits: d.Summary(),
		})
		patterns := limitsfile.CounterPatterns(trail)
		newDescriptor.CounterPatterns = removeSingleValues(patterns, m.singleValues)
		if m.singleValues[len(trail)-1] == 1 {
			newDescriptor.ShareThreshold = false
		}
		if m.isOnTarget {
			result.Limits = newDescriptor.Summary()
			result.KeepsCounters = d.KeepsCounters(newDescriptor) && slices.Equal(patterns, newDescriptor.CounterPatterns)
		}
		d = *newDescriptor
	}
	return &d, deeperMatches
}

// removeSingleValues returns patterns without the patterns of single values. The result is never nil, because nil would
// mean that no override has changed the descriptor.
func removeSingleValues(patterns []string, singleValues []int) []string {
	result := append([]string{}, patterns...)
	for i := range result {
		if singleValues[i] == 1 {
			result[i] = ""
		}
	}
	return result
}

func entryText(e *ratelimitv3.RateLimitDescriptor_Entry) string {
	if e.GetValue() == "" {
		return e.GetKey()
	}
	return e.GetKey() + "=" + e.GetValue()
}

// adviceForUnknown says which descriptors of list the author of e can have meant.
func adviceForUnknown(list []*limitsfile.Descriptor, e *ratelimitv3.RateLimitDescriptor_Entry) string {
	const maxNames = 10
	if strings.Contains(e.GetKey()+e.GetValue(), "*") {
		return "a pattern must be written as in the limits file"
	}
	text, nameOf := entryText(e), (*limitsfile.Descriptor).Label
	if !slices.ContainsFunc(list, func(d *limitsfile.Descriptor) bool { return d.Key == e.GetKey() }) {
		text, nameOf = e.GetKey(), func(d *limitsfile.Descriptor) string { return fields.Printable(d.Key) }
	}
	var names []string
	for _, d := range list {
		if n := nameOf(d); !slices.Contains(names, n) {
			names = append(names, n)
		}
		if len(names) > maxNames {
			return fmt.Sprintf("want %s or another descriptor of this level", strings.Join(names[:maxNames], ", "))
		}
	}
	return "want " + fields.OneOf(text, names)
}
