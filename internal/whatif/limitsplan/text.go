package limitsplan

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// maxTextRules bounds the rules that WriteText lists.
const maxTextRules = 30

// WriteText writes r for people.
func (r *Report) WriteText(out io.Writer) error {
	w := bufio.NewWriter(out)
	c := r.Calls
	fmt.Fprintf(w, "Replayed %d recorded calls, from %s to %s, against the new limits.\n", c.Total, r.Start.Format(time.RFC3339), r.End.Format(time.RFC3339))
	fmt.Fprintf(w, "The new limits would have denied %d calls that passed, and admitted %d calls that were denied.\n\n", c.NewlyDenied, c.NewlyAdmitted)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "denied when recorded\t%s\t%s\n", share(c.DeniedBefore, c.Total), chart(r.Timeline.DeniedBefore))
	fmt.Fprintf(table, "denied by the new limits\t%s\t%s\n", share(c.DeniedNow, c.Total), chart(r.Timeline.DeniedNow))
	fmt.Fprintf(table, "newly denied\t%s\t\n", share(c.NewlyDenied, c.Total))
	fmt.Fprintf(table, "newly admitted\t%s\t\n", share(c.NewlyAdmitted, c.Total))
	_ = table.Flush()
	fmt.Fprintf(w, "each bar is %s\n", bucketText(r.Timeline.BucketSeconds))
	r.writeRules(w)
	r.writeKeys(w)
	r.writeNotes(w)
	return w.Flush()
}

func (r *Report) writeRules(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nrule\tlimits\trequests\tdenied before\tdenied now\tnewly denied\tnewly admitted\twhen newly denied\n")
	for i := range r.Rules[:min(len(r.Rules), maxTextRules)] {
		rule := &r.Rules[i]
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", fields.Printable(rule.Rule), fields.Printable(rule.limitsText()),
			rule.Total, rule.DeniedBefore, rule.DeniedNow, rule.NewlyDenied, rule.NewlyAdmitted, chart(rule.Timeline))
	}
	_ = table.Flush()
	if more := len(r.Rules) - maxTextRules; more > 0 {
		fmt.Fprintf(w, "and %d more rules (--json lists all)\n", more)
	}
}

// limitsText returns the limits of the rule, and what shadow mode does to them.
func (r *RuleReport) limitsText() string {
	switch {
	case r.DeniedInShadow > 0:
		return fmt.Sprintf("%s, would deny %d without shadow mode", r.Limits, r.DeniedInShadow)
	case r.Shadow:
		return r.Limits + ", shadow mode"
	}
	return r.Limits
}

func (r *Report) writeKeys(w io.Writer) {
	if len(r.Keys) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%d of %d keys with new denials\n", len(r.Keys), r.NewlyDeniedKeys)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "key\trule\trequests\tdenied before\tdenied now\tnewly denied\tfirst\n")
	for i := range r.Keys {
		k := &r.Keys[i]
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%s\n", fields.Printable(k.Key), fields.Printable(k.Rule),
			k.Total, k.DeniedBefore, k.DeniedNow, k.NewlyDenied, k.FirstDenied.Format(time.RFC3339))
	}
	_ = table.Flush()
}

func (r *Report) writeNotes(w io.Writer) {
	if len(r.OtherCauses) > 0 {
		fmt.Fprintf(w, "\nnote: %s:\n", r.otherCausesText())
		for _, o := range r.OtherCauses {
			fmt.Fprintf(w, "  %s\n", o)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "\nnote: %s\n", note)
	}
}

// otherCausesText says how many calls differ for other causes than the new limits.
func (r *Report) otherCausesText() string {
	n := uint64(0)
	for _, o := range r.OtherCauses {
		n += o.Calls
	}
	return fmt.Sprintf("%d of the newly denied and newly admitted calls met the same limits when they were recorded, so they can have another cause", n)
}

// share returns n and its percentage of total.
func share(n, total uint64) string {
	return strconv.FormatUint(n, 10) + fmt.Sprintf(" (%.2f %%)", percent(n, total))
}

// bucketText returns the length of a bucket in words.
func bucketText(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).String()
}

// bars are the bars of a chart, from the lowest.
var bars = []rune("▁▂▃▄▅▆▇█")

// chart returns a bar for each number. A dot stands for 0.
func chart(numbers []uint64) string {
	highest := uint64(0)
	for _, n := range numbers {
		highest = max(highest, n)
	}
	var b strings.Builder
	for _, n := range numbers {
		if n == 0 {
			b.WriteRune('·')
			continue
		}
		b.WriteRune(bars[min(int(n*uint64(len(bars))/(highest+1)), len(bars)-1)])
	}
	return b.String()
}
