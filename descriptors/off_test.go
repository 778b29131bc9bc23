package descriptors

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

func TestOffSwitchIsFoundForTheEntriesThatItAffects(t *testing.T) {
	const limits = `domain: d
descriptors:
- key: a
  rate_limit: {unit: day, requests_per_unit: 1}
  descriptors:
  - {key: b, rate_limit: {unit: day, requests_per_unit: 1}}
`
	notes := limitsfile.Notes{Author: "ops"}
	switchOff := func(d *limitsfile.Descriptor) {
		d.Overrides = []limitsfile.AppliedOverride{{Target: "t", Notes: notes, IsSwitch: true}}
		d.Limits[0].Enabled = false
	}
	for name, c := range map[string]struct {
		change                func(d *limitsfile.Domain)
		outer, inner, unknown string      // the paths of the switches for the entries a=1, for a=1,b=2 and for c=3
		switches              []OffSwitch // all switches in force
	}{
		"no switch":   {func(*limitsfile.Domain) {}, "", "", "", nil},
		"outer rule":  {func(d *limitsfile.Domain) { switchOff(d.Descriptors[0]) }, "d > a", "", "", []OffSwitch{{"d > a", notes}}},
		"inner rule":  {func(d *limitsfile.Domain) { switchOff(d.Descriptors[0].Descriptors[0]) }, "", "d > a > b", "", []OffSwitch{{"d > a > b", notes}}},
		"domain":      {func(d *limitsfile.Domain) { d.OffSwitch = &limitsfile.AppliedOverride{Target: "d", Notes: notes} }, "d", "d", "d", []OffSwitch{{"d", notes}}},
		"all domains": {func(d *limitsfile.Domain) { d.OffSwitch = &limitsfile.AppliedOverride{Notes: notes} }, allDomains, allDomains, allDomains, []OffSwitch{{allDomains, notes}}},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := limitsfile.Parse([]limitsfile.File{{Name: "f", Data: []byte(limits)}}, limitsfile.Options{})
			require.NoError(t, err)
			c.change(set.Domains[0])
			config := Compile(set)
			assert.Equal(t, c.switches, config.OffSwitches())
			assert.Equal(t, c.switches != nil, config.HasOffSwitch)
			for text, want := range map[string]string{"a=1": c.outer, "a=1,b=2": c.inner, "c=3": c.unknown, "a=1,b=2,c=3": c.unknown} {
				offSwitch := config.Domain("d").OffSwitchFor(entries(strings.FieldsFunc(text, func(c rune) bool { return c == '=' || c == ',' })...))
				if want == "" {
					assert.Nil(t, offSwitch, text)
				} else if assert.NotNil(t, offSwitch, text) {
					assert.Equal(t, OffSwitch{want, notes}, *offSwitch, text)
				}
			}
			assert.Equal(t, c.unknown != "", config.Domain("d").OffSwitchFor(nil) != nil, "without entries")
		})
	}
}

func TestOnlyMoreHitsThanMaxHitsExceedMaxHits(t *testing.T) {
	for _, c := range []struct {
		maxHits uint32
		n       int64
		want    bool
	}{{0, 100, false}, {3, 2, false}, {3, 3, false}, {3, 4, true}, {3, -9, false}} {
		assert.Equal(t, c.want, (&Rule{RuleFields: limitsfile.RuleFields{MaxHits: c.maxHits}}).ExceedsMaxHits(c.n), c)
	}
}

func TestRuleIsUnlimitedIfItsOnlyLimitIsUnlimited(t *testing.T) {
	unlimitedLimit, plainLimit := &RateLimit{Unlimited: true}, &RateLimit{}
	assert.True(t, (&Rule{Limits: []*RateLimit{unlimitedLimit}}).IsUnlimited())
	assert.False(t, (&Rule{Limits: []*RateLimit{plainLimit}}).IsUnlimited())
	assert.False(t, (&Rule{Limits: []*RateLimit{unlimitedLimit, plainLimit}}).IsUnlimited())
	assert.False(t, (&Rule{}).IsUnlimited())
}

func TestSwitchReplacesTheSettingOfShadowMode(t *testing.T) {
	for _, setting := range []bool{false, true} {
		assert.Equal(t, setting, (&Config{}).IsShadow(setting))
		for _, isOn := range []bool{false, true} {
			assert.Equal(t, isOn, (&Config{ShadowMode: &limitsfile.ShadowMode{IsOn: isOn}}).IsShadow(setting))
		}
	}
}

func TestSwitchOfAllDomainsReplacesAllOtherSwitches(t *testing.T) {
	for name, c := range map[string]struct {
		targets [2]string // the targets of the switches of two domains
		want    []OffSwitch
	}{
		"two domains": {[2]string{"a", "b"}, []OffSwitch{{Path: "a"}, {Path: "b"}}},
		"all domains": {[2]string{"", ""}, []OffSwitch{{Path: allDomains}}},
	} {
		set := &limitsfile.Set{}
		for i, name := range []string{"a", "b"} {
			set.Domains = append(set.Domains, &limitsfile.Domain{Name: name, OffSwitch: &limitsfile.AppliedOverride{Target: c.targets[i]}})
		}
		assert.Equal(t, c.want, Compile(set).OffSwitches(), name)
	}
}
