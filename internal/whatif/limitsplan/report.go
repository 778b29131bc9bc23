package limitsplan

import "time"

// Report is the result of a replay.
type Report struct {
	Start    time.Time `json:"start"`           // the time of the first call
	End      time.Time `json:"end"`             // the time of the last call
	Notes    []string  `json:"notes,omitempty"` // the reasons why figures may be wrong
	Calls    Counts    `json:"calls"`
	Timeline Timeline  `json:"timeline"`

	Rules           []RuleReport `json:"rules"`             // the rules that descriptors met; the rule with the most newly denied descriptors comes first
	Keys            []KeyReport  `json:"keys"`              // the keys with the most newly denied descriptors
	NewlyDeniedKeys int          `json:"newly_denied_keys"` // the number of all keys with a newly denied descriptor
}

// Counts counts calls, or descriptors of one rule or one key.
type Counts struct {
	Total         uint64 `json:"total"`
	DeniedBefore  uint64 `json:"denied_before"` // calls that were denied when they were recorded
	DeniedNow     uint64 `json:"denied_now"`    // calls that the new limits deny
	NewlyDenied   uint64 `json:"newly_denied"`
	NewlyAdmitted uint64 `json:"newly_admitted"`
}

func (c *Counts) add(wasDenied, isNowDenied bool) {
	c.Total++
	if wasDenied {
		c.DeniedBefore++
	}
	if isNowDenied {
		c.DeniedNow++
	}
	switch {
	case isNowDenied && !wasDenied:
		c.NewlyDenied++
	case wasDenied && !isNowDenied:
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
	Rule   string `json:"rule"`   // the path of the rule, or NoRule
	Limits string `json:"limits"` // the limits in short

	Shadow         bool   `json:"shadow"`           // the rule is in shadow mode, so it denies nothing
	DeniedInShadow uint64 `json:"denied_in_shadow"` // the descriptors that the rule or the service would deny without shadow mode
	Counts
	Timeline []uint64 `json:"newly_denied_by_bucket"` // the numbers of newly denied descriptors in the buckets of Report.Timeline
}

// NoRule is the Rule of the report about descriptors that met no rule.
const NoRule = "no rule"

// KeyReport describes the descriptors that one counter counted.
type KeyReport struct {
	Rule string `json:"rule"`
	Key  string `json:"key"`
	Counts
	FirstDenied time.Time `json:"first_denied"` // the time of the first new denial
}
