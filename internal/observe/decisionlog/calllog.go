package decisionlog

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/service"
)

// CallLog is a service.Observer that logs one line for each call at level debug.
type CallLog struct {
	Log  *slog.Logger
	Hash *Hash // replaces values, unless it is nil
}

// Answered implements service.Observer.
func (l CallLog) Answered(ctx context.Context, c *service.Call) {
	if !l.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	duration := time.Since(c.Start)
	var descriptors, rules, sources []string
	last := -1 // the descriptor of the last outcome
	for o := newOutcomes(c); o.next(); {
		if source := o.source(); source != "" && !slices.Contains(sources, source) {
			sources = append(sources, source)
		}
		if o.descriptor == last {
			continue
		}
		last = o.descriptor
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
