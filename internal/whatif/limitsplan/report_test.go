package limitsplan

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
)

func TestFailConditionComparesAFigure(t *testing.T) {
	report := &Report{Calls: Counts{Total: 200, DeniedNow: 3, NewlyDenied: 2, NewlyAdmitted: 4}, NewlyDeniedKeys: 1}
	for text, test := range map[string]struct {
		holds bool
		want  string
	}{
		"denied > 1%":           {true, `condition "denied > 1%" holds: denied is 1.5 %`},
		"denied>1.5%":           {false, `condition "denied>1.5%" does not hold: denied is 1.5 %`},
		"newly_denied > 1":      {true, `condition "newly_denied > 1" holds: newly_denied is 2`},
		"newly_admitted > 4":    {false, `condition "newly_admitted > 4" does not hold: newly_admitted is 4`},
		"newly_denied_keys > 0": {true, `condition "newly_denied_keys > 0" holds: newly_denied_keys is 1`},
	} {
		condition, err := ParseFailCondition(text)
		require.NoError(t, err)
		holds, got := condition.Check(report)
		assert.Equal(t, test.holds, holds, text)
		assert.Equal(t, test.want, got)
	}
	condition, err := ParseFailCondition("denied > 0%")
	require.NoError(t, err)
	holds, _ := condition.Check(&Report{})
	assert.False(t, holds, "no calls")
}

func TestFailConditionWithProblemsIsRejected(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "want FIGURE > NUMBER",
		"denied < 1":                           "want FIGURE > NUMBER",
		"denied > -1":                          "want FIGURE > NUMBER",
		"deny > 1":                             `got figure "deny", want denied, newly_denied, newly_admitted or newly_denied_keys`,
		"denied > " + strings.Repeat("9", 400): "condition: got a number of 400 digits",
		"newly_denied_keys > 1%":               "want a number of keys",
	} {
		_, err := ParseFailCondition(text)
		assert.ErrorContains(t, err, want, text)
	}
}

func TestTimelineDoublesTheWidthOfItsBuckets(t *testing.T) {
	var line timeline
	numbers := line.newSeries()
	for i := range 1000 {
		numbers[line.bucket(logStart.Add(time.Duration(i)*time.Second))]++
	}
	assert.Equal(t, 32*time.Second, line.width)
	for i := range 1000 / 32 {
		assert.Equal(t, uint64(32), numbers[i], "bucket %d", i)
	}
	assert.Equal(t, uint64(1000%32), numbers[1000/32])
	assert.Less(t, line.bucket(logStart.Add(100*365*24*time.Hour)), maxBuckets, "a century")
}

func TestChartHasABarForEachNumber(t *testing.T) {
	assert.Equal(t, "·▁▄█", chartText([]uint64{0, 1, 8, 16}))
	assert.Equal(t, "···", chartText(make([]uint64, 3)))
}

// reportWithSpecialCharacters returns a report with characters that need an escape.
func reportWithSpecialCharacters(t *testing.T) *Report {
	var records []decisionlog.Record
	for i := range 5 {
		records = append(records, record(i, "tenant", "<b>\x1b[2J", decisionlog.OK))
	}
	return replayLog(t, newLimits, logOf(records...))
}

func TestTextEscapesControlCharacters(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, reportWithSpecialCharacters(t).WriteText(&b))
	assert.NotContains(t, b.String(), "\x1b")
	assert.Contains(t, b.String(), "denied by the new limits  3 (60.00 %)")
	assert.Contains(t, b.String(), "shop|tenant=<b>%1B[2J")
}
