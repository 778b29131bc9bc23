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
	d.kind = join(d.kind, kind)
	d.reasons = append(d.reasons, fmt.Sprintf(format, args...))
}

// compareDescriptors returns how the limits and flags of two descriptors differ. Nil limits nothing.
func compareDescriptors(old, current *limitsfile.Descriptor) (Kind, []string) {
	d := &differences{kind: Same, reasons: []string{}}
	oldLimits, newLimits := counted(old), counted(current)
	old, current = cmp.Or(old, &limitsfile.Descriptor{}), cmp.Or(current, &limitsfile.Descriptor{})
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
		d.add(kindOf(cmp.Compare(was, is)), "enforce: %v %% of the keys become %v %%", was, is)
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

func enforcedPercent(d *limitsfile.Descriptor) float64 { return cmp.Or(d.EnforcedPercent, 100) }

func (d *differences) maxHits(old, current uint32) {
	switch {
	case old == 0:
		d.add(Tighter, "calls with more than %d hits are denied (max_hits)", current)
	case current == 0:
		d.add(Looser, "calls with more than %d hits are no longer denied (max_hits)", old)
	default:
		d.add(kindOf(cmp.Compare(current, old)), "max_hits %d becomes %d", old, current)
	}
}

// counted returns the limits of d that count. d can be nil.
func counted(d *limitsfile.Descriptor) []*limitsfile.Limit {
	if d == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(d.Limits), func(l *limitsfile.Limit) bool { return !l.Enabled || l.Unlimited })
}

// limits compares lists of limits in pairs: those with the same counter, then with the same name, then the others.
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

func (d *differences) pair(old, current *limitsfile.Limit) {
	if kind := compareNumbers(old.Limit, current.Limit); old.String() != current.String() {
		d.add(kind, "%s becomes %s", old, current)
	}
	defaultsOnly := old.ChargeDenied == old.Algorithm.DefaultChargeDenied() && current.ChargeDenied == current.Algorithm.DefaultChargeDenied()
	switch {
	case old.ChargeDenied == current.ChargeDenied || defaultsOnly:
	case current.ChargeDenied:
		d.add(Tighter, "denied hits are charged now")
	default:
		d.add(Looser, "denied hits are no longer charged")
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
	if (current.Max() == 0) != (old.Max() == 0) {
		return kindOf(cmp.Compare(current.Max(), old.Max()))
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

// looseness is 1 for algorithms that can admit twice the limit around the end of a window, else 0.
func looseness(a limit.Algorithm) int {
	if a == limit.SlidingLog || a == limit.SlidingWindow {
		return 0
	}
	return 1
}

// rate returns the hits in a microsecond.
func rate(l *limit.Limit) *big.Rat { return big.NewRat(l.Max(), max(l.Period(), 1)) }
