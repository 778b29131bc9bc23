package main

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/metrics"
)

func TestFailedExpressionsMakeOneLineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		meter := metrics.New()
		o := &expressionObserver{Observer: meter.Expressions(), log: slog.New(slog.NewTextHandler(&out, nil))}
		for range 120 {
			o.ExpressionFailed("shop", &limitsfile.Descriptor{Key: "size", Value: "cel(int(value) > 9)", File: "limits.yaml", Line: 7}, errors.New("no number"))
			time.Sleep(time.Second)
		}
		assert.Equal(t, 2, strings.Count(out.String(), "\n"))
		assert.Contains(t, out.String(), `domain=shop descriptor="size=cel(int(value) > 9)" place=limits.yaml:7 error="no number" failures=60`)
		families, err := meter.Gather()
		assert.NoError(t, err)
		for _, family := range families {
			if family.GetName() == "rls_expression_failures_total" {
				assert.InDelta(t, 120, family.GetMetric()[0].GetCounter().GetValue(), 0)
				return
			}
		}
		assert.Fail(t, "the metric is missing")
	})
}
