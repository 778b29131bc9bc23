package descriptors

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Changes has the descriptors whose limits differ between two Configs, in file order.
type Changes struct {
	Added, Changed, Removed RuleChanges

	// HasNewCounters reports whether a changed limit counts in new counters, which start at zero.
	HasNewCounters bool
}

// RuleChange is a change of the limits at a path. Old and New are the limits in words, such as "100 per minute". Old is
// empty for an added path, and New is empty for a removed path.
type RuleChange struct{ Path, Old, New string }

// String returns `shop > tenant: 100 per minute → 0 per minute`.
func (r RuleChange) String() string {
	if r.Old == "" || r.New == "" {
		return r.Path + ": " + r.Old + r.New
	}
	return r.Path + ": " + r.Old + " → " + r.New
}

// RuleChanges are changes of several rules.
type RuleChanges []RuleChange

// Join returns up to ten changes with separator between them, and the number of the other changes.
func (r RuleChanges) Join(separator string) string {
	const maxTexts = 10
	return fields.JoinFirst(r, maxTexts, separator, RuleChange.String)
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
func (c *Config) ChangesFrom(old *Config) (changes Changes) {
	c.forEachPair(old, func(newNode, oldNode *node, p path) {
		switch {
		case !newNode.hasLimits():
		case !oldNode.hasLimits():
			changes.Added = append(changes.Added, RuleChange{Path: p.String(), New: newNode.Summary()})
		case oldNode.Descriptor != newNode.Descriptor && (oldNode.Summary() != newNode.Summary() || !oldNode.HasSameAnswers(newNode.Descriptor)):
			changes.Changed = append(changes.Changed, RuleChange{Path: p.String(), Old: oldNode.Summary(), New: newNode.Summary()})
			changes.HasNewCounters = changes.HasNewCounters || !oldNode.KeepsCounters(newNode.Descriptor)
		}
	})
	if old != nil {
		old.forEachPair(c, func(oldNode, newNode *node, p path) {
			if oldNode.hasLimits() && !newNode.hasLimits() {
				changes.Removed = append(changes.Removed, RuleChange{Path: p.String(), Old: oldNode.Summary()})
			}
		})
	}
	return changes
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
