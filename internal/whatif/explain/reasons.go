package explain

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/service"
)

func candidateReason(step *descriptors.Step, candidate *descriptors.Candidate) string {
	if candidate.Kind == descriptors.NoMatch {
		if errors.Is(candidate.Failure, descriptors.ErrNotTested) {
			return candidate.Failure.Error()
		}
		if candidate.Failure != nil {
			return fmt.Sprintf("the expression failed, so the descriptor does not match: %v", candidate.Failure)
		}
		return differenceText(step.Entry, candidate.Descriptor, candidate.Difference)
	}
	text := [...]string{
		descriptors.ExactMatch:     "same key and value",
		descriptors.ConditionMatch: "the value meets the condition",
		descriptors.PatternMatch:   "the pattern matches",
		descriptors.AnyValueMatch:  "same key, any value",
	}[candidate.Kind]
	if candidate == step.Winner {
		if candidate.Original != nil {
			text += "; an override made this descriptor for the single value"
		}
		return text
	}
	if step.Winner == nil {
		return text + ", but a condition was not tested, so the request is denied"
	}
	switch step.Winner.Kind {
	case descriptors.ExactMatch:
		return text + ", but the same key and value win"
	case candidate.Kind:
		return text + ", but an earlier " + kindNoun(candidate.Kind) + " wins"
	}
	return text + ", but a " + kindNoun(step.Winner.Kind) + " wins"
}

func kindNoun(k descriptors.MatchKind) string {
	if k == descriptors.ConditionMatch {
		return "condition"
	}
	return "pattern"
}

func differenceText(entry *ratelimitv3.RateLimitDescriptor_Entry, descriptor *limitsfile.Descriptor, difference descriptors.Difference) string {
	switch difference {
	case descriptors.OtherCase:
		return "upper and lower case differ"
	case descriptors.ExtraSpace:
		return fmt.Sprintf("a space at the start or end differs: got %q, want %q", entry.GetKey()+"="+entry.GetValue(), descriptorText(descriptor))
	case descriptors.JoinedText:
		return "the text KEY_VALUE is the same, but the key ends at another underscore; envoyproxy/ratelimit matches this descriptor"
	case descriptors.PartOfPattern:
		pattern := limitsfile.NewPattern(descriptor.Value)
		switch value := entry.GetValue(); {
		case len(value) < len(pattern.Prefix) && strings.HasPrefix(pattern.Prefix, value):
			return fmt.Sprintf("the value ends before the * of the pattern: %s is missing", strconv.Quote(pattern.Prefix[len(value):]))
		case strings.HasPrefix(value, pattern.Prefix):
			return "the value starts like the pattern, but the rest differs"
		}
		return "the value ends like the pattern, but the start differs"
	case descriptors.UnmetCondition:
		return "the value does not meet the condition"
	case descriptors.SimilarValue:
		return fmt.Sprintf("similar value: got %s, want %s", fields.Printable(entry.GetValue()), fields.Printable(descriptor.Value))
	case descriptors.SimilarKey:
		return fmt.Sprintf("similar key: got %s, want %s", fields.Printable(entry.GetKey()), fields.Printable(descriptor.Key))
	case descriptors.OtherValue:
		return "another value"
	}
	return ""
}

func (r *reporter) summary(call *service.Call, request *ratelimitv3.RateLimitDescriptor, descriptor *Descriptor, rule *descriptors.Rule, fileDescriptor *limitsfile.Descriptor, trace *descriptors.Trace) string {
	switch {
	case r.domain == nil:
		return "no limit: the domain is unknown"
	case r.domain.Source.OffSwitch != nil:
		return "no limit: all limits of the domain are switched off" + r.domain.Source.OffSwitch.String()
	case request.GetLimit() != nil && rule == nil:
		return r.report.Error
	case request.GetLimit() != nil && len(rule.Limits) == 0:
		return "no limit: the defaults of the domain turn the request's own limit off (enabled: false)"
	case isRejected(call):
		return "not counted: the service rejects the request"
	case len(request.GetEntries()) == 0:
		return "no limit: the descriptor has no entries"
	case rule == nil && len(trace.Trail) < len(request.GetEntries()):
		return r.noMatchSummary(request.GetEntries(), trace) + r.otherOrderText(request.GetEntries())
	case rule == nil && fileDescriptor.OffSwitch() != nil:
		return fmt.Sprintf("no limit: %s is switched off%s", r.rulePath(trace.Trail), fileDescriptor.OffSwitch().Notes)
	case rule == nil && len(fileDescriptor.Limits) > 0:
		return fmt.Sprintf("no limit: all limits of %s are off (enabled: false)", r.rulePath(trace.Trail))
	case rule == nil && len(fileDescriptor.Descriptors) > 0:
		return fmt.Sprintf("no limit: %s has no limit of its own, and the rules below it need more entries", r.rulePath(trace.Trail))
	case rule == nil:
		return fmt.Sprintf("no limit: %s has no limit", r.rulePath(trace.Trail))
	}
	return limitedSummary(descriptor)
}

