package descriptors

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestChangesListPaths(t *testing.T) {
	const before = `
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
	const after = `
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
	old, changed := compileFiles(t, before), compileFiles(t, after)
	assert.Equal(t, 6, old.RuleCount())
	assert.Equal(t, 5, changed.RuleCount(), "a descriptor with limits that are off is no rule")
	assert.Equal(t, Changes{
		Added:   []string{"shop > new"},
		Changed: []string{"shop > edited", "shop > parent > child=x", "shop > parent > child", "shop > metadata"},
		Removed: []string{"shop > gone"},
	}, changed.ChangesFrom(old))
	assert.Equal(t, Changes{}, changed.ChangesFrom(changed))
	assert.Len(t, old.ChangesFrom(nil).Added, 6)
}

func TestChangesReportNewCounters(t *testing.T) {
	const old = "value: a*\nrate_limit: {unit: hour, requests_per_unit: 1}"
	for name, test := range map[string]struct {
		changed     string
		newCounters bool
	}{
		"number":          {"value: a*\nrate_limit: {unit: hour, requests_per_unit: 2}", false},
		"flag":            {old + "\nshadow_mode: true", false},
		"off":             {"value: a*\nrate_limit: {unit: day, requests_per_unit: 1, enabled: false}", false},
		"unlimited":       {"value: a*\nrate_limit: {unlimited: true}", false},
		"algorithm":       {"value: a*\nrate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}", true},
		"window":          {"value: a*\nrate_limit: {unit: day, requests_per_unit: 1}", true},
		"scope":           {"value: a*\nrate_limit: {unit: hour, requests_per_unit: 1, scope: instance}", true},
		"share_threshold": {old + "\nshare_threshold: true", true},
		"a second limit":  {"value: a*\nrate_limits: [{unit: hour, requests_per_unit: 1}, {unit: day, requests_per_unit: 1}]", true},
	} {
		changes := compileFiles(t, oneDescriptor(test.changed)).ChangesFrom(compileFiles(t, oneDescriptor(old)))
		assert.Equal(t, Changes{Changed: []string{"d > k=a*"}, HasNewCounters: test.newCounters}, changes, name)
	}
}

func TestValueChangesHaveOldAndNewLimits(t *testing.T) {
	old := compileFiles(t, "domain: shop\ndescriptors:\n  - {key: edited, rate_limit: {unit: minute, requests_per_unit: 100}}\n  - {key: gone, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	changed := compileFiles(t, "domain: shop\ndescriptors:\n  - {key: edited, rate_limit: {unit: minute, requests_per_unit: 0}}\n  - {key: new, rate_limit: {unit: hour, requests_per_unit: 2}}\n")
	var texts []string
	for _, v := range changed.ValueChangesFrom(old) {
		texts = append(texts, v.String())
	}
	assert.Equal(t, []string{"shop > edited: 100 per minute → 0 per minute", "shop > new: 2 per hour", "shop > gone: 1 per day"}, texts)
	assert.Empty(t, changed.ValueChangesFrom(changed))
}
