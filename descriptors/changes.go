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
	c.eachPair(old, func(changed, previous *node, p path) {
		switch {
		case !changed.hasLimits():
		case !previous.hasLimits():
			changes.Added = append(changes.Added, p.String())
		case previous.Descriptor == changed.Descriptor:
		case previous.Summary() != changed.Summary() || !previous.HasSameAnswers(changed.Descriptor):
			changes.Changed = append(changes.Changed, p.String())
			changes.NewCounters = changes.NewCounters || !previous.KeepsCounters(changed.Descriptor)
		}
	})
	if old != nil {
		old.eachPair(c, func(previous, current *node, p path) {
			if previous.hasLimits() && !current.hasLimits() {
				changes.Removed = append(changes.Removed, p.String())
			}
		})
	}
	return changes
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
