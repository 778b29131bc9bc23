package limitsfile

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// Parse reads and checks all files, or none. The error is Problems: every mistake, in
// the order of files and lines. The Set keeps none of the files' data.
func Parse(files []File, o Options) (*Set, error) {
	r := newReader(o)
	for _, f := range files {
		d := r.add(f.Name)
		r.open(d, d.parse(f))
	}
	return r.read()
}

// reader reads the documents of one Set.
type reader struct {
	options Options
	set     *Set
	docs    []*document

	domains map[string]*Domain // by name

	// roots has the descriptors at the root of each domain, which can come from
	// several files.
	roots map[*Domain]siblings
}

// siblings finds the descriptors of one list by key and value.
type siblings map[[2]string]*Descriptor

func newReader(o Options) *reader {
	return &reader{options: o, set: &Set{}, domains: map[string]*Domain{}, roots: map[*Domain]siblings{}}
}

// add returns the next document to open.
func (r *reader) add(file string) *document {
	d := newDocument(file, r.options)
	r.docs = append(r.docs, d)
	return d
}

// read checks the documents, which must be open.
func (r *reader) read() (*Set, error) {
	var errs Problems
	for _, d := range r.docs {
		if d.root != nil {
			d.descriptors(&d.domain.Descriptors, r.roots[d.domain], d.rootPosition, d.root.field("descriptors"), 1)
		}
		errs = append(errs, problems(d.errs)...)
		r.set.Warnings = append(r.set.Warnings, problems(d.warns)...)
		d.root = nil
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return r.set, nil
}

// open reads the root of d, nil if the file has none. All documents are opened before
// the first is read, because any file of a domain can have its defaults.
func (r *reader) open(d *document, root *yaml.Node) {
	if root == nil {
		return
	}
	if root.Kind == yaml.ScalarNode && scalarTag(root) == "!!null" {
		d.errorf(root, nil, "domain is missing")
		return
	}
	if root.Kind != yaml.MappingNode {
		d.errorf(root, nil, "limits file: got %s, want a mapping with domain and descriptors", display(root))
		return
	}
	// A file that can't join the set is still read, to find all its mistakes.
	d.domain = &Domain{File: d.file}
	d.rootPosition = &position{domain: d.domain}
	d.root = d.object(rootLevel, d.rootPosition, root)
	name, node := d.root.text("domain"), d.root.nodeOf("domain")
	d.domain.Name, d.domain.Line = name, node.Line
	switch known := r.domains[name]; {
	case name == "":
		if !d.root.invalid("domain") {
			d.errorf(node, nil, "domain is missing")
		}
	case known == nil:
		r.domains[name] = d.domain
		r.set.Domains = append(r.set.Domains, d.domain)
	case r.options.MergeDomains:
		d.domain = known
	default:
		d.errorf(node, nil, "domain %s is already in %s, and merging domains is off", Printable(name), fileLine(known.File, known.Line))
	}
	if r.roots[d.domain] == nil {
		r.roots[d.domain] = siblings{}
	}
	if v := d.root.field("defaults"); v != nil && !v.invalid {
		if other := d.domain.defaults; other != nil {
			d.errorf(v.node, d.rootPosition, "duplicate defaults: the domain has defaults in %s", fileLine(d.domain.defaultsFile, other.node.Line))
		} else {
			d.domain.defaults = d.object(defaultsLevel, d.rootPosition, v.mappings...)
			d.domain.defaultsFile = d.file
		}
	}
}

// descriptors adds the descriptors in v to list. named finds the descriptors of list.
func (d *document) descriptors(list *[]*Descriptor, named siblings, parent *position, v *value, depth int) {
	if depth > MaxDepth {
		d.errorf(v.node, nil, "descriptors are nested more than %d deep", MaxDepth)
		return
	}
	for i, item := range d.items(v, parent) {
		desc := &Descriptor{File: d.file, Line: item.Line}
		pos := &position{domain: d.domain, parent: parent, descriptor: desc, number: i + 1}
		o := d.object(descriptorLevel, pos, item)
		desc.Key, desc.Value = o.text("key"), o.text("value")
		if desc.Key == "" && !o.invalid("key") {
			d.errorf(o.nodeOf("key"), pos, "key is missing")
		}
		d.descriptor(desc, pos, o)
		if v := o.field("descriptors"); v != nil && !v.invalid {
			d.descriptors(&desc.Descriptors, siblings{}, pos, v, depth+1)
		}
		if desc.Key == "" || o.invalid("key") || o.invalid("value") {
			continue
		}
		name := [2]string{desc.Key, desc.Value}
		if other := named[name]; other != nil {
			d.errorf(o.nodeOf("key"), pos, "duplicate of the descriptor at %s", fileLine(other.File, other.Line))
			continue
		}
		named[name] = desc
		*list = append(*list, desc)
	}
}

// descriptor reads all of a descriptor except its key, its value and its children.
func (d *document) descriptor(desc *Descriptor, pos *position, o *object) {
	desc.ShadowMode, desc.QuotaMode = o.flag("shadow_mode"), o.flag("quota_mode")
	desc.DetailedMetric, desc.ValueToMetric = o.flag("detailed_metric"), o.flag("value_to_metric")
	desc.WildcardKey, desc.WildcardValue = strings.Contains(desc.Key, "*"), strings.Contains(desc.Value, "*")
	desc.ShareThreshold = o.flag("share_threshold")
	if desc.ShareThreshold && !desc.WildcardKey && !desc.WildcardValue {
		d.errorf(o.nodeOf("share_threshold"), pos, "share_threshold needs a key or value with a *")
	}
	if v := o.field("metadata"); v != nil && !v.invalid {
		desc.Metadata = d.metadata(pos, v.node)
	}
	if v := o.field("rate_limit"); v != nil && !v.invalid {
		if o.field("rate_limits") != nil {
			d.errorf(o.nodeOf("rate_limits"), pos, "rate_limit and rate_limits are both given; put all limits into rate_limits")
		}
		if l := d.limit(pos, d.object(rateLimitLevel, pos, v.mappings...)); l != nil {
			desc.Limits = append(desc.Limits, l)
		}
	}
	d.limits(desc, pos, o.field("rate_limits"))
}

// limits reads the list rate_limits.
func (d *document) limits(desc *Descriptor, pos *position, v *value) {
	items := d.items(v, pos)
	if len(items) > maxLimits {
		d.errorf(v.node, pos, "rate_limits has %d items; maximum is %d", len(items), maxLimits)
		return
	}
	for _, item := range items {
		l := d.limit(pos, d.object(rateLimitLevel, pos, item))
		if l == nil {
			continue
		}
		if l.Unlimited && len(items) > 1 {
			d.errorf(item, pos, "unlimited can't be one of several rate_limits")
			continue
		}
		if other := sameCounter(desc.Limits, l); other != nil {
			d.errorf(item, pos, "duplicate of the limit %s (%s): with the same algorithm, window and scope they would share one counter", lineText(other.line), other.Limit)
			continue
		}
		desc.Limits = append(desc.Limits, l)
	}
}

// sameCounter returns the limit of limits that would share its counters with l, or nil.
func sameCounter(limits []*Limit, l *Limit) *Limit {
	for _, other := range limits {
		if !l.Unlimited && !other.Unlimited && other.Tag() == l.Tag() {
			return other
		}
	}
	return nil
}
