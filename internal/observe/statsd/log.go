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

// flush implements sink. While the log drops lines of level info, flush reads no metrics.
func (l *logSink) flush(ctx context.Context, readPoints func() (iter.Seq[point], error)) error {
	if !l.log.Enabled(ctx, slog.LevelInfo) {
		return nil
	}
	points, err := readPoints()
	for metricPoint := range points {
		if strings.HasPrefix(metricPoint.name, runtimePrefix) {
			continue
		}
		name := plainName(metricPoint.name, metricPoint.tags, l.extraTags)
		lastValue, isWritten := l.lastGauges[name]
		switch {
		case metricPoint.kind == timer:
			l.log.Info("metric flushed", "name", name, "type", metricPoint.kind, "value", metricPoint.duration, "calls", metricPoint.calls)
			continue
		case metricPoint.kind == gauge && isWritten && lastValue == metricPoint.value:
			continue
		case metricPoint.kind == gauge:
			l.lastGauges[name] = metricPoint.value
		}
		l.log.Info("metric flushed", "name", name, "type", metricPoint.kind, "value", metricPoint.value)
	}
	return err
}

// formatValue formats the value of a counter or gauge without an exponent.
func formatValue(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }
