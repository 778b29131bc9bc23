// Package live describes what the process does right now: its state, its traffic of the last
// five minutes, its rules, its hottest keys and its last changes. The live page and rls top
// show this description.
//
// Terms:
//
//   - snapshot: a description of one moment, which all viewers of this moment share;
//   - step: five seconds; a chart has one point for each step;
//   - quiet: a rule is quiet if it had no hits in the last five minutes;
//   - use: the share of a limit that its busiest key has spent; 1 is the whole limit.
package live

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/internal/observe/candidate"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/service/quota"
)

// Snapshot describes the process at one moment. A viewer must escape its texts, which can contain any character.
type Snapshot struct {
	Time     time.Time `json:"time"`
	Started  time.Time `json:"started"`
	Version  string    `json:"version"`
	Instance string    `json:"instance"` // the name of the host

	Process   Process          `json:"process"`
	State     State            `json:"state"`
	Figures   Figures          `json:"figures"`
	Rules     RuleList         `json:"rules"`
	Keys      TopKeys          `json:"keys"`
	Events    []timeline.Event `json:"events"` // newest first
	Overrides OverrideList     `json:"overrides"`
	Fleet     Fleet            `json:"fleet"`

	Quotas []quota.RuleStats `json:"quotas,omitempty"` // limits that Envoys share with quotas, in requests a second
}

// Process describes what the process uses of its host. Figures.CPU has the CPU time.
type Process struct {
	Cores       int   `json:"cores"` // the cores that the process may use
	MemoryBytes int64 `json:"memory_bytes"`
	Connections int   `json:"connections"` // open connections of clients that ask for decisions
}

// Level is the state in one word.
type Level string

// The levels.
const (
	Well    Level = "well"
	Warning Level = "warning" // calls are decided as they should be, but not all is well
	Trouble Level = "trouble" // limits do not apply as they should
)

// State reports whether the process is well.
type State struct {
	Level    Level    `json:"level"`
	Headline string   `json:"headline"` // one line in words
	Details  []string `json:"details"`  // further lines, the most important first

	Backend  string `json:"backend"`            // "redis" or "local"
	Redis    *Redis `json:"redis,omitempty"`    // nil if the backend is local
	Replicas int    `json:"replicas,omitempty"` // the number of replicas, with this replica and without lost replicas; 0 if unknown
	Limits   Limits `json:"limits"`

	Candidate   *Candidate `json:"candidate,omitempty"` // nil without LIMITS_CANDIDATE
	Draining    bool       `json:"draining,omitempty"`
	ShadowMode  bool       `json:"shadow_mode,omitempty"` // the whole service is in shadow mode
	SwitchedOff []string   `json:"off,omitempty"`         // the paths of the limits that are switched off
}

// Candidate describes limits that are tried on live calls. The counts start when the candidate changes.
type Candidate struct {
	Since   *time.Time `json:"since,omitempty"` // nil before the first valid candidate
	Problem string     `json:"problem,omitempty"`

	Compared      uint64 `json:"compared"`       // calls that the candidate decided as well
	NewlyDenied   uint64 `json:"newly_denied"`   // calls that only the candidate denied
	NewlyAdmitted uint64 `json:"newly_admitted"` // calls that only the candidate admitted
	NotCompared   uint64 `json:"not_compared"`   // calls for which the queue was full or the backend failed

	Rules []candidate.RuleCount `json:"rules"` // the most newly denied descriptors first
}

