// Package source defines a source of limits or of overrides. Its sub-packages are the sources.
package source

import (
	"context"
	"log/slog"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// Source delivers limits, or overrides of limits.
type Source interface {
	// Run calls apply with the content of the source at once and after each change, until ctx is done. It never calls
	// apply from two goroutines at the same time. apply returns nil if the whole update is in force. If the update or
	// a part of the update is rejected, apply returns the error.
	Run(ctx context.Context, apply func(Update) error) error
}

// Update is a change of a source. The zero Update reports that the source was read without a change.
type Update struct {
	// Limits is the new set of limits; nil if unchanged.
	Limits *limitsfile.Set

	// Overrides is the new set of overrides; nil if unchanged. The key is the target. The map is never modified.
	Overrides map[string]string

	// OverridesLost reports that the source has lost data. Missing overrides are lost, and nobody has deleted them.
	OverridesLost bool

	// Problem is the error of invalid limits; otherwise nil. Limits then lacks the invalid part, or is nil.
	Problem error

	// Outage is the error that keeps the source from being read; nil if the source can be read. During an outage, the
	// previous limits and overrides stay in force.
	Outage error

	// Attrs are added to the log line of the update.
	Attrs []slog.Attr
}
