package descriptors

import "time"

// Succeed makes c ready to take old's place at now: a limit that counts in another
// way than the one in its place before learns of that one (limit.Limit.After), so
// that what was spent is carried over. c must not be in force yet; old can be nil.
//
// In the place of a limit was the one of the same descriptor, else, for a new
// descriptor without a *, the one that its requests met before; of several, that
// of the same algorithm, window and scope, else the one at the same place in the
// list.
func (c *Config) Succeed(old *Config, now time.Time) {
	if old == nil {
		return
	}
	for _, d := range c.order {
		if was := old.domains[d.Name]; was != nil {
			d.root.succeed(&was.root, now.UnixMicro())
		}
	}
}

func (t *tier) succeed(old *tier, now int64) {
	for _, is := range t.nodes {
		was := old.same(is)
		if was == nil && !is.keyWild && !is.valueWild {
			was = old.find(is.key, is.value)
		}
		if was == nil {
			continue
		}
		if is.rule != nil && was.rule != nil {
			is.rule.succeed(was.rule, now)
		}
		if is.children != nil && was.children != nil {
			is.children.succeed(was.children, now)
		}
	}
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
	if i >= len(old.Limits) || old.Limits[i].Unlimited {
		return nil
	}
	if was := old.Limits[i]; r.counting(was.Tag()) == nil {
		return was
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
