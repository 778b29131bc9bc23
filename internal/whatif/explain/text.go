package explain

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// EncodeJSON writes v as JSON for people and programs.
func EncodeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // paths of rules contain >
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// WriteText writes r for people.
func (r *Report) WriteText(w io.Writer) error {
	t := &textWriter{Writer: bufio.NewWriter(w), now: r.Time}
	t.writeHeader(r)
	for i := range r.Descriptors {
		t.writeDescriptor(&r.Descriptors[i], r.Offline)
	}
	t.writeCandidate(r.Candidate)
	return t.Flush()
}

// textWriter writes a report as lines with indents.
type textWriter struct {
	*bufio.Writer
	now time.Time
}

// writeCandidate writes the answer of the candidate limits in short. r is nil without a candidate.
func (t *textWriter) writeCandidate(r *Report) {
	if r == nil {
		return
	}
	t.writeLine(0, "\ncandidate limits, which are not in force: %s", cmp.Or(r.Code, r.Error))
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		t.writeLine(1, "%s: %s%s", descriptors.Quoted(d.Descriptor), d.Summary, inBrackets(d.Place))
	}
}

// writeLine writes a line with an indent of depth.
func (t *textWriter) writeLine(depth int, format string, args ...any) {
	fmt.Fprintf(t, strings.Repeat("  ", depth)+format+"\n", args...)
}

func (t *textWriter) writeHeader(r *Report) {
	switch {
	case r.Error != "":
		t.writeLine(0, "next answer: error: %s", r.Error)
	case r.GlobalShadowMode:
		t.writeLine(0, "next answer: OK, because SHADOW_MODE of the service turns OVER_LIMIT into OK")
	default:
		t.writeLine(0, "next answer: %s", r.Code)
	}
	for _, text := range r.Switches {
		t.writeLine(0, "switch: %s", text)
	}
	if r.Offline {
		t.writeLine(0, "counters: empty, because no service was asked")
	} else {
		t.writeLine(0, "time: %s UTC", r.Time.Format(dateTime))
	}
	if a := r.outageAnswer(); a != nil {
		text := "Redis: not used, because " + reasonText(a.Reason)
		if a.Since != nil {
			text += ", since " + t.timeText(a.Since)
		}
		t.writeLine(0, "%s", text)
	}
	domain := fields.Printable(r.Domain)
	u := r.UnknownDomain
	if u == nil {
		t.writeLine(0, "domain: %s%s", domain, inBrackets(r.Place))
		return
	}
	t.writeLine(0, "domain: %s is unknown, so nothing in it is limited", domain)
	if u.Nearest != "" {
		t.writeLine(1, "did you mean %s?", fields.Printable(u.Nearest))
	}
	for _, name := range u.WithRule {
		t.writeLine(1, "the domain %s has a rule for each descriptor of the request", fields.Printable(name))
	}
	var names []string
	for _, name := range u.Domains {
		names = append(names, fields.Printable(name))
	}
	if more := u.Count - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	if len(names) == 0 {
		names = []string{"none"}
	}
	t.writeLine(1, "loaded domains: %s", strings.Join(names, ", "))
}

// inBrackets returns " (place)", or "" without a place.
func inBrackets(place string) string {
	if place == "" {
		return ""
	}
	return " (" + place + ")"
}

func (t *textWriter) writeDescriptor(d *Descriptor, offline bool) {
	t.writeLine(0, "\n%s", descriptors.Quoted(d.Descriptor))
	t.writeLine(1, "%s", d.Summary)
	if len(d.Levels) > 0 {
		t.writeLine(1, "match:")
	}
	for i, l := range d.Levels {
		t.writeLevel(i+1, &l)
	}
	if d.Rule != "" {
		t.writeLine(1, "rule: %s%s", d.Rule, inBrackets(d.Place))
	}
	if d.ShadowMode {
		t.writeLine(2, "shadow mode: the rule counts and never denies")
	}
	if e := d.Enforcement; e != nil {
		text := "this key can be denied"
		if !e.IncludesKey {
			text = "this key is never denied"
		}
		t.writeLine(2, "enforce: the rule can deny %v %% of the keys; %s", e.Percent, text)
	}
	if d.QuotaMode {
		t.writeLine(2, "quota mode: the request is denied only if all rules in quota mode are over their limits")
	}
	if d.Denial != nil {
		for _, header := range d.Denial.Headers {
			t.writeLine(2, "a denial has the header %s", fields.Printable(header))
		}
		if d.Denial.Body != "" {
			t.writeLine(2, "a denial has the body %s", fields.Printable(d.Denial.Body))
		}
	}
	if d.Created != nil {
		t.writeLine(1, "created at run time%s", strings.TrimPrefix(t.overrideText(d.Created), "override: "))
	}
	for _, o := range d.Overrides {
		t.writeLine(1, "%s", t.overrideText(&o))
	}
	for i := range d.Limits {
		t.writeLimit(&d.Limits[i], offline)
	}
	for i, n := range d.NearRules {
		if i == 0 {
			t.writeLine(1, "nearest rules:")
		}
		t.writeLine(2, "%s%s: %s", n.Rule, inBrackets(n.Place), n.Limits)
		for _, c := range n.Changes {
			t.writeLine(3, "%s", c.Reason)
		}
	}
}

