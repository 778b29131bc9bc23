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

// CallAnswered implements service.Observer.
func (l CallLog) CallAnswered(ctx context.Context, call *service.Call) {
	if !l.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	duration := time.Since(call.Start)
	var descriptors, rules, sources []string
	lastIndex := -1 // the index of the descriptor of the last outcome
	for outcome := newOutcomes(call); outcome.advance(); {
		if source := outcome.source(); source != "" && !slices.Contains(sources, source) {
			sources = append(sources, source)
		}
		if outcome.descriptorIndex == lastIndex {
			continue
		}
		lastIndex = outcome.descriptorIndex
		r := Record{Descriptor: outcome.entries()}
		l.Hash.replaceValues(&r)
		descriptors = append(descriptors, FormatEntries(r.Descriptor))
		if rule := outcome.rule(); rule != "" {
			rules = append(rules, rule)
		}
	}
	attrs := []slog.Attr{
		slog.String("domain", call.Request.GetDomain()),
		slog.String("descriptors", strings.Join(descriptors, "; ")),
		slog.String("code", string(overallCode(call))),
		slog.String("rules", strings.Join(rules, "; ")),
		slog.String("source", strings.Join(sources, ",")),
		slog.Duration("duration", duration),
	}
	if call.Err != nil {
		attrs = append(attrs, slog.Any("error", call.Err))
	}
	l.Log.LogAttrs(ctx, slog.LevelDebug, "call answered", attrs...)
}
