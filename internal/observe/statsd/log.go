package statsd

import (
	"context"
	"iter"
	"log/slog"
	"strconv"
	"strings"
)

const runtimePrefix = "ratelimit.go." // of the metrics of the Go runtime

// logLines is a sink that writes points to the log: gauges if they have changed, and nothing of the Go runtime.
type logLines struct {
	log       *slog.Logger
	extraTags []Tag
	gauges    map[string]float64 // the written values by name
}

// flush implements sink. It reads no metrics while the log has no lines of level info.
func (l *logLines) flush(ctx context.Context, read func() (iter.Seq[point], error)) error {
	if !l.log.Enabled(ctx, slog.LevelInfo) {
		return nil
	}
	points, err := read()
	for p := range points {
		if strings.HasPrefix(p.name, runtimePrefix) {
			continue
		}
		name := plainName(p.name, p.tags, l.extraTags)
		last, isWritten := l.gauges[name]
		switch {
		case p.kind == timer:
			l.log.Info("metric flushed", "name", name, "type", p.kind, "value", p.duration, "calls", p.calls)
			continue
		case p.kind == gauge && isWritten && last == p.value:
			continue
		case p.kind == gauge:
			l.gauges[name] = p.value
		}
		l.log.Info("metric flushed", "name", name, "type", p.kind, "value", p.value)
	}
	return err
}

// formatValue formats the value of a counter or gauge without an exponent.
func formatValue(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }
