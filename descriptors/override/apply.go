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
)

// maxCopies bounds the descriptors that are copied for single values, and the copies of
// their children. It bounds memory.
const maxCopies = 100_000

// outcome is the result of applying one override.
type outcome struct {
	problems limitsfile.Problems // why the override is not in force, or empty
	path     string              // of the descriptor

	// baseLimits and limits describe the limits without and with the override.
	baseLimits, limits string

	// countersKept reports that limits uses the counters of baseLimits.
	countersKept bool
}

// apply returns base with overrides of different targets, and the outcome of each. It
// leaves out overrides that don't fit. Descriptors that no override changes are shared with
// base.
//
// Several overrides can apply to one request. An override for any value applies before an
// override for a single value. The first entry in which two targets differ decides, so
// tenant > path=/a applies before tenant=acme > path.
func apply(base *limitsfile.Set, overrides []*Override) (*limitsfile.Set, []outcome) {
	outcomes := make([]outcome, len(overrides))
	f := newFinder(base)
	var matches []*match
	for i, o := range overrides {
		m, problem := f.find(o)
		if problem != nil {
			outcomes[i].problems = limitsfile.Problems{*problem}
			continue
		}
		m.outcome = &outcomes[i]
		matches = append(matches, m)
	}
	slices.SortFunc(matches, func(a, b *match) int {
		return cmp.Or(slices.Compare(a.singleValues, b.singleValues), cmp.Compare(a.Target.String(), b.Target.String()))
	})
	for {
		set := build(base, matches)
		fitting := slices.DeleteFunc(slices.Clone(matches), func(m *match) bool { return len(m.outcome.problems) > 0 })
		if len(fitting) == len(matches) {
			return set, outcomes
		}
		matches = fitting
	}
}

// match is an override and the descriptors that its target matches.
type match struct {
	*Override
	outcome *outcome

	// trail has a descriptor of the base for each entry of the target.
	trail []*limitsfile.Descriptor

	// singleValues has a number for each entry of the target: 1 if the entry is a single
	// value of a descriptor that matches many values, else 0.
	singleValues []int
}

// finder finds the descriptors of targets in a set.
type finder struct {
	domains map[string]*limitsfile.Domain                  // by name
	indexes map[**limitsfile.Descriptor]*descriptors.Index // by the first element of the list
}

func newFinder(set *limitsfile.Set) *finder {
	f := &finder{map[string]*limitsfile.Domain{}, map[**limitsfile.Descriptor]*descriptors.Index{}}
	for _, d := range set.Domains {
		f.domains[d.Name] = d
	}
	return f
}

// find returns the match of o, or a problem.
func (f *finder) find(o *Override) (*match, *limitsfile.Problem) {
	m, t := &match{Override: o}, o.Target
	fail := func(format string, args ...any) (*match, *limitsfile.Problem) {
		path := ""
		if f.domains[t.Domain] != nil {
			path = pathOf(t, len(m.trail))
		}
		p := limitsfile.PatchProblem(t.String(), path, fmt.Sprintf(format, args...))
		return nil, &p
	}
	domain := f.domains[t.Domain]
	if domain == nil {
		advice := "no limits are loaded"
		if len(f.domains) > 0 {
			advice = "want " + limitsfile.OneOf(t.Domain, slices.Sorted(maps.Keys(f.domains)))
		}
		return fail("unknown domain %s; %s", limitsfile.Printable(t.Domain), advice)
	}
	list := domain.Descriptors
	for _, e := range t.Entries {
		if len(list) == 0 {
			return fail("the descriptor has no children")
		}
		if f.indexes[&list[0]] == nil {
			f.indexes[&list[0]] = descriptors.NewIndex(list)
		}
		d, exact := f.indexes[&list[0]].Find(e)
		if d == nil {
			return fail("unknown descriptor %s; %s", limitsfile.Printable(entryText(e)), advice(list, e))
		}
		single := 1
		if exact {
			single = 0
		}
		m.trail, m.singleValues = append(m.trail, d), append(m.singleValues, single)
		list = d.Descriptors
	}
	return m, nil
}

// pathOf returns the path of the first n entries of t.
func pathOf(t descriptors.Target, n int) string {
	var trail []*limitsfile.Descriptor
	for _, e := range t.Entries[:n] {
		trail = append(trail, &limitsfile.Descriptor{Key: e.GetKey(), Value: e.GetValue()})
	}
	return limitsfile.Path(t.Domain, trail)
}

// build returns base with the matches applied in their order. It reports problems in the
// outcomes.
func build(base *limitsfile.Set, matches []*match) *limitsfile.Set {
	set := &limitsfile.Set{Warnings: base.Warnings}
	copiesLeft := maxCopies
	for _, d := range base.Domains {
		domain := *d
		b := &builder{&domain, &copiesLeft}
		var steps []step
		for _, m := range matches {
			if m.Target.Domain == domain.Name {
				steps = append(steps, step{m, true})
			}
		}
		domain.Descriptors = b.children(d.Descriptors, nil, steps)
		set.Domains = append(set.Domains, &domain)
	}
	return set
}

// builder builds one domain.
type builder struct {
	domain     *limitsfile.Domain
	copiesLeft *int // copies that may still be made
}

// step is a match on its way down the tree.
type step struct {
	*match

	// onTarget is true on the way to the descriptor that the target names. It is false
	// on the way to a copy for a single value, if the match is for any value.
	onTarget bool
}

