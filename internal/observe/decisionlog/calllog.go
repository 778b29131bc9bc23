package decisionlog

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/service"
)

// CallLog is a service.Observer that logs one line at level debug for each call.
type CallLog struct {
	Log  *slog.Logger
	Hash *Hash // replaces values; nil replaces nothing
}

// Answered implements service.Observer.
func (l CallLog) Answered(ctx context.Context, c *service.Call) {
	if !l.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	duration := time.Since(c.Start)
	var descriptors, rules, sources []string
	lastIndex := -1 // the index of the descriptor of the last outcome
	for o := newOutcomes(c); o.advance(); {
		if source := o.source(); source != "" && !slices.Contains(sources, source) {
			sources = append(sources, source)
		}
		if o.descriptorIndex == lastIndex {
			continue
		}
		lastIndex = o.descriptorIndex
		r := Record{Descriptor: o.entries()}
		l.Hash.replaceValues(&r)
		descriptors = append(descriptors, FormatEntries(r.Descriptor))
		if rule := o.rule(); rule != "" {
			rules = append(rules, rule)
		}
	}
	attrs := []slog.Attr{
		slog.String("domain", c.Request.GetDomain()),
		slog.String("descriptors", strings.Join(descriptors, "; ")),
		slog.String("code", string(overallCode(c))),
		slog.String("rules", strings.Join(rules, "; ")),
		slog.String("source", strings.Join(sources, ",")),
		slog.Duration("duration", duration),
	}
	if c.Err != nil {
		attrs = append(attrs, slog.Any("error", c.Err))
	}
	l.Log.LogAttrs(ctx, slog.LevelDebug, "call answered", attrs...)
}
