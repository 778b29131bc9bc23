package descriptors

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// Changes has the paths of the descriptors with limits that differ between two Configs, in file order.
type Changes struct {
	Added, Changed, Removed []string

	// NewCounters reports that a changed limit starts new counters.
	NewCounters bool
}

// Rules returns the number of descriptors with limits in force.
func (c *Config) Rules() int {
	count := 0
	c.EachRule(func(*Rule) { count++ })
	return count
}

// EachRule calls f with each rule in file order.
func (c *Config) EachRule(f func(*Rule)) {
	c.eachPair(nil, func(n, _ *node, _ path) {
		if n.rule != nil {
			f(n.rule)
		}
	})
}

// ChangesFrom returns the difference of c from old. A nil old has no descriptors.
func (c *Config) ChangesFrom(old *Config) Changes {
	var changes Changes
	c.eachChange(old, func(changed, previous *node, p path) {
		switch {
		case !changed.hasLimits():
			changes.Removed = append(changes.Removed, p.String())
		case !previous.hasLimits():
			changes.Added = append(changes.Added, p.String())
		default:
			changes.Changed = append(changes.Changed, p.String())
			changes.NewCounters = changes.NewCounters || !previous.KeepsCounters(changed.Descriptor)
		}
	})
	return changes
}

// ValueChange is a change of the limits of a path. Old is empty for an added path, and New for a removed path.
type ValueChange struct{ Path, Old, New string }

// String returns `shop > tenant: 100 per minute → 0 per minute`.
func (v ValueChange) String() string {
	if v.Old == "" || v.New == "" {
		return v.Path + ": " + v.Old + v.New
	}
	return v.Path + ": " + v.Old + " → " + v.New
}

// ValueChangesFrom returns the changed limits of c with their values in old, removed limits last.
func (c *Config) ValueChangesFrom(old *Config) (values []ValueChange) {
	c.eachChange(old, func(changed, previous *node, p path) {
		v := ValueChange{Path: p.String()}
		if previous.hasLimits() {
			v.Old = previous.Summary()
		}
		if changed.hasLimits() {
			v.New = changed.Summary()
		}
		values = append(values, v)
	})
	return values
}

// eachChange calls f with each path whose limits differ in c and old. A node can be nil or without limits.
func (c *Config) eachChange(old *Config, f func(changed, previous *node, p path)) {
	c.eachPair(old, func(changed, previous *node, p path) {
		isSame := previous.hasLimits() && (previous.Descriptor == changed.Descriptor ||
			previous.Summary() == changed.Summary() && previous.HasSameAnswers(changed.Descriptor))
		if changed.hasLimits() && !isSame {
			f(changed, previous, p)
		}
	})
	if old != nil {
		old.eachPair(c, func(previous, current *node, p path) {
			if previous.hasLimits() && !current.hasLimits() {
				f(current, previous, p)
			}
		})
	}
}

func (n *node) hasLimits() bool { return n != nil && len(n.Limits) > 0 }

// eachPair calls f with each node of c, the node of other with the same keys and values, and the path. pair is nil if
// other has no such node. f gets parents before their children. other can be nil.
func (c *Config) eachPair(other *Config, f func(n, pair *node, p path)) {
	for _, d := range c.domainsInFileOrder {
		var s *siblingNodes
		if other != nil && other.domains[d.Name] != nil {
			s = &other.domains[d.Name].root
		}
		d.root.eachPair(s, path{domain: d.Name}, f)
	}
}

func (s *siblingNodes) eachPair(other *siblingNodes, parent path, f func(n, pair *node, p path)) {
	for i := range s.nodes {
		letCallsRun(i)
		n := &s.nodes[i]
		p := parent.child(n.Descriptor)
		pair := other.findExact(n.Key, n.Value)
		f(n, pair, p)
		// Compare shared children only below the original, unless pair has its own children.
		if s.ownChildren(n) != nil || n.children != nil && pair != nil && other.ownChildren(pair) != nil {
			var pairChildren *siblingNodes
			if pair != nil {
				pairChildren = pair.children
			}
			n.children.eachPair(pairChildren, p, f)
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

// EachDescriptor calls f with each descriptor that has limits, in force or not, in file order.
// trail has the descriptors from the root of the domain to the descriptor. f must not keep trail.
func (c *Config) EachDescriptor(f func(domain string, trail []*limitsfile.Descriptor)) {
	c.eachPair(nil, func(n, _ *node, p path) {
		if n.hasLimits() {
			f(p.domain, p.trail)
		}
	})
}
