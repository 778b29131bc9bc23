package live

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/internal/observe/timeline"
)

// ruleDenial is a rule that denies most of its hits since its limits changed. Before the change, it admitted them.
type ruleDenial struct {
	path, change              string // change is in words, such as "shop > tenant: 100 per minute → 0 per minute"
	changeTime                time.Time
	earlierShare, recentShare float64 // the shares of denied hits
	earlierRate               float32 // admitted hits a second before the change
	isRedisDown               bool    // no override can be set
}

// denialsSinceChange returns the rules that deny most hits since a change of their limits, the rule with the most hits
// first. A rule of earlier, the last result, stays while it denies most hits. For other rules, the change is at most five
// minutes old, because older hits are not known.
func (t *traffic) denialsSinceChange(now time.Time, events []timeline.Event, earlier []ruleDenial) []ruleDenial {
	var denials []ruleDenial
	for _, d := range earlier {
		if d.recentShare = t.recentHits(d.path).deniedShare(); d.recentShare >= jumpDeniedShare {
			denials = append(denials, d)
		}
	}
	for _, event := range events {
		if event.Kind != timeline.Reload || now.Sub(event.Time) > historySteps*stepSeconds*time.Second {
			continue
		}
		for _, attr := range event.Attrs {
			if attr.Name != "changed" {
				continue
			}
			for change := range strings.SplitSeq(attr.Value, "\n") {
				path, _, _ := strings.Cut(change, ": ")
				isKnown := slices.ContainsFunc(denials, func(d ruleDenial) bool { return d.path == path })
				if denial, ok := t.denialSinceChange(path, now.Sub(event.Time)); ok && !isKnown {
					denial.change, denial.changeTime = change, event.Time
					denials = append(denials, denial)
				}
			}
		}
	}
	slices.SortStableFunc(denials, func(a, b ruleDenial) int { return cmp.Compare(b.earlierRate, a.earlierRate) })
	return denials
}

func (t *traffic) denialSinceChange(path string, timeSinceChange time.Duration) (denial ruleDenial, ok bool) {
	rule := t.rules[path]
	newSteps := int(timeSinceChange/(stepSeconds*time.Second)) + 1 // the steps that can have hits after the change
	if rule == nil || newSteps <= recentRuleSteps || newSteps >= len(rule.points) {
		return ruleDenial{}, false
	}
	points := rule.points
	earlierPoints := points[max(len(points)-newSteps-earlierSteps, 0) : len(points)-newSteps]
	earlier, recent := meanHits(earlierPoints), t.recentHits(path)
	denial = ruleDenial{path: path, earlierShare: earlier.deniedShare(), recentShare: recent.deniedShare(), earlierRate: earlier.ok + earlier.shadow}
	ok = denial.earlierRate >= minSignalRate && recent.ok+recent.denied+recent.shadow >= minSignalRate && denial.recentShare >= mostDeniedShare &&
		denial.earlierShare <= denial.recentShare-jumpDifference && recent.ok+recent.shadow < admittedFallShare*denial.earlierRate
	return denial, ok
}

const recentRuleSteps = 2 // the last steps of a rule, which denialsSinceChange compares with the steps before

// recentHits returns the hits per second of the rule in the last steps.
func (t *traffic) recentHits(path string) hits {
	rule := t.rules[path]
	if rule == nil {
		return hits{}
	}
	return meanHits(rule.points[max(len(rule.points)-recentRuleSteps, 0):])
}

func meanHits(points []hits) (mean hits) {
	for _, p := range points {
		mean.add(p)
	}
	return mean.perSecond(float32(max(len(points), 1)))
}

func (h hits) deniedShare() float64 {
	return float64(h.denied) / max(float64(h.ok+h.denied+h.shadow), 1e-9)
}

func logNewDenials(denials, earlier []ruleDenial, log *slog.Logger) {
	for _, d := range denials {
		isSame := func(other ruleDenial) bool { return other.path == d.path && other.changeTime.Equal(d.changeTime) }
		if !slices.ContainsFunc(earlier, isSame) {
			log.Warn("rule denies most hits since its limits changed", "rule", d.path, "denied", shareText(d.recentShare), "denied_before", shareText(d.earlierShare),
				"change", d.change, "advice", d.advice())
		}
	}
}

func (d *ruleDenial) advice() string {
	if d.isRedisDown {
		return "if the change is a mistake, undo it; Redis is down too, so rls decides without it"
	}
	return fmt.Sprintf("if the change is a mistake, undo it; until then: rls limits off '%s' --for 15m --reason incident", d.path)
}

func (d *ruleDenial) describe(now time.Time, addPart func(Level, string), addDetail func(Level, string, ...any)) {
	addPart(Warning, fmt.Sprintf("rule %s denies %.0f %% of its hits since its limits changed at %s, %.0f %% before", d.path, 100*d.recentShare, clockText(d.changeTime, now), 100*d.earlierShare))
	addDetail(Warning, "%s. %s (docs/operations.md#most-calls-are-denied)", d.change, strings.ToUpper(d.advice()[:1])+d.advice()[1:])
}
