package changes

import "time"

// MaxLimitsVersions is the number of LimitsVersions that are kept.
const MaxLimitsVersions = 20

// LimitsVersion has the limits of a source, without overrides, at a time.
type LimitsVersion struct {
	Tag      string            `json:"tag"` // equal limits have equal tags
	LoadedAt time.Time         `json:"at"`
	Source   string            `json:"source"`
	Limits   map[string]string `json:"limits"` // the limits in short; the key is the path of the rule
}
