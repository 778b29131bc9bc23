package live

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/internal/observe/timeline"
)

// Bounds of the signals. A jump is a sudden growth of the share of denied calls.
const (
	recentSteps       = 30 / stepSeconds // the steps of the last 30 seconds, which are compared with the steps before
	minSignalRate     = 1                // calls per second; fewer calls, or fewer given up calls, cause no signal
	earlierSteps      = 60 / stepSeconds // the steps of the minute before the recent steps
	minStalls         = 3                // fewer stalls of Redis in five minutes cause no signal
	jumpDeniedShare   = 0.5              // after a jump, at least this share of the calls is denied
	jumpDifference    = 0.3              // in a jump, the share grows by at least this value
	mostDeniedShare   = 0.9              // if this share of the calls is denied, there is a warning even without a jump
	causeTime         = 10 * time.Minute // a change can cause a jump that comes within this time
	minCompareSteps   = recentSteps + 3  // with fewer steps, nothing is compared
	admittedFallShare = 0.5              // if the admitted calls fall below this part, limits deny what they admitted before
	warningSteps      = 60 / stepSeconds // the steps after the last stall of Redis in which there is a warning
	denialLogPause    = 5 * time.Minute  // the least time between two log lines about the start of a mass denial
	lossWarningTime   = 10 * time.Minute // the time after a loss of counters in which there is a warning
	floodGrowth       = 1.5              // if the calls grow by this factor, and no limits changed, some callers send more
)

type signals struct {
	figures Figures // has only the points, which describe past steps
	denials denialAlarm

	ruleDenials   []ruleDenial
	rejectedFiles map[string]string // see Options.RejectedFiles
	unmatchedKeys []Key             // see TopKeys.Unmatched

	lastLoss    time.Time          // when Redis lost counters last
	lastRefusal *connectionRefusal // nil if there was none
}

