package descriptors

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestChangesAreToldByPath(t *testing.T) {
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
  - {key: tells, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {a: 1}}
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
  - {key: tells, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {a: 2}}
`
	old, now := compileFiles(t, before), compileFiles(t, after)
	assert.Equal(t, 6, old.Rules())
	assert.Equal(t, 5, now.Rules(), "of those in force")
	assert.Equal(t, Changes{
		Added:   []string{"shop > new"},
		Changed: []string{"shop > edited", "shop > parent > child=x", "shop > parent > child", "shop > tells"},
		Removed: []string{"shop > gone"},
	}, now.ChangesFrom(old))
	assert.Equal(t, Changes{}, now.ChangesFrom(now))
	assert.Len(t, old.ChangesFrom(nil).Added, 6)
}