// Redis is the state of Redis, as the calls of this process see it.
type Redis struct {
	Up       bool       `json:"up"`
	Since    *time.Time `json:"since,omitempty"`  // the time at which Redis came up or went down; nil if Redis was never down
	Error    string     `json:"error,omitempty"`  // the error of the outage in progress
	Advice   string     `json:"advice,omitempty"` // how to end the outage in progress
	Mode     string     `json:"mode"`             // how calls are decided without Redis: local, allow or deny
	Ratio    float64    `json:"ratio"`            // the share of each limit that this process admits in mode local
	Breakers Breakers   `json:"breakers"`

	Outage *Outage `json:"outage,omitempty"` // the outage in progress, or else the last outage; nil before the first outage
	Blip   *Outage `json:"blip,omitempty"`   // the last short time in which calls were decided without Redis
	Blips  int64   `json:"blips"`            // the number of blips since the start of the process

	Findings []RedisFinding `json:"findings"`         // the findings of the last self-check
	Region   *Region        `json:"region,omitempty"` // nil without a Redis of all regions
}

// Region is what this replica knows of its region.
type Region struct {
	Name             string `json:"name"`
	UnusedHits       int64  `json:"unused_hits"` // the hits that the region has bought and not used
	RoundTripSeconds Value  `json:"round_trip_seconds"`
}

// RedisFinding is a finding of the self-check of Redis.
type RedisFinding struct {
	Level   string `json:"level"`   // problem, warning or note
	Check   string `json:"check"`   // for example rights
	Server  string `json:"server"`  // main, per_second or global
	Address string `json:"address"` // without secrets
	Text    string `json:"text"`
	Advice  string `json:"advice,omitempty"`
}

// Breakers has the number of breakers in each state.
type Breakers struct {
	Closed  int `json:"closed"`
	Failing int `json:"failing"`
	Open    int `json:"open"`
}

// Outage is a time in which calls were decided without Redis, and its price.
type Outage struct {
	Start   time.Time  `json:"start"`
	End     *time.Time `json:"end,omitempty"` // nil while the outage lasts
	Seconds Value      `json:"seconds"`
	Error   string     `json:"error,omitempty"`

	Calls         int64                 `json:"calls"`
	AdmittedCalls int64                 `json:"admitted_calls"`
	Decisions     int64                 `json:"decisions"`
	ByReason      map[string]int64      `json:"by_reason"` // decisions; the key is the reason, such as timeout
	AdmittedHits  int64                 `json:"admitted_hits"`
	MaxExcessHits int64                 `json:"max_excess_hits"` // upper bound of the hits admitted beyond the limits
	Replayed      int64                 `json:"replayed"`
	Limits        []fallback.LimitPrice `json:"limits"` // the highest price first
	MoreLimits    int                   `json:"more_limits,omitempty"`
}

// Limits describes the limits in force, and the problems because of which newer limits were rejected.
type Limits struct {
	Loaded  bool       `json:"loaded"`
	Since   *time.Time `json:"since,omitempty"` // the time at which the limits came into force
	Hash    string     `json:"hash,omitempty"`  // equal limits have equal hashes on all replicas
	Source  string     `json:"source"`          // "file" or "xds"
	Domains []string   `json:"domains"`
	Rules   int        `json:"rules"`

	Problems     []string `json:"problems"` // one line each
	MoreProblems int      `json:"more_problems,omitempty"`
}

// Figures are the traffic of the process. Each point is the mean of one step; the last point is the newest.
type Figures struct {
	StepSeconds int `json:"step_seconds"`

	Calls        Series `json:"calls"`             // calls per second
	DeniedShare  Series `json:"denied_share"`      // the share of the calls that were denied, from 0 to 1
	Errors       Series `json:"errors"`            // failed calls per second
	Refused      Series `json:"refused"`           // calls per second of callers that sent too many calls
	GivenUp      Series `json:"given_up"`          // calls per second whose callers gave up before they got the answer
	P50          Series `json:"p50_seconds"`       // half of the calls take less time
	P99          Series `json:"p99_seconds"`       // 99 % of the calls take less time
	RedisP50     Series `json:"redis_p50_seconds"` // half of the round trips to Redis take less time
	RedisP99     Series `json:"redis_p99_seconds"` // 99 % of the round trips to Redis take less time
	RedisMax     Series `json:"redis_max_seconds"` // the slowest round trip of a step
	RedisStalls  Series `json:"redis_stalls"`      // batches per second that waited because Redis stood still
	WithoutRedis Series `json:"without_redis"`     // decisions of the fallback per second
	Unmatched    Series `json:"unmatched"`         // descriptors per second that no rule limits
	CPU          Series `json:"cpu"`               // cores in use
}

