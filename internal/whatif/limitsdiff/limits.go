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

// differences collects the differences between two rules.
type differences struct {
	kind    Kind
	reasons []string
}

func (d *differences) add(kind Kind, format string, args ...any) {
	d.kind = join(d.kind, kind)
	d.reasons = append(d.reasons, fmt.Sprintf(format, args...))
}

// compareDescriptors returns how the limits and flags of two descriptors differ. A nil
// descriptor limits nothing.
func compareDescriptors(old, current *limitsfile.Descriptor) (Kind, []string) {
	d := &differences{kind: Same, reasons: []string{}}
	none := &limitsfile.Descriptor{}
	oldLimits, newLimits := counted(old), counted(current)
	if old == nil {
		old = none
	}
	if current == nil {
		current = none
	}
	d.limits(oldLimits, newLimits)
	for _, flag := range []struct {
		name              string
		old, new          bool
		set, gone         Kind
		setText, goneText string
	}{
		{"shadow_mode", old.ShadowMode, current.ShadowMode, Looser, Tighter, "the rule only counts and no longer denies", "the rule denies now"},
		{"quota_mode", old.QuotaMode, current.QuotaMode, Looser, Tighter, "the rule denies only if all rules in quota mode are over their limits", "the rule denies by itself now"},
		{"refunds: false", old.NoRefunds, current.NoRefunds, Tighter, Looser, "refunds are rejected", "refunds are accepted"},
		{"share_threshold", old.ShareThreshold, current.ShareThreshold, Tighter, Looser, "all values share one counter", "each value has its own counter"},
	} {
		switch {
		case len(oldLimits) == 0 || len(newLimits) == 0 || flag.old == flag.new: // flags matter only for limits
		case flag.new:
			d.add(flag.set, "%s is set: %s", flag.name, flag.setText)
		default:
			d.add(flag.gone, "%s is gone: %s", flag.name, flag.goneText)
		}
	}
	switch was, is := old.QuotaMode && len(oldLimits) == 0, current.QuotaMode && len(newLimits) == 0; {
	case is && !was:
		d.add(Looser, "quota_mode without a limit: other rules in quota mode no longer deny these requests")
	case was && !is:
		d.add(Tighter, "quota_mode without a limit is gone: other rules in quota mode can deny these requests")
	}
	if was, is := enforcedPercent(old), enforcedPercent(current); was != is && len(oldLimits) > 0 && len(newLimits) > 0 {
		kind := Tighter
		if is < was {
			kind = Looser
		}
		d.add(kind, "enforce: %v %% of the keys become %v %%", was, is)
	}
	if len(oldLimits) > 0 && len(newLimits) > 0 && old.MaxHits != current.MaxHits {
		d.maxHits(old.MaxHits, current.MaxHits)
	}
	if !proto.Equal(old.Metadata, current.Metadata) {
		d.add(Same, "metadata differs")
	} else if !old.HasSameAnswers(current) {
		d.add(Same, "the body or the headers of denials differ")
	}
	if old.DetailedMetric != current.DetailedMetric || old.ValueToMetric != current.ValueToMetric {
		d.add(Same, "the names of metrics differ")
	}
	return d.kind, d.reasons
}

// enforcedPercent returns the percentage of the keys that d can deny.
func enforcedPercent(d *limitsfile.Descriptor) float64 {
	if d.EnforcedPercent == 0 {
		return 100
	}
	return d.EnforcedPercent
}

// maxHits compares the bounds of the hits of one call. 0 is no bound.
func (d *differences) maxHits(old, current uint32) {
	switch {
	case old == 0:
		d.add(Tighter, "calls with more than %d hits are denied (max_hits)", current)
	case current == 0:
		d.add(Looser, "calls with more than %d hits are no longer denied (max_hits)", old)
	case current < old:
		d.add(Tighter, "max_hits %d becomes %d", old, current)
	default:
		d.add(Looser, "max_hits %d becomes %d", old, current)
	}
}

// counted returns the limits of d that count. d can be nil.
func counted(d *limitsfile.Descriptor) []*limitsfile.Limit {
	if d == nil {
		return nil
	}
	var all []*limitsfile.Limit
	for _, l := range d.Limits {
		if l.Enabled && !l.Unlimited {
			all = append(all, l)
		}
	}
	return all
}

