package release

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// defaultOf returns the default of a setting by docs/settings.md.
func defaultOf(t *testing.T, setting string) string {
	t.Helper()
	row := regexp.MustCompile("(?m)^\\| `" + setting + "` \\| (?:`(.*?)`)? \\|").FindStringSubmatch(readFile(t, "docs/settings.md"))
	require.NotNil(t, row, "docs/settings.md has no setting %s", setting)
	return row[1]
}

func TestUnitWaitsForTheWholeDrain(t *testing.T) {
	match := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)$`).FindStringSubmatch(readFile(t, "deploy/package/rls.service"))
	require.NotNil(t, match)
	seconds, err := strconv.Atoi(match[1])
	require.NoError(t, err)
	delay, err := time.ParseDuration(defaultOf(t, "DRAIN_DELAY"))
	require.NoError(t, err)
	timeout, err := time.ParseDuration(defaultOf(t, "DRAIN_TIMEOUT"))
	require.NoError(t, err)
	const afterDrain = 9 * time.Second // 3 s each for debug pages, the decision log and traces
	assert.Greater(t, time.Duration(seconds)*time.Second, delay+timeout+afterDrain)
}

func TestSettingsOfThePackageExist(t *testing.T) {
	names := regexp.MustCompile(`(?m)^#?([A-Z_]+)=`).FindAllStringSubmatch(readFile(t, "deploy/package/rls.env"), -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		defaultOf(t, name[1])
	}
}

func TestLimitsOfThePackageAreValid(t *testing.T) {
	limits, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(readFile(t, "deploy/package/limits.yaml"))}}, limitsfile.Options{})
	require.NoError(t, err)
	assert.Empty(t, limits.Warnings)
}
