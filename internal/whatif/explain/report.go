package explain

import "time"

// Report describes the answer that the service would give to a request, and why.
type Report struct {
	Domain string `json:"domain"`

	// Place is the file and line of the domain, such as "limits.yaml:1".
	Place string `json:"place,omitempty"`

	Time time.Time `json:"time"` // of the peek

	// Code is the code of the whole response: OK or OVER_LIMIT. It is empty if Error is set.
	Code string `json:"code,omitempty"`

	// Error is the error that the service would return in place of a response.
	Error string `json:"error,omitempty"`

	// UnknownDomain is set if no limits file has the domain. The service then limits nothing.
	UnknownDomain *UnknownDomain `json:"unknown_domain,omitempty"`

	// Switches describes the switches of the whole domain and of SHADOW_MODE.
	Switches []string `json:"switches,omitempty"`

	// GlobalShadowMode reports that SHADOW_MODE of the service turned OVER_LIMIT into OK.
	GlobalShadowMode bool `json:"global_shadow_mode,omitempty"`

	// Offline reports that no running service was asked. All counters are then taken as empty.
	Offline bool `json:"offline,omitempty"`

	Descriptors []Descriptor `json:"descriptors"`

	// Candidate describes the answer of the candidate limits, which are not in force. It is
	// nil without a candidate.
	Candidate *Report `json:"candidate,omitempty"`
}

// UnknownDomain describes the domains that the service has.
type UnknownDomain struct {
	// Nearest is the domain whose name is most like the name in the request, if any is.
	Nearest string `json:"nearest,omitempty"`

	// Domains has the names of the first domains, and Count is the number of all domains.
	Domains []string `json:"domains"`
	Count   int      `json:"count"`

	// WithRule names domains in which each descriptor of the request has a rule.
	WithRule []string `json:"with_rule,omitempty"`
}

// Descriptor explains one descriptor of the request.
type Descriptor struct {
	// Descriptor is the text of the descriptor: "service=checkout,path=/orders".
	Descriptor string `json:"descriptor"`

	// Code and Remaining are the status in the response. DecidingLimit is the index of the
	// limit in Limits that the status describes. It is nil if no limit was counted.
	Code          string `json:"code,omitempty"`
	Remaining     uint32 `json:"remaining"`
	DecidingLimit *int   `json:"deciding_limit,omitempty"`

	// Summary is the outcome in one sentence.
	Summary string `json:"summary"`

	// Levels has a level for each entry that was compared. It is empty if the request has
	// its own limit.
	Levels []Level `json:"levels"`

	// Rule is the path of the rule that limits the descriptor: "shop > service=checkout".
	// It is empty if no rule does. Place is its file and line.
	Rule  string `json:"rule,omitempty"`
	Place string `json:"place,omitempty"`

	ShadowMode bool `json:"shadow_mode,omitempty"`
	QuotaMode  bool `json:"quota_mode,omitempty"`

	// Enforcement describes enforce of the rule. It is nil if the rule can deny all keys.
	Enforcement *Enforcement `json:"enforcement,omitempty"`
	// Hits is the number of hits that the call charges. A call with more hits than MaxHits is
	// denied. A MaxHits of 0 is no bound.
	Hits    int64  `json:"hits"`
	MaxHits uint32 `json:"max_hits,omitempty"`

	// Denial is the body and the headers that the rule adds to a denial, if it has any.
	Denial *Denial `json:"denial,omitempty"`

	// Created is set if the rule was created at run time.
	Created *Override `json:"created,omitempty"`

	// Overrides are the overrides in force that changed the rule, in the order in which
	// they apply. A switch comes last.
	Overrides []Override `json:"overrides,omitempty"`

	Limits []Limit `json:"limits"`
}

// Denial is the body and the headers that a rule adds to the responses that deny a request.
type Denial struct {
	Body    string   `json:"body,omitempty"`
	Headers []string `json:"headers,omitempty"` // as "name: value"
}

// Level explains the comparison of one entry with the descriptors of one level.
type Level struct {
	Entry string `json:"entry"`

	// Compared is the number of descriptors of the level in the limits files.
	Compared int `json:"compared"`

	// Winner is the descriptor that the entry matches. It is nil if there is none.
	Winner *Candidate `json:"winner,omitempty"`

	// Others are descriptors that match and lose, or come close. OtherValues is the number
	// of descriptors with the same key and another value, listed or not.
	Others      []Candidate `json:"others,omitempty"`
	OtherValues int         `json:"other_values,omitempty"`
}

// Candidate is a descriptor of a level.
type Candidate struct {
	Descriptor string `json:"descriptor"` // key and value in the limits file
	Place      string `json:"place,omitempty"`

	// Match is exact, condition, pattern, any_value or no_match. Difference is set for no_match.
	Match      string `json:"match"`
	Difference string `json:"difference,omitempty"`

	// Reason is why the descriptor wins or loses.
	Reason string `json:"reason"`
}

// Enforcement says whether enforce of a rule lets the rule deny a key.
type Enforcement struct {
	Percent     float64 `json:"percent"` // of the keys that can be denied
	IncludesKey bool    `json:"includes_key"`
}