// limits compares two lists of limits. Limits with the same counter are pairs, then limits of
// the same name, then the others in their order.
func (d *differences) limits(old, current []*limitsfile.Limit) {
	old, current = slices.Clone(old), slices.Clone(current)
	for _, isPair := range []func(a, b *limitsfile.Limit) bool{
		func(a, b *limitsfile.Limit) bool { return a.Tag() == b.Tag() },
		func(a, b *limitsfile.Limit) bool { return a.Name != "" && a.Name == b.Name },
		func(_, _ *limitsfile.Limit) bool { return true },
	} {
		for i := 0; i < len(current); i++ {
			j := slices.IndexFunc(old, func(l *limitsfile.Limit) bool { return isPair(l, current[i]) })
			if j >= 0 {
				d.pair(old[j], current[i])
				old, current = slices.Delete(old, j, j+1), slices.Delete(current, i, i+1)
				i--
			}
		}
	}
	for _, l := range current {
		d.add(Tighter, "new limit: %s", l)
	}
	for _, l := range old {
		d.add(Looser, "limit gone: %s", l)
	}
}

// pair compares two limits.
func (d *differences) pair(old, current *limitsfile.Limit) {
	if kind := compareNumbers(old.Limit, current.Limit); old.String() != current.String() {
		d.add(kind, "%s becomes %s", old, current)
	}
	defaultsOnly := old.ChargeDenied == old.Algorithm.DefaultChargeDenied() && current.ChargeDenied == current.Algorithm.DefaultChargeDenied()
	if old.ChargeDenied != current.ChargeDenied && !defaultsOnly {
		if current.ChargeDenied {
			d.add(Tighter, "denied hits are charged now")
		} else {
			d.add(Looser, "denied hits are no longer charged")
		}
	}
	if old.OnBackendFailure != current.OnBackendFailure || old.FallbackRatio != current.FallbackRatio {
		d.add(Mixed, "while the backend fails, the limit decides in another way (%s → %s)", failureWords(old.Limit), failureWords(current.Limit))
	}
	if oldWords, words := leaseWords(old.Limit), leaseWords(current.Limit); oldWords != words {
		d.add(Same, "replicas take permits in another way (%s → %s)", oldWords, words)
	}
	if old.Name != current.Name {
		d.add(Same, "the name of the limit becomes %s", fields.Printable(cmp.Or(current.Name, "empty")))
	}
	if !slices.Equal(old.Replaces, current.Replaces) {
		d.add(Mixed, "the limit replaces other limits than before")
	}
}

func failureWords(l *limit.Limit) string {
	text := cmp.Or(l.OnBackendFailure.String(), "default")
	if l.FallbackRatio != 0 {
		text += fmt.Sprintf(" with ratio %v", l.FallbackRatio)
	}
	return text
}

func leaseWords(l *limit.Limit) string {
	if !l.Lease {
		return "no lease"
	}
	return fmt.Sprintf("lease with lease_waste %v", l.WasteShare())
}

// compareNumbers compares the hits that two limits admit: at once, and over a long time.
func compareNumbers(old, current *limit.Limit) Kind {
	switch {
	case current.Max() == 0 && old.Max() > 0:
		return Tighter
	case old.Max() == 0 && current.Max() > 0:
		return Looser
	}
	kind := kindOf(cmp.Compare(current.Capacity(), old.Capacity()))
	kind = join(kind, kindOf(rate(current).Cmp(rate(old))))
	kind = join(kind, kindOf(looseness(current.Algorithm)-looseness(old.Algorithm)))
	if looseness(current.Algorithm) == looseness(old.Algorithm) && current.Algorithm != old.Algorithm {
		kind = Mixed
	}
	return join(kind, kindOf(int(current.Scope)-int(old.Scope))) // with scope instance, each replica admits the whole limit
}

// kindOf returns Looser for a positive sign, Tighter for a negative sign, and else Same.
func kindOf(sign int) Kind {
	switch {
	case sign > 0:
		return Looser
	case sign < 0:
		return Tighter
	}
	return Same
}

// looseness is 0 for algorithms that admit the limit in any window, and 1 for algorithms that
// can admit twice the limit around the end of a window.
func looseness(a limit.Algorithm) int {
	if a == limit.SlidingLog || a == limit.SlidingWindow {
		return 0
	}
	return 1
}

// rate returns the hits in a microsecond.
func rate(l *limit.Limit) *big.Rat { return big.NewRat(l.Max(), max(l.Period(), 1)) }