// children returns list with the steps applied; trail leads to its parent. It appends the
// copies for single values.
func (b *builder) children(list, trail []*limitsfile.Descriptor, steps []step) []*limitsfile.Descriptor {
	if len(steps) == 0 {
		return list
	}
	depth := len(trail)
	byDescriptor := map[*limitsfile.Descriptor][]step{}
	for _, s := range steps {
		byDescriptor[s.trail[depth]] = append(byDescriptor[s.trail[depth]], s)
	}
	list = slices.Clone(list)
	for i, original := range slices.Clone(list) {
		steps := byDescriptor[original]
		if len(steps) == 0 {
			continue
		}
		d, below := b.change(*original, trail, choose(steps, depth, ""))
		d.Descriptors = b.children(original.Descriptors, slices.Clip(append(trail, d)), below)
		list[i] = d
		copied := map[string]bool{}
		for _, s := range steps {
			value := entryText(s.Target.Entries[depth])
			if s.singleValues[depth] == 0 || copied[value] {
				continue
			}
			copied[value] = true
			if c := b.copyFor(s, original, d, trail, choose(steps, depth, value)); c != nil {
				list = append(list, c)
			}
		}
	}
	return list
}

// choose returns the steps for any value at depth and, if value is not empty, for value.
func choose(steps []step, depth int, value string) []step {
	var chosen []step
	for _, s := range steps {
		isSingle := s.singleValues[depth] == 1
		if isSingle && entryText(s.Target.Entries[depth]) != value {
			continue
		}
		chosen = append(chosen, step{s.match, s.onTarget && isSingle == (value != "")})
	}
	return chosen
}

// copyFor returns a copy of original for the single value of s, with the steps applied. The
// copy shares the children of changed, which is original with the steps for any value,
// unless a step for the single value goes further down. copyFor returns nil if there would
// be too many copies.
func (b *builder) copyFor(s step, original, changed *limitsfile.Descriptor, trail []*limitsfile.Descriptor, steps []step) *limitsfile.Descriptor {
	depth := len(trail)
	ownChildren := slices.ContainsFunc(steps, func(s step) bool { return s.singleValues[depth] == 1 && len(s.trail) > depth+1 })
	copies := 1
	if ownChildren {
		copies += size(original.Descriptors)
	}
	if copies > *b.copiesLeft {
		for _, s := range steps {
			if s.singleValues[depth] == 1 {
				reason := fmt.Sprintf("overrides for single values would copy more than %d descriptors, with their children", maxCopies)
				s.outcome.problems = limitsfile.Problems{limitsfile.PatchProblem(s.Target.String(), pathOf(s.Target, len(s.trail)), reason)}
			}
		}
		return nil
	}
	*b.copiesLeft -= copies
	c := *original
	c.Key, c.Value = s.Target.Entries[depth].GetKey(), s.Target.Entries[depth].GetValue()
	c.WildcardKey, c.WildcardValue = false, false
	c.CopiedFrom = original
	d, below := b.change(c, trail, steps)
	d.ShareThreshold = false
	d.Descriptors = changed.Descriptors
	if ownChildren {
		d.Descriptors = b.children(original.Descriptors, slices.Clip(append(trail, d)), below)
	}
	return d
}

// size returns the number of descriptors in list and below it.
func size(list []*limitsfile.Descriptor) int {
	n := len(list)
	for _, d := range list {
		n += size(d.Descriptors)
	}
	return n
}

// change returns d, a child of the last descriptor of trail, after the steps that end
// there. The other steps go further down.
func (b *builder) change(d limitsfile.Descriptor, trail []*limitsfile.Descriptor, steps []step) (changed *limitsfile.Descriptor, below []step) {
	trail = append(slices.Clip(trail), &d)
	for _, s := range steps {
		if len(s.trail) > len(trail) {
			below = append(below, s)
			continue
		}
		path, out := limitsfile.Path(b.domain.Name, trail), s.outcome
		if s.onTarget {
			out.path, out.baseLimits, out.limits, out.countersKept = path, d.Summary(), "", false
		}
		changed, problems := s.Apply(b.domain, path, &d)
		if len(problems) > 0 {
			if len(out.problems) == 0 {
				out.problems = problems
			}
			continue
		}
		patterns := limitsfile.CounterPatterns(trail)
		changed.CounterPatterns = ownCounter(patterns, s.singleValues)
		if s.singleValues[len(trail)-1] == 1 {
			changed.ShareThreshold = false
		}
		if s.onTarget {
			out.limits = changed.Summary()
			out.countersKept = d.KeepsCounters(changed) && slices.Equal(patterns, changed.CounterPatterns)
		}
		d = *changed
	}
	return &d, below
}

// ownCounter returns patterns without those of entries that are a single value.
func ownCounter(patterns []string, singleValues []int) []string {
	own := append([]string{}, patterns...)
	for i := range own {
		if singleValues[i] == 1 {
			own[i] = ""
		}
	}
	return own
}

func entryText(e *ratelimitv3.RateLimitDescriptor_Entry) string {
	if e.GetValue() == "" {
		return e.GetKey()
	}
	return e.GetKey() + "=" + e.GetValue()
}

// advice names the descriptors of list that e could mean.
func advice(list []*limitsfile.Descriptor, e *ratelimitv3.RateLimitDescriptor_Entry) string {
	const maxNames = 10
	if strings.Contains(e.GetKey()+e.GetValue(), "*") {
		return "a pattern must be written as in the limits file"
	}
	text, name := entryText(e), (*limitsfile.Descriptor).Label
	if !slices.ContainsFunc(list, func(d *limitsfile.Descriptor) bool { return d.Key == e.GetKey() }) {
		text, name = e.GetKey(), func(d *limitsfile.Descriptor) string { return limitsfile.Printable(d.Key) }
	}
	var names []string
	for _, d := range list {
		if n := name(d); !slices.Contains(names, n) {
			names = append(names, n)
		}
		if len(names) > maxNames {
			return fmt.Sprintf("want %s or another one", strings.Join(names[:maxNames], ", "))
		}
	}
	return "want " + limitsfile.OneOf(text, names)
}
