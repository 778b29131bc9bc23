package limitsdiff

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

type differences struct {
	kind    Kind
	reasons []string
}

func (d *differences) add(kind Kind, format string, args ...any) {
	d.kind = joinKinds(d.kind, kind)
	d.reasons = append(d.reasons, fmt.Sprintf(format, args...))
}

// compareDescriptors compares the limits and flags of two descriptors. A nil descriptor limits nothing.
func compareDescriptors(oldDescriptor, newDescriptor *limitsfile.Descriptor) (Kind, []string) {
	result := &differences{kind: Same, reasons: []string{}}
	oldLimits, newLimits := countedLimits(oldDescriptor), countedLimits(newDescriptor)
	oldDescriptor, newDescriptor = cmp.Or(oldDescriptor, &limitsfile.Descriptor{}), cmp.Or(newDescriptor, &limitsfile.Descriptor{})
	result.compareLimits(oldLimits, newLimits)
	for _, flag := range []struct {
		name                     string
		isOldSet, isNewSet       bool
		kindIfSet, kindIfRemoved Kind
		textIfSet, textIfRemoved string
	}{
		{"shadow_mode", oldDescriptor.ShadowMode, newDescriptor.ShadowMode, Looser, Tighter, "the rule only counts and no longer denies", "the rule denies now"},
		{"quota_mode", oldDescriptor.QuotaMode, newDescriptor.QuotaMode, Looser, Tighter, "the rule denies only if all rules in quota mode are over their limits", "the rule denies by itself now"},
		{"refunds: false", oldDescriptor.NoRefunds, newDescriptor.NoRefunds, Tighter, Looser, "refunds are rejected", "refunds are accepted"},
		{"quota", oldDescriptor.Quota != nil, newDescriptor.Quota != nil, Same, Same, "Envoys with the filter rate_limit_quota share the limit", "Envoys with the filter rate_limit_quota have no limit"},
		{"share_threshold", oldDescriptor.ShareThreshold, newDescriptor.ShareThreshold, Tighter, Looser, "all values share one counter", "each value has its own counter"},
	} {
		switch {
		case len(oldLimits) == 0 || len(newLimits) == 0 || flag.isOldSet == flag.isNewSet: // a flag has no effect without a limit
		case flag.isNewSet:
			result.add(flag.kindIfSet, "%s is set: %s", flag.name, flag.textIfSet)
		default:
			result.add(flag.kindIfRemoved, "%s is gone: %s", flag.name, flag.textIfRemoved)
		}
	}
	switch wasQuotaOnly, isQuotaOnly := oldDescriptor.QuotaMode && len(oldLimits) == 0, newDescriptor.QuotaMode && len(newLimits) == 0; {
	case isQuotaOnly && !wasQuotaOnly:
		result.add(Looser, "quota_mode without a limit: other rules in quota mode no longer deny these requests")
	case wasQuotaOnly && !isQuotaOnly:
		result.add(Tighter, "quota_mode without a limit is gone: other rules in quota mode can deny these requests")
	}
	oldPercent, newPercent := cmp.Or(oldDescriptor.EnforcedPercent, 100), cmp.Or(newDescriptor.EnforcedPercent, 100)
	if oldPercent != newPercent && len(oldLimits) > 0 && len(newLimits) > 0 {
		result.add(kindOf(cmp.Compare(oldPercent, newPercent)), "enforce: %v %% of the keys become %v %%", oldPercent, newPercent)
	}
	if len(oldLimits) > 0 && len(newLimits) > 0 && oldDescriptor.MaxHits != newDescriptor.MaxHits {
		result.compareMaxHits(oldDescriptor.MaxHits, newDescriptor.MaxHits)
	}
	if !proto.Equal(oldDescriptor.Metadata, newDescriptor.Metadata) {
		result.add(Same, "metadata differs")
	} else if !oldDescriptor.HasSameAnswers(newDescriptor) {
		result.add(Same, "the body or the headers of denials differ")
	}
	if oldDescriptor.DetailedMetric != newDescriptor.DetailedMetric || oldDescriptor.ValueToMetric != newDescriptor.ValueToMetric {
		result.add(Same, "the names of metrics differ")
	}
	return result.kind, result.reasons
}

func (d *differences) compareMaxHits(oldMaxHits, newMaxHits uint32) {
	switch {
	case oldMaxHits == 0:
		d.add(Tighter, "calls with more than %d hits are denied (max_hits)", newMaxHits)
	case newMaxHits == 0:
		d.add(Looser, "calls with more than %d hits are no longer denied (max_hits)", oldMaxHits)
	default:
		d.add(kindOf(cmp.Compare(newMaxHits, oldMaxHits)), "max_hits %d becomes %d", oldMaxHits, newMaxHits)
	}
}

func countedLimits(d *limitsfile.Descriptor) []*limitsfile.Limit {
	if d == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(d.Limits), func(l *limitsfile.Limit) bool { return !l.Enabled || l.Unlimited })
}

