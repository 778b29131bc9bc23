// Package source defines where limits and overrides come from. Each sub-package is one source.
package source

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// Source delivers limits, or overrides of limits.
type Source interface {
	// Run calls apply with the content of the source at once and after each change, until ctx is done, from one
	// goroutine at a time. apply returns nil if the update is in force, else why it, or a part of it, was rejected.
	Run(ctx context.Context, apply func(Update) error) error
}

// Update is a change of a source. The zero Update reports that the source was read without a change.
type Update struct {
	// Limits is the new set of limits; nil if unchanged.
	Limits *limitsfile.Set

	// Overrides is the new set of overrides by target; nil if unchanged. Nobody changes the map.
	Overrides map[string]string

	// Problem is why the newest limits are invalid. Limits then lacks the invalid part, or is nil.
	Problem error

	// Outage is why the source can't be read now; nil if it can. What is in force stays.
	Outage error

	// Attrs are added to the log line of the update.
	Attrs []slog.Attr
}

// NamesAttr returns a log attribute with the first of names.
func NamesAttr(key string, names []string) slog.Attr {
	const maxNames = 10
	text := strings.Join(names[:min(len(names), maxNames)], "; ")
	if more := len(names) - maxNames; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return slog.String(key, text)
}
