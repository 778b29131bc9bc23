package descriptors

import "maps"

// clone is c again, with no part in common that Succeed or With change.
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
		copied.add(n.clone(parent))
	}
	return copied
}

// clone is n again below parent.
func (n *node) clone(parent *node) *node {
	copied := *n
	copied.domain, copied.parent = parent.domain, parent
	copied.limits = make([]*stated, len(n.limits))
	for i, l := range n.limits {
		is, held := *l, *l.RateLimit
		is.RateLimit = &held
		copied.limits[i] = &is
	}
	if n.rule != nil {
		rule := *n.rule
		rule.Limits = inForce(copied.limits)
		copied.rule = &rule
	}
	if n.children != nil {
		copied.children = n.children.clone(&copied)
	}
	return &copied
}

// forOne is n again, below parent, for key and value alone: it has no *. Its rules
// still have the names of n's; rename gives them their own.
func (n *node) forOne(parent *node, key, value string) *node {
	is := n.clone(parent)
	is.key, is.value = key, value
	is.keyWild, is.valueWild, is.share = false, false, false
	if is.children != nil {
		is.children.index()
	}
	return is
}

// rename compiles the rules of n, and of those below, with the names of its key and
// value.
func (n *node) rename() {
	n.compileRule()
	if n.children != nil {
		n.children.each((*node).compileRule)
	}
}

// size is how many descriptors n and those below it are.
func (n *node) size() int {
	size := 1
	if n.children != nil {
		n.children.each(func(*node) { size++ })
	}
	return size
}