func (t *textWriter) writeLevel(number int, l *Level) {
	switch {
	case l.Winner != nil:
		t.writeLine(2, "%d. %s matches %s%s: %s", number, l.Entry, l.Winner.Descriptor, inBrackets(l.Winner.Place), l.Winner.Reason)
	case l.Compared == 1:
		t.writeLine(2, "%d. %s does not match the only descriptor here", number, l.Entry)
	default:
		t.writeLine(2, "%d. %s matches none of the %d descriptors here", number, l.Entry, l.Compared)
	}
	unlistedCount := l.OtherValues
	for _, c := range l.Others {
		t.writeLine(3, "not %s%s: %s", c.Descriptor, inBrackets(c.Place), c.Reason)
		if c.Difference == descriptors.OtherValue.String() {
			unlistedCount--
		}
	}
	switch {
	case unlistedCount == 1:
		t.writeLine(3, "1 other descriptor has this key and another value")
	case unlistedCount > 1:
		t.writeLine(3, "%d other descriptors have this key and another value", unlistedCount)
	}
}

// overrideText returns the text about an override.
func (t *textWriter) overrideText(o *Override) string {
	text := "override: " + fields.Printable(o.Target)
	if o.Off {
		text = "switched off: " + fields.Printable(o.Target)
	}
	if o.Author != "" {
		text += " by " + fields.Printable(o.Author)
	}
	if o.SetAt != nil {
		text += ", set " + t.timeText(o.SetAt)
	}
	if o.ExpiresAt != nil {
		text += ", until " + t.timeText(o.ExpiresAt)
	} else {
		text += ", without an end"
	}
	if o.Reason != "" {
		text += ", reason " + strconv.Quote(o.Reason)
	}
	if o.BaseLimits == "" {
		return text
	}
	return text + "; without it: " + o.BaseLimits
}

func (t *textWriter) writeLimit(l *Limit, offline bool) {
	text := "limit: " + l.Limit + strings.Join(extraFields(l), "")
	if l.Name != "" {
		text += fmt.Sprintf(" (named %s)", fields.Printable(l.Name))
	}
	if l.FromRequest {
		text += ", stated in the request"
	}
	t.writeLine(1, "%s%s", text, inBrackets(l.Place))
	var notes []string
	if len(l.FromOverride) > 0 {
		notes = append(notes, strings.Join(l.FromOverride, ", ")+" from the override")
	}
	if len(l.FromDefaults) > 0 {
		notes = append(notes, fmt.Sprintf("%s from the defaults%s", strings.Join(l.FromDefaults, ", "), inBrackets(l.DefaultsPlace)))
	}
	if len(notes) > 0 {
		t.writeLine(2, "%s", strings.Join(notes, "; "))
	}
	switch l.State {
	case Off:
		t.writeLine(2, "not counted: off (enabled: false)")
	case Unlimited:
		t.writeLine(2, "every hit passes; nothing is counted")
	case Rejected:
		t.writeLine(2, "not counted: the service rejects the request")
	case Replaced:
		t.writeLine(2, "not counted: replaced by %s", l.ReplacedBy)
	case Counted:
		t.writeCounter(l.Counter, offline)
		t.writeNextHit(l.NextHit, offline)
	}
}

// extraFields returns the fields of l that differ from their defaults and that l.Limit leaves
// out.
func extraFields(l *Limit) []string {
	algorithm, ok := limit.ParseAlgorithm(l.Algorithm)
	if !ok {
		return nil // l is unlimited
	}
	mode, _ := limit.ParseFailureMode(l.OnBackendFailure)
	return limitsfile.ExtraFields(&limit.Limit{Spec: limit.Spec{
		Algorithm: algorithm, ChargeDenied: l.ChargeDenied, OnBackendFailure: mode, FallbackRatio: l.FallbackRatio,
		Lease: l.Lease, LeaseWaste: l.LeaseWaste,
	}}, ", %s %v")
}

