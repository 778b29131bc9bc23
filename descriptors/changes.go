package descriptors

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// Changes has the paths of the descriptors with limits that differ between two Configs, in file order.
type Changes struct {
	Added, Changed, Removed []string

	// HasNewCounters reports whether a changed limit counts in new counters, which start at zero.
	HasNewCounters bool
}

// RuleCount returns the number of rules, which are the descriptors with limits in force.
func (c *Config) RuleCount() int {
	count := 0
	c.EachRule(func(*Rule) { count++ })
	return count
}

// EachRule calls f with each rule in file order.
func (c *Config) EachRule(f func(*Rule)) {
	c.forEachPair(nil, func(n, _ *node, _ path) {
		if n.rule != nil {
			f(n.rule)
		}
	})
}

// ChangesFrom returns the changes that turn old into c. If old is nil, all descriptors of c are added.
func (c *Config) ChangesFrom(old *Config) Changes {
	var changes Changes
	c.forEachChange(old, func(newNode, oldNode *node, p path) {
		switch {
		case !newNode.hasLimits():
			changes.Removed = append(changes.Removed, p.String())
		case !oldNode.hasLimits():
			changes.Added = append(changes.Added, p.String())
		default:
			changes.Changed = append(changes.Changed, p.String())
			changes.HasNewCounters = changes.HasNewCounters || !oldNode.KeepsCounters(newNode.Descriptor)
		}
	})
	return changes
}

// ValueChange is a change of the limits at a path. Old and New are the limits in words, such as "100 per minute". Old is
// empty for an added path, and New is empty for a removed path.
type ValueChange struct{ Path, Old, New string }

// String returns `shop > tenant: 100 per minute → 0 per minute`.
func (v ValueChange) String() string {
	if v.Old == "" || v.New == "" {
		return v.Path + ": " + v.Old + v.New
	}
	return v.Path + ": " + v.Old + " → " + v.New
}

// ValueChangesFrom returns the changes that turn old into c, with the limits in words. Removed paths come last.
func (c *Config) ValueChangesFrom(old *Config) (values []ValueChange) {
	c.forEachChange(old, func(newNode, oldNode *node, p path) {
		v := ValueChange{Path: p.String()}
		if oldNode.hasLimits() {
			v.Old = oldNode.Summary()
		}
		if newNode.hasLimits() {
			v.New = newNode.Summary()
		}
		values = append(values, v)
	})
	return values
}

// forEachChange calls f with each path whose limits in c and in old differ. newNode is the node of c, and oldNode is the
// node of old. At an added or removed path, one of these nodes is nil or has no limits.
func (c *Config) forEachChange(old *Config, f func(newNode, oldNode *node, p path)) {
	c.forEachPair(old, func(newNode, oldNode *node, p path) {
		hasSameLimits := oldNode.hasLimits() && (oldNode.Descriptor == newNode.Descriptor ||
			oldNode.Summary() == newNode.Summary() && oldNode.HasSameAnswers(newNode.Descriptor))
		if newNode.hasLimits() && !hasSameLimits {
			f(newNode, oldNode, p)
		}
	})
	if old != nil {
		old.forEachPair(c, func(oldNode, newNode *node, p path) {
			if oldNode.hasLimits() && !newNode.hasLimits() {
				f(newNode, oldNode, p)
			}
		})
	}
}

func (n *node) hasLimits() bool { return n != nil && len(n.Limits) > 0 }

// forEachPair calls f with each node of c. counterpart is the node of other with the same keys and values, or nil. f gets
// parents before their children. other can be nil.
func (c *Config) forEachPair(other *Config, f func(n, counterpart *node, p path)) {
	for _, d := range c.domainsInFileOrder {
		var s *siblingNodes
		if other != nil && other.domains[d.Name] != nil {
			s = &other.domains[d.Name].root
		}
		d.root.forEachPair(s, path{domain: d.Name}, f)
	}
}

func (s *siblingNodes) forEachPair(other *siblingNodes, parent path, f func(n, counterpart *node, p path)) {
	for i := range s.nodes {
		letCallsRun(i)
		n := &s.nodes[i]
		p := parent.child(n.Descriptor)
		counterpart := other.findExact(n.Key, n.Value)
		f(n, counterpart, p)
		// A copy can share the children of its original. Shared children are compared only below the original, unless the
		// counterpart of the copy has children of its own.
		counterpartHasOwnChildren := counterpart != nil && other.ownChildren(counterpart) != nil
		if s.ownChildren(n) != nil || n.children != nil && counterpartHasOwnChildren {
			var otherChildren *siblingNodes
			if counterpart != nil {
				otherChildren = counterpart.children
			}
			n.children.forEachPair(otherChildren, p, f)
		}
	}
}

// Hash returns a short hash of all limits. All processes of one version return the same hash for the same limits.
func (c *Config) Hash() string {
	c.hashOnce.Do(func() {
		h := sha256.New()
		_ = c.WriteTree(h)
		c.hash = hex.EncodeToString(h.Sum(nil)[:6])
	})
	return c.hash
}

// EachDescriptor calls f with each descriptor that has limits, in file order, even if the limits are off.
// trail has the descriptors from the root of the domain to the descriptor. f must not keep trail.
func (c *Config) EachDescriptor(f func(domain string, trail []*limitsfile.Descriptor)) {
	c.forEachPair(nil, func(n, _ *node, p path) {
		if n.hasLimits() {
			f(p.domain, p.trail)
		}
	})
}
