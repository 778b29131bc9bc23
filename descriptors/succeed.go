package descriptors

import (
	"slices"
	"time"
)

// Succeed makes c ready to take old's place at now: a limit that counts in another
// way than the one in its place before learns of that one (limit.Limit.After), so
// that what was spent is carried over. c must not be in force yet; old can be nil.
//
// In the place of a limit was the one of the same descriptor, else the one that its
// requests met before; of several, that of the same algorithm, window and scope, else
// of the same window and scope, else the one at the same place in the list. Where a
// descriptor for one value is gone, its requests have an heir; where a pattern is, what
// its requests meet now learns of it, too.
func (c *Config) Succeed(old *Config, now time.Time) {
	if old == nil {
		return
	}
	s := succession{now: now.UnixMicro(), room: maxHeirs, known: map[[2]*tier]bool{}}
	for _, d := range c.order {
		if was := old.domains[d.Name]; was != nil {
			s.tier(&d.root, &was.root)
		}
	}
}

// maxHeirs bounds the heirs, with those below them that they don't share, and so memory.
const maxHeirs = 20_000

// succession is one Succeed.
type succession struct {
	now  int64
	room int // how many descriptors heirs can still have

	known map[[2]*tier]bool // what learnsBelow has told
}

func (s *succession) tier(t, old *tier) {
	for _, is := range t.nodes {
		if was := old.before(is); was != nil {
			s.node(is, was)
		}
	}
	for _, was := range old.nodes {
		if is := t.after(was); is != nil {
			s.node(is, was)
		}
	}
	for _, was := range old.nodes {
		if was.forOneValue() && t.same(was) == nil {
			s.heir(t, was)
		}
	}
}

func (s *succession) node(is, was *node) {
	if is.rule != nil && was.rule != nil {
		is.rule.succeed(was.rule, s.now)
	}
	if is.children == nil || was.children == nil {
		return
	}
	if is.borrows { // who lends them sees to them, unless was had its own
		if was.borrows || !s.learnsBelow(is.children, was.children) || !is.own(&s.room) {
			return
		}
		is.unseen = true
	}
	s.tier(is.children, was.children)
}

// heir adds to t a descriptor for the value of was, which is gone: as the one that it
// meets now, but with limits that know what was spent under was. None where that is
// known anyway, or can't be, as the value shares its counter now.
func (s *succession) heir(t *tier, was *node) {
	n := t.find(was.key, was.value)
	if n == nil || n.share || !s.learns(n, was) {
		return
	}
	if s.room == 0 {
		return
	}
	s.room--
	heir := n.forOne(n.parent, was.key, was.value)
	heir.heir = true
	if s.node(heir, was); heir.hasPast() {
		t.add(heir)
	}
}

// learns tells whether a limit of is, or below it, would learn of was.
func (s *succession) learns(is, was *node) bool {
	if is.rule != nil && was.rule != nil {
		for i, l := range is.rule.Limits {
			if before := is.rule.before(i, was.rule); before != nil && l.After(before.Limit, s.now).HasPast() {
				return true
			}
		}
	}
	return is.children != nil && was.children != nil && s.learnsBelow(is.children, was.children)
}

// learnsBelow is learns for all of is and was.
func (s *succession) learnsBelow(is, was *tier) bool {
	pair := [2]*tier{is, was}
	learns, known := s.known[pair]
	if !known {
		learns = s.anyLearns(is, was)
		s.known[pair] = learns
	}
	return learns
}

// anyLearns goes through the pairs that tier would.
func (s *succession) anyLearns(is, was *tier) bool {
	for _, i := range is.nodes {
		if w := was.before(i); w != nil && s.learns(i, w) {
			return true
		}
	}
	for _, w := range was.nodes {
		if i := is.after(w); i != nil && s.learns(i, w) {
			return true
		}
		if w.forOneValue() && is.same(w) == nil {
			if i := is.find(w.key, w.value); i != nil && !i.share && s.learns(i, w) {
				return true
			}
		}
	}
	return false
}

// before is the descriptor of t that requests met which now meet is; nil if there was
// none.
func (t *tier) before(is *node) *node {
	was := t.same(is)
	if was != nil || is.keyWild || is.valueWild && is.share {
		return was
	}
	return t.find(is.key, is.value) // of a pattern, one that is wider
}

// after is the descriptor of t that the requests meet now which met the pattern was,
// if that is gone and each of its values had a counter; nil if there is none.
func (t *tier) after(was *node) *node {
	if !was.valueWild || was.keyWild || was.share || t.same(was) != nil {
		return nil
	}
	is := t.find(was.key, was.value)
	if is != nil && is.share {
		return nil
	}
	return is
}

// forOneValue tells whether n has a value, without a *.
func (n *node) forOneValue() bool { return n.value != "" && !n.keyWild && !n.valueWild }

// hasPast tells whether a limit of n, or below it, has a past.
func (n *node) hasPast() bool {
	if n.rule != nil {
		for _, l := range n.rule.Limits {
			if !l.Unlimited && l.HasPast() {
				return true
			}
		}
	}
	return n.children != nil && !n.borrows && slices.ContainsFunc(n.children.nodes, (*node).hasPast)
}

func (r *Rule) succeed(old *Rule, now int64) {
	for i, l := range r.Limits {
		if was := r.before(i, old); was != nil && !l.Unlimited {
			l.Limit = l.After(was.Limit, now)
		}
	}
}

// before is the limit of old in whose place is the i-th of r; nil if there is none
// that counted.
func (r *Rule) before(i int, old *Rule) *RateLimit {
	if r.Limits[i].Unlimited {
		return nil
	}
	if same := old.counting(r.Limits[i].Tag()); same != nil {
		return same
	}
	if was := old.alike(r.Limits[i], r); was != nil {
		return was
	}
	if i >= len(old.Limits) || old.Limits[i].Unlimited {
		return nil
	}
	if was := old.Limits[i]; r.counting(was.Tag()) == nil && r.alike(was, old) == nil {
		return was
	}
	return nil
}

// alike is the first limit of r with l's window and scope, but for those that have the
// counters of a limit of other; nil if there is none.
func (r *Rule) alike(l *RateLimit, other *Rule) *RateLimit {
	for _, a := range r.Limits {
		if !a.Unlimited && a.Period() == l.Period() && a.Scope == l.Scope && other.counting(a.Tag()) == nil {
			return a
		}
	}
	return nil
}

// counting is the limit of r whose counters have that tag; nil if there is none.
func (r *Rule) counting(tag string) *RateLimit {
	for _, l := range r.Limits {
		if !l.Unlimited && l.Tag() == tag {
			return l
		}
	}
	return nil
}