func (f *Figures) series() []*Series {
	return []*Series{&f.Calls, &f.DeniedShare, &f.Errors, &f.Refused, &f.GivenUp, &f.P50, &f.P99, &f.RedisP50, &f.RedisP99, &f.RedisMax, &f.RedisStalls, &f.WithoutRedis, &f.Unmatched, &f.CPU}
}

// Series is a figure and its history. A value is null if there was no traffic.
type Series struct {
	Now    Value   `json:"now"`
	Points []Value `json:"points"`
}

// Max returns the highest known value of the last five minutes, or Unknown.
func (s *Series) Max() Value {
	maxValue := s.Now
	for _, v := range s.Points {
		if v.IsKnown() && !(maxValue >= v) {
			maxValue = v
		}
	}
	return maxValue
}

// HadTraffic reports whether the figure was above 0 in the last five minutes.
func (s *Series) HadTraffic() bool {
	isAbove := func(v Value) bool { return v > 0 }
	return isAbove(s.Now) || slices.ContainsFunc(s.Points, isAbove)
}

// RuleList is the list of rules with traffic.
type RuleList struct {
	Total int    `json:"total"` // the number of rules in force
	Shown []Rule `json:"shown"` // rules with traffic in five minutes, the most denied hits first, then the most hits
	More  int    `json:"more"`  // the number of rules with traffic that Shown leaves out
	Quiet int    `json:"quiet"` // the number of rules without traffic
}

// Rule is a rule and its traffic. Rates are hits per second.
type Rule struct {
	Domain string `json:"domain"`
	Path   string `json:"path"`  // names the rule, such as `shop > service=checkout > path`
	Label  string `json:"label"` // the last part of the path
	Depth  int    `json:"depth"` // the number of descriptors in the path; 1 for a rule directly below its domain

	Limits []Limit `json:"limits"` // in file order
	Rates          // the rates of the limit with the most denied hits
	Use    Value   `json:"use"` // null if no hit was counted in the last ten seconds

	OKPoints     []Value `json:"ok_points,omitempty"`     // the rate of admitted hits in each step; empty for a quiet rule
	DeniedPoints []Value `json:"denied_points,omitempty"` // the rate of denied hits in each step; empty for a quiet rule

	Marks    []string      `json:"marks"` // such as "shadow", "quota", "unlimited", "disabled" and "override", or only "off"
	Override *RuleOverride `json:"override,omitempty"`

	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
}

// Rates are hits per second. Hits beyond a limit that pass because of shadow mode are in Shadow only.
type Rates struct {
	OK     Value `json:"ok"`
	Near   Value `json:"near"` // the part of OK that is near the limit
	Denied Value `json:"denied"`
	Shadow Value `json:"shadow"`
}

// Contains reports whether the path or a limit of r contains text. text must be in lower case.
func (r *Rule) Contains(text string) bool {
	return strings.Contains(strings.ToLower(r.Path), text) ||
		slices.ContainsFunc(r.Limits, func(l Limit) bool { return strings.Contains(strings.ToLower(l.Text), text) })
}

// Limit is one limit of a rule.
type Limit struct {
	Text      string `json:"text"` // "10 per minute"
	Name      string `json:"name,omitempty"`
	Algorithm string `json:"algorithm,omitempty"`
	Unlimited bool   `json:"unlimited,omitempty"`
	Disabled  bool   `json:"disabled,omitempty"`
}

// RuleOverride is the override that changes a rule.
type RuleOverride struct {
	Target    string     `json:"target"`
	Author    string     `json:"author,omitempty"`
	ExpiresAt *time.Time `json:"until,omitempty"` // nil if the override stays until somebody deletes it
}

