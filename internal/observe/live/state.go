package live

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

func (s *State) setSummary(now time.Time, signals signals, fleetNotes []string) {
	s.Level, s.Details = Well, []string{}
	parts := map[Level][]string{} // the parts of the headline
	addPart := func(level Level, text string) {
		s.Level = worseLevel(s.Level, level)
		parts[level] = append(parts[level], text)
	}
	addDetail := func(level Level, format string, args ...any) {
		s.Level = worseLevel(s.Level, level)
		s.Details = append(s.Details, fmt.Sprintf(format, args...))
	}

	if s.Redis != nil && !s.Redis.Up {
		signals.figures.RedisStalls.Points = nil // the outage explains the stalls
	}
	s.describeUnknownDomain(signals.unmatchedKeys, addPart)
	signals.describe(now, addPart, addDetail)
	for _, note := range fleetNotes {
		addDetail(Warning, "%s", note)
	}
	switch {
	case !s.Limits.Loaded:
		addPart(Trouble, "no limits loaded: calls fail until valid limits arrive")
	case s.Redis == nil:
		addPart(Well, "counting in this process")
	case s.Redis.Up:
		addPart(Well, "counting in Redis")
	default:
		addPart(Trouble, s.Redis.outageText(now))
		addDetail(Trouble, "%s. What to do: %s; see docs/operations.md#redis-is-down", s.Redis.Error, s.Redis.Advice)
	}
	problems := len(s.Limits.Problems) + s.Limits.MoreProblems
	if s.Limits.Loaded && problems > 0 {
		addPart(Warning, "newest limits or overrides rejected")
	}
	if s.Draining {
		addPart(Warning, "stopping")
	}
	for _, path := range s.SwitchedOff {
		addPart(Warning, "switched off: "+path)
	}
	if s.ShadowMode {
		addPart(Warning, "the whole service is in shadow mode: it denies nothing")
	}
	if s.Replicas > 0 {
		addPart(Well, Count(s.Replicas, "replica")+" seen")
	}
	if s.Limits.Loaded && s.Limits.Since != nil {
		addPart(Well, "limits of "+clockText(*s.Limits.Since, now)+" in force")
	}
	// The worst parts come first.
	headline := strings.Join(slices.Concat(parts[Trouble], parts[Warning], parts[Well]), " · ")
	s.Headline = strings.ToUpper(headline[:1]) + headline[1:]

	if redis := s.Redis; redis != nil && redis.Up {
		if redis.Breakers.Failing > 0 {
			addDetail(Warning, "Redis fails some calls now; this process decides those calls. rls doctor says why")
		}
		if redis.Outage != nil && redis.Outage.End != nil {
			addDetail(Well, "Last outage of Redis ended at %s and lasted %s: %s", clockText(*redis.Outage.End, now), secondsText(redis.Outage.Seconds), redis.Outage.priceText())
		}
		if blip := redis.Blip; blip != nil && blip.End != nil && now.Sub(*blip.End) < 5*time.Minute {
			addDetail(Well, "Redis was late or failed for a moment at %s: %s (docs/operations.md#the-page-shows-blips)", clockText(*blip.End, now), blip.priceText())
		}
	}
	if s.Redis != nil {
		if r := s.Redis.Region; r != nil {
			addDetail(Well, "Region %s: %s bought and not used; a purchase takes %s", r.Name, Count(r.UnusedHits, "hit"), time.Duration(float64(r.RoundTripSeconds)*1e9).Round(100*time.Microsecond))
		}
		for _, finding := range s.Redis.Findings {
			if level, ok := findingLevels[finding.Level]; ok {
				addDetail(level, "Redis %s: %s; %s", finding.Address, finding.Text, finding.Advice)
			}
		}
	}
	if candidate := s.Candidate; candidate != nil {
		level := Well
		if candidate.Problem != "" {
			level = Warning
		}
		addDetail(level, "%s", candidate.describe(now))
	}
	if problems > 0 {
		consequence := "the newest limits or overrides are not in force"
		if !s.Limits.Loaded {
			consequence = "there are no limits"
		}
		addDetail(Warning, "%s, so %s (docs/operations.md#new-limits-are-not-in-force): %s", Count(problems, "problem"), consequence, s.Limits.Problems[0])
	}
}

