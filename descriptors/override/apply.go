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
// leaves out overrides that don't fit.
//
// Several overrides can apply to one request. An override for any value applies before an
// override for a single value. The first entry in which two targets differ decides, so
// tenant > path=/a applies before tenant=acme > path.
func apply(base *limitsfile.Set, overrides []*Override) (*limitsfile.Set, []outcome) {
	o := newOverlay(base)
	outcomes := make([]outcome, len(overrides))
	ranks := make([]rank, len(overrides))
	for i, ov := range overrides {
		m, _ := o.lookUp(ov.Target)
		ranks[i] = rank{i, m.singleValues, ov.Target.String()}
	}
	slices.SortFunc(ranks, func(a, b rank) int {
		return cmp.Or(slices.Compare(a.singleValues, b.singleValues), cmp.Compare(a.target, b.target))
	})
	for _, r := range ranks {
		outcomes[r.index] = o.apply(overrides[r.index])
	}
	return o.set, outcomes
}

// rank is the place of an override in the order of application.
type rank struct {
	index        int
	singleValues []int
	target       string
}

// overlay is a set to which overrides are applied. It copies descriptors and lists of the
// base before it changes them.
type overlay struct {
	set     *limitsfile.Set
	domains map[string]*limitsfile.Domain   // by name
	copied  map[*limitsfile.Descriptor]bool // descriptors that may be changed

	// copiesLeft is the number of copies for single values that may still be made.
	copiesLeft int

	// shared indexes lists that must not be changed. owned indexes copied lists.
	shared map[listID]*index
	owned  map[*[]*limitsfile.Descriptor]*index
}

func newOverlay(base *limitsfile.Set) *overlay {
	o := &overlay{
		set:        &limitsfile.Set{Warnings: base.Warnings},
		domains:    map[string]*limitsfile.Domain{},
		copied:     map[*limitsfile.Descriptor]bool{},
		copiesLeft: maxCopies,
		shared:     map[listID]*index{},
		owned:      map[*[]*limitsfile.Descriptor]*index{},
	}
	for _, d := range base.Domains {
		domain := *d
		o.set.Domains = append(o.set.Domains, &domain)
		o.domains[domain.Name] = &domain
	}
	return o
}

// apply applies ov, or leaves it out and reports why.
func (o *overlay) apply(ov *Override) outcome {
	m, problem := o.lookUp(ov.Target)
	if problem != nil {
		return outcome{problems: limitsfile.Problems{*problem}}
	}
	out := outcome{path: pathOf(ov.Target, len(ov.Target.Entries))}
	domain, base, patterns := m.domain, m.trail[len(m.trail)-1], limitsfile.CounterPatterns(m.trail)
	out.baseLimits = base.Summary()
	// All checks come before the first change.
	if _, out.problems = ov.Apply(domain, out.path, base); len(out.problems) > 0 {
		return out
	}
	targets := o.ownTrails(&domain.Descriptors, nil, ov.Target.Entries)
	if len(targets) == 0 {
		reason := fmt.Sprintf("overrides for single values would copy more than %d descriptors, with their children", maxCopies)
		out.problems = limitsfile.Problems{limitsfile.PatchProblem(ov.Target.String(), out.path, reason)}
		return out
	}
	changed := make([]*limitsfile.Descriptor, len(targets))
	for i, trail := range targets {
		path := limitsfile.Path(domain.Name, trail)
		if changed[i], out.problems = ov.Apply(domain, path, trail[len(trail)-1]); len(out.problems) > 0 {
			return out
		}
		changed[i].CounterPatterns = append([]string{}, limitsfile.SharedPatterns(trail)...)
	}
	for i, trail := range targets {
		*trail[len(trail)-1] = *changed[i]
	}
	out.limits = changed[0].Summary()
	out.countersKept = base.KeepsCounters(changed[0]) && slices.Equal(patterns, changed[0].CounterPatterns)
	return out
}

// pathOf returns the path of the first n entries of t.
func pathOf(t descriptors.Target, n int) string {
	var trail []*limitsfile.Descriptor
	for _, e := range t.Entries[:n] {
		trail = append(trail, &limitsfile.Descriptor{Key: e.GetKey(), Value: e.GetValue()})
	}
	return limitsfile.Path(t.Domain, trail)
}

// match is the descriptors that a target matches.
type match struct {
	domain *limitsfile.Domain
	trail  []*limitsfile.Descriptor

	// singleValues has a number for each entry: 1 if the entry is a single value of a
	// descriptor that matches many values, else 0. A copy for a single value gets the
	// children of the original, so overrides of these children must be applied first.
	singleValues []int
}

// lookUp returns the match of t, as far as t matches, and a problem unless all of t does.
func (o *overlay) lookUp(t descriptors.Target) (m match, problem *limitsfile.Problem) {
	fail := func(path, format string, args ...any) (match, *limitsfile.Problem) {
		p := limitsfile.PatchProblem(t.String(), path, fmt.Sprintf(format, args...))
		return m, &p
	}
	if m.domain = o.domains[t.Domain]; m.domain == nil {
		names := slices.Sorted(maps.Keys(o.domains))
		advice := "no limits are loaded"
		if len(names) > 0 {
			advice = "want " + limitsfile.OneOf(t.Domain, names)
		}
		return fail("", "unknown domain %s; %s", limitsfile.Printable(t.Domain), advice)
	}
	list := &m.domain.Descriptors
	for i, e := range t.Entries {
		if len(*list) == 0 {
			return fail(pathOf(t, i), "the descriptor has no children")
		}
		found, exact := o.index(list).find(e)
		if found < 0 {
			return fail(pathOf(t, i), "unknown descriptor %s; %s", limitsfile.Printable(entryText(e)), advice(*list, e))
		}
		single := 1
		if exact {
			single = 0
		}
		m.trail, m.singleValues = append(m.trail, (*list)[found]), append(m.singleValues, single)
		list = &(*list)[found].Descriptors
	}
	return m, nil
}

// ownTrails returns the trails to the descriptors that entries name below trail. The first
// trail leads to the descriptor with exactly the keys and values of entries. ownTrails makes
// this descriptor if necessary. The other trails lead to its copies for single values. All
// these descriptors may be changed. The result is empty if too many copies would be made.
// lookUp must have found the first trail.
func (o *overlay) ownTrails(list *[]*limitsfile.Descriptor, trail []*limitsfile.Descriptor, entries []*ratelimitv3.RateLimitDescriptor_Entry) [][]*limitsfile.Descriptor {
	e, last := entries[0], len(entries) == 1
	i, exact := o.index(list).find(e)
	d := (*list)[i]
	newCopies := 0
	if !exact {
		newCopies = 1
	}
	if !last && (!exact || o.sharesChildren(list, d)) {
		newCopies += o.size(d.Descriptors)
	}
	if newCopies > o.copiesLeft {
		return nil
	}
	o.copiesLeft -= newCopies
	if !exact {
		i = o.copyFor(list, i, e)
	}
	d = o.change(list, i)
	copies := o.index(list).copies[i]
	trail = slices.Clip(append(trail, d))
	if last {
		trails := [][]*limitsfile.Descriptor{trail}
		for _, c := range copies {
			trails = append(trails, append(slices.Clone(trail[:len(trail)-1]), o.change(list, c)))
		}
		return trails
	}
	oldChildren := d.Descriptors
	trails := o.ownTrails(&d.Descriptors, trail, entries[1:])
	for _, c := range copies {
		if len(trails) == 0 {
			break
		}
		sibling := o.change(list, c)
		if sameList(sibling.Descriptors, oldChildren) {
			sibling.Descriptors = d.Descriptors
			continue
		}
		trails = append(trails, o.ownTrails(&sibling.Descriptors, slices.Clip(append(slices.Clone(trail[:len(trail)-1]), sibling)), entries[1:])...)
	}
	return trails
}

// copyFor adds a copy of the i-th descriptor of list for e alone, and returns its index.
// The copy shares the children of the original.
func (o *overlay) copyFor(list *[]*limitsfile.Descriptor, i int, e *ratelimitv3.RateLimitDescriptor_Entry) int {
	ownIndex := o.own(list)
	original := (*list)[i]
	c := *original
	c.Key, c.Value = e.GetKey(), e.GetValue()
	c.WildcardKey, c.WildcardValue, c.ShareThreshold = false, false, false
	c.CopiedFrom = original
	o.copied[&c] = true
	*list = append(*list, &c)
	last := len(*list) - 1
	ownIndex.byName[[2]string{c.Key, c.Value}] = last
	ownIndex.copies[i] = append(slices.Clip(ownIndex.copies[i]), last)
	return last
}

// change copies the i-th descriptor of list, unless it is a copy already, and returns it.
func (o *overlay) change(list *[]*limitsfile.Descriptor, i int) *limitsfile.Descriptor {
	o.own(list)
	d := (*list)[i]
	if o.copied[d] {
		return d
	}
	c := *d
	o.copied[&c] = true
	(*list)[i] = &c
	return &c
}

// own copies list, unless it is a copy already, and returns its index.
func (o *overlay) own(list *[]*limitsfile.Descriptor) *index {
	ownIndex := o.owned[list]
	if ownIndex == nil {
		ownIndex = o.index(list).clone()
		*list = slices.Clone(*list)
		o.owned[list] = ownIndex
		for _, d := range *list {
			delete(o.copied, d) // the original list has the descriptor too
		}
	}
	return ownIndex
}

// size returns the number of descriptors in list and below it.
func (o *overlay) size(list []*limitsfile.Descriptor) int {
	size := len(list)
	for _, d := range list {
		if len(d.Descriptors) > 0 && !o.sharesChildren(&list, d) {
			size += o.size(d.Descriptors)
		}
	}
	return size
}

// sharesChildren reports whether d, which is in list, has the children of the descriptor
// that it was copied from.
func (o *overlay) sharesChildren(list *[]*limitsfile.Descriptor, d *limitsfile.Descriptor) bool {
	if d.CopiedFrom == nil {
		return false
	}
	i, ok := o.index(list).byName[[2]string{d.CopiedFrom.Key, d.CopiedFrom.Value}]
	return ok && sameList((*list)[i].Descriptors, d.Descriptors)
}

func sameList(a, b []*limitsfile.Descriptor) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
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