// compareLimits compares limits in pairs: first limits with the same counter, then limits with the same name, then the
// other limits.
func (d *differences) compareLimits(oldLimits, newLimits []*limitsfile.Limit) {
	oldLimits, newLimits = slices.Clone(oldLimits), slices.Clone(newLimits)
	for _, isPair := range []func(a, b *limitsfile.Limit) bool{
		func(a, b *limitsfile.Limit) bool { return a.Tag() == b.Tag() },
		func(a, b *limitsfile.Limit) bool { return a.Name != "" && a.Name == b.Name },
		func(_, _ *limitsfile.Limit) bool { return true },
	} {
		for i := 0; i < len(newLimits); i++ {
			j := slices.IndexFunc(oldLimits, func(l *limitsfile.Limit) bool { return isPair(l, newLimits[i]) })
			if j >= 0 {
				d.comparePair(oldLimits[j], newLimits[i])
				oldLimits, newLimits = slices.Delete(oldLimits, j, j+1), slices.Delete(newLimits, i, i+1)
				i--
			}
		}
	}
	for _, l := range newLimits {
		d.add(Tighter, "new limit: %s", l)
	}
	for _, l := range oldLimits {
		d.add(Looser, "limit gone: %s", l)
	}
}

func (d *differences) comparePair(oldLimit, newLimit *limitsfile.Limit) {
	if kind := compareNumbers(oldLimit.Limit, newLimit.Limit); oldLimit.String() != newLimit.String() {
		d.add(kind, "%s becomes %s", oldLimit, newLimit)
	}
	bothHaveDefault := oldLimit.ChargeDenied == oldLimit.Algorithm.DefaultChargeDenied() && newLimit.ChargeDenied == newLimit.Algorithm.DefaultChargeDenied()
	switch {
	case oldLimit.ChargeDenied == newLimit.ChargeDenied || bothHaveDefault:
	case newLimit.ChargeDenied:
		d.add(Tighter, "denied hits are charged now")
	default:
		d.add(Looser, "denied hits are no longer charged")
	}
	if oldLimit.OnBackendFailure != newLimit.OnBackendFailure || oldLimit.FallbackRatio != newLimit.FallbackRatio {
		d.add(Mixed, "while the backend fails, the limit decides in another way (%s → %s)", failureText(oldLimit.Limit), failureText(newLimit.Limit))
	}
	if oldText, newText := leaseText(oldLimit.Limit), leaseText(newLimit.Limit); oldText != newText {
		d.add(Same, "replicas take permits in another way (%s → %s)", oldText, newText)
	}
	if oldLimit.Name != newLimit.Name {
		d.add(Same, "the name of the limit becomes %s", fields.Printable(cmp.Or(newLimit.Name, "empty")))
	}
	if !slices.Equal(oldLimit.Replaces, newLimit.Replaces) {
		d.add(Mixed, "the limit replaces other limits than before")
	}
}

func failureText(l *limit.Limit) string {
	text := cmp.Or(l.OnBackendFailure.String(), "default")
	if l.FallbackRatio != 0 {
		text += fmt.Sprintf(" with ratio %v", l.FallbackRatio)
	}
	return text
}

func leaseText(l *limit.Limit) string {
	if !l.Lease {
		return "no lease"
	}
	return fmt.Sprintf("lease with lease_waste %v", l.WasteShare())
}

// compareNumbers compares the hits that two limits admit at once, and the hits that they admit over a long time.
func compareNumbers(oldLimit, newLimit *limit.Limit) Kind {
	if (newLimit.Max() == 0) != (oldLimit.Max() == 0) {
		return kindOf(cmp.Compare(newLimit.Max(), oldLimit.Max()))
	}
	kind := kindOf(cmp.Compare(newLimit.Capacity(), oldLimit.Capacity()))
	kind = joinKinds(kind, kindOf(rate(newLimit).Cmp(rate(oldLimit))))
	kind = joinKinds(kind, kindOf(looseness(newLimit.Algorithm)-looseness(oldLimit.Algorithm)))
	if looseness(newLimit.Algorithm) == looseness(oldLimit.Algorithm) && newLimit.Algorithm != oldLimit.Algorithm || newLimit.Timezone != oldLimit.Timezone {
		kind = Mixed
	}
	return joinKinds(kind, kindOf(int(newLimit.Scope)-int(oldLimit.Scope))) // with scope instance, each replica admits the whole limit
}

func kindOf(sign int) Kind {
	switch {
	case sign > 0:
		return Looser
	case sign < 0:
		return Tighter
	}
	return Same
}

// looseness returns 1 if an algorithm can admit twice the limit around the end of a window, and otherwise 0.
func looseness(a limit.Algorithm) int {
	if a == limit.SlidingLog || a == limit.SlidingWindow {
		return 0
	}
	return 1
}

// rate returns the hits per microsecond.
func rate(l *limit.Limit) *big.Rat { return big.NewRat(l.Max(), max(l.Period(), 1)) }
