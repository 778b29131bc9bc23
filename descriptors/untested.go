package descriptors

import (
	"slices"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// Budget bounds the work of the conditions of one call. Its zero value is a full budget.
type Budget = condition.Budget

// ErrNotTested is the Failure of a Candidate whose condition took more steps than the Budget had left.
var ErrNotTested = condition.ErrNotTested

type lookup struct {
	budget Budget
	// observedDomain has the observer of conditions that fail, or is nil.
	observedDomain *Domain

	untestedNodes []*node // nodes whose conditions were not tested, because the budget was spent
	isDenied      bool    // one of untestedNodes can deny, so the descriptor is denied
}

// addUntested records that the condition of n was not tested.
//
// If n can deny, the descriptor is denied, so that no client can avoid the limits of n, or of stricter
// siblings, with a long value. If n can't deny, n does not match, so its siblings can still deny.
func (l *lookup) addUntested(n *node) {
	if slices.Contains(l.untestedNodes, n) { // an earlier search has compared n with another entry
		return
	}
	l.untestedNodes = append(l.untestedNodes, n)
	l.isDenied = l.isDenied || n.canDeny
	if len(l.untestedNodes) == 1 && l.observedDomain != nil && l.observedDomain.observer != nil {
		l.observedDomain.observer.ConditionNotTested(l.observedDomain.Name, n.Descriptor)
	}
}

// canDeny reports whether r or a rule below it can deny a request.
func canDeny(r *Rule, children *siblings) bool {
	if r != nil && !r.ShadowMode && slices.ContainsFunc(r.Limits, func(l *RateLimit) bool { return !l.Unlimited }) {
		return true
	}
	return children != nil && slices.ContainsFunc(children.nodes, func(n node) bool { return n.canDeny })
}

// untestedLimit denies all hits, also without Redis.
var untestedLimit = func() *limit.Limit {
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Unit: limit.Second, OnBackendFailure: limit.FailDeny})
	if err != nil {
		panic(err)
	}
	return l
}()

// newUntestedRule returns the rule of UntestedRule. All its descriptors share one counter and one metric key.
func newUntestedRule(domain string) *Rule {
	l := &RateLimit{Limit: untestedLimit, Metrics: new(Attachment), Response: newResponse(untestedLimit, "")}
	return &Rule{Path: fields.Printable(domain) + " > a condition that was not tested", Limits: []*RateLimit{l}, isUntested: true}
}

// untestedCounter and untestedMetric take the place of the entries in the names of the counter and of the metrics.
const untestedCounter, untestedMetric = "|=not%20tested", ".not_tested"

// UntestedRule returns the rule of descriptors that are denied because a condition was not tested.
func (d *Domain) UntestedRule() *Rule { return d.untestedRule }
