package explain

import (
	"time"

	"github.com/seed-81f232ab/rls/backend/region"
	"github.com/seed-81f232ab/rls/service/quota"
)

// Report describes the answer that the service would give to a request, and why.
type Report struct {
	Domain string    `json:"domain"`
	Place  string    `json:"place,omitempty"` // file and line of the domain, such as "limits.yaml:1"
	Time   time.Time `json:"time"`            // the time of the peek

	Code  string `json:"code,omitempty"`  // the code of the whole response: OK or OVER_LIMIT
	Error string `json:"error,omitempty"` // the error that the service would return in place of a response

	UnknownDomain *UnknownDomain `json:"unknown_domain,omitempty"` // set if no limits file has the domain

	Switches         []string `json:"switches,omitempty"`           // the switches of the whole domain and of SHADOW_MODE
	GlobalShadowMode bool     `json:"global_shadow_mode,omitempty"` // SHADOW_MODE has turned OVER_LIMIT into OK
	Offline          bool     `json:"offline,omitempty"`            // the report was made without a service, so all counters count as empty

	Descriptors []Descriptor `json:"descriptors"`
	Candidate   *Report      `json:"candidate,omitempty"` // the answer of the candidate limits; nil without candidate limits
}

// UnknownDomain describes the domains that the service has.
type UnknownDomain struct {
	Nearest  string   `json:"nearest,omitempty"`   // the domain with the most similar name, if a name is similar
	Domains  []string `json:"domains"`             // the first domains
	Count    int      `json:"count"`               // the number of all domains
	WithRule []string `json:"with_rule,omitempty"` // domains in which each descriptor of the request has a rule
}

// Descriptor explains one descriptor of the request.
type Descriptor struct {
	Descriptor string `json:"descriptor"` // the text of the descriptor: "service=checkout,path=/orders"

	// Code and Remaining are the status in the response. DecidingLimit is the index in Limits of the limit that
	// the status describes, or nil if no limit was counted.
	Code          string `json:"code,omitempty"`
	Remaining     uint32 `json:"remaining"`
	DecidingLimit *int   `json:"deciding_limit,omitempty"`

	Summary string  `json:"summary"` // the outcome in one sentence
	Levels  []Level `json:"levels"`  // one level for each entry that was compared; empty if the request has its own limit

	Rule  string `json:"rule,omitempty"`  // the path of the rule that limits the descriptor: "shop > service=checkout"
	Place string `json:"place,omitempty"` // file and line of the rule

	ShadowMode  bool         `json:"shadow_mode,omitempty"`
	QuotaMode   bool         `json:"quota_mode,omitempty"`
	Enforcement *Enforcement `json:"enforcement,omitempty"` // the field enforce of the rule; nil if the rule can deny all keys

	Hits    int64  `json:"hits"`               // the hits that the call charges
	MaxHits uint32 `json:"max_hits,omitempty"` // a call with more hits is denied; 0 means no bound

	Denial    *Denial    `json:"denial,omitempty"`
	Created   *Override  `json:"created,omitempty"`   // set if the rule was created at run time
	Overrides []Override `json:"overrides,omitempty"` // the overrides of the rule, in the order in which they apply; a switch is last

	Limits []Limit `json:"limits"`
}

// Denial is the body and the headers that a rule adds to the responses that deny a request.
type Denial struct {
	Body    string   `json:"body,omitempty"`
	Headers []string `json:"headers,omitempty"` // each header in the form "name: value"
}

// Level explains the comparison of one entry with the descriptors of one level.
type Level struct {
	Entry    string     `json:"entry"`
	Compared int        `json:"compared"`         // the number of descriptors of this level in the limits files
	Winner   *Candidate `json:"winner,omitempty"` // the descriptor that the entry matches; nil if no descriptor matches

	Others      []Candidate `json:"others,omitempty"`       // the descriptors that match and lose, or that nearly match
	OtherValues int         `json:"other_values,omitempty"` // the number of all descriptors with this key and another value
}

// Candidate is a descriptor of a level.
type Candidate struct {
	Descriptor string `json:"descriptor"` // the key and the value in the limits file
	Place      string `json:"place,omitempty"`
	Match      string `json:"match"`                // exact, condition, pattern, any_value or no_match
	Difference string `json:"difference,omitempty"` // only for no_match
	Reason     string `json:"reason"`               // the reason why the descriptor wins or loses
}

// Enforcement says whether a rule with the field enforce can deny the key of the request.
type Enforcement struct {
	Percent     float64 `json:"percent"`      // the percentage of the keys that the rule can deny
	IncludesKey bool    `json:"includes_key"` // the rule can deny this key
}

