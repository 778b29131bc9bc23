package events

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRegionsLogEachChangeOnce(t *testing.T) {
	var out bytes.Buffer
	regions := &Regions{Events: newEvents(&out), Address: "g:1"}
	out.Reset()
	other := map[string]string{"us": "REGIONS=3", "asia": "REGIONS=2"}
	for _, step := range []struct {
		name     string
		happen   func()
		log      string
		findings int
	}{
		{"a good trip", func() { regions.TripEnded(nil) }, "", 0},
		{"a failed trip", func() { regions.TripEnded(errors.New("refused")) }, `level=ERROR msg="global Redis unavailable; this region goes on with the hits that it has bought, and then with its floor" address=g:1 error=refused`, 1},
		{"another failed trip", func() { regions.TripEnded(errors.New("refused")) }, "", 1},
		{"the end", func() { regions.TripEnded(nil) }, `level=INFO msg="global Redis available again; this region buys hits again" address=g:1`, 0},
		{"other settings", func() { regions.SettingsCompared("REGIONS=4", other) }, `this_region="REGIONS=4" other_regions="asia has REGIONS=2; us has REGIONS=3"`, 1},
		{"the same settings", func() { regions.SettingsCompared("REGIONS=4", other) }, "", 1},
		{"equal settings", func() { regions.SettingsCompared("REGIONS=4", nil) }, "settings of all regions are equal again", 0},
	} {
		step.happen()
		if step.log == "" {
			assert.Empty(t, out.String(), step.name)
		} else {
			assert.Contains(t, out.String(), step.log, step.name)
			assert.Equal(t, 1, strings.Count(out.String(), "\n"), step.name)
		}
		assert.Len(t, regions.Findings(), step.findings, step.name)
		out.Reset()
	}
}
