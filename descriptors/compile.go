package descriptors

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// Compile compiles all files or none. The error is Problems: all that is wrong,
// in the order of files and lines. It keeps nothing of the files' data.
func Compile(files []File, o Options) (*Config, error) {
	c := &Config{domains: map[string]*Domain{}}
	docs := make([]*document, len(files))
	for i, f := range files {
		docs[i] = &document{file: f.Name}
		c.open(docs[i], docs[i].parse(f), o)
	}
	return c.compile(docs)
}

// compile fills c with what is in docs, all of them open.
func (c *Config) compile(docs []*document) (*Config, error) {
	var errs Problems
	for _, d := range docs {
		if d.root != nil {
			d.descriptors(&d.domain.root, d.top, d.root.field("descriptors"), 1)
		}
		errs = append(errs, problems(d.errs)...)
		c.Warnings = append(c.Warnings, problems(d.warns)...)
		d.root = nil
	}
	if len(errs) > 0 {
		return nil, errs
	}
	for _, d := range c.order {
		d.root.index()
	}
	return c, nil
}

// open reads the root n of a file, nil if it has none, so that the defaults of a
// domain are known before its limits are compiled, whichever of its files has
// them.
func (c *Config) open(d *document, n *yaml.Node, o Options) {
	if n == nil {
		return
	}
	if n.Kind == yaml.ScalarNode && scalarTag(n) == "!!null" {
		d.errorf(n, nil, "domain is missing")
		return
	}
	if n.Kind != yaml.MappingNode {
		d.errorf(n, nil, "a limits file must be a mapping with domain and descriptors, not %s", shown(n))
		return
	}
	// What can't join c is still compiled, to find all that is wrong with it.
	d.domain = &Domain{file: d.file}
	d.top = &node{domain: d.domain}
	d.root = d.object(atRoot, d.top, n)
	name, place := d.root.text("domain"), d.root.at("domain")
	d.domain.Name, d.domain.line = name, place.Line
	switch known := c.domains[name]; {
	case name == "":
		if !d.root.bad("domain") {
			d.errorf(place, nil, "domain is missing")
		}
	case known == nil:
		c.domains[name] = d.domain
		c.order = append(c.order, d.domain)
	case o.MergeDomains:
		d.domain = known
	default:
		d.errorf(place, nil, "domain %s is in %s already, and merging domains is off", printable(name), fileLine(known.file, known.line))
	}
	if v := d.root.field("defaults"); v != nil && !v.bad {
		if other := d.domain.defaults; other != nil {
			d.errorf(v.node, d.top, "the domain has defaults in %s already", fileLine(d.domain.defaultsFile, other.node.Line))
		} else {
			d.domain.defaults = d.object(atDefaults, d.top, v.parts...)
			d.domain.defaultsFile = d.file
		}
	}
}

// descriptors compiles a list of siblings into l.
func (d *document) descriptors(l *tier, parent *node, v *value, depth int) {
	if depth > maxDepth {
		d.errorf(v.node, nil, "descriptors are nested more than %d deep", maxDepth)
		return
	}
	for i, item := range d.items(v, parent) {
		n := &node{domain: d.domain, parent: parent, file: d.file, line: item.Line, nth: i + 1}
		o := d.object(atDescriptor, n, item)
		n.key, n.value = o.text("key"), o.text("value")
		known := !o.bad("key") && !o.bad("value")
		if n.key == "" && !o.bad("key") {
			d.errorf(o.at("key"), n, "key is missing")
		}
		d.descriptor(n, o)
		if v := o.field("descriptors"); v != nil && !v.bad {
			n.children = &tier{}
			d.descriptors(n.children, n, v, depth+1)
		}
		if n.key == "" || !known {
			continue
		}
		if other := l.add(n); other != nil {
			d.errorf(o.at("key"), n, "there is one already, at %s", fileLine(other.file, other.line))
		}
	}
}

// descriptor compiles all of a descriptor but its children.
func (d *document) descriptor(n *node, o *object) {
	n.shadowMode, n.quotaMode = o.flag("shadow_mode"), o.flag("quota_mode")
	n.detailedMetric, n.valueToMetric = o.flag("detailed_metric"), o.flag("value_to_metric")
	n.keyWild, n.valueWild = strings.Contains(n.key, "*"), strings.Contains(n.value, "*")
	if n.share = o.flag("share_threshold"); n.share && !n.keyWild && !n.valueWild {
		d.errorf(o.at("share_threshold"), n, "share_threshold is only for a key or value with a * in it")
	}
	if v := o.field("metadata"); v != nil && !v.bad {
		n.metadata = d.metadata(n, v.node)
	}
	if v := o.field("rate_limit"); v != nil && !v.bad {
		if o.field("rate_limits") != nil {
			d.errorf(o.at("rate_limits"), n, "rate_limit and rate_limits exclude each other; put all limits into rate_limits")
		}
		if l := d.limit(n, d.object(atRateLimit, n, v.parts...)); l != nil {
			n.limits = append(n.limits, l)
		}
	}
	d.limits(n, o.field("rate_limits"))
	n.compileRule()
}

// limits compiles a list of limits that hold at once.
func (d *document) limits(n *node, v *value) {
	items := d.items(v, n)
	if len(items) > maxLimits {
		d.errorf(v.node, n, "rate_limits has %d items; %d are the most", len(items), maxLimits)
		return
	}
	for _, item := range items {
		l := d.limit(n, d.object(atRateLimit, n, item))
		if l == nil {
			continue
		}
		if l.Unlimited && len(items) > 1 {
			d.errorf(item, n, "unlimited can't be one of several rate_limits")
			continue
		}
		if same := counterOf(n.limits, l); same != nil {
			d.errorf(item, n, "a limit of the same algorithm, window and scope is %s already (%s); they would share one counter", inLine(same.line), same.Limit)
			continue
		}
		n.limits = append(n.limits, l)
	}
}

// counterOf is the one of limits that would share its counters with l; nil if there
// is none.
func counterOf(limits []*stated, l *stated) *stated {
	for _, other := range limits {
		if !l.Unlimited && !other.Unlimited && other.Tag() == l.Tag() {
			return other
		}
	}
	return nil
}
