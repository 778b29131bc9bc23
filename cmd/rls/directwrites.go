package main

import (
	"log/slog"
	"slices"

	"github.com/seed-81f232ab/rls/internal/source/reload"
)

// auditDirectWrites logs each override, rule and switch that somebody has written to Redis
// without the API. The API adds the name of the caller to each value, so a value without a name
// is such a write. Each replica logs the write when it reads the value.
func auditDirectWrites(all []reload.OverrideChange, log *slog.Logger) {
	writes := []reload.Action{reload.OverrideSet, reload.OverrideChanged, reload.OverrideRejected}
	for _, change := range all {
		s := &change.State
		if !slices.Contains(writes, change.Action) || s.Author != "" {
			continue
		}
		const maxBytes = 1000
		log.Warn("audit", "action", "direct write", "by", "unknown", "outcome", string(change.Action), "kind", string(s.Kind),
			"target", s.Target, "new", s.Value[:min(len(s.Value), maxBytes)], "limits_before", s.BaseLimits, "limits", s.Limits)
	}
}
