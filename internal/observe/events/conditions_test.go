package events

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

func TestConditionsThatAreNotTestedMakeOneLineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		events := newEvents(&out)
		o := events.Conditions()
		for range 120 {
			o.ConditionNotTested("shop", &limitsfile.Descriptor{Key: "agent", Value: "regex(.*bot.*)", File: "limits.yaml", Line: 8})
			o.ExpressionFailed("shop", &limitsfile.Descriptor{Key: "size", Value: "cel(int(value) > 9)", File: "limits.yaml", Line: 7}, errors.New("no number"))
			time.Sleep(time.Second)
		}
		assert.Equal(t, 2, strings.Count(out.String(), "expression not evaluated"))
		assert.Equal(t, 2, strings.Count(out.String(), "condition not tested"))
		assert.Contains(t, out.String(), `domain=shop descriptor="agent=regex(.*bot.*)" place=limits.yaml:8 count=60`)
		assert.Contains(t, out.String(), `domain=shop descriptor="size=cel(int(value) > 9)" place=limits.yaml:7 error="no number" failures=60`)
		families, err := events.Metrics.Gather()
		assert.NoError(t, err)
		counts := map[string]float64{}
		for _, family := range families {
			counts[family.GetName()] = family.GetMetric()[0].GetCounter().GetValue()
		}
		assert.InDelta(t, 120, counts["rls_expression_failures_total"], 0)
		assert.InDelta(t, 120, counts["rls_conditions_not_tested_total"], 0)
	})
}
