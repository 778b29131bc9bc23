package descriptors

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// compileWithCopy compiles a file, and adds a copy of its last descriptor for the value "one", as an override does.
// change changes the copy. change can be nil.
func compileWithCopy(t *testing.T, yaml string, change func(*limitsfile.Descriptor)) *Config {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(expandDay(yaml))}}, limitsfile.Options{})
	require.NoError(t, err)
	list := set.Domains[0].Descriptors
	original := list[len(list)-1]
	valueCopy := *original
	valueCopy.Value, valueCopy.Original, valueCopy.HasWildcardValue, valueCopy.Condition = "one", original, false, nil
	if change != nil {
		change(&valueCopy)
	}
	set.Domains[0].Descriptors = append(list, &valueCopy)
	return Compile(set)
}

// rulePaths returns the paths of all rules without the domain.
func rulePaths(c *Config) (paths []string) {
	c.EachRule(func(r *Rule) { paths = append(paths, strings.TrimPrefix(r.Path, "d > ")) })
	return paths
}

const tenantFile = `domain: d
descriptors:
- {key: tenant, DAY, descriptors: [{key: path, DAY}, {key: user, DAY}]}
`

func TestCopyForOneValueHasTheRulesBelowItsOriginal(t *testing.T) {
	otherChildren := compileFiles(t, expandDay(`domain: d
descriptors: [{key: other, DAY, descriptors: [{key: x, DAY}]}]`)).Domain("d").Source.Descriptors[0].Descriptors
	for _, c := range []struct {
		name, yaml string
		change     func(*limitsfile.Descriptor)
		rules      []string // the paths of all rules
		copyKeys   []string // the keys of the rules that requests match below the copy
	}{
		{"the same children", tenantFile, nil, []string{"tenant", "tenant > path", "tenant > user", "tenant=one"}, []string{"path", "user"}},
		{"other children", tenantFile, func(d *limitsfile.Descriptor) { d.Descriptors = otherChildren }, []string{"tenant", "tenant > path", "tenant > user", "tenant=one", "tenant=one > x"}, []string{"x"}},
		{"no children", tenantFile, func(d *limitsfile.Descriptor) { d.Descriptors = nil }, []string{"tenant", "tenant > path", "tenant > user", "tenant=one"}, nil},
		{"children only below the copy", "domain: d\ndescriptors: [{key: tenant, DAY}]", func(d *limitsfile.Descriptor) { d.Descriptors = otherChildren }, []string{"tenant", "tenant=one", "tenant=one > x"}, []string{"x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := compileWithCopy(t, c.yaml, c.change)
			assert.Equal(t, c.rules, rulePaths(config), "shared rules are listed once")
			for _, key := range []string{"path", "user", "x"} {
				rule := config.Domain("d").Match(entries("tenant", "one", key, "v"))
				assert.Equal(t, strings.Contains(strings.Join(c.copyKeys, " "), key), rule != nil, key)
			}
		})
	}
}

func TestChangesBelowACopyAreListed(t *testing.T) {
	changedFile := strings.Replace(tenantFile, "{key: user, DAY}", "{key: user, rate_limit: {unit: day, requests_per_unit: 2}}", 1)
	// withChildrenOf returns a function that gives a copy the children of the first descriptor of c.
	withChildrenOf := func(c *Config) func(*limitsfile.Descriptor) {
		list := c.Domain("d").Source.Descriptors[0].Descriptors
		return func(d *limitsfile.Descriptor) { d.Descriptors = list }
	}
	sharedChildren := compileWithCopy(t, tenantFile, nil)
	ownChildren := compileWithCopy(t, tenantFile, withChildrenOf(compileFiles(t, expandDay(changedFile))))
	for _, c := range []struct {
		name                 string
		oldConfig, newConfig *Config
		want                 changedPaths
	}{
		{"equal files", sharedChildren, compileWithCopy(t, tenantFile, nil), changedPaths{}},
		{"a shared child changes", sharedChildren, compileWithCopy(t, changedFile, nil), changedPaths{changed: []string{"d > tenant > user"}}},
		{"the copy gets its own children", sharedChildren, ownChildren, changedPaths{changed: []string{"d > tenant=one > user"}}},
		{"the copy loses its own children", ownChildren, sharedChildren, changedPaths{changed: []string{"d > tenant=one > user"}}},
		{"the copy is new", compileFiles(t, expandDay(tenantFile)), sharedChildren, changedPaths{added: []string{"d > tenant=one"}}},
		{"the copy is removed", sharedChildren, compileFiles(t, expandDay(tenantFile)), changedPaths{removed: []string{"d > tenant=one"}}},
		{
			"the copy with its own children is removed", ownChildren, compileFiles(t, expandDay(tenantFile)),
			changedPaths{removed: []string{"d > tenant=one", "d > tenant=one > path", "d > tenant=one > user"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, pathsOf(c.newConfig.ChangesFrom(c.oldConfig))) })
	}
}

func TestIndexFindsExactAndMatchingDescriptors(t *testing.T) {
	list := compileFiles(t, expandDay(`domain: d
descriptors:
- {key: user, value: alice, DAY}
- {key: user, value: 'a*', DAY}
- {key: user, DAY}
- {key: tier, value: gold, DAY}
- {key: ip, cidr: [10.0.0.0/8], DAY}
- {key: plan, cel: 'entries.plan == "free"', DAY}
`)).Domain("d").Source.Descriptors
	index := NewIndex(list)
	for _, c := range []struct {
		key, value string
		wantIndex  int // the index in list; -1 if no descriptor is found
		isExact    bool
	}{
		{"user", "alice", 0, true},
		{"user", "a*", 1, true},
		{"user", "anna", 1, false},
		{"user", "bob", 2, false},
		{"user", "b*", -1, false}, // a pattern is no value of a request
		{"user", "", 2, true},
		{"us*r", "bob", -1, false},
		{"tier", "gold", 3, true},
		{"tier", "iron", -1, false},
		{"tier", "", -1, false},
		{"ip", "10.1.1.1", 4, false},
		{"ip", "", -1, false},
		{"other", "x", -1, false},
	} {
		d, isExact := index.Find(entries("before", "x", c.key, c.value))
		assert.Equal(t, c.isExact, isExact, "%s=%s", c.key, c.value)
		if c.wantIndex < 0 {
			assert.Nil(t, d, "%s=%s", c.key, c.value)
		} else {
			assert.Same(t, list[c.wantIndex], d, "%s=%s", c.key, c.value)
		}
	}
	assert.Same(t, list[5], index.ConditionOnOtherEntries("plan"))
	assert.Nil(t, index.ConditionOnOtherEntries("ip"), "the value alone decides")
	assert.Nil(t, index.ConditionOnOtherEntries("user"))
	assert.Nil(t, index.ConditionOnOtherEntries("other"))
}

func TestQuotaModeComesFromTheMatchingDescriptor(t *testing.T) {
	d := compileFiles(t, expandDay(`domain: d
descriptors:
- {key: quota, quota_mode: true, DAY}
- {key: off, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1, enabled: false}}
- {key: plain, DAY}
- {key: untested, regex: '.*a.{500}', DAY}
- {key: untested, quota_mode: true, DAY}
`)).Domain("d")
	for _, c := range []struct {
		key, value string
		want       bool
	}{{"quota", "x", true}, {"off", "x", true}, {"plain", "x", false}, {"none", "x", false}, {"untested", "x", true}, {"untested", longValue, false}} {
		assert.Equal(t, c.want, d.MatchesQuotaMode(new(Budget), entries(c.key, c.value)), "%s=%.9s", c.key, c.value)
	}
}