// describeUnknownDomain names the unknown domain with the most calls, if there are not just a few.
func (s *State) describeUnknownDomain(unmatchedKeys []Key, addPart func(Level, string)) {
	for _, key := range unmatchedKeys {
		domain, _, _ := strings.Cut(key.Rule, " > ")
		if key.Limit != "unknown domain" || key.Rate < minSignalRate || !s.Limits.Loaded || slices.Contains(s.Limits.Domains, domain) {
			continue
		}
		text := "calls name the domain " + domain + ", which has no limits"
		if nearestDomain := fields.Nearest(domain, s.Limits.Domains); nearestDomain != "" {
			text += "; the limits name " + nearestDomain
		}
		addPart(Warning, text)
		return
	}
}

// findingLevels maps the level of a finding to its level in State.Details, which leaves out notes.
var findingLevels = map[string]Level{"problem": Trouble, "warning": Warning}

func worseLevel(a, b Level) Level {
	if a == Trouble || b == Well {
		return a
	}
	return b
}

func (c *Candidate) describe(now time.Time) string {
	text := "No candidate limits yet"
	if c.Since != nil {
		text = fmt.Sprintf("Candidate limits of %s: %s compared, %d newly denied, %d newly admitted", clockText(*c.Since, now),
			Count(c.Compared, "call"), c.NewlyDenied, c.NewlyAdmitted)
	}
	if len(c.Rules) > 0 {
		text += fmt.Sprintf("; most by %s (%d)", c.Rules[0].Path, c.Rules[0].NewlyDenied)
	}
	if c.NotCompared > 0 {
		text += "; " + Count(c.NotCompared, "call") + " not compared"
	}
	if c.Problem != "" {
		text += "; the newest candidate is rejected: " + c.Problem
	}
	return text
}

func (r *Redis) outageText(now time.Time) string {
	text := "Redis away"
	if r.Since != nil {
		text += " for " + stopwatchText(now.Sub(*r.Since))
	}
	text += " · " + r.modeText()
	if r.Outage != nil {
		text += " · " + r.Outage.priceText()
	}
	return text
}

func (r *Redis) modeText() string {
	switch r.Mode {
	case "allow":
		return "admitting all hits, or as the rule says"
	case "deny":
		return "denying all hits, or as the rule says"
	}
	return "deciding here at " + shareText(r.Ratio) + " of each limit, or as its rule says"
}

func (o *Outage) priceText() string {
	excess := "no hit"
	if o.MaxExcessHits > 0 {
		excess = "at most " + Count(o.MaxExcessHits, "hit")
	}
	text := Count(o.Calls, "call") + " decided without Redis, " + excess + " too many"
	if limits := fallback.PriceText(o.Limits); limits != "" {
		text += " (" + limits + ")"
	}
	return text
}

func shareText(x float64) string {
	switch x {
	case 1:
		return "all"
	case 0.5:
		return "half"
	case 0.25:
		return "a quarter"
	}
	return strconv.FormatFloat(x*100, 'g', 3, 64) + " %"
}

// Count returns n with its noun in singular or plural, such as "1 call" and "12,000 calls".
func Count[N int | int64 | uint64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return Thousands(int64(n)) + " " + noun
}

// Thousands returns n with a comma before each three digits, such as "12,000".
func Thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// clockText returns the time of day. If t is a day ago or more, clockText adds the date.
func clockText(t, now time.Time) string {
	if now.Sub(t) < 24*time.Hour {
		return t.UTC().Format("15:04 UTC")
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}

// stopwatchText returns d in minutes and seconds, such as "04:05", or also in hours, such as "2:04:05".
func stopwatchText(d time.Duration) string {
	clockTime := time.Time{}.Add(max(d, 0))
	if d < time.Hour {
		return clockTime.Format("04:05")
	}
	return strconv.Itoa(int(d.Hours())) + clockTime.Format(":04:05")
}

// secondsText returns a duration, rounded for a reader: "1m20s", "3.4s" or "120ms".
func secondsText(v Value) string {
	d := time.Duration(float64(v) * float64(time.Second))
	precision := time.Millisecond
	switch {
	case d >= time.Minute:
		precision = time.Second
	case d >= time.Second:
		precision = 100 * time.Millisecond
	}
	return d.Round(precision).String()
}
