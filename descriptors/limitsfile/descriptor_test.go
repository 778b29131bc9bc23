package limitsfile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPatternMatchesPartsInTheirOrder(t *testing.T) {
	t.Parallel()
	for pattern, texts := range map[string]struct{ matching, other string }{
		"a":       {"a", " aa b"},
		"*":       {" a ab", ""},
		"a*":      {"a ab", " ba"},
		"*a":      {"a ba", " ab"},
		"ab*ba":   {"abba ab-ba abab-ba", "aba ab ba"},
		"a*b*c":   {"abc a-b-c abbc", "ac acb a-c"},
		"a*b*b*c": {"abbc a-b-b-c ab-bc", "abc a-b-c"},
		"a*bc*cd": {"abccd a-bc-cd", "abcd a-cb-cd"},
		"a**c":    {"ac a-c", "a c"},
		"*bb*b*":  {"bbb bb-b", "bb b-bb b"},
	} {
		p := NewPattern(pattern)
		for _, text := range strings.Split(texts.matching, " ") {
			assert.True(t, p.Match(text), "%s: %q", pattern, text)
		}
		if texts.other != "" {
			for _, text := range strings.Split(texts.other, " ") {
				assert.False(t, p.Match(text), "%s: %q", pattern, text)
			}
		}
	}
}

func TestAnswersAreTheSameIfMetadataBodyAndHeadersAre(t *testing.T) {
	t.Parallel()
	answers := []string{
		tenAMinute, "metadata: {a: 1}", "metadata: {a: 2}", "denial: {body: a}", "denial: {body: b}", "denial: {body: a, headers: {h: v}}",
		"denial: {body: b, headers: {h: v}}", "denial: {body: a, headers: {h: w}}", "metadata: {a: 1}\ndenial: {body: a}",
	}
	for i, a := range answers {
		for j, b := range answers {
			assert.Equal(t, i == j, parseFirstDescriptor(t, oneDescriptor(a)).HasSameAnswers(parseFirstDescriptor(t, oneDescriptor(b))), "%s\n%s", a, b)
		}
	}
}

func TestCountersAreKeptIfEachNewLimitHasOne(t *testing.T) {
	t.Parallel()
	const old = "rate_limits: [{unit: minute, requests_per_unit: 10}, {unit: hour, requests_per_unit: 20}]"
	for limits, want := range map[string]bool{
		old: true,
		"rate_limits: [{unit: minute, requests_per_unit: 99}]":                                     true,
		"rate_limits: [{unit: day, requests_per_unit: 10}]":                                        false,
		"rate_limits: [{unit: minute, requests_per_unit: 10}, {unit: day, requests_per_unit: 10}]": false,
		"rate_limits: [{unit: day, requests_per_unit: 10, enabled: false}]":                        true,
		"rate_limits: [{unlimited: true}]":                                                         true,
		"rate_limits: [{unit: minute, requests_per_unit: 10, algorithm: sliding_window}]":          false,
		"value: a*\nshare_threshold: true\nrate_limits: [{unit: minute, requests_per_unit: 10}]":   false,
	} {
		assert.Equal(t, want, parseFirstDescriptor(t, oneDescriptor(old)).KeepsCounters(parseFirstDescriptor(t, oneDescriptor(limits))), limits)
	}
}

func TestOffSwitchIsTheLastOverrideOfADescriptor(t *testing.T) {
	t.Parallel()
	value, off := AppliedOverride{Target: "d|k"}, AppliedOverride{Target: "d", IsSwitch: true}
	assert.Nil(t, (&Descriptor{}).OffSwitch())
	assert.Nil(t, (&Descriptor{Overrides: []AppliedOverride{value}}).OffSwitch())
	assert.Nil(t, (&Descriptor{Overrides: []AppliedOverride{off, value}}).OffSwitch())
	assert.Equal(t, &off, (&Descriptor{Overrides: []AppliedOverride{value, off}}).OffSwitch())
}

func TestLimitOfARequestIsOnUnlessTheDefaultsSayOtherwise(t *testing.T) {
	t.Parallel()
	for defaults, want := range map[string]bool{"{}": true, "{enabled: true}": true, "{enabled: false}": false} {
		_, isEnabled := parse(t, "domain: d\ndefaults: "+defaults).Domains[0].RequestLimit()
		assert.Equal(t, want, isEnabled, defaults)
	}
}

func TestOnlyADescriptorWithoutChildrenHasNoLimit(t *testing.T) {
	t.Parallel()
	for descriptor, want := range map[string]string{
		tenAMinute:                   "10 per minute",
		"shadow_mode: true":          "no limit [shadow_mode]",
		"descriptors: [{key: l}]":    "",
		"max_hits: 5\n" + tenAMinute: "10 per minute [max_hits: 5]",
	} {
		assert.Equal(t, want, parseFirstDescriptor(t, oneDescriptor(descriptor)).Summary())
	}
}