// TopKeys has the keys with the most hits and the most denied hits of the last minutes.
type TopKeys struct {
	Mode    KeyMode `json:"mode"`
	Hidden  bool    `json:"hidden,omitempty"` // Mode is KeysHashed because this caller may not see values of requests
	Hottest []Key   `json:"hottest"`
	Denied  []Key   `json:"denied"`

	// Unmatched has the most frequent descriptors that no rule limits. Key.Rule is the domain
	// and the keys of the entries, and Key.Limit is "no rule" or "unknown domain".
	Unmatched []Key `json:"unmatched"`

	// Callers has the callers with the most calls. Key.Key is the address, the name in the client's certificate and the
	// name that the caller sends. The rates are calls per second. Denied calls are also the calls that were refused.
	Callers []Key `json:"callers"`

	SampledShare Value `json:"sampled_share"` // the share of the calls that the lists describe; 1 unless there are very many calls
}

// Key is a key of requests. Rates are hits per second.
type Key struct {
	Key   string `json:"key"`  // the name of the counter, such as `shop|remote_address=10.0.0.1`, or a hash in mode KeysHashed
	Rule  string `json:"rule"` // the path of the rule
	Limit string `json:"limit"`

	Rate       Value `json:"rate"`
	DeniedRate Value `json:"denied_rate"`
	Share      Value `json:"share"` // the share of all hits of the last minutes; in TopKeys.Denied, the share of all denied hits

	// Shadow reports that the denied hits passed because of shadow mode.
	Shadow bool `json:"shadow,omitempty"`

	// Spent and Capacity are the count of the limit in the last second with hits. Both are
	// null if nobody counted, because the fallback admits or denies all hits.
	Spent    *int64 `json:"spent"`
	Capacity *int64 `json:"capacity"`

	// IsShare reports that Spent and Capacity describe the share that this process may admit without Redis.
	IsShare bool `json:"is_share,omitempty"`

	// LimitedSince is the time of the first denial of a key that is limited now, or null. A key is limited from a
	// denial until the denied hits would pass, and for at least ten seconds. PassesAt is the time at which the denied
	// hits pass. PassesAt is null if the hits exceed the limit, so that they never pass.
	LimitedSince *time.Time `json:"limited_since,omitempty"`
	PassesAt     *time.Time `json:"passes_at,omitempty"`
}

// OverrideList is the list of overrides.
type OverrideList struct {
	Enabled bool       `json:"enabled"`
	Shown   []Override `json:"shown"` // sorted by target
	More    int        `json:"more"`  // the number of overrides that Shown leaves out
}

// Override describes an override.
type Override struct {
	Target string     `json:"target"`
	Path   string     `json:"path,omitempty"`        // the path of the descriptor that the override changes
	State  string     `json:"state"`                 // "in force", "rejected" or "expired"
	Limits string     `json:"limits,omitempty"`      // the limits with the override
	Base   string     `json:"base_limits,omitempty"` // the limits without the override
	Author string     `json:"author,omitempty"`
	SetAt  *time.Time `json:"set,omitempty"`

	ExpiresAt *time.Time `json:"until,omitempty"` // nil if the override stays until somebody deletes it

	Problem string `json:"problem,omitempty"`
}

// Value is a number with four significant digits. NaN means unknown and is null in JSON.
type Value float64

// Unknown is the Value of a figure if there was no traffic.
var Unknown = Value(math.NaN())

// IsKnown reports whether v is a number.
func (v Value) IsKnown() bool { return !math.IsNaN(float64(v)) }

// MarshalJSON implements json.Marshaler.
func (v Value) MarshalJSON() ([]byte, error) {
	if !v.IsKnown() || math.IsInf(float64(v), 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(v), 'g', 4, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Value) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*v = Unknown
		return nil
	}
	number, err := strconv.ParseFloat(string(text), 64)
	*v = Value(number)
	return err
}