func (r *reporter) rulePath(trail []*limitsfile.Descriptor) string {
	return limitsfile.Path(r.domain.Name, trail)
}

func (r *reporter) noMatchSummary(entries []*ratelimitv3.RateLimitDescriptor_Entry, trace *descriptors.Trace) string {
	matchCount := len(trace.Trail)
	entry := descriptors.EntryLabel(entries[matchCount])
	switch {
	case matchCount == 0:
		return fmt.Sprintf("no limit: no descriptor of the domain matches %s", entry)
	case len(trace.Steps) == matchCount:
		return fmt.Sprintf("no limit: %s has no descriptor below it for %s", r.rulePath(trace.Trail), entry)
	}
	return fmt.Sprintf("no limit: no descriptor below %s matches %s", r.rulePath(trace.Trail), entry)
}

// otherOrderText names a rule that would match if one entry had another place. It returns "" if there is none.
func (r *reporter) otherOrderText(entries []*ratelimitv3.RateLimitDescriptor_Entry) string {
	const maxEntries = 5
	var budget descriptors.Budget
	for from := range entries[:min(len(entries), maxEntries)] {
		for to := range entries[:min(len(entries), maxEntries)] {
			reordered := slices.Delete(slices.Clone(entries), from, from+1)
			reordered = slices.Insert(reordered, to, entries[from])
			if rule := r.domain.MatchWithBudget(&budget, reordered); rule != nil && rule != r.domain.UntestedRule {
				return fmt.Sprintf("; the order of entries matters: %s would match %s", entrytext.Format(reordered), rule.Path)
			}
		}
	}
	return ""
}

func limitedSummary(descriptor *Descriptor) string {
	countedLimits, replacedLimits := 0, 0
	for _, l := range descriptor.Limits {
		switch l.State {
		case Counted:
			countedLimits++
		case Replaced:
			replacedLimits++
		}
	}
	switch {
	case countedLimits == 0 && replacedLimits > 0:
		return "not counted: other limits of the request replace all limits of " + descriptor.Rule
	case countedLimits == 0:
		return "unlimited by " + descriptor.Rule
	}
	text := fmt.Sprintf("%s by %s", cmp.Or(descriptor.Code, "limited"), descriptor.Rule)
	if descriptor.DecidingLimit != nil && len(descriptor.Limits) > 1 {
		text += ", limit " + descriptor.Limits[*descriptor.DecidingLimit].Limit
	}
	isLimitExceeded := slices.ContainsFunc(descriptor.Limits, func(l Limit) bool { return l.NextHit != nil && l.NextHit.Error == "" && !l.NextHit.Allowed })
	switch {
	case descriptor.ShadowMode && isLimitExceeded:
		text += "; the limit is exceeded, but shadow mode never denies"
	case descriptor.Enforcement != nil && !descriptor.Enforcement.IncludesKey && isLimitExceeded:
		text += "; the limit is exceeded, but enforce leaves this key out"
	case descriptor.QuotaMode && isLimitExceeded:
		text += ", in quota mode"
	}
	if descriptor.MaxHits > 0 && descriptor.Hits > int64(descriptor.MaxHits) {
		text += fmt.Sprintf("; the call has %d hits, and max_hits of the rule is %d, so nothing is charged", descriptor.Hits, descriptor.MaxHits)
	}
	return text
}

func descriptorText(d *limitsfile.Descriptor) string {
	if d.Value == "" {
		return d.Key
	}
	return d.Key + "=" + d.Value
}
