package page

import (
	"html/template"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
)

// view is what the template shows. File assets/page.js makes the same texts from a snapshot.
type view struct {
	*live.Snapshot
	Choice  choice
	Links   []Link
	Rules   ruleTable
	Hint    *hint
	Explain explainForm
	Sources []string
}

// hint says what to do if there is nothing to show.
type hint struct {
	Text, Href, LinkName, Command string
	IsIdle                        bool // no call has arrived
}

func keysNote(k *live.TopKeys) string {
	note := "TOP_KEYS=" + string(k.Mode)
	if k.Mode != live.KeysOff && k.SampledShare < 1 {
		note += ", from " + FormatShare(k.SampledShare) + " of the decisions"
	}
	return note
}

func limitsNote(l *live.Limits) string {
	if !l.Loaded {
		return "No limits in force"
	}
	note := live.Count(l.Rules, "rule") + " in " + live.Count(len(l.Domains), "domain") + ", from " + l.Source
	if l.Hash != "" {
		note += ", hash " + l.Hash[:min(len(l.Hash), 8)]
	}
	return note
}

func overridesNote(l *live.OverrideList) string {
	switch {
	case !l.Enabled:
		return "OVERRIDES_ENABLED=false"
	case len(l.Shown) == 0:
		return "None"
	case l.More > 0:
		return live.Thousands(int64(l.More)) + " more; rls limits list shows all"
	}
	return live.Thousands(int64(len(l.Shown)))
}

// functions are the functions of the template. The empty values fill the templates from
// which the script makes rows.
var functions = template.FuncMap{
	"figures":       figures,
	"keys":          newKeyList,
	"keysNote":      keysNote,
	"limitsNote":    limitsNote,
	"overridesNote": overridesNote,
	"unmatchedKeys": unmatchedList,
	"unmatchedSpark": func(f *live.Figures) spark {
		return newSpark("Descriptors without a rule per second", f, FormatRate, f.Unmatched.Points, nil)
	},

	"clock": formatClock,
	"utc":   formatUTC,
	"stamp": func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"count": live.Thousands,
	"left":  func(n int64) string { return live.Thousands(max(n, 0)) }, // a negative count is debt
	"join":  func(texts []string) string { return strings.Join(texts, ", ") },
	"rate":  FormatRate,
	"share": FormatShare,
	"rateClass": func(v live.Value, class string) string { // class is for rates above 0
		if v > 0 {
			return class
		}
		return "zero"
	},
	"percent":       func(v live.Value) int { return min(max(roundHalfUp(numberOrZero(v)*100), 0), 100) },
	"emptyRule":     func() *ruleRow { return &ruleRow{treeRow: treeRow{Rule: &live.Rule{Use: live.Unknown}}} },
	"emptyKey":      func() keyRow { return keyRow{} },
	"emptyChange":   func() timeline.Event { return timeline.Event{} },
	"emptyOverride": func() live.Override { return live.Override{} },
}