// Override is an override in force. Author and SetAt are empty if they are unknown.
type Override struct {
	Target     string     `json:"target"`
	Off        bool       `json:"off,omitempty"` // the override is a switch, which takes the limits out of force
	Reason     string     `json:"reason,omitempty"`
	Author     string     `json:"author,omitempty"`
	SetAt      *time.Time `json:"set_at,omitempty"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	BaseLimits string     `json:"base_limits"` // the limits without the override
}

// Limit explains one limit of the rule.
type Limit struct {
	Limit      string `json:"limit"` // such as "100 per minute"
	Name       string `json:"name,omitempty"`
	State      State  `json:"state"`
	ReplacedBy string `json:"replaced_by,omitempty"` // the limit that replaces this limit: "limit acme of shop > tenant=acme"

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

	Place         string   `json:"place,omitempty"`         // file and line of the limit
	FromRequest   bool     `json:"from_request,omitempty"`  // the request states the limit
	FromDefaults  []string `json:"from_defaults,omitempty"` // fields that come from the defaults of the domain
	DefaultsPlace string   `json:"defaults_place,omitempty"`
	FromOverride  []string `json:"from_override,omitempty"` // fields that come from overrides

	Counter *Counter `json:"counter,omitempty"` // set if State is Counted

	// Shares are the shares of Envoys with quotas. They do not count in Counter.
	Shares *quota.CounterShares `json:"shares,omitempty"`

	NextHit *Answer `json:"next_hit,omitempty"`
}

// State says how a limit takes part in the decision.
type State string

// The states of a limit.
const (
	Counted   State = "counted"   // the hits are counted
	Unlimited State = "unlimited" // the limit admits all hits
	Off       State = "off"       // the limit has enabled: false
	Replaced  State = "replaced"  // another limit of the request replaces this limit
	Rejected  State = "rejected"  // the service rejects the request and counts nothing
)

// Counter is the counter of a limit. Its numbers come from a peek.
type Counter struct {
	Name    string `json:"name"`              // the name, such as domain|key=value
	Tag     string `json:"tag"`               // the kind of counter, such as fw60
	Server  string `json:"server,omitempty"`  // the address of the Redis that has the counter, if a Redis has the counter
	Key     string `json:"key,omitempty"`     // the key of the counter in Redis
	Permits int64  `json:"permits,omitempty"` // the permits of the counter that this replica holds

	Region *region.HeldHits `json:"region,omitempty"` // what the region has of a limit of all regions; nil for other limits

	// Degraded reports that the backend did not answer. The numbers then come from the fallback
	// of this replica, and Capacity is the share of the limit that the fallback may admit.
	Degraded bool `json:"degraded,omitempty"`
	Unknown  bool `json:"unknown,omitempty"` // the counter could not be read, so the numbers mean nothing

	Capacity  int64 `json:"capacity"`
	Spent     int64 `json:"spent"`
	Remaining int64 `json:"remaining"` // negative if more hits were charged than the limit allows

	WindowStart   *time.Time `json:"window_start,omitempty"`    // the start of the window, if the end of the window resets the counter
	ResetAt       *time.Time `json:"reset_at,omitempty"`        // the time at which nothing is spent; empty if nothing is spent now
	FirstExpiryAt *time.Time `json:"first_expiry_at,omitempty"` // the time at which the first hold expires; only for algorithm concurrency
}

// Answer is the answer of one limit to the next hit.
type Answer struct {
	Allowed   bool  `json:"allowed"`
	Remaining int64 `json:"remaining"` // the remaining hits after this hit; at least 0

	RetryAt *time.Time `json:"retry_at,omitempty"` // the time at which a denied hit would pass if no other hit came; empty if unknown, and in mode deny
	Never   bool       `json:"never,omitempty"`    // the hit can't pass at any time

	Source string `json:"source"`           // the part of the service that would answer, such as deny_cache
	By     string `json:"by"`               // the same part in words, such as Redis
	Reason string `json:"reason,omitempty"` // the reason why the backend would not answer: outage, breaker_open, late or overload
	Mode   string `json:"mode,omitempty"`   // the way in which the fallback would decide: local, allow or deny

	Since *time.Time `json:"since,omitempty"` // the start of the remembered denial, or of the failure of the backend
	Until *time.Time `json:"until,omitempty"` // the end of the remembered denial
	Error string     `json:"error,omitempty"` // the error if no part of the service could decide
}