func (t *textWriter) writeCounter(c *Counter, offline bool) {
	t.writeLine(2, "counter: %s (%s)", c.Name, c.Tag)
	if c.Key != "" {
		t.writeLine(2, "in Redis %s: %s", c.Server, fields.Printable(c.Key))
	}
	switch {
	case c.Unknown:
		t.writeLine(2, "spent: unknown")
		return
	case offline, c.Capacity == 0 && c.Spent == 0 && c.ResetAt == nil && c.FirstExpiryAt == nil:
		return
	}
	text := fmt.Sprintf("spent: %d of %d, %d left", c.Spent, c.Capacity, max(c.Remaining, 0))
	if c.Permits > 0 {
		text += fmt.Sprintf(" (this replica holds %d permits)", c.Permits)
	}
	if c.Degraded {
		text += ", in the fallback of this replica only"
	}
	switch {
	case c.WindowStart != nil:
		text += fmt.Sprintf("; window from %s to %s", t.clockText(c.WindowStart), t.timeText(c.ResetAt))
	case c.FirstExpiryAt != nil:
		text += fmt.Sprintf("; the first hold expires at %s", t.timeText(c.FirstExpiryAt))
	case c.ResetAt != nil:
		text += fmt.Sprintf("; all %d left again at %s", c.Capacity, t.timeText(c.ResetAt))
	}
	t.writeLine(2, "%s", text)
}

func (t *textWriter) writeNextHit(a *Answer, offline bool) {
	if a.Error != "" {
		t.writeLine(2, "next hit: error: %s", a.Error)
		return
	}
	text := "next hit: OVER_LIMIT"
	if a.Allowed {
		text = fmt.Sprintf("next hit: OK, then %d left", a.Remaining)
	}
	if !offline {
		text += ", answered by " + a.By
	}
	switch a.Mode {
	case "allow", "deny":
		text += fmt.Sprintf(", which would %s every hit", a.Mode)
	}
	t.writeLine(2, "%s", text)
	switch {
	case a.Until != nil:
		t.writeLine(3, "denied since %s, until %s", t.timeText(a.Since), t.timeText(a.Until))
	case a.RetryAt != nil:
		t.writeLine(3, "passes again at %s", t.timeText(a.RetryAt))
	case a.Never:
		t.writeLine(3, "no hit ever passes, because the limit is 0")
	}
}

const dateTime = "2006-01-02 15:04:05"

// clockText returns the time of day. It adds the date if the report is from another day.
func (t *textWriter) clockText(moment *time.Time) string {
	const date = "2006-01-02"
	if moment.Format(date) == t.now.Format(date) {
		return moment.Format("15:04:05")
	}
	return moment.Format(dateTime)
}

// timeText returns a time and its distance from the report: "15:04:05 UTC (in 12s)".
func (t *textWriter) timeText(moment *time.Time) string {
	switch distance := moment.Sub(t.now).Round(time.Second); {
	case distance < 0:
		return fmt.Sprintf("%s UTC (%s ago)", t.clockText(moment), spanText(-distance))
	case distance == 0 && !moment.After(t.now):
		return t.clockText(moment) + " UTC (just now)"
	default:
		return fmt.Sprintf("%s UTC (in %s)", t.clockText(moment), spanText(distance))
	}
}

// spanText returns a duration in two units: "25d19h", "1h0m" or "8m38s".
func spanText(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return d.String()
}

// outageAnswer returns the first answer that the fallback would give, or nil.
func (r *Report) outageAnswer() *Answer {
	for _, d := range r.Descriptors {
		for _, l := range d.Limits {
			if l.NextHit != nil && l.NextHit.Source == backend.SourceFallback.String() {
				return l.NextHit
			}
		}
	}
	return nil
}

// reasonText returns a reason of the fallback in words.
func reasonText(reason string) string {
	switch reason {
	case backend.ReasonOutage.String():
		return "it has just failed"
	case backend.ReasonBreakerOpen.String():
		return "it keeps failing (breaker open)"
	case backend.ReasonLate.String():
		return "it has not answered in time"
	case backend.ReasonOverload.String():
		return "this replica has too many hits in its queue (overload)"
	}
	return reason
}
