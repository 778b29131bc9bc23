package limitsplan

import "time"

// Report is the result of a replay.
type Report struct {
	Start    time.Time `json:"start"`           // of the first call
	End      time.Time `json:"end"`             // of the last call
	Notes    []string  `json:"notes,omitempty"` // why figures may be wrong
	Calls    Counts    `json:"calls"`
	Timeline Timeline  `json:"timeline"`

	Rules           []RuleReport `json:"rules"`             // that descriptors met, most newly denied first
	Keys            []KeyReport  `json:"keys"`              // with the most newly denied descriptors
	NewlyDeniedKeys int          `json:"newly_denied_keys"` // number of all keys with one

	// OtherCauses counts newly denied and newly admitted calls that met the same limits when they
	// were recorded. So the new limits are not their only possible cause.
	OtherCauses []OtherCause `json:"other_causes,omitempty"`
}

// Counts counts calls, or descriptors of one rule or one key.
type Counts struct {
	Total         uint64 `json:"total"`
	DeniedBefore  uint64 `json:"denied_before"` // when they were recorded
	DeniedNow     uint64 `json:"denied_now"`    // by the new limits
	NewlyDenied   uint64 `json:"newly_denied"`
	NewlyAdmitted uint64 `json:"newly_admitted"`
}

func (c *Counts) add(before, now bool) {
	c.Total++
	if before {
		c.DeniedBefore++
	}
	if now {
		c.DeniedNow++
	}
	switch {
	case now && !before:
		c.NewlyDenied++
	case before && !now:
		c.NewlyAdmitted++
	}
}

// Timeline has the numbers of calls in buckets of time.
type Timeline struct {
	Start         time.Time `json:"start"`
	BucketSeconds float64   `json:"bucket_seconds"`
	Total         []uint64  `json:"total"`
	DeniedBefore  []uint64  `json:"denied_before"`
	DeniedNow     []uint64  `json:"denied_now"`
}

// RuleReport describes the descriptors that met one rule of the new limits.
type RuleReport struct {
	Rule   string `json:"rule"`   // its path, or NoRule
	Limits string `json:"limits"` // in short

	Shadow         bool   `json:"shadow"`           // in shadow mode: the rule denies nothing
	DeniedInShadow uint64 `json:"denied_in_shadow"` // that the rule or the service would deny without shadow mode
	Counts
	Timeline []uint64 `json:"newly_denied_by_bucket"` // in the buckets of Report.Timeline
}

// NoRule is the path of descriptors that met no rule.
const NoRule = "no rule"

// KeyReport describes the descriptors that one counter counted.
type KeyReport struct {
	Rule string `json:"rule"`
	Key  string `json:"key"`
	Counts
	FirstDenied time.Time `json:"first_denied"` // first new denial
}
