package descriptors

import "maps"

// clone is c again, with no part in common that With changes.
func (c *Config) clone() *Config {
	copied := &Config{Warnings: c.Warnings, domains: maps.Clone(c.domains)}
	for _, d := range c.order {
		is := *d
		top := &node{domain: &is}
		is.root = *d.root.clone(top)
		is.root.index()
		copied.domains[is.Name] = &is
		copied.order = append(copied.order, &is)
	}
	return copied
}

// clone is t again below parent. It has to be indexed.
func (t *tier) clone(parent *node) *tier {
	copied := &tier{nodes: make([]*node, 0, len(t.nodes))}
	for _, n := range t.nodes {
		is := n.clone(parent)
		if n.of != nil { // it comes before n
			is.of = copied.exact(n.of.key, n.of.value)
			is.of.copies = append(is.of.copies, is)
			if n.borrows {
				is.children = is.of.children
			}
		}
		copied.add(is)
	}
	return copied
}

// clone is n again below parent.
func (n *node) clone(parent *node) *node {
	copied := n.withoutChildren(parent)
	if n.children != nil && !n.borrows {
		copied.children = n.children.clone(copied)
	}
	return copied
}

// withoutChildren is clone, but its children are n's.
func (n *node) withoutChildren(parent *node) *node {
	copied := *n
	copied.domain, copied.parent, copied.copies = parent.domain, parent, nil
	return &copied
}

// forOne is n again, below parent, for key and value alone: it has no *, and borrows
// n's children. Its rule still has the names of n's.
func (n *node) forOne(parent *node, key, value string) *node {
	is := n.withoutChildren(parent)
	is.key, is.value = key, value
	is.keyWild, is.valueWild, is.share = false, false, false
	is.borrows, is.of = n.children != nil, n
	return is
}

// own gives n children of its own in place of those it borrows, unless they are more
// than room, which becomes less by their number.
func (n *node) own(room *int) (ok bool) {
	size := n.children.size()
	if size > *room {
		return false
	}
	*room -= size
	n.children, n.borrows = n.children.clone(n), false
	n.children.index()
	return true
}

// size is how many descriptors a clone of t has.
func (t *tier) size() int {
	size := len(t.nodes)
	for _, n := range t.nodes {
		if n.children != nil && !n.borrows {
			size += n.children.size()
		}
	}
	return size
}