// Override is an override in force. Author and SetAt are empty if they are unknown.
type Override struct {
	Target     string     `json:"target"`
	Off        bool       `json:"off,omitempty"` // a switch, which takes the limits out of force
	Reason     string     `json:"reason,omitempty"`
	Author     string     `json:"author,omitempty"`
	SetAt      *time.Time `json:"set_at,omitempty"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	BaseLimits string     `json:"base_limits"` // the limits without the override
}

// Limit explains one limit of the rule.
type Limit struct {
	Limit string `json:"limit"` // such as "100 per minute"
	Name  string `json:"name,omitempty"`
	State State  `json:"state"`

	// ReplacedBy names the limit that replaces this limit: "limit acme of shop > tenant=acme".
	ReplacedBy string `json:"replaced_by,omitempty"`

	// The effective values. They are empty for an unlimited limit.
	RequestsPerUnit  uint32  `json:"requests_per_unit"`
	Unit             string  `json:"unit,omitempty"`
	UnitMultiplier   uint32  `json:"unit_multiplier,omitempty"`
	Hold             string  `json:"hold,omitempty"` // such as "30s"; only for algorithm concurrency
	Timezone         string  `json:"timezone,omitempty"`
	Algorithm        string  `json:"algorithm,omitempty"`
	Burst            uint32  `json:"burst,omitempty"`
	Scope            string  `json:"scope,omitempty"`
	ChargeDenied     bool    `json:"charge_denied"`
	OnBackendFailure string  `json:"on_backend_failure,omitempty"`
	FallbackRatio    float64 `json:"fallback_ratio,omitempty"` // 0 means the default of the service
	Lease            bool    `json:"lease,omitempty"`
	LeaseWaste       float64 `json:"lease_waste,omitempty"` // 0 means the default

	// Place is the file and line of the limit. FromRequest reports that the request states
	// the limit.
	Place       string `json:"place,omitempty"`
	FromRequest bool   `json:"from_request,omitempty"`

	// FromDefaults has the fields that come from the defaults of the domain, which are at
	// DefaultsPlace. FromOverride has the fields that come from overrides.
	FromDefaults  []string `json:"from_defaults,omitempty"`
	DefaultsPlace string   `json:"defaults_place,omitempty"`
	FromOverride  []string `json:"from_override,omitempty"`

	Counter *Counter `json:"counter,omitempty"` // set if State is Counted
	NextHit *Answer  `json:"next_hit,omitempty"`
}

// State is the part that a limit takes in the decision.
type State string

// The states of a limit.
const (
	Counted   State = "counted"
	Unlimited State = "unlimited"
	Off       State = "off"      // enabled: false
	Replaced  State = "replaced" // by another limit of the request
	Rejected  State = "rejected" // the service rejects the request and counts nothing
)

// Counter is the counter of a limit. Its numbers are what a hit of 0 read.
type Counter struct {
	Name string `json:"name"` // domain|key=value
	Tag  string `json:"tag"`  // the kind of counter, such as fw60

	// Server and Key are the address and key in Redis, if the counter is there.
	Server string `json:"server,omitempty"`
	Key    string `json:"key,omitempty"`

	// Permits is the number of remaining hits that this replica holds.
	Permits int64 `json:"permits,omitempty"`

	// Degraded reports that the backend did not answer. The numbers are then those of the
	// fallback in this replica, and Capacity is its share of the limit.
	Degraded bool `json:"degraded,omitempty"`

	// Unknown reports that nobody has read the counter, so that its numbers mean nothing.
	Unknown bool `json:"unknown,omitempty"`

	Capacity  int64 `json:"capacity"`
	Spent     int64 `json:"spent"`
	Remaining int64 `json:"remaining"` // negative if more was charged than the limit

	// WindowStart is set if all hits of a window are forgotten at once. ResetAt is the time
	// at which everything spent is forgotten. It is empty if nothing is spent.
	WindowStart *time.Time `json:"window_start,omitempty"`
	ResetAt     *time.Time `json:"reset_at,omitempty"`

	// FirstExpiryAt is the time at which the first hold expires. It is set only for algorithm
	// concurrency, which has no ResetAt.
	FirstExpiryAt *time.Time `json:"first_expiry_at,omitempty"`
}

// Answer is the answer of one limit to the next hit.
type Answer struct {
	Allowed   bool  `json:"allowed"`
	Remaining int64 `json:"remaining"` // after the hit; at least 0

	// RetryAt is the time at which a denied hit would pass if no hit came before. It is nil
	// if the hit passes, or if the time is unknown. Never reports that it can't pass at any
	// time.
	RetryAt *time.Time `json:"retry_at,omitempty"`
	Never   bool       `json:"never,omitempty"`

	// Source is the part of the service that would answer: redis, local,
	// deny_cache or fallback. By is its name for people, such as Redis.
	Source string `json:"source"`
	By     string `json:"by"`

	// Reason is why the backend would not answer: outage, breaker_open, late or overload.
	// Mode is how the fallback would decide: local, allow or deny.
	Reason string `json:"reason,omitempty"`
	Mode   string `json:"mode,omitempty"`

	// Since is the time of the remembered denial or the failure of the backend. Until is the
	// end of the remembered denial.
	Since *time.Time `json:"since,omitempty"`
	Until *time.Time `json:"until,omitempty"`

	// Error is set if nobody could decide.
	Error string `json:"error,omitempty"`
}
