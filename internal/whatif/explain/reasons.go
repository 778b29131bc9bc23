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
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/service"
)

// candidateReason returns the reason why c wins or loses in s.
func candidateReason(s *descriptors.Step, c *descriptors.Candidate) string {
	if c.Kind == descriptors.NoMatch {
		if errors.Is(c.Failure, descriptors.ErrNotTested) {
			return c.Failure.Error()
		}
		if c.Failure != nil {
			return fmt.Sprintf("the expression failed, so it does not match: %v", c.Failure)
		}
		return differenceText(s.Entry, c.Descriptor, c.Difference)
	}
	text := [...]string{
		descriptors.ExactMatch:     "same key and value",
		descriptors.ConditionMatch: "the value meets the condition",
		descriptors.PatternMatch:   "the pattern matches",
		descriptors.AnyValueMatch:  "same key, any value",
	}[c.Kind]
	if c == s.Winner {
		if c.Original != nil {
			text += "; an override made this descriptor for the single value"
		}
		return text
	}
	if s.Winner == nil {
		return text + ", but a condition was not tested, so the request is denied"
	}
	switch s.Winner.Kind {
	case descriptors.ExactMatch:
		return text + ", but the same key and value win"
	case c.Kind:
		return text + ", but an earlier " + kindNoun(c.Kind) + " wins"
	}
	return text + ", but a " + kindNoun(s.Winner.Kind) + " wins"
}

func kindNoun(k descriptors.MatchKind) string {
	if k == descriptors.ConditionMatch {
		return "condition"
	}
	return "pattern"
}

func differenceText(e *ratelimitv3.RateLimitDescriptor_Entry, d *limitsfile.Descriptor, difference descriptors.Difference) string {
	switch difference {
	case descriptors.OtherCase:
		return "upper and lower case differ"
	case descriptors.ExtraSpace:
		return fmt.Sprintf("a space at the start or end differs: got %q, want %q", entryText(e), descriptorText(d))
	case descriptors.JoinedText:
		return "key_value is the same text, but the key ends elsewhere; envoyproxy/ratelimit matches this descriptor"
	case descriptors.PartOfPattern:
		p := limitsfile.NewPattern(d.Value)
		switch value := e.GetValue(); {
		case len(value) < len(p.Prefix) && strings.HasPrefix(p.Prefix, value):
			return fmt.Sprintf("the value ends before the * of the pattern: %s is missing", strconv.Quote(p.Prefix[len(value):]))
		case strings.HasPrefix(value, p.Prefix):
			return "the value starts like the pattern, but the rest differs"
		}
		return "the value ends like the pattern, but the start differs"
	case descriptors.UnmetCondition:
		return "the value does not meet the condition"
	case descriptors.SimilarValue:
		return fmt.Sprintf("similar value: got %s, want %s", fields.Printable(e.GetValue()), fields.Printable(d.Value))
	case descriptors.SimilarKey:
		return fmt.Sprintf("similar key: got %s, want %s", fields.Printable(e.GetKey()), fields.Printable(d.Key))
	case descriptors.OtherValue:
		return "another value"
	}
	return ""
}

func (w *reporter) summary(c *service.Call, request *ratelimitv3.RateLimitDescriptor, d *Descriptor, rule *descriptors.Rule, fileDescriptor *limitsfile.Descriptor, trace *descriptors.Trace) string {
	switch {
	case w.domain == nil:
		return "no limit: the domain is unknown"
	case w.domain.Source().OffSwitch != nil:
		return "no limit: all limits of the domain are switched off" + w.domain.Source().OffSwitch.String()
	case request.GetLimit() != nil && rule == nil:
		return w.report.Error
	case request.GetLimit() != nil && len(rule.Limits) == 0:
		return "no limit: the defaults of the domain turn the request's own limit off (enabled: false)"
	case isRejected(c):
		return "not counted: the service rejects the request"
	case len(request.GetEntries()) == 0:
		return "no limit: the descriptor has no entries"
	case rule == nil && len(trace.Trail) < len(request.GetEntries()):
		return w.noMatchSummary(request.GetEntries(), trace)
	case rule == nil && fileDescriptor.OffSwitch() != nil:
		return fmt.Sprintf("no limit: %s is switched off%s", w.rulePath(trace.Trail), fileDescriptor.OffSwitch().Notes)
	case rule == nil && len(fileDescriptor.Limits) > 0:
		return fmt.Sprintf("no limit: all limits of %s are off (enabled: false)", w.rulePath(trace.Trail))
	case rule == nil && len(fileDescriptor.Descriptors) > 0:
		return fmt.Sprintf("no limit: %s has no limit of its own, and the rules below it need more entries", w.rulePath(trace.Trail))
	case rule == nil:
		return fmt.Sprintf("no limit: %s has no limit", w.rulePath(trace.Trail))
	}
	return limitedSummary(d)
}

func (w *reporter) rulePath(trail []*limitsfile.Descriptor) string {
	return limitsfile.Path(w.domain.Name, trail)
}

func (w *reporter) noMatchSummary(entries []*ratelimitv3.RateLimitDescriptor_Entry, trace *descriptors.Trace) string {
	matchCount := len(trace.Trail)
	entry := descriptors.EntryLabel(entries[matchCount])
	switch {
	case matchCount == 0:
		return fmt.Sprintf("no limit: no descriptor of the domain matches %s", entry)
	case len(trace.Steps) == matchCount:
		return fmt.Sprintf("no limit: %s has no descriptor below it for %s", w.rulePath(trace.Trail), entry)
	}
	return fmt.Sprintf("no limit: no descriptor below %s matches %s", w.rulePath(trace.Trail), entry)
}

func limitedSummary(d *Descriptor) string {
	countedLimits, replacedLimits := 0, 0
	for _, l := range d.Limits {
		switch l.State {
		case Counted:
			countedLimits++
		case Replaced:
			replacedLimits++
		}
	}
	switch {
	case countedLimits == 0 && replacedLimits > 0:
		return "not counted: other limits of the request replace all limits of " + d.Rule
	case countedLimits == 0:
		return "unlimited by " + d.Rule
	}
	text := fmt.Sprintf("%s by %s", cmp.Or(d.Code, "limited"), d.Rule)
	if d.DecidingLimit != nil && len(d.Limits) > 1 {
		text += ", limit " + d.Limits[*d.DecidingLimit].Limit
	}
	isLimitExceeded := slices.ContainsFunc(d.Limits, func(l Limit) bool { return l.NextHit != nil && l.NextHit.Error == "" && !l.NextHit.Allowed })
	switch {
	case d.ShadowMode && isLimitExceeded:
		text += "; the limit is exceeded, but shadow mode never denies"
	case d.Enforcement != nil && !d.Enforcement.IncludesKey && isLimitExceeded:
		text += "; the limit is exceeded, but enforce leaves this key out"
	case d.QuotaMode && isLimitExceeded:
		text += ", in quota mode"
	}
	if d.MaxHits > 0 && d.Hits > int64(d.MaxHits) {
		text += fmt.Sprintf("; the call has %d hits, and max_hits of the rule is %d, so nothing is charged", d.Hits, d.MaxHits)
	}
	return text
}

// entryText returns the key and the value of e without quotes.
func entryText(e *ratelimitv3.RateLimitDescriptor_Entry) string {
	return e.GetKey() + "=" + e.GetValue()
}

// descriptorText returns the key and the value of d without quotes.
func descriptorText(d *limitsfile.Descriptor) string {
	if d.Value == "" {
		return d.Key
	}
	return d.Key + "=" + d.Value
}