func (s signals) describe(now time.Time, addPart func(Level, string), addDetail func(Level, string, ...any)) {
	s.denials.describe(now, addPart, addDetail)
	const maxRuleDenials = 3
	for _, d := range s.ruleDenials[:min(len(s.ruleDenials), maxRuleDenials)] {
		if !s.denials.isMassDenial() || d.path != s.denials.rule {
			d.describe(now, addPart, addDetail)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(s.rejectedFiles)) {
		addPart(Warning, what)
		addDetail(Warning, "%s: the former content stays in force, also if you have removed something from the file, and no replica starts with this file: %s", what, s.rejectedFiles[what])
	}
	if givenUp := mean(recentPoints(s.figures.GivenUp.Points)); givenUp >= minSignalRate {
		addPart(Trouble, fmt.Sprintf("Callers gave up %.1f calls a second before they got the answer", givenUp))
		addDetail(Trouble, "Envoy counts a call that it gave up as ratelimit.error, and lets the request pass unless failure_mode_deny is set. Give rls more CPU or replicas, or raise the timeout in Envoy (docs/operations.md#envoys-ratelimiterror-grows)")
	}
	if refused := mean(recentPoints(s.figures.Refused.Points)); refused > 0 {
		addPart(Warning, fmt.Sprintf("refusing %.1f calls a second of callers that send too many", refused))
		addDetail(Warning, "A caller may send the calls of MAX_CALLER_CALLS_PER_SECOND. The list of callers shows who sends most. Envoy counts a refused call as ratelimit.error, and lets the request pass unless failure_mode_deny is set")
	}
	if refusal := s.lastRefusal; refusal != nil && now.Sub(refusal.time) < time.Minute {
		addPart(Warning, "refusing connections at "+refusal.setting)
		addDetail(Warning, "Calls of these clients fail. Envoy counts them as ratelimit.error, and lets the requests pass unless failure_mode_deny is set. The log and CALLERS name the addresses. Raise "+refusal.setting+" (docs/production.md#connections-of-envoy)")
	}
	if now.Sub(s.lastLoss) < lossWarningTime {
		addPart(Warning, "Redis lost counters at "+clockText(s.lastLoss, now))
		addDetail(Warning, "Limits admit the lost hits again, and overrides can be lost too: rls limits show --changes lists the overrides in force. Look for FLUSHALL, evictions, a restart without saved data, or a failover (docs/operations.md#restart-or-upgrade-redis)")
	}
	if stalls := mean(s.figures.RedisStalls.Points) * float64(len(s.figures.RedisStalls.Points)*stepSeconds); stalls >= minStalls-0.5 { // stalls has a rounding error
		level, points := Well, s.figures.RedisStalls.Points
		steps := 0 // the steps since the last stall
		for points[len(points)-1-steps] == 0 {
			steps++
		}
		lastStall := secondsText(Value(steps*stepSeconds)) + " ago"
		if steps < warningSteps {
			level = Warning
			addPart(Warning, "Redis stands still at times, the network doesn't; last "+lastStall)
		}
		addDetail(level, "In five minutes, Redis kept %.0f batches waiting, the last %s. The slowest batch took %s, and half of all batches took less than %v. Look for slow commands (SLOWLOG GET), for other commands such as CLIENT PAUSE (INFO commandstats, CLIENT LIST), for saving, and for CPU time that Redis lacks (docs/operations.md#redis-stands-still)",
			stalls, lastStall, secondsText(s.figures.RedisMax.Max()), time.Duration(mean(s.figures.RedisP50.Points)*1e9).Round(10*time.Microsecond))
	}
}

// mean returns the mean of the known points, or 0 if no point is known.
func mean(points []Value) float64 {
	sum, count := 0.0, 0
	for _, p := range points {
		if p.IsKnown() {
			sum, count = sum+float64(p), count+1
		}
	}
	return sum / max(float64(count), 1)
}

func recentPoints(points []Value) []Value { return points[max(len(points)-recentSteps, 0):] }

// callRates are the calls per second in a span of time.
type callRates struct{ total, denied float64 }

// newCallRates returns the mean rates of some steps. calls and deniedShare have a point for each step.
func newCallRates(calls, deniedShare []Value) callRates {
	rates := callRates{total: mean(calls)}
	for i, share := range deniedShare {
		if share.IsKnown() {
			rates.denied += float64(calls[i]*share) / float64(len(calls))
		}
	}
	return rates
}

func (r callRates) admitted() float64    { return r.total - r.denied }
func (r callRates) deniedShare() float64 { return r.denied / max(r.total, 1e-9) }

// denialAlarm describes denials of most calls. It is zero while most calls are admitted.
type denialAlarm struct {
	startTime     time.Time // the start of the denials, at most 30 seconds before the alarm; zero if most calls are admitted
	recentRates   callRates // the rates of the recent steps
	lastStepRates callRates // the rates of the last step with calls
	earlierRates  callRates // the rates before the alarm
	isJump        bool      // the share of denied calls was clearly lower before the alarm
	lastChange    string    // the last change of the limits before the alarm; empty if no limits have changed
	undoAdvice    string    // how to undo lastChange
	rule          string    // the path of the rule to turn off first
	outage        string    // ": Redis is down" or ": Redis was down"; empty if Redis works since the start of the denials
	outageMode    string    // how calls are decided while Redis is down; empty if Redis works
}

func (a *denialAlarm) recordRedisState(redis *Redis) {
	a.outageMode = ""
	if !redis.Up {
		a.outage, a.outageMode = ": Redis is down", redis.modeText()
	} else if a.outage != "" {
		a.outage = ": Redis was down"
	}
}

// isMassDenial reports whether limits deny calls that they admitted before. A flood of new calls is no mass denial,
// because the limits still admit as many calls as before, or another client has stopped meanwhile.
func (a *denialAlarm) isMassDenial() bool {
	switch {
	case !a.isJump: // most calls were denied before too, or there were none
		return a.lastChange != "" && a.recentRates.admitted() <= a.earlierRates.admitted()
	case a.lastChange == "" && a.recentRates.total > floodGrowth*a.earlierRates.total:
		return false
	}
	return a.recentRates.admitted() < admittedFallShare*a.earlierRates.admitted()
}

// denialWatch compares the denied calls of the recent steps with the denied calls before.
type denialWatch struct {
	alarm     denialAlarm
	isLogged  bool      // the log has the start of a mass denial, and not its end
	loggedAt  time.Time // the time of the last start in the log
	startTime time.Time // the start of the denials in the log
}

// log logs the start and the end of a mass denial, with the words of the headline.
func (w *denialWatch) log(now time.Time, log *slog.Logger) {
	isMassDenial := w.alarm.isMassDenial()
	switch {
	case isMassDenial && !w.isLogged && now.Sub(w.loggedAt) >= denialLogPause:
		w.isLogged, w.loggedAt, w.startTime = true, now, w.alarm.startTime
		state, advice := "", []string{}
		w.alarm.describe(now, func(_ Level, text string) { state = text }, func(_ Level, format string, args ...any) {
			advice = append(advice, fmt.Sprintf(format, args...))
		})
		log.Warn("mass denial started", "state", state, "advice", strings.ReplaceAll(strings.Join(advice, ". "), "\n", "; "))
	case w.isLogged && !isMassDenial:
		w.isLogged = false
		log.Info("mass denial ended", "lasted", now.Sub(w.startTime).Round(time.Second))
	}
}

func (w *denialWatch) update(now time.Time, figures *Figures, events *timeline.Timeline) {
	calls, shares := figures.Calls.Points, figures.DeniedShare.Points
	recentStart := max(len(calls)-recentSteps, 0)
	earlierStart := max(recentStart-earlierSteps, 0)
	recentRates := newCallRates(calls[recentStart:], shares[recentStart:])
	earlierRates := newCallRates(calls[earlierStart:recentStart], shares[earlierStart:recentStart])
	deniedShare, lastStepRates := recentRates.deniedShare(), w.alarm.lastStepRates
	if stepRates := newCallRates(calls[len(calls)-1:], shares[len(calls)-1:]); stepRates.total > 0 {
		lastStepRates = stepRates
	}
	if recentRates.total < minSignalRate || deniedShare < jumpDeniedShare || lastStepRates.deniedShare() < jumpDeniedShare {
		w.alarm = denialAlarm{}
		return
	}
	isJump := len(calls) >= minCompareSteps && earlierRates.total >= minSignalRate && deniedShare >= earlierRates.deniedShare()+jumpDifference
	if w.alarm.startTime.IsZero() && (isJump || deniedShare >= mostDeniedShare) {
		w.alarm = denialAlarm{startTime: now, earlierRates: earlierRates, isJump: isJump}
		for i := len(shares) - 1; i >= recentStart && shares[i] >= jumpDeniedShare; i-- {
			w.alarm.startTime = w.alarm.startTime.Add(-stepSeconds * time.Second)
		}
		w.alarm.lastChange, w.alarm.undoAdvice = lastChange(now, events.Events())
	}
	w.alarm.recentRates, w.alarm.lastStepRates = recentRates, lastStepRates
}

// lastChange describes the last change of the limits, and how to undo it. It returns "" if no limits have changed within
// causeTime.
func lastChange(now time.Time, events []timeline.Event) (text, undoAdvice string) {
	i := slices.IndexFunc(events, func(e timeline.Event) bool {
		return (e.Kind == timeline.Reload && len(e.Attrs) > 2 || e.Kind == timeline.Override) && now.Sub(e.Time) < causeTime
	})
	if i < 0 {
		return "", ""
	}
	undoAdvice = "put the old limits back where they come from; rls limits rollback undoes only overrides"
	if events[i].Kind == timeline.Override {
		undoAdvice = "rls limits rollback undoes it"
	}
	text = secondsText(Value(now.Sub(events[i].Time).Seconds())) + " before the alarm: " + events[i].Text + " at " + clockText(events[i].Time, now)
	for _, attr := range events[i].Attrs {
		if attr.Name != "rules" {
			text += ", " + attr.Name + " " + attr.Value
		}
	}
	return text, undoAdvice
}

func (a *denialAlarm) describe(now time.Time, addPart func(Level, string), addDetail func(Level, string, ...any)) {
	if a.startTime.IsZero() {
		return
	}
	share := fmt.Sprintf("%.0f %% of the calls denied", 100*a.lastStepRates.deniedShare())
	level := Warning
	switch {
	case a.isMassDenial():
		level = Trouble
		addPart(Trouble, "Mass denial: "+share+" since "+clockText(a.startTime, now)+a.outage)
		if a.outageMode != "" {
			addDetail(Trouble, "Redis is down, so rls is %s. To stop the denials, repair Redis. Until then, no command can change a limit. Write shadow_mode: true into the most denied rule of the limits file: %s (docs/operations.md#redis-is-down)", a.outageMode, a.rule)
			return
		}
		addDetail(Trouble, "Before the alarm, %.0f %% of the calls were denied, and %.1f calls a second were admitted. Now %.1f calls a second are admitted, because limits deny calls that they admitted before. To stop the denials, turn off the most denied rule: rls limits off '%s' --for 15m --reason incident. For all limits, it is rls limits off --all --for 15m --reason incident. Without ADMIN_TOKEN, write shadow_mode: true into the limits file (docs/operations.md#most-calls-are-denied)",
			100*a.earlierRates.deniedShare(), a.earlierRates.admitted(), a.lastStepRates.admitted(), a.rule)
	case a.isJump:
		share += " since " + clockText(a.startTime, now)
		minAdmitted := admittedFallShare * a.earlierRates.admitted()
		switch {
		case a.recentRates.admitted() < minAdmitted:
			addPart(Warning, share+cmp.Or(a.outage, ": no limit changed, some callers send more, and others less"))
			return // a change of the limits is not the cause
		case a.lastStepRates.admitted() >= minAdmitted:
			addPart(Warning, share+", but as many calls admitted as before: some callers send more")
			return
		}
		addPart(Warning, share) // the last step admitted few calls, but the mean of the recent steps does not show the cause yet
	default:
		addPart(Warning, share)
	}
	if a.lastChange != "" {
		addDetail(level, "The limits changed %s. If this change is the cause: %s", a.lastChange, a.undoAdvice)
	}
}
