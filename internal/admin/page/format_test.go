package page

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/observe/live"
)

func TestNumbersHaveThreeDigits(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", -1: "0", 0.001: "<0.01", 0.005: "0.01", 0.5: "0.5", 1.005: "1", 1.234: "1.23", 9.994: "9.99", 9.995: "10",
		12.34: "12.3", 99.94: "99.9", 99.95: "100", 999.4: "999", 999.5: "1,000", 1234: "1,230", 99_960: "100,000", 1_234_567: "1,230,000",
	} {
		assert.Equal(t, want, formatNumber(x), x)
	}
	assert.Equal(t, "–", FormatRate(live.Unknown))
	assert.Equal(t, "3.2\u202f%", FormatShare(0.032))
	assert.Equal(t, "-1,234,567", live.Thousands(-1234567))
	assert.Equal(t, "-123", live.Thousands(-123))
}

func TestDurationsHaveTheirUnit(t *testing.T) {
	for v, want := range map[live.Value]string{
		0.0000004: "0.4\u202fµs", 0.000048: "48\u202fµs", 0.0009994: "999\u202fµs", 0.0009995: "1\u202fms", 0.0123: "12.3\u202fms", 0.9996: "1\u202fs", 61: "61\u202fs",
	} {
		assert.Equal(t, want, FormatDuration(v))
	}
	assert.Equal(t, "–", FormatDuration(live.Unknown))
}

func TestKeysAreReadable(t *testing.T) {
	for part, want := range map[string]string{
		"path=/a%20b":                           "path=/a b",
		"tenant=%D8%B4":                         "tenant=ش",
		"who=%F0%9F%91%A9%E2%80%8D%F0%9F%92%BB": "who=👩‍💻",
		"tenant=%1B[31m":                        "tenant=%1B[31m",     // a terminal escape
		"file=a%E2%80%AEgpj":                    "file=a%E2%80%AEgpj", // turns the direction
		"raw=%FF":                               "raw=%FF",            // not UTF-8
		"cut=%4":                                "cut=%4",
	} {
		assert.Equal(t, want, readableText(part))
	}
}

func TestTreeKeepsRulesBelowTheirParent(t *testing.T) {
	paths := []string{"shop > a", "shop > b > c > d", "shop > b", "other > x > y", "shop > a > z"}
	rules := make([]*live.Rule, len(paths))
	for i, path := range paths {
		rules[i] = &live.Rule{Path: path}
	}
	rows := treeRows([]*live.Rule{rules[1], rules[3], rules[2], rules[0], rules[4]})
	assert.Equal(t, []treeRow{
		{Rule: rules[2], Depth: 0, PathStart: "shop > ", Label: "b"}, // a rule below it is the first
		{Rule: rules[1], Depth: 1, PathStart: "c > ", Label: "d"},
		{Rule: rules[3], Depth: 0, PathStart: "other > x > ", Label: "y"},
		{Rule: rules[0], Depth: 0, PathStart: "shop > ", Label: "a"},
		{Rule: rules[4], Depth: 1, PathStart: "", Label: "z"},
	}, rows)

	rows = treeRows([]*live.Rule{rules[1], rules[4]})
	assert.Equal(t, []treeRow{
		{Rule: rules[1], Depth: 0, PathStart: "shop > b > c > ", Label: "d"}, // its parents are not chosen
		{Rule: rules[4], Depth: 0, PathStart: "shop > a > ", Label: "z"},
	}, rows)
}

func TestSparkLineHasGaps(t *testing.T) {
	f := &live.Figures{StepSeconds: 60} // five points
	assert.Equal(t, "M0 39h.1l0 0 1 -36", sparkLine([]live.Value{0, 2, live.Unknown, live.Unknown, live.Unknown}, f, 2))
	assert.Equal(t, "M3 3h.1l0 0", sparkLine([]live.Value{2, live.Unknown}, f, 2), "the newest point is at the right edge")
	assert.Empty(t, sparkLine([]live.Value{0, 0}, f, 2))
}
