package descriptors

import (
	"google.golang.org/protobuf/proto"
)

// Changes are the paths of the descriptors by whose limits one Config differs from
// another, in file order.
type Changes struct{ Added, Changed, Removed []string }

// Rules is how many descriptors have limits that are in force.
func (c *Config) Rules() int {
	n := 0
	for _, d := range c.order {
		d.root.each(func(at *node) {
			if at.rule != nil {
				n++
			}
		})
	}
	return n
}

// ChangesFrom tells how c differs from old, which can be nil.
func (c *Config) ChangesFrom(old *Config) Changes {
	var all Changes
	c.eachPair(old, func(was, is *node) {
		switch {
		case was == nil:
			all.Added = append(all.Added, is.path())
		case was.describe() != is.describe() || !proto.Equal(was.metadata, is.metadata):
			all.Changed = append(all.Changed, is.path())
		}
	})
	if old != nil {
		old.eachPair(c, func(is, was *node) {
			if is == nil {
				all.Removed = append(all.Removed, was.path())
			}
		})
	}
	return all
}

// eachPair calls f with each descriptor of c that has limits and the one of the
// same keys and values in old: nil if that has none.
func (c *Config) eachPair(old *Config, f func(was, is *node)) {
	for _, d := range c.order {
		var was *tier
		if old != nil && old.domains[d.Name] != nil {
			was = &old.domains[d.Name].root
		}
		d.root.eachPair(was, f)
	}
}

func (t *tier) eachPair(old *tier, f func(was, is *node)) {
	for _, is := range t.nodes {
		was := old.same(is)
		if len(is.limits) > 0 {
			if was != nil && len(was.limits) > 0 {
				f(was, is)
			} else {
				f(nil, is)
			}
		}
		if is.children != nil && (!is.borrows || was != nil && was.children != nil && !was.borrows) {
			children := is.children
			if is.borrows {
				children = children.clone(is) // for its paths
			}
			var below *tier
			if was != nil {
				below = was.children
			}
			children.eachPair(below, f)
		}
	}
}

// same is the descriptor of n's key and value in t; nil if there is none.
func (t *tier) same(n *node) *node {
	if t == nil {
		return nil
	}
	return t.exact(n.key, n.value)
}

// each calls f with each descriptor of the limits files, parents first.
func (t *tier) each(f func(*node)) {
	for _, n := range t.nodes {
		f(n)
		if n.children != nil && !n.borrows {
			n.children.each(f)
		}
	}
}
