package descriptors

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestChangesListPathsOfAddedChangedAndRemovedRules(t *testing.T) {
	const oldFile = `
domain: shop
descriptors:
  - {key: same, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: edited, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: gone, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: parent
    descriptors:
      - {key: child, value: x, rate_limit: {unit: minute, requests_per_unit: 1}}
      - {key: child, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: metadata, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {a: 1}}
`
	const newFile = `
domain: shop
descriptors:
  - {key: new, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: edited, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: same, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: parent
    descriptors:
      - {key: child, value: x, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
      - {key: child, rate_limit: {unit: minute, requests_per_unit: 1, enabled: false}}
  - {key: metadata, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {a: 2}}
`
	oldConfig, newConfig := compileFiles(t, oldFile), compileFiles(t, newFile)
	assert.Equal(t, 6, oldConfig.RuleCount())
	assert.Equal(t, 5, newConfig.RuleCount(), "a descriptor with limits that are off is no rule")
	assert.Equal(t, changedPaths{
		added:   []string{"shop > new"},
		changed: []string{"shop > edited", "shop > parent > child=x", "shop > parent > child", "shop > metadata"},
		removed: []string{"shop > gone"},
	}, pathsOf(newConfig.ChangesFrom(oldConfig)))
	assert.Equal(t, Changes{}, newConfig.ChangesFrom(newConfig))
	assert.Len(t, oldConfig.ChangesFrom(nil).Added, 6)
}

// changedPaths has the paths of Changes.
type changedPaths struct{ added, changed, removed []string }

func pathsOf(changes Changes) (paths changedPaths) {
	for _, r := range changes.Added {
		paths.added = append(paths.added, r.Path)
	}
	for _, r := range changes.Changed {
		paths.changed = append(paths.changed, r.Path)
	}
	for _, r := range changes.Removed {
		paths.removed = append(paths.removed, r.Path)
	}
	return paths
}

func TestChangesReportNewCounters(t *testing.T) {
	const oldFields = "value: a*\nrate_limit: {unit: hour, requests_per_unit: 1}"
	for name, test := range map[string]struct {
		newFields   string
		newCounters bool
	}{
		"another number":      {"value: a*\nrate_limit: {unit: hour, requests_per_unit: 2}", false},
		"another flag":        {oldFields + "\nshadow_mode: true", false},
		"a limit that is off": {"value: a*\nrate_limit: {unit: day, requests_per_unit: 1, enabled: false}", false},
		"an unlimited rule":   {"value: a*\nrate_limit: {unlimited: true}", false},
		"another algorithm":   {"value: a*\nrate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}", true},
		"another window":      {"value: a*\nrate_limit: {unit: day, requests_per_unit: 1}", true},
		"another scope":       {"value: a*\nrate_limit: {unit: hour, requests_per_unit: 1, scope: instance}", true},
		"share_threshold":     {oldFields + "\nshare_threshold: true", true},
		"a second limit":      {"value: a*\nrate_limits: [{unit: hour, requests_per_unit: 1}, {unit: day, requests_per_unit: 1}]", true},
	} {
		changes := compileFiles(t, oneDescriptor(test.newFields)).ChangesFrom(compileFiles(t, oneDescriptor(oldFields)))
		assert.Equal(t, changedPaths{changed: []string{"d > k=a*"}}, pathsOf(changes), name)
		assert.Equal(t, test.newCounters, changes.HasNewCounters, name)
	}
}

func TestChangesHaveOldAndNewLimits(t *testing.T) {
	oldConfig := compileFiles(t, "domain: shop\ndescriptors:\n  - {key: edited, rate_limit: {unit: minute, requests_per_unit: 100}}\n  - {key: gone, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	newConfig := compileFiles(t, "domain: shop\ndescriptors:\n  - {key: edited, rate_limit: {unit: minute, requests_per_unit: 0}}\n  - {key: new, rate_limit: {unit: hour, requests_per_unit: 2}}\n")
	changes := newConfig.ChangesFrom(oldConfig)
	assert.Equal(t, "shop > edited: 100 per minute → 0 per minute", changes.Changed.Join("; "))
	assert.Equal(t, "shop > new: 2 per hour", changes.Added.Join("; "))
	assert.Equal(t, "shop > gone: 1 per day", changes.Removed.Join("; "))
}

func TestTextOfChangesIsBounded(t *testing.T) {
	assert.Empty(t, RuleChanges{}.Join("; "))
	assert.Equal(t, "a: 1; b: 1", RuleChanges{{Path: "a", New: "1"}, {Path: "b", New: "1"}}.Join("; "))
	assert.Equal(t, "a: 1; a: 1; a: 1; a: 1; a: 1; a: 1; a: 1; a: 1; a: 1; a: 1; and 2 more", RuleChanges(slices.Repeat([]RuleChange{{Path: "a", New: "1"}}, 12)).Join("; "))
}
