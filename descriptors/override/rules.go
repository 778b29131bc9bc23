package override

import (
	"slices"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// addRules returns base with the rules that were created at run time. A rule that base already has gets a problem.
func addRules(base *limitsfile.Set, overrides []*Override, outcomes []outcome) *limitsfile.Set {
	if !slices.ContainsFunc(overrides, func(o *Override) bool { return o.Kind == KindRule }) {
		return base
	}
	a := &ruleAdder{
		set:     &limitsfile.Set{Domains: slices.Clone(base.Domains), Warnings: base.Warnings},
		domains: map[string]*limitsfile.Domain{},
		indexes: map[*[]*limitsfile.Descriptor]map[descriptorName]int{},
		isOwned: map[*limitsfile.Descriptor]bool{},

		patterns: map[*limitsfile.Domain]condition.Patterns{},
	}
	for i, o := range overrides {
		if o.Kind == KindRule {
			a.add(o, &outcomes[i])
		}
	}
	a.set.Domains = slices.DeleteFunc(a.set.Domains, func(d *limitsfile.Domain) bool { return d.File == "" && len(d.Descriptors) == 0 })
	return a.set
}

// ruleAdder adds rules to a set. It copies the domains and descriptors that it changes, because base must not change.
type ruleAdder struct {
	set     *limitsfile.Set
	domains map[string]*limitsfile.Domain // the copied domains; the key is the name

	// indexes has the index of each descriptor in its list, for the lists that the ruleAdder has searched.
	indexes map[*[]*limitsfile.Descriptor]map[descriptorName]int

	isOwned map[*limitsfile.Descriptor]bool // true for copied and new descriptors, which the ruleAdder may change

	patterns map[*limitsfile.Domain]condition.Patterns // the regular expressions of each domain and of its added rules
}

type descriptorName struct{ key, value string }

func (a *ruleAdder) add(o *Override, result *outcome) {
	domain := a.copyDomain(o, result)
	result.Path = pathOf(o.Target, len(o.Target.Entries))
	lastDepth := len(o.Target.Entries) - 1
	e := o.Target.Entries[lastDepth]
	if _, isKnown := a.patterns[domain]; !isKnown {
		a.patterns[domain] = limitsfile.PatternsOf(domain.Descriptors)
	}
	patterns := a.patterns[domain]
	d, problems := o.rule.Descriptor(domain, result.Path, o.Target.Keys(), e.GetValue(), &patterns)
	if len(problems) > 0 {
		result.Problem = problems
		return
	}
	list := &domain.Descriptors
	for depth, e := range o.Target.Entries[:lastDepth] {
		a.checkNewRule(o, result, depth, *list)
		list = &a.copyChild(list, descriptorName{e.GetKey(), e.GetValue()}).Descriptors
	}
	if err := limitsfile.CheckSiblings(d, *list); err != nil { // only a list with conditions fails, so no parent of d is new
		result.Problem = fields.Problems{o.problem(result.Path, "%v", err)}
		return
	}
	i, exists := a.indexesOf(list)[descriptorName{d.Key, d.Value}]
	switch {
	case exists && len((*list)[i].Limits) > 0:
		existingRule, advice := (*list)[i], "change them with an override"
		if !o.isNew {
			advice += ", and delete this rule that was created at run time"
		}
		result.Problem = fields.Problems{o.problem(result.Path, "%s has limits for this descriptor (%s); %s",
			fields.FileLine(existingRule.File, existingRule.Line), existingRule.Summary(), advice)}
		return
	case exists:
		d.Descriptors = (*list)[i].Descriptors
		result.BaseLimits = (*list)[i].Summary()
		a.isOwned[d] = a.isOwned[(*list)[i]]
		(*list)[i] = d
	default:
		result.BaseLimits = a.checkNewRule(o, result, lastDepth, *list)
		a.isOwned[d] = true
		a.append(list, d)
	}
	a.patterns[domain] = patterns
	result.Limits = d.Summary()
}

func (a *ruleAdder) copyDomain(o *Override, result *outcome) *limitsfile.Domain {
	name := o.Target.Domain
	if d := a.domains[name]; d != nil {
		return d
	}
	var d *limitsfile.Domain
	if i := slices.IndexFunc(a.set.Domains, func(d *limitsfile.Domain) bool { return d.Name == name }); i >= 0 {
		d = new(*a.set.Domains[i])
		a.set.Domains[i] = d
	} else {
		var names []string
		for _, d := range a.set.Domains {
			names = append(names, d.Name)
		}
		if fields.Nearest(name, names) != "" {
			result.newRuleProblems = append(result.newRuleProblems, o.problem("", "%s", unknownDomain(name, names)))
		}
		d = &limitsfile.Domain{Name: name}
		a.set.Domains = append(a.set.Domains, d)
	}
	d.Descriptors = slices.Clone(d.Descriptors)
	a.domains[name] = d
	return d
}

// copyChild returns the owned descriptor with this name in an owned list. It makes a copy or a new descriptor if necessary.
func (a *ruleAdder) copyChild(list *[]*limitsfile.Descriptor, name descriptorName) *limitsfile.Descriptor {
	i, exists := a.indexesOf(list)[name]
	if !exists {
		d := limitsfile.NewDescriptor(name.key, name.value)
		a.isOwned[d] = true
		a.append(list, d)
		return d
	}
	d := (*list)[i]
	if !a.isOwned[d] {
		d = new(*d)
		d.Descriptors = slices.Clone(d.Descriptors)
		a.isOwned[d] = true
		(*list)[i] = d
	}
	return d
}

func (a *ruleAdder) indexesOf(list *[]*limitsfile.Descriptor) map[descriptorName]int {
	if a.indexes[list] == nil {
		a.indexes[list] = map[descriptorName]int{}
		for i, d := range *list {
			a.indexes[list][descriptorName{d.Key, d.Value}] = i
		}
	}
	return a.indexes[list]
}

func (a *ruleAdder) append(list *[]*limitsfile.Descriptor, d *limitsfile.Descriptor) {
	a.indexesOf(list)[descriptorName{d.Key, d.Value}] = len(*list)
	*list = append(*list, d)
}

// checkNewRule finds the other descriptor that now matches the entry of the target at depth, and returns the limits of this
// descriptor in words. If the new rule o would take requests from the descriptor, result.newRuleProblems gets a problem.
func (a *ruleAdder) checkNewRule(o *Override, result *outcome, depth int, list []*limitsfile.Descriptor) (limits string) {
	const noLimit = "no limit"
	e := o.Target.Entries[depth]
	if len(list) == 0 || !o.isNew {
		return noLimit
	}
	index := descriptors.NewIndex(list)
	d, isExact := index.Find(o.Target.Entries[:depth+1])
	if conditionOwner := index.ConditionOnOtherEntries(e.GetKey()); conditionOwner != nil && !isExact && e.GetValue() != "" {
		result.newRuleProblems = append(result.newRuleProblems, o.problem(result.Path, "%s may match %s now, depending on other entries, and would no longer apply; create the rule with a condition instead",
			conditionOwner.Label(), fields.Printable(entryText(e))))
		return noLimit
	}
	if d == nil || isExact {
		return noLimit
	}
	isLast := depth == len(o.Target.Entries)-1
	switch target := o.Target.String(); {
	case isLast && len(d.Descriptors) > 0:
		result.newRuleProblems = append(result.newRuleProblems, o.problem(result.Path, "%s matches %s now, and its children would no longer apply; set an override of %s, which keeps them",
			d.Label(), fields.Printable(entryText(e)), target))
	case !isLast:
		t := descriptors.Target{Domain: o.Target.Domain, Entries: o.Target.Entries[:depth+1]}
		result.newRuleProblems = append(result.newRuleProblems, o.problem(result.Path, "%s matches %s now, and would no longer apply; create a rule for %s first",
			d.Label(), fields.Printable(entryText(e)), t.String()))
	}
	return d.Summary()
}
