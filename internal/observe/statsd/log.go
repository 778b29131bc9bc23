package statsd

import (
	"context"
	"iter"
	"log/slog"
	"strconv"
	"strings"
)

const runtimePrefix = "ratelimit.go." // the metrics of the Go runtime have this prefix

// logSink is a sink that writes points to the log. It leaves out unchanged gauges and the metrics of the Go runtime.
type logSink struct {
	log        *slog.Logger
	extraTags  []Tag
	lastGauges map[string]float64 // the last written values; the key is the name of the metric
}

// flush implements sink. It reads no metrics while the log drops lines of level info.
func (l *logSink) flush(ctx context.Context, readPoints func() (iter.Seq[point], error)) error {
	if !l.log.Enabled(ctx, slog.LevelInfo) {
		return nil
	}
	points, err := readPoints()
	for p := range points {
		if strings.HasPrefix(p.name, runtimePrefix) {
			continue
		}
		name := plainName(p.name, p.tags, l.extraTags)
		lastValue, isWritten := l.lastGauges[name]
		switch {
		case p.kind == timer:
			l.log.Info("metric flushed", "name", name, "type", p.kind, "value", p.duration, "calls", p.calls)
			continue
		case p.kind == gauge && isWritten && lastValue == p.value:
			continue
		case p.kind == gauge:
			l.lastGauges[name] = p.value
		}
		l.log.Info("metric flushed", "name", name, "type", p.kind, "value", p.value)
	}
	return err
}

// formatValue formats the value of a counter or gauge without an exponent.
func formatValue(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }
