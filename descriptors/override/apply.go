package override

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// maxCopies bounds the descriptors that are copied for single values, with those below
// them that they don't share with the original. It bounds memory.
const maxCopies = 100_000

// outcome is the result of applying one override.
type outcome struct {
	problems limitsfile.Problems // why it is not in force; none if it is
	path     string              // of its descriptor

	// baseLimits and limits are the limits without and with it, in words.
	baseLimits, limits string

	// countersKept is true if the limits with it use the counters of those without.
	countersKept bool
}

// apply returns base with overrides of different targets, and the outcome of each.
// Overrides that don't fit are left out.
//
// All overrides that fit a request apply to it, in an order of their own: an override
// for any value comes before one for a single value. Of tenant=acme > path and
// tenant > path=/a the second comes first, because the first differs in an earlier entry.
func apply(base *limitsfile.Set, overrides []*Override) (*limitsfile.Set, []outcome) {
	o := newOverlay(base)
	outcomes := make([]outcome, len(overrides))
	ranks := make([]rank, len(overrides))
	for i, ov := range overrides {
		ranks[i] = rank{i, o.singleValues(ov.Target), ov.Target.String()}
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

// overlay is a set while overrides are applied to it. Descriptors and lists of the base
// are copied before they are changed.
type overlay struct {
	set    *limitsfile.Set
	copied map[*limitsfile.Descriptor]bool // those that may be changed
	room   int                             // copies for single values that are left

	// shared has the indexes of lists that must not be changed, and owned
	// those of lists that may be changed.
	shared map[listID]*index
	owned  map[*[]*limitsfile.Descriptor]*index
}

func newOverlay(base *limitsfile.Set) *overlay {
	o := &overlay{
		set:    &limitsfile.Set{Warnings: base.Warnings},
		copied: map[*limitsfile.Descriptor]bool{},
		room:   maxCopies,
		shared: map[listID]*index{},
		owned:  map[*[]*limitsfile.Descriptor]*index{},
	}
	for _, d := range base.Domains {
		domain := *d
		o.set.Domains = append(o.set.Domains, &domain)
	}
	return o
}

// singleValues returns for each entry of t 1 if it stands for a single value of a
// descriptor for many, else 0. A copy for a single value has all that is below the
// original, so overrides below the original must be applied before.
func (o *overlay) singleValues(t descriptors.Target) []int {
	domain := o.set.Domain(t.Domain)
	if domain == nil {
		return nil
	}
	var values []int
	list := &domain.Descriptors
	for _, e := range t.Entries {
		i, exact := o.index(list).find(e)
		if i < 0 {
			break
		}
		if exact {
			values = append(values, 0)
		} else {
			values = append(values, 1)
		}
		list = &(*list)[i].Descriptors
	}
	return values
}

// apply applies ov, or leaves it out and reports why.
func (o *overlay) apply(ov *Override) outcome {
	domain, trail, problem := o.lookUp(ov.Target)
	if problem != nil {
		return outcome{problems: limitsfile.Problems{*problem}}
	}
	out := outcome{path: pathOf(ov.Target, len(ov.Target.Entries))}
	found, patterns := trail[len(trail)-1], limitsfile.CounterPatterns(trail)
	out.baseLimits = found.Summary()
	// All is checked before anything is changed.
	if _, out.problems = ov.Apply(domain, out.path, found); len(out.problems) > 0 {
		return out
	}
	targets := o.descriptors(&domain.Descriptors, nil, ov.Target.Entries)
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
	out.countersKept = found.KeepsCounters(changed[0]) && slices.Equal(patterns, changed[0].CounterPatterns)
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

// lookUp returns the descriptors that t matches, or a problem.
func (o *overlay) lookUp(t descriptors.Target) (domain *limitsfile.Domain, trail []*limitsfile.Descriptor, problem *limitsfile.Problem) {
	fail := func(path, format string, args ...any) (*limitsfile.Domain, []*limitsfile.Descriptor, *limitsfile.Problem) {
		p := limitsfile.PatchProblem(t.String(), path, fmt.Sprintf(format, args...))
		return nil, nil, &p
	}
	if domain = o.set.Domain(t.Domain); domain == nil {
		var names []string
		for _, d := range o.set.Domains {
			names = append(names, d.Name)
		}
		advice := "no limits are loaded"
		if len(names) > 0 {
			slices.Sort(names)
			advice = "want " + limitsfile.OneOf(t.Domain, names)
		}
		return fail("", "unknown domain %s; %s", limitsfile.Printable(t.Domain), advice)
	}
	list := &domain.Descriptors
	for i, e := range t.Entries {
		if len(*list) == 0 {
			return fail(pathOf(t, i), "the descriptor has no children")
		}
		found, _ := o.index(list).find(e)
		if found < 0 {
			return fail(pathOf(t, i), "unknown descriptor %s; %s", limitsfile.Printable(entryText(e)), advice(*list, e))
		}
		trail = append(trail, (*list)[found])
		list = &(*list)[found].Descriptors
	}
	return domain, trail, nil
}

// descriptors returns the trails to the descriptors that entries name below trail: first
// the one of that key and value, which is made if there is none, then its copies for
// single values, with those below copies on the way. All may be changed. It returns none
// if there is no room. lookUp has found the first.
func (o *overlay) descriptors(list *[]*limitsfile.Descriptor, trail []*limitsfile.Descriptor, entries []*ratelimitv3.RateLimitDescriptor_Entry) [][]*limitsfile.Descriptor {
	e, last := entries[0], len(entries) == 1
	i, exact := o.index(list).find(e)
	d := (*list)[i]
	need := 0
	if !exact {
		need = 1
	}
	if !last && (!exact || o.sharesChildren(list, d)) {
		need += o.size(d.Descriptors)
	}
	if need > o.room {
		return nil
	}
	o.room -= need
	if !exact {
		i = o.copyFor(list, i, e)
	}
	d = o.change(list, i)
	copies := o.index(list).copies[i]
	trail = slices.Clip(append(trail, d))
	if last {
		all := [][]*limitsfile.Descriptor{trail}
		for _, c := range copies {
			all = append(all, append(slices.Clone(trail[:len(trail)-1]), o.change(list, c)))
		}
		return all
	}
	before := d.Descriptors
	all := o.descriptors(&d.Descriptors, trail, entries[1:])
	for _, c := range copies {
		if len(all) == 0 {
			break
		}
		other := o.change(list, c)
		if sameList(other.Descriptors, before) {
			other.Descriptors = d.Descriptors
			continue
		}
		all = append(all, o.descriptors(&other.Descriptors, slices.Clip(append(slices.Clone(trail[:len(trail)-1]), other)), entries[1:])...)
	}
	return all
}

// copyFor adds a copy of the i-th descriptor of list for e alone, and returns its index.
// The copy shares the children of the original.
func (o *overlay) copyFor(list *[]*limitsfile.Descriptor, i int, e *ratelimitv3.RateLimitDescriptor_Entry) int {
	x := o.own(list)
	from := (*list)[i]
	c := *from
	c.Key, c.Value = e.GetKey(), e.GetValue()
	c.WildcardKey, c.WildcardValue, c.ShareThreshold = false, false, false
	c.CopiedFrom = from
	o.copied[&c] = true
	*list = append(*list, &c)
	last := len(*list) - 1
	x.byName[[2]string{c.Key, c.Value}] = last
	x.copies[i] = append(slices.Clip(x.copies[i]), last)
	return last
}

// change returns the i-th descriptor of list, which may then be changed.
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

// own makes list one that may be changed.
func (o *overlay) own(list *[]*limitsfile.Descriptor) *index {
	x := o.owned[list]
	if x == nil {
		x = o.index(list).clone()
		*list = slices.Clone(*list)
		o.owned[list] = x
		for _, d := range *list {
			delete(o.copied, d) // it is in another list, too
		}
	}
	return x
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

// advice returns which descriptors of list could have been meant by e.
func advice(list []*limitsfile.Descriptor, e *ratelimitv3.RateLimitDescriptor_Entry) string {
	const longest = 10 // names
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
		if len(names) > longest {
			return fmt.Sprintf("want %s or another one", strings.Join(names[:longest], ", "))
		}
	}
	return "want " + limitsfile.OneOf(text, names)
}
