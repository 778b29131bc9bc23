package limitsfile

import (
	"cmp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Parse reads and checks all files. If a file has a problem, Parse returns no Set. The error is Problems. The Set does not
// keep the data of the files in memory.
func Parse(files []File, o Options) (*Set, error) {
	r := newReader(o)
	for _, f := range files {
		d := newDocument(f.Name, r.parseState)
		r.openDocument(d, d.parse(f))
	}
	set, errs := r.read()
	if len(errs) > 0 {
		return nil, errs
	}
	return set, nil
}

type reader struct {
	*parseState
	isXDS       bool // the documents are the resources of one xDS response
	set         *Set
	docs        []*document
	domains     map[string]*Domain                 // the key is the name
	descriptors map[descriptorName]*Descriptor     // the descriptors that were read, to find duplicates
	conditions  map[descriptorName]*conditionGroup // the name has a list and a key, but no value
}

type descriptorName struct {
	list       *[]*Descriptor
	key, value string
}

func newReader(o Options) *reader {
	return &reader{
		parseState: newParseState(o), set: &Set{}, domains: map[string]*Domain{},
		descriptors: map[descriptorName]*Descriptor{}, conditions: map[descriptorName]*conditionGroup{},
	}
}

// read reads the descriptors of the open documents. The Set has the descriptors without problems.
func (r *reader) read() (*Set, fields.Problems) {
	var errs fields.Problems
	for i, d := range r.docs {
		if r.isXDS && i > 0 {
			d.ruleCount = r.docs[i-1].ruleCount // the bound is for all resources of the response
		}
		if d.root != nil && (d.errorCount == 0 || !r.isXDS) { // a problem of the root concerns all descriptors
			r.readRoot(d)
		}
		d.root, d.forEachPiece = nil, nil
	}
	for _, g := range r.conditions {
		if err := checkConditions(g.conditions); err != nil {
			g.document.errorf(g.node, g.pos, "%v", err)
			g.document.domain.Descriptors = nil
		}
	}
	for _, d := range r.docs {
		errs = append(errs, sortedProblems(d.errors)...)
		r.set.Warnings = append(r.set.Warnings, sortedProblems(d.warnings)...)
	}
	if len(errs) == 0 {
		for _, d := range r.set.Domains {
			r.warnUnreachable(d.Name, nil, d.Descriptors)
			r.warnZeroLimits(d)
			r.warnReplaces(d)
		}
	}
	return r.set, errs
}

// openDocument reads the root of d. root is nil if the file can't be parsed. The caller opens all documents before it reads
// the descriptors of the first document, because any file of a domain can have the defaults of the domain.
func (r *reader) openDocument(d *document, root *yaml.Node) {
	r.docs = append(r.docs, d)
	if root == nil {
		return
	}
	if root.Kind == yaml.ScalarNode && fields.Tag(root) == "!!null" {
		d.errorf(root, nil, "domain is missing; write domain: with the name in Envoy's filter")
		return
	}
	if root.Kind != yaml.MappingNode {
		d.errorf(root, nil, "limits file: got %s, want a mapping with domain and descriptors", fields.Display(root))
		return
	}
	// The reader reads the file even if the set can't have its domain, to find all problems of the file.
	d.rootPlace = &place{}
	d.root = d.readObject(rootObject, d.rootPlace, root)
	name := d.root.field("domain")
	d.rootPlace.domain = fields.Printable(name.Text)
	d.domain = &Domain{Name: name.Text, File: d.file, Line: name.node.Line, calendarMonths: r.options.CalendarMonths}
	switch existingDomain := r.domains[name.Text]; {
	case name.hasError:
	case name.Text == "":
		d.errorf(name.node, nil, "domain is missing; write domain: with the name in Envoy's filter")
	case existingDomain == nil:
		r.domains[name.Text] = d.domain
		r.set.Domains = append(r.set.Domains, d.domain)
	case r.options.MergeDomains:
		d.domain = existingDomain
	default:
		d.errorf(name.node, nil, "domain %s is already in %s; to merge both, set MERGE_DOMAIN_CONFIG=true", fields.Printable(name.Text), fields.FileLine(existingDomain.File, existingDomain.Line))
	}
	d.readQuotaOrder(d.root.field("quota_order"))
	if v := d.root.field("defaults"); v.isValid() {
		if other := d.domain.defaults; other != nil {
			d.errorf(v.node, d.rootPlace, "duplicate defaults: the domain has defaults in %s", fields.FileLine(d.domain.defaultsFile, other.node.Line))
		} else {
			d.domain.defaults = d.readObject(defaultsObject, d.rootPlace, v.mappings...)
			d.domain.defaultsFile = d.file
		}
	}
}

func (r *reader) readRoot(d *document) {
	list := &d.domain.Descriptors
	if d.forEachPiece == nil {
		r.readDescriptors(d, list, d.rootPlace, d.root.field("descriptors"), 1)
		return
	}
	listField, itemCount := findField("descriptors"), 0
	err := d.forEachPiece(func(items []*yaml.Node) bool {
		mappings := d.mappingItems(listField, items, d.rootPlace)
		r.readDescriptorItems(d, list, d.rootPlace, mappings, itemCount, 1)
		itemCount += len(mappings)
		if r.options.Pause != nil {
			r.options.Pause()
		}
		return !d.mustStop()
	})
	if err != nil {
		d.errors = nil // a file that is not YAML has no other problems
		d.yamlError(err)
	}
}

func (r *reader) readDescriptors(d *document, list *[]*Descriptor, parent *place, v value, depth int) {
	if depth > MaxDepth {
		for parent.parent.parent != nil { // the path to the first descriptor is long enough
			parent = parent.parent
		}
		d.errorf(v.node, parent, "descriptors are nested more than %d deep", MaxDepth)
		return
	}
	r.readDescriptorItems(d, list, parent, d.readItems(v, parent), 0, depth)
}

// readDescriptorItems adds the descriptors in items to list, the list below parent. firstIndex is the index of items[0] in the list.
func (r *reader) readDescriptorItems(d *document, list *[]*Descriptor, parent *place, items []*yaml.Node, firstIndex, depth int) {
	for i, item := range items {
		if !d.countRules(item, 1) {
			return
		}
		desc, oldErrorCount := &Descriptor{File: d.file, Line: item.Line}, d.errorCount
		pos := &place{parent: parent, index: firstIndex + i, descriptor: desc}
		o := d.readObject(descriptorObject, pos, item)
		d.checkFieldsBesideEmptyLimit(pos, item)
		key, value := o.field("key"), o.field("value")
		desc.Key, desc.Value = key.Text, value.Text
		isConditionValid := d.readCondition(desc, pos, o)
		if desc.Condition != nil && desc.Condition.ReadsEntries() {
			isConditionValid = d.checkEntryKeys(desc.Condition, pos, o, pos.keys()) && isConditionValid
		}
		if desc.Key == "" && !key.hasError {
			d.errorf(key.node, pos, "key is missing")
		}
		d.readDescriptor(desc, pos, o)
		d.warnValue(desc, pos, o)
		isValid := d.errorCount == oldErrorCount
		if v := o.field("descriptors"); v.isValid() {
			r.readDescriptors(d, &desc.Descriptors, pos, v, depth+1)
		}
		if desc.Key == "" || value.hasError || !isConditionValid {
			continue
		}
		name := descriptorName{list, desc.Key, desc.Value}
		if other := r.descriptors[name]; other != nil {
			d.errorf(key.node, pos, "duplicate of the descriptor at %s", fields.FileLine(other.File, other.Line))
			continue
		}
		if desc.Condition != nil {
			name := descriptorName{list: list, key: desc.Key}
			group := r.conditions[name]
			if group == nil {
				group = &conditionGroup{}
				r.conditions[name] = group
			}
			group.conditions = append(group.conditions, desc.Condition)
			group.document, group.node, group.pos = d, key.node, pos
		}
		r.descriptors[name] = desc
		if isValid {
			*list = append(*list, desc)
		}
	}
}

// checkFieldsBesideEmptyLimit reports an empty rate_limit if its fields stand beside it in the descriptor item, because the author has
// certainly meant a limit.
func (d *document) checkFieldsBesideEmptyLimit(pos *place, item *yaml.Node) {
	hasEmptyLimit, misplacedField := false, (*yaml.Node)(nil)
	for i := 0; i+1 < len(item.Content); i += 2 {
		switch key := item.Content[i]; key.Value {
		case "rate_limit":
			hasEmptyLimit = fields.Resolve(item.Content[i+1]).ShortTag() == "!!null"
		case "unit", "requests_per_unit":
			misplacedField = cmp.Or(misplacedField, key) // the first
		}
	}
	if hasEmptyLimit && misplacedField != nil {
		d.errorf(misplacedField, pos, "rate_limit is empty, and %s stands beside it; indent %s below rate_limit", misplacedField.Value, misplacedField.Value)
	}
}

// readDescriptor reads the fields of a descriptor, except its key, its value and its children.
func (d *document) readDescriptor(desc *Descriptor, pos *place, o *object) {
	oldErrorCount := d.errorCount
	desc.ShadowMode, desc.QuotaMode = o.field("shadow_mode").Flag, o.field("quota_mode").Flag
	desc.DetailedMetric, desc.ValueToMetric = o.field("detailed_metric").Flag, o.field("value_to_metric").Flag
	desc.HasWildcardKey = strings.Contains(desc.Key, "*")
	desc.HasWildcardValue = desc.Condition == nil && strings.Contains(desc.Value, "*")
	refunds := o.field("refunds")
	desc.NoRefunds = refunds.isPresent() && !refunds.Flag
	if v := o.field("enforce"); v.isValid() {
		desc.EnforcedPercent = v.Ratio
		if desc.ShadowMode {
			d.warnf(v.node, pos, "enforce has no effect beside shadow_mode, which never denies; remove one of them")
		}
	}
	desc.MaxHits = uint32(o.field("max_hits").Number)
	shareThreshold := o.field("share_threshold")
	desc.ShareThreshold = shareThreshold.Flag
	if shareThreshold.Flag && !desc.HasWildcardKey && !desc.MatchesManyValues() {
		d.errorf(shareThreshold.node, pos, "share_threshold needs a key or value with a *, or a condition such as cidr")
	}
	if v := o.field("denial"); v.isValid() {
		desc.Denial = d.readDenial(pos, d.readObject(denialObject, pos, v.mappings...))
	}
	if v := o.field("metadata"); v.isValid() {
		desc.Metadata = d.readMetadata(pos, v.node)
	}
	limitList := o.field("rate_limits")
	if v := o.field("rate_limit"); v.isValid() {
		if limitList.isPresent() {
			d.errorf(limitList.node, pos, "rate_limit and rate_limits are both given; put all limits into rate_limits")
		}
		if !d.countLimit(v.node, pos) {
			return
		}
		if l := d.readLimit(pos, d.readObject(rateLimitObject, pos, v.mappings...)); l != nil {
			desc.Limits = append(desc.Limits, l)
		}
	}
	if v := o.field("max_hits"); v.isValid() && !o.field("rate_limit").isPresent() && !limitList.isPresent() {
		d.warnf(v.node, pos, "max_hits has no effect without a limit in the same descriptor; add rate_limit, or remove max_hits")
	}
	for _, item := range d.limitItems(pos, limitList) {
		if !d.countLimit(item, pos) {
			return
		}
		l := d.readLimit(pos, d.readObject(rateLimitObject, pos, item))
		switch {
		case l == nil:
		case l.Unlimited && len(limitList.node.Content) > 1:
			d.errorf(item, pos, "unlimited can't be one of several rate_limits")
		case limitWithSameCounter(desc.Limits, l) != nil:
			other := limitWithSameCounter(desc.Limits, l)
			d.errorf(item, pos, "duplicate of the limit %s (%s): with the same algorithm, window and scope they would share one counter", placeInFile(other.Line), other.Limit)
		default:
			desc.Limits = append(desc.Limits, l)
		}
	}
	if v := o.field("quota"); v.isPresent() && v.node != nil && d.errorCount == oldErrorCount {
		d.readQuota(desc, pos, v)
	}
	if desc.rejectsReleases() {
		d.errorf(refunds.node, pos, refundsFalseReason)
	}
	d.warnLimits(desc, pos)
}

func (d *document) limitItems(pos *place, v value) []*yaml.Node {
	items := d.readItems(v, pos)
	if len(items) > maxLimits {
		d.errorf(v.node, pos, "rate_limits has %d items; maximum is %d", len(items), maxLimits)
		return nil
	}
	return items
}

// limitWithSameCounter returns the limit that would share its counters with l, or nil.
func limitWithSameCounter(limits []*Limit, l *Limit) *Limit {
	for _, other := range limits {
		if !l.Unlimited && !other.Unlimited && other.Tag() == l.Tag() {
			return other
		}
	}
	return nil
}

// placeInFile returns "in line 7". If the line is unknown, placeInFile returns "there".
func placeInFile(line int) string {
	if line == 0 {
		return "there"
	}
	return "in line " + strconv.Itoa(line)
}
